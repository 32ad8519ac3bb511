"""The image and the trial of docker/, under podman and the real docker compose.

The images that they are made from are stand-ins of the same names (lab/images.py); Dockerfile,
compose.yaml and the commands in docs/guides/docker.md are the very ones that users run.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from binlog2s3 import __version__
from lab import images
from lab.child import free_port
from lab.containers import CommandFailedError, Engine, compose, tools
from lab.disk import temporary_directory
from lab.load import Load
from lab.mysql import MariadbServer
from lab.s3 import MinioServer
from lab.verify import closed_binlogs, compare
from tests.conftest import _had
from tests.waiting import wait_until

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
IMAGE = "docker.io/library/binlog2s3:trial"
GTID = "3e11fa47-71ca-11e1-9e33-c80aa9429562:48213"
ROOT_PASSWORD = (ROOT / "docker/trial/mysql-root-password").read_text()
# As docker has it where a container is read-only; podman would put a tmpfs over /tmp by itself.
CONFINED = (
    "--read-only",
    "--read-only-tmpfs=false",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """podman, with the image in it as the Dockerfile builds it."""
    _had(tools)
    _had(compose)
    with ExitStack() as stack:
        made = Engine(stack.enter_context(temporary_directory()))
        found = _had(lambda: stack.enter_context(made))
        _had(lambda: images.make(found))
        build(found, IMAGE)
        yield found


def build(engine: Engine, tag: str, *arguments: str) -> None:
    """Build docker/Dockerfile."""
    engine.buildah(
        *("build", "--format", "docker", "--pull-never", "--layers", "--ignorefile"),
        *(str(ROOT / ".dockerignore"), "--build-arg", f"VERSION={__version__}", *arguments),
        *("-f", str(ROOT / "docker/Dockerfile"), "-t", tag, str(ROOT)),
        host_network=True,
    )


def in_image(engine: Engine, script: str, *, image: str = IMAGE) -> str:
    """What a shell prints in a confined container of the image."""
    shell = [*CONFINED, "--entrypoint", "/bin/sh", image, "-c", script]
    return engine.podman("run", "--rm", *shell).strip()


def test_the_image_has_what_it_needs_and_no_more(engine: Engine) -> None:
    """Programs of both flavours run; no root, no compiler, no pip beside it, nothing writable."""
    [image] = json.loads(engine.podman("image", "inspect", IMAGE))
    labels = {key.rpartition(".")[2]: value for key, value in image["Labels"].items()}
    assert labels["title"] == "binlog2s3"
    assert labels["version"] == __version__
    assert labels["vendor"] == "binlog2s3"
    assert labels["documentation"].endswith(f"/blob/v{__version__}/docs/index.md")
    assert image["Config"]["User"] == "10001:10001"
    assert image["Healthcheck"]["Test"] == ["CMD", "binlog2s3", "health"]
    assert image["Config"]["StopSignal"] == "SIGTERM"
    assert in_image(engine, "binlog2s3 --version") == f"binlog2s3, version {__version__}"
    said = in_image(engine, "mysqlbinlog --no-defaults --version")
    [pinned] = re.findall(
        r'ARG MYSQL_VERSION="([0-9.]+)-', (ROOT / "docker/Dockerfile").read_text()
    )
    assert f"Ver {pinned}-" in said
    assert "MariaDB" in in_image(engine, "mariadb-binlog --no-defaults --version")
    dumps = in_image(engine, "mysqldump --no-defaults --version; mariadb-dump --version")
    assert re.search(r"mysqldump +Ver 9\.\d.*\n.*mariadb-dump.*MariaDB", dumps), dumps
    assert in_image(engine, "for p in mysql mariadb; do command -v $p; done; true") == ""
    assert in_image(engine, "id -u; id -g").split() == ["10001", "10001"]
    compilers = "for p in gcc cc c++ ld as make patchelf; do command -v $p; done; true"
    assert in_image(engine, compilers) == ""
    assert in_image(engine, "ls /opt/binlog2s3/bin | grep pip; true") == ""
    writable = "for d in / /tmp /var/tmp /opt /opt/binlog2s3 /var/lib/binlog2s3; do"
    writable += " touch $d/x 2>/dev/null && echo $d; done; true"
    assert in_image(engine, writable).split() == ["/var/lib/binlog2s3"]
    # every plugin finds its libraries, so whoever logs in by it can
    plugins = "find / -xdev -name '*.so' -path '*/plugin/*' -exec ldd {} + | grep 'not found'; true"
    assert in_image(engine, plugins) == ""


def test_one_flavour_alone(engine: Engine) -> None:
    """FLAVOURS=mariadb leaves MySQL's programs out."""
    tag = "localhost/binlog2s3:mariadb"
    build(engine, tag, "--build-arg", "FLAVOURS=mariadb")
    assert "MariaDB" in in_image(engine, "mariadb-binlog --version", image=tag)
    assert "MariaDB" in in_image(engine, "mariadb-dump --version", image=tag)
    others = "command -v mysqlbinlog mysqldump; ls -d /opt/mysql; true"
    assert in_image(engine, others, image=tag) == ""


