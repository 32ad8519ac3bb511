"""Stand-ins for the images that docker/ names, under their very names, where no registry is near.

Each is made of what the real one is made of, as far as Debian and Go have it: a root of the same
Debian release with the same minor version of Python, a MySQL of the same series, MinIO itself and
its client. So Dockerfile and compose.yaml run here unchanged. What they are not: byte for byte the
published images. The entry point of `mysql` here does only what the trial asks of the real one
(passwords by files, a user, the scripts of /docker-entrypoint-initdb.d).

`python -m lab.images` makes those that are not there yet.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab import apt, get
from lab.cache import Unavailable, kept, say
from lab.containers import Engine, built, tools
from lab.disk import temporary_directory

PYTHON = "docker.io/library/python:3.13-slim-trixie"
SID = "docker.io/library/debian:sid-slim"
MYSQL = "docker.io/library/mysql:9.7"
MINIO = "quay.io/minio/minio:RELEASE.2025-09-07T16-13-09Z.hotfix.7aa24e772"
ALL = (PYTHON, SID, MYSQL, MINIO)

_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_ROOT_SECONDS = 900
_LABEL = "binlog2s3.stand-in"

_PYTHON = """
FROM localhost/debian-trixie
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
RUN ln -s /usr/bin/python3 /usr/local/bin/python3 \\
    && ln -s python3 /usr/local/bin/python \\
    && ln -s /usr/bin/pip3 /usr/local/bin/pip
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
CMD ["python3"]
"""

_SID = """
FROM localhost/debian-sid
CMD ["bash"]
"""

_MYSQL = f"""
FROM {SID}
RUN apt-get update && apt-get install -y --no-install-recommends \\
    mysql-server-core mysql-client-core && rm -rf /var/lib/apt/lists/*
RUN groupadd --system --gid 999 mysql && useradd --system --uid 999 --gid 999 mysql \\
    && mkdir -p /var/lib/mysql /var/lib/mysql-files /var/run/mysqld /docker-entrypoint-initdb.d \\
    && chown mysql:mysql /var/lib/mysql /var/lib/mysql-files /var/run/mysqld
COPY --chmod=0755 entrypoint.sh /usr/local/bin/docker-entrypoint.sh
VOLUME /var/lib/mysql
EXPOSE 3306 33060
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["mysqld"]
"""

_MYSQL_ENTRYPOINT = """#!/bin/bash
set -euo pipefail
datadir=/var/lib/mysql socket=/var/run/mysqld/mysqld.sock
[ "${1:0:1}" != - ] || set -- mysqld "$@"
[ "$1" = mysqld ] || exec "$@"
shift
if [ "$(id -u)" = 0 ]; then
    chown -R mysql:mysql "$datadir"
    exec setpriv --reuid=mysql --regid=mysql --init-groups "$0" mysqld "$@"
fi
own=(--datadir="$datadir" --socket="$socket" --pid-file="$datadir/mysqld.pid"
    --basedir=/usr --loose-mysqlx=OFF)
if [ ! -d "$datadir/mysql" ]; then
    from_file() { local file=${1}_FILE; echo "${!1:-$([ -z "${!file:-}" ] || cat "${!file}")}"; }
    root=$(from_file MYSQL_ROOT_PASSWORD) password=$(from_file MYSQL_PASSWORD)
    [ -n "$root" ] || { echo "MYSQL_ROOT_PASSWORD or MYSQL_ROOT_PASSWORD_FILE is needed"; exit 1; }
    mysqld --no-defaults "${own[@]}" --initialize-insecure
    mysqld --no-defaults "${own[@]}" "$@" --skip-networking --daemonize \\
        --log-error="$datadir/init.err"
    sql() { MYSQL_PWD=${given-} mysql --no-defaults --socket="$socket" --user=root "$@"; }
    sql <<SQL
SET sql_log_bin = 0;
ALTER USER 'root'@'localhost' IDENTIFIED BY '$root';
CREATE USER 'root'@'%' IDENTIFIED BY '$root';
GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;
SQL
    given=$root
    [ -z "${MYSQL_USER:-}" ] || sql -e "CREATE USER '$MYSQL_USER'@'%' IDENTIFIED BY '$password'"
    for script in /docker-entrypoint-initdb.d/*.sql; do
        [ ! -f "$script" ] || { echo "running $script"; sql < "$script"; }
    done
    MYSQL_PWD=$root mysqladmin --no-defaults --socket="$socket" --user=root shutdown
fi
exec mysqld --no-defaults "${own[@]}" "$@"
"""

_MINIO = f"""
FROM {PYTHON}
COPY --chmod=0755 minio mc /usr/bin/
VOLUME /data
EXPOSE 9000
ENTRYPOINT ["/usr/bin/minio-entrypoint.sh"]
COPY --chmod=0755 entrypoint.sh /usr/bin/minio-entrypoint.sh
CMD ["minio"]
"""

# The published image takes `server /data` for `minio server /data`.
_MINIO_ENTRYPOINT = """#!/bin/sh
[ "$1" = minio ] || set -- minio "$@"
exec "$@"
"""


def make(engine: Engine, tags: Sequence[str] = ALL) -> None:
    """Make the stand-ins that are not in the engine's store yet; the first time some minutes.

    Raises Unavailable where Debian's packages or Go's modules cannot be had.
    """
    # what builds of earlier days have left
    engine.podman("image", "prune", "--force", "--filter", "until=72h")
    makers = {PYTHON: _make_python, SID: _make_sid, MYSQL: _make_mysql, MINIO: _make_minio}
    for tag in tags:
        if engine.label(tag, _LABEL) != _version(tag):
            say(f"making a stand-in for {tag}")
            with temporary_directory() as context:
                makers[tag](engine, context)


def _version(tag: str) -> str:
    """What changes where the stand-in's definition does."""
    definitions = {
        PYTHON: _PYTHON,
        SID: _SID,
        MYSQL: _SID + _MYSQL + _MYSQL_ENTRYPOINT,
        MINIO: _PYTHON + _MINIO + _MINIO_ENTRYPOINT,
    }
    return hashlib.sha256(definitions[tag].encode()).hexdigest()[:16]


def _build(engine: Engine, tag: str, dockerfile: str, context: Path) -> None:
    built(engine, tag, dockerfile, context, "--label", f"{_LABEL}={_version(tag)}")


def _make_python(engine: Engine, context: Path) -> None:
    packages = ("ca-certificates", "python3", "python3-venv", "python3-pip")
    _import(engine, "trixie", packages)
    shutil.copy(_AUTHORITIES, context / _AUTHORITIES.name)
    _build(engine, PYTHON, _PYTHON, context)


def _make_sid(engine: Engine, context: Path) -> None:
    _import(engine, "sid", ())
    _build(engine, SID, _SID, context)


def _make_mysql(engine: Engine, context: Path) -> None:
    make(engine, [SID])
    (context / "entrypoint.sh").write_text(_MYSQL_ENTRYPOINT)
    _build(engine, MYSQL, _MYSQL, context)


def _make_minio(engine: Engine, context: Path) -> None:
    make(engine, [PYTHON])
    for program in (get.minio(), get.mc()):
        shutil.copy(program, context / program.name)
    (context / "entrypoint.sh").write_text(_MINIO_ENTRYPOINT)
    _build(engine, MINIO, _MINIO, context)


def _import(engine: Engine, suite: str, packages: Sequence[str]) -> None:
    """A minimal root of a Debian release as an image; kept in the cache as a tar file."""
    tag = f"localhost/debian-{suite}"
    if not engine.has_image(tag):
        engine.podman("import", "--quiet", str(_root(suite, packages)), tag)


def _root(suite: str, packages: Sequence[str]) -> Path:
    def bootstrap(into: Path) -> str:
        say(f"making a minimal root of Debian {suite}, about a minute")
        perl = shutil.which("perl")
        if perl is None:
            raise Unavailable("a Debian root", "there is no perl here", "install perl")
        source = f"deb [signed-by={apt.KEYRING}] {apt.mirror('a Debian root')} {suite} main"
        program = tools() / "root/usr/bin/mmdebstrap"
        asked = [f"--include={','.join(packages)}"] if packages else []
        asked += [f"--aptopt={line}" for line in apt.ways()]
        how = ["--quiet", "--mode=root", "--variant=minbase", *asked]
        done = subprocess.run(
            [perl, str(program), *how, suite, str(into / "root.tar"), source],
            capture_output=True,
            text=True,
            timeout=_ROOT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            reason = f"mmdebstrap fails: {' '.join(done.stderr.splitlines()[-3:])}"
            raise Unavailable("a Debian root", reason, "a way to the machine's Debian mirror")
        return suite

    return kept(f"root-{suite}", bootstrap) / "root.tar"


def main() -> int:
    """Make all of them; 1 and a clear line where that cannot be done."""
    try:
        with temporary_directory() as directory, Engine(directory) as engine:
            make(engine)
    except Unavailable as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
