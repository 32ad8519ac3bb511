#!/bin/sh
# Behind a removal or a purge. The spool is never deleted: what is in it may be in no bucket yet.
set -e
case "$1" in
    remove | purge | 0) ;;
    *) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi
if [ -e /var/lib/binlog2s3 ]; then
    echo "binlog2s3: /var/lib/binlog2s3 is kept; it may hold binary logs that no bucket has yet"
fi
exit 0