def trial_commands() -> list[str]:
    """The guide's commands of the trial, in their order."""
    text = (ROOT / "docs/guides/docker.md").read_text()
    found = re.search(r"<!-- begin docker trial -->(.*)<!-- end docker trial -->", text, re.DOTALL)
    assert found
    return re.findall(r"(?m)^    (docker .*)$", found[1])


@pytest.fixture
def docker(engine: Engine) -> Iterator[Callable[[str], str]]:
    """Runs a line as the guide has it; what is left of the trial is removed at the end."""

    def run(line: str) -> str:
        argv = shlex.split(line)
        assert argv[0] == "docker"
        return engine.docker(*argv[1:], environment={"COMPOSE_FILE": "docker/compose.yaml"})

    yield run
    run("docker compose --profile restore --profile serve down --volumes --timeout 3")


def sql(docker: Callable[[str], str], service: str, statement: str) -> str:
    """What the mysql client in a service's container prints, without the head."""
    client = f"-e MYSQL_PWD={ROOT_PASSWORD} {service} mysql -u root --batch --skip-column-names"
    return docker(f"docker compose exec {client} -e {shlex.quote(statement)}").strip()


def archived(docker: Callable[[str], str]) -> dict[str, str]:
    """The names of archived binlogs, and the SHA-256 of each as MinIO gives it out."""
    script = (
        "mc alias set t http://127.0.0.1:9000 $(cat /run/secrets/minio-user)"
        " $(cat /run/secrets/minio-password) >&2;"
        " mc find t/binlogs/trial/archive --path '*/binlogs/*' | while read f;"
        " do echo $(mc cat $f | sha256sum) ${f##*/}; done"
    )
    rows = docker(f"docker compose exec minio sh -c {shlex.quote(script)}").split("\n")
    return {row.split()[2]: row.split()[0] for row in rows if len(row.split()) == 3}


def fetched(docker: Callable[[str], str], path: str) -> tuple[int, str]:
    """Status and body of a GET of the streamer's own port, asked from beside it."""
    program = (
        "import urllib.request as r, urllib.error as e\n"
        f"try: a = r.urlopen('http://127.0.0.1:9275{path}', timeout=60)\n"
        "except e.HTTPError as x: a = x\n"
        "print(a.status); print(a.read().decode())"
    )
    said = docker(f"docker compose exec binlog2s3 python3 -c {shlex.quote(program)}")
    status, _, body = said.partition("\n")
    return int(status), body


