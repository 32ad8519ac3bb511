"""What the help of each command ends with: examples, and the exit codes. Values only.

Place in the flow: beside `cli`. A line of its own with a backspace keeps click from
folding what follows it.
"""

EXIT_CODES = """\b
Exit codes:
  0 done, 1 defect, 2 usage, 3 configuration, 4 MySQL, 5 spool, 6 store,
  7 archive, 8 recovery, 9 another writer has taken over, 130 interrupted
"""

STREAM = """\b
Examples:
  # a server on this host, to AWS (keys from boto3's own chain)
  binlog2s3 stream --source orders-primary --mysql-user repl \\
      --mysql-password-file /etc/binlog2s3/orders-primary.password \\
      --s3-url s3://acme-binlogs/prod --region eu-central-1

\b
  # another store, another host, TLS checked
  binlog2s3 stream --source orders-primary --mysql-host db1 --mysql-user repl \\
      --mysql-password-file pw --mysql-ssl-mode VERIFY_IDENTITY --mysql-ssl-ca ca.pem \\
      --s3-url s3://binlogs --endpoint-url https://minio:9000 --addressing-style path

\b
  # everything from a file
  binlog2s3 stream --config /etc/binlog2s3/orders-primary.toml
"""

LIST = """\b
Examples:
  # all sources below a prefix (keys from boto3's own chain; reading is enough)
  binlog2s3 list --s3-url s3://acme-binlogs/prod --region eu-central-1

\b
  # one source, where the streamer's own file says
  binlog2s3 list --config /etc/binlog2s3/orders-primary.toml

\b
  # one lineage, for a program: the names of its archived binlogs
  binlog2s3 list --s3-url s3://acme-binlogs/prod --source orders-primary \\
      --lineage 20260102T030405Z-3e11fa47-a1b2 --json |
      jq -r '.sources[].lineages[].binlogs[] | select(.state == "archived").name'
"""

CHECK = """\b
Examples:
  # everything that the streamer of this file needs, as the user that it runs as
  # (of the systemd unit: as root, with the unit's file of AWS keys, if there is one)
  export AWS_SHARED_CREDENTIALS_FILE=/etc/binlog2s3/orders-primary.aws
  binlog2s3 check --config /etc/binlog2s3/orders-primary.toml

\b
  # for a program: what fails, and what to do
  binlog2s3 check --config /etc/binlog2s3/orders-primary.toml --json |
      jq -r '.parts[] | select(.result == "fail") | .name + ": " + .hint'
"""

STATUS = """\b
Examples:
  # the streamer of this host, where its own file says; if it does not run, its bucket
  binlog2s3 status --config /etc/binlog2s3/orders-primary.toml

\b
  # from anywhere (keys from boto3's own chain; reading is enough)
  binlog2s3 status --s3-url s3://acme-binlogs/prod --source orders-primary

\b
  # every source of a bucket, the worst first, again and again
  binlog2s3 status --s3-url s3://acme-binlogs/prod --all --watch --interval 10

\b
  # for Nagios and its like: exit 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN (also of every error)
  binlog2s3 status --s3-url s3://acme-binlogs/prod --all --expect sources.txt --check

\b
  # for a program: what may be deleted on the server
  binlog2s3 status --config /etc/binlog2s3/orders-primary.toml --json | jq -r .purge.statement
"""

VERIFY = """\b
Examples:
  # all sources below a prefix, by names, sizes, entries and the store's checksums
  binlog2s3 verify --s3-url s3://acme-binlogs/prod --region eu-central-1

\b
  # every byte of what came in the last days, where the streamer's own file says
  binlog2s3 verify --config /etc/binlog2s3/orders-primary.toml --deep --since 2026-01-02T00:00:00Z

\b
  # what the auditors ask: can monday's backup still be brought to now?
  binlog2s3 verify --config /etc/binlog2s3/orders-primary.toml --from-backup /backup/monday

\b
  # before a PURGE BINARY LOGS: is all that the server has in the bucket?
  binlog2s3 verify --config /etc/binlog2s3/orders-primary.toml --against-source

\b
  # entries that lack, made again (needs s3:PutObject below archive/)
  binlog2s3 verify --config /etc/binlog2s3/orders-primary.toml --repair
"""

PITR = """\b
Examples (the streamer's own file; a target that was restored and knows its GTIDs):
  # what would be done, up to the newest commit in the bucket; changes nothing
  binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml \\
      --target-socket /run/mysqld/mysqld.sock --target-user root --latest --dry-run

\b
  # and do it
  binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml \\
      --target-socket /run/mysqld/mysqld.sock --target-user root --latest --stop-target-threads

\b
  # up to just before a DROP TABLE (the plan shows the transactions around the stop)
  binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml --target-host db9 \\
      --target-user root --target-password-file pw --stop-target-threads \\
      --before-gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213

\b
  # up to a time, by the source's clock
  binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml --target-host db9 \\
      --target-user root --target-password-file pw --stop-target-threads \\
      --to-time "2026-01-02 14:59:59.5+01:00"

\b
  # everything but one transaction
  binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml --target-host db9 \\
      --target-user root --target-password-file pw --stop-target-threads \\
      --latest --skip-gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213

\b
  # no server at hand: the files, and a README with the command that applies them
  binlog2s3 pitr --config /etc/binlog2s3/orders-primary.toml --from-backup /backup/monday \\
      --latest --output-dir /restore/binlogs
"""

FIND = """\b
Examples (the streamer's own file; from any machine, reading the bucket is enough):
  # who dropped orders at about half past three?
  binlog2s3 find --config /etc/binlog2s3/orders-primary.toml --table shop.orders \\
      --type ddl --between 2026-01-02T15:00Z/2026-01-02T16:00Z

\b
  # the transactions that deleted the most rows of it, since midnight
  binlog2s3 find --config /etc/binlog2s3/orders-primary.toml --table shop.orders \\
      --type delete --min-rows 1000 --between 2026-01-02T00:00+01:00/

\b
  # the last 10 that changed anything in a database
  binlog2s3 find --config /etc/binlog2s3/orders-primary.toml --table 'shop.*' --limit 10

\b
  # what is in one transaction, for a program
  binlog2s3 find --config /etc/binlog2s3/orders-primary.toml --json \\
      --gtid 3e11fa47-71ca-11e1-9e33-c80aa9429562:48213 | jq '.transactions[0].changes'
"""

HEALTH = """\b
Examples:
  # in a container's file
  HEALTHCHECK CMD ["binlog2s3", "health", "--config", "/etc/binlog2s3/orders-primary.toml"]

\b
  # of a systemd unit, as root
  binlog2s3 health --spool /var/lib/binlog2s3/orders-primary ||
      systemctl status binlog2s3@orders-primary

\b
Exit codes:
  0 healthy, 1 everything else
"""

CONFIG = """\b
Examples:
  # a file to begin with: every option, its default, what it means
  binlog2s3 config --example > /etc/binlog2s3/orders-primary.toml

\b
  # what holds, with the environment and this file, and where each value comes from
  binlog2s3 config --show --config /etc/binlog2s3/orders-primary.toml
"""

COMPLETION = """\b
Examples:
  # in ~/.bashrc
  eval "$(binlog2s3 completion bash)"

\b
  # in ~/.zshrc, behind compinit
  eval "$(binlog2s3 completion zsh)"

\b
  # once
  binlog2s3 completion fish > ~/.config/fish/completions/binlog2s3.fish
"""