def test_the_trial(engine: Engine, docker: Callable[[str], str]) -> None:
    """The guide's commands bring the table back; bytes, health and the end are as promised."""
    commands = trial_commands()
    assert len(commands) == 8, commands
    up, status, listing, drop, find, pitr, count, down = commands
    streamer = "binlog2s3-trial-binlog2s3-1"

    docker(up)
    assert "lag" in docker(status)
    assert "mysql-bin.000001" in docker(listing)
    wait_until(lambda: int(sql(docker, "mysql", "SELECT COUNT(*) FROM shop.orders")) > 5)
    settled = [engine.inspect(streamer)["HostConfig"][key] for key in ("ReadonlyRootfs", "CapDrop")]
    assert settled[0] is True
    assert settled[1]
    assert not engine.inspect(streamer)["EffectiveCaps"]

    # the accident, and back
    sql(docker, "mysql", "SET GLOBAL event_scheduler = OFF")
    rows = sql(docker, "mysql", "SELECT COUNT(*) FROM shop.orders")
    before = sql(docker, "mysql", "CHECKSUM TABLE shop.orders EXTENDED")
    docker(drop)
    found = wait_until(
        lambda: re.search(
            r"  (\S+:\d+)  mysql-bin\.\d+:\d+\n\s+ddl shop\.orders\n\s+DROP TABLE", docker(find)
        ),
        what="find shows the DROP",
    )
    assert GTID in pitr
    said = docker(pitr.replace(GTID, found[1]))
    assert re.search(r"proved: .*\(\d+ transactions\), no more and no less", said)
    assert rows in docker(count).split()
    assert sql(docker, "target", "CHECKSUM TABLE shop.orders EXTENDED") == before
    latest = docker("docker compose run --rm pitr")
    assert "proved" in latest
    assert sql(docker, "target", "SELECT @@gtid_executed") == sql(
        docker, "mysql", "SELECT @@gtid_executed"
    )

    # every closed binlog is in the bucket with the server's bytes
    for _ in range(3):
        sql(docker, "mysql", "CREATE TABLE shop.t (n INT); DROP TABLE shop.t; FLUSH BINARY LOGS")
    closed = sql(docker, "mysql", "SHOW BINARY LOGS").split("\n")[:-1]
    names = [line.split()[0] for line in closed]
    assert len(names) >= 4
    wait_until(lambda: set(names) <= set(archived(docker)), what="all closed ones are archived")
    files = " ".join(f"/var/lib/mysql/{name}" for name in names)
    sums = docker(f"docker compose exec mysql sha256sum {files}").strip().split("\n")
    server = {line.split()[1].rpartition("/")[2]: line.split()[0] for line in sums}
    assert {name: archived(docker)[name] for name in names} == server

    # healthy, unhealthy without its source, and well again by itself; the probes' two answers
    wait_until(lambda: engine.health(streamer) == "healthy", 150, what="healthy")
    assert fetched(docker, "/health")[0] == 200
    docker("docker compose stop mysql")
    wait_until(lambda: engine.health(streamer) == "unhealthy", 150, what="unhealthy")
    assert fetched(docker, "/health")[0] == 503
    assert fetched(docker, "/metrics")[0] == 200
    assert engine.inspect(streamer)["State"]["Running"] is True
    docker("docker compose start mysql")
    wait_until(lambda: engine.health(streamer) == "healthy", 150, what="healthy again")

    # the end of it
    docker("docker compose stop --timeout 120 binlog2s3")
    assert engine.inspect(streamer)["State"]["ExitCode"] == 0  # else it was killed
    docker(down)
    assert engine.podman("ps", "--all", "--quiet").split() == []


def test_the_trial_serves_replicas(engine: Engine, docker: Callable[[str], str]) -> None:
    """The command of docs/serve.md; a replica and mysqlbinlog in other containers."""
    (up,) = re.findall(
        r"`(docker compose [^`]*--profile serve [^`]*)`", (ROOT / "docs/serve.md").read_text()
    )
    docker(up.replace(" -f docker/compose.yaml", ""))
    serve = "binlog2s3-trial-serve-1"
    wait_until(lambda: engine.health(serve) == "healthy", 150, what="healthy")
    docker("docker compose --profile restore up -d --wait target")
    password = (ROOT / "docker/trial/mysql-password").read_text().strip()
    sql(
        docker,
        "target",
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST='serve', SOURCE_PORT=3307, SOURCE_SSL=1, "
        f"SOURCE_AUTO_POSITION=1, SOURCE_USER='replica', SOURCE_PASSWORD='{password}'; "
        "START REPLICA",
    )
    wait_until(lambda: _count(docker, "target") > 5, 120, what="rows at the replica")
    sql(docker, "mysql", "SET GLOBAL event_scheduler = OFF")
    gtids = sql(docker, "mysql", "SELECT @@gtid_executed")
    wait_until(
        lambda: sql(docker, "target", "SELECT @@gtid_executed") == gtids, 120, what="all GTIDs"
    )
    check = "CHECKSUM TABLE shop.orders EXTENDED"
    assert sql(docker, "target", check) == sql(docker, "mysql", check)
    status = engine.run("curl", "-s", "http://127.0.0.1:9276/status")
    assert [one["kind"] for one in json.loads(status)["clients"]] == ["replica"]
    fetch = (
        "mysqlbinlog --no-defaults --read-from-remote-server --host=serve --port=3307 "
        f"--user=replica --password={password} --ssl-mode=REQUIRED --to-last-log mysql-bin.000001"
    )
    assert "shop" in docker(f"docker compose exec binlog2s3 {fetch}")
    with pytest.raises(CommandFailedError, match=r"insecure transport|TLS|SSL"):
        docker(f"docker compose exec binlog2s3 {fetch.replace('REQUIRED', 'DISABLED')}")


def _count(docker: Callable[[str], str], service: str) -> int:
    try:
        return int(sql(docker, service, "SELECT COUNT(*) FROM shop.orders"))
    except CommandFailedError:
        return -1


def pod() -> dict[str, Any]:
    """The pod of kubernetes/base."""
    found = yaml.safe_load((ROOT / "kubernetes/base/deployment.yaml").read_text())
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def test_mariadb_as_the_pod_of_the_manifest_runs_it(
    engine: Engine, mariadb: MariadbServer, minio: MinioServer, bucket: str, tmp_path: Path
) -> None:
    """With the manifest's user, environment and volumes it streams MariaDB, under load too."""
    spec = pod()
    [container] = spec["containers"]
    group = spec["securityContext"]["fsGroup"]
    config, secret, spool = (tmp_path / name for name in ("config", "secret", "spool"))
    for folder in (config, secret, spool):
        folder.mkdir()
        folder.chmod(0o2777)  # as the kubelet makes an emptyDir
        engine.run("chown", f"0:{group}", str(folder))
    text = (ROOT / "kubernetes/base/binlog2s3.toml").read_text()
    text = text.replace('host = "mysql.example.svc"', f'host = "127.0.0.1"\nport = {mariadb.port}')
    verified = r'(?m)^ssl_mode = "VERIFY_CA"\nssl_ca = .*\n'  # this server has no certificate
    text, count = re.subn(verified, "", text)
    assert count == 1
    text = text.replace('user = "binlog2s3"', f'user = "{mariadb.repl_user}"')
    text = text.replace("s3://example-binlogs/prod", f"s3://{bucket}/prod")
    text += f'endpoint_url = "{minio.endpoint_url}"\naddressing_style = "path"\n'
    text = text.replace("0.0.0.0:9275", f"127.0.0.1:{free_port()}").replace(
        "eu-central-1", "us-east-1"
    )
    (config / "binlog2s3.toml").write_text(text)
    keys = f"aws_access_key_id = {minio.access_key}\naws_secret_access_key = {minio.secret_key}\n"
    for name, words in {
        "mysql-password": mariadb.password,
        "aws-credentials": f"[default]\n{keys}",
    }.items():
        (secret / name).write_text(words)
        (secret / name).chmod(0o440)
        engine.run("chown", f"0:{group}", str(secret / name))
    environment = {one["name"]: one["value"] for one in container["env"]}
    places = {"spool": spool, "config": config, "secret": secret}
    mounts = [
        f"--volume={places[one['name']]}:{one['mountPath']}{':ro' if one.get('readOnly') else ''}"
        for one in container["volumeMounts"]
        if one["name"] in places
    ]
    user = f"{spec['securityContext']['runAsUser']}:{group}"
    streamer = "pod"
    engine.run(
        *("podman", "run", "--detach", "--name", streamer, "--network=host", *CONFINED),
        *("--user", user, "--tmpfs", "/tmp", *mounts),
        *(f"--env={name}={value}" for name, value in environment.items()),
        *(IMAGE, *container["args"]),
        host_network=True,
    )
    try:
        wait_until(lambda: engine.health(streamer) == "healthy", 150, what="healthy")
        with Load(mariadb, seconds=5, flush_seconds=1) as load:
            load.join()
        closed = closed_binlogs(mariadb)
        assert len(closed) > 3
        client = minio.client()
        wait_until(
            lambda: compare(mariadb, client, bucket, "prod", "example", binlogs=closed).ok,
            what="every closed binlog is archived with the server's bytes",
        )
        with Load(mariadb, seconds=600):
            engine.podman("stop", "--time", "120", streamer)
        assert engine.inspect(streamer)["State"]["ExitCode"] == 0  # else it was killed
    except (AssertionError, CommandFailedError) as error:
        error.add_note(engine.run("sh", "-c", f"podman logs {streamer} 2>&1 | tail -20"))
        raise
    finally:
        engine.podman("rm", "--force", "--time", "1", streamer)
