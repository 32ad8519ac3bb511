"""docker/ and kubernetes/: what their own judges say, and that they agree with the code."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from binlog2s3 import __version__
from binlog2s3.config.backup import BACKUP
from binlog2s3.config.drill import DRILL
from binlog2s3.config.file import FILE_OPTIONS, read_file
from binlog2s3.config.options import ENVIRONMENT_PREFIX
from binlog2s3.config.restore import RESTORE
from binlog2s3.config.serve import SERVE_OPTIONS

ROOT = Path(__file__).parents[2]
DOCKER, KUBERNETES = ROOT / "docker", ROOT / "kubernetes"
DOCKERFILE, COMPOSE = DOCKER / "Dockerfile", DOCKER / "compose.yaml"
BASE, EXAMPLE = KUBERNETES / "base", KUBERNETES / "example"
PORT, USER, SPOOL = 9275, 10001, "/var/lib/binlog2s3"


def program(name: str) -> str:
    """A program of this environment."""
    return str(Path(sys.executable).parent / name)


def judged(*argv: str) -> tuple[int, str]:
    """Exit code and words."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def loaded(path: Path) -> dict[str, Any]:
    """A YAML file of one document."""
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def resources() -> list[Path]:
    """The manifests that the base names."""
    return [BASE / name for name in loaded(BASE / "kustomization.yaml")["resources"]]


# docker/


def test_hadolint_is_content() -> None:
    """Nothing to be said against the Dockerfile, but what it says itself why not."""
    assert judged(program("hadolint"), str(DOCKERFILE)) == (0, "")


def test_the_dockerfile_agrees_with_the_code() -> None:
    """The spool is where the code's default is; the ignored context lets through what it copies."""
    text = DOCKERFILE.read_text()
    [default] = [option.default for option in FILE_OPTIONS if option.name == "spool"]
    assert str(default) == SPOOL
    assert f"VOLUME {SPOOL}\n" in text
    assert f"USER {USER}:{USER}\n" in text
    assert f"EXPOSE {PORT}\n" in text
    assert "ENTRYPOINT" in text
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    [version] = set(re.findall(r"FROM python:3\.(\d+)-slim-\w+", text))
    assert int(version) >= int(least.rpartition(".")[2])
    let_through = {
        line[1:].rstrip("/")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = re.findall(r"(?m)^COPY (?!--from)(.*)$", text)
    wanted = {name.rstrip("/") for line in copied for name in line.split()[:-1]}
    assert wanted == let_through
    assert all((ROOT / name).exists() for name in wanted)


def test_the_image_says_where_it_comes_from() -> None:
    """The labels that registries and scanners read; the release gives the values."""
    text = DOCKERFILE.read_text()
    labels = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", text))
    assert labels >= {
        *("title", "description", "licenses", "version", "revision"),
        *("source", "url", "documentation", "vendor"),
    }
    release = (ROOT / ".github/workflows/release.yml").read_text()
    for name in re.findall(r"(?m)^ARG (\w+)=unknown$", text):
        assert re.search(rf"(?m)^            {name}=\$\{{\{{ ", release), name


def test_a_release_names_the_digest_of_each_base() -> None:
    """All that the Dockerfile begins with, resolved once; the image has that of its own base."""
    text = DOCKERFILE.read_text()
    bases = re.findall(r"(?m)^FROM (\S+)", text)
    job = loaded(ROOT / ".github/workflows/release.yml")["jobs"]["image"]
    steps = {step["id"]: step for step in job["steps"] if "id" in step}
    contexts = dict(
        line.split("=docker-image://docker.io/library/")
        for line in steps["push"]["with"]["build-contexts"].splitlines()
    )
    assert contexts.keys() == set(bases)
    resolved = dict(re.findall(r"([A-Z]+)=([a-z]+:[\w.-]+)", steps["bases"]["run"]))
    for name, base in resolved.items():
        image = base.partition(":")[0]
        assert contexts[base] == f"{image}@${{{{ steps.bases.outputs.{name} }}}}"
    assert resolved.keys() == {"PYTHON", "SID"}
    assert f'image.base.name="docker.io/library/{bases[-1]}"' in text
    assert resolved["PYTHON"] == bases[-1]
    assert 'image.base.digest="${BASE_DIGEST}"' in text
    assert "BASE_DIGEST=${{ steps.bases.outputs.PYTHON }}" in steps["push"]["with"]["build-args"]


def test_mysqlbinlog_has_a_version() -> None:
    """A build of the same checkout does not get the program of another series."""
    text = DOCKERFILE.read_text()
    assert re.search(r'(?m)^ARG MYSQL_VERSION="[0-9]+\.[0-9]+\.[0-9]+-\*"$', text)
    for package in ("mysql-server-core", "mysql-client-core"):
        assert f'"{package}=${{MYSQL_VERSION}}"' in text


def compose_environment() -> Iterator[tuple[str, Mapping[str, str]]]:
    """The environment of each service that is ours."""
    for name, service in loaded(COMPOSE)["services"].items():
        if "build" in service and "environment" in service:
            yield name, service["environment"]


def test_the_trial_names_options_that_are() -> None:
    """Each BINLOG2S3_ variable is an option; each secret is one, with a file in the checkout."""
    known = {option.environment for option in FILE_OPTIONS}
    of_serve = {option.environment for option in SERVE_OPTIONS}
    secrets = loaded(COMPOSE)["secrets"]
    for name, environment in compose_environment():
        ours = {key for key in environment if key.startswith(ENVIRONMENT_PREFIX)}
        assert ours, name
        assert ours <= (known | of_serve if name == "serve" else known)
        for value in environment.values():
            if value.startswith("/run/secrets/"):
                assert value.removeprefix("/run/secrets/") in secrets
    for secret in secrets.values():
        assert (DOCKER / secret["file"]).is_file()
    assert f"0.0.0.0:{PORT}" in COMPOSE.read_text()


def test_the_trial_is_confined_and_in_order() -> None:
    """Ours are read-only, without capabilities; each waits for what it needs to be well."""
    services = loaded(COMPOSE)["services"]
    ours = [service for service in services.values() if "build" in service]
    assert len(ours) == 4
    health = services["binlog2s3"]["healthcheck"]["test"]
    assert f"CMD {json.dumps(health[1:])}" in DOCKERFILE.read_text()
    for service in ours:
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        for other, how in service.get("depends_on", {}).items():
            ends = other in ("bucket", "serve-certificate")
            wanted = "service_completed_successfully" if ends else "service_healthy"
            assert how == {"condition": wanted}
            assert wanted != "service_healthy" or "healthcheck" in services[other]
    restore = {name for name, one in services.items() if one.get("profiles") == ["restore"]}
    assert restore == {"target", "pitr"}
    serve = services["serve"]
    assert {name for name, one in services.items() if one.get("profiles") == ["serve"]} == {
        "serve",
        "serve-certificate",
    }
    status = serve["environment"]["BINLOG2S3_STATUS_LISTEN"].rpartition(":")[2]
    assert serve["healthcheck"]["test"][-1] == f"http://127.0.0.1:{status}"
    listen = serve["environment"]["BINLOG2S3_LISTEN"].rpartition(":")[2]
    assert serve["ports"] == [f"127.0.0.1:{port}:{port}" for port in (listen, status)]


def test_the_trial_rolls_forward_by_pitr_while_our_image_has_no_server() -> None:
    """`restore` needs mysqld: as soon as the image has it, the profile is to use `restore`."""
    carried = re.findall(r"RUN sh /carry\.sh \w+ (.*)", DOCKERFILE.read_text())
    programs = {name for line in carried for name in line.split()}
    assert programs == {"mysqlbinlog", "mysqldump", "mariadb-binlog", "mariadb-dump"}
    assert "pitr" in loaded(COMPOSE)["services"]["pitr"]["entrypoint"]
    assert "ours no server program" in COMPOSE.read_text()


def test_the_guide_names_what_the_trial_has() -> None:
    """Services and the password in the guide's commands are those of the trial."""
    text = (ROOT / "docs/guides/docker.md").read_text()
    found = re.search(r"<!-- begin docker trial -->(.*)<!-- end docker trial -->", text, re.DOTALL)
    assert found
    password = (DOCKER / "trial/mysql-root-password").read_text()
    services = loaded(COMPOSE)["services"]
    named = re.findall(r"docker compose (?:exec|run --rm)(?: -e MYSQL_PWD=(\S+))? (\S+)", found[1])
    assert len(named) == 6
    for given, service in named:
        assert service in services
        assert given in ("", password)


# kubernetes/


def test_the_manifests_are_valid() -> None:
    """Against Kubernetes' own schemas, strictly; the Prometheus Operator's apart."""
    files = [
        path
        for path in sorted(KUBERNETES.glob("*/*.yaml"))
        if path.name not in ("kustomization.yaml", "Chart.yaml", "values.yaml")
    ]
    others = {path for path in files if "monitoring.coreos.com" in path.read_text()}
    assert {path.stem for path in others} == {"podmonitor", "servicemonitor", "prometheusrule"}
    own = [str(path) for path in files if path not in others]
    code, said = judged(program("kubernetes-validate"), "--strict", *own)
    assert (code, said.count("passed")) == (0, len(own)), said
    assert "WARN" not in said


def test_every_manifest_is_in_the_base() -> None:
    """No file lies there that kustomize would leave out, and none is named that is missing."""
    named = {path.name for path in resources()} | {"kustomization.yaml", "binlog2s3.toml"}
    assert {path.name for path in BASE.iterdir()} == named
    [generated] = loaded(BASE / "kustomization.yaml")["configMapGenerator"]
    assert generated == {"name": "binlog2s3", "files": ["binlog2s3.toml"]}
    example = loaded(EXAMPLE / "kustomization.yaml")
    assert example["resources"] == ["../base"]
    assert {path.name for path in EXAMPLE.iterdir()} == {"kustomization.yaml", "binlog2s3.toml"}


def test_the_example_marks_what_is_to_be_changed() -> None:
    """Each line with a value of the example's own source, or the comment above it, says so."""
    own = re.compile(r"orders-primary|example\.com|acme|binlogs|newTag|region =")
    for path in sorted(EXAMPLE.iterdir()):
        before, found = "", 0
        for line in path.read_text().splitlines():
            if own.search(line) and not line.lstrip().startswith("#"):
                assert "# change" in before + line, f"{path.name}: {line}"
                found += 1
            before = before + line if line.lstrip().startswith("#") else ""
        assert found >= 4


def pod() -> dict[str, Any]:
    """The pod's specification."""
    found: dict[str, Any] = loaded(BASE / "deployment.yaml")["spec"]["template"]["spec"]
    return found


def confined(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The one container of a pod; it runs without root, and can write nothing but its volumes."""
    container: dict[str, Any]
    [container] = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    return container


def test_a_pair() -> None:
    """Two replicas on two nodes, one of which is always left; both are of the one selector."""
    spec = loaded(BASE / "deployment.yaml")["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    budget = loaded(BASE / "poddisruptionbudget.yaml")["spec"]
    (term,) = pod()["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    assert budget["maxUnavailable"] == 1
    assert spec["selector"] == budget["selector"] == term["podAffinityTerm"]["labelSelector"]


def test_no_restart_because_something_else_is_away() -> None:
    """Liveness asks /live, which is well while others are away; only readiness asks /health."""
    [container] = pod()["containers"]
    asked = {name: container[name]["httpGet"]["path"] for name in container if "Probe" in name}
    assert asked == {
        "startupProbe": "/live",
        "livenessProbe": "/live",
        "readinessProbe": "/health",
    }
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 600
    assert {container[name]["httpGet"]["port"] for name in asked} == {"metrics"}


def test_the_pod_is_confined() -> None:
    """No root, nothing writable but its volumes, limits; it ends before it is killed."""
    spec = pod()
    container = confined(spec)
    assert spec["securityContext"]["runAsUser"] == USER
    assert spec["securityContext"]["fsGroup"] == USER
    assert set(container["resources"]["limits"]) == {"memory", "ephemeral-storage"}
    assert spec["terminationGracePeriodSeconds"] > 10
    assert spec["automountServiceAccountToken"] is False
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


@pytest.mark.parametrize("folder", [BASE, EXAMPLE], ids=lambda folder: folder.name)
def test_the_configuration_is_one(folder: Path) -> None:
    """Every name in it is an option's; port, spool and secret are where the pod has them."""
    config = folder / "binlog2s3.toml"
    given = read_file(config)
    assert given
    tables = tomllib.loads(config.read_text())
    [container] = pod()["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    environment = {one["name"]: one["value"] for one in container["env"]}
    [port] = container["ports"]
    assert tables["stream"]["metrics_listen"] == f"0.0.0.0:{port['containerPort']}"
    assert port["containerPort"] == PORT
    assert tables["spool"]["dir"] == mounts["spool"] == SPOOL
    assert tables["mysql"]["password_file"] == f"{mounts['secret']}/mysql-password"
    assert environment["BINLOG2S3_CONFIG"] == f"{mounts['config']}/{config.name}"
    assert environment["AWS_SHARED_CREDENTIALS_FILE"] == f"{mounts['secret']}/aws-credentials"
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    assert tables["spool"]["max_bytes"] == "8G"
    assert volumes["spool"]["emptyDir"]["sizeLimit"] == "10Gi"
    assert container["resources"]["limits"]["ephemeral-storage"] == "12Gi"
    assert volumes["config"]["configMap"]["name"] == "binlog2s3"


@pytest.mark.parametrize(
    "document",
    [
        "docs/guides/kubernetes.md",
        "docs/guides/credentials.md",
        "kubernetes/example/kustomization.yaml",
    ],
)
def test_the_documents_make_the_secret_that_is_mounted(document: str) -> None:
    """Namespace, name and keys in the commands are those of the example and of the pod."""
    example = loaded(EXAMPLE / "kustomization.yaml")
    [patch] = [one["patch"] for one in example["patches"] if "secretName" in one["patch"]]
    [volume] = yaml.safe_load(patch)["spec"]["template"]["spec"]["volumes"]
    [container] = pod()["containers"]
    tables = tomllib.loads((EXAMPLE / "binlog2s3.toml").read_text())
    keys = {
        *(Path(tables["mysql"][name]).name for name in ("password_file", "ssl_ca")),
        *(
            Path(one["value"]).name
            for one in container["env"]
            if one["name"] == "AWS_SHARED_CREDENTIALS_FILE"
        ),
    }
    text = re.sub(r" \\\n#? *", " ", (ROOT / document).read_text())
    made = re.findall(r"kubectl --namespace (\S+) create secret generic (\S+) (.*)", text)
    assert made
    for namespace, name, files in made:
        assert namespace == example["namespace"]
        assert name == volume["secret"]["secretName"]
        assert set(re.findall(r"--from-file=([^=\s]+)=", files)) == keys
    for namespace in re.findall(r"kubectl create namespace (\S+)", text):
        assert namespace == example["namespace"]
    deployment = example["namePrefix"] + loaded(BASE / "deployment.yaml")["metadata"]["name"]
    assert set(re.findall(r"deployment/(\S+)", text)) <= {deployment}


def common(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of Kubernetes' own recommendation, without their prefix."""
    return {name.removeprefix("app.kubernetes.io/"): value for name, value in labels.items()}


@pytest.mark.parametrize(
    ("file", "component"),
    [
        ("base/kustomization.yaml", "streamer"),
        ("networkpolicy/networkpolicy.yaml", "streamer"),
        ("servicemonitor/servicemonitor.yaml", "streamer"),
        ("rules/prometheusrule.yaml", "rules"),
        ("dashboard/kustomization.yaml", "dashboard"),
        ("serve/serve.yaml", "serve"),
        ("serve/service.yaml", "serve"),
        ("backup/cronjob.yaml", "backup"),
        ("drill/cronjob.yaml", "drill"),
        ("restore/job.yaml", "restore"),
        ("restore/volume.yaml", "restore"),
    ],
)
def test_what_runs_has_the_common_labels(file: str, component: str) -> None:
    """Component, whole and this version; no selector has the version, which changes."""
    document = loaded(KUBERNETES / file)
    pairs = [one["pairs"] for one in document["labels"]] if "labels" in document else []
    found = common({name: value for one in pairs for name, value in one.items()})
    if not pairs:
        found = common(document["metadata"]["labels"])
        selector = document["spec"].get("selector", {})
        assert "version" not in common(selector.get("matchLabels", selector))
    assert found["part-of"] == "binlog2s3"
    assert found["component"] == component
    assert found["version"] == __version__


def test_prometheus_finds_the_pods() -> None:
    """The PodMonitor's port is the pod's; its job's label is one that kustomize puts there."""
    monitor = loaded(BASE / "podmonitor.yaml")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    [container] = pod()["containers"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    [labels, more] = loaded(BASE / "kustomization.yaml")["labels"]
    assert more.keys() == {"pairs", "includeTemplates"}
    assert labels["includeSelectors"] is True
    assert labels["pairs"][monitor["spec"]["jobLabel"]] == "binlog2s3"
    assert 'job="binlog2s3"' in (ROOT / "docs/alerts.yml").read_text()
    service = loaded(BASE / "service.yaml")["spec"]
    assert service["publishNotReadyAddresses"] is True
    assert service["ports"][0]["targetPort"] == endpoint["port"]


def test_what_goes_with_the_base_is_of_it() -> None:
    """Ports and labels are those of the pods; the chart has links to these files, and no copies."""
    monitor = loaded(KUBERNETES / "servicemonitor/servicemonitor.yaml")["spec"]
    pods = loaded(BASE / "podmonitor.yaml")["spec"]
    assert monitor["endpoints"] == pods["podMetricsEndpoints"]
    assert monitor["jobLabel"] == pods["jobLabel"]
    assert monitor["selector"] == pods["selector"]
    [port] = loaded(BASE / "service.yaml")["spec"]["ports"]
    assert port["name"] == monitor["endpoints"][0]["port"]
    policy = loaded(KUBERNETES / "networkpolicy/networkpolicy.yaml")["spec"]
    [container] = pod()["containers"]
    assert policy["podSelector"] == pods["selector"]
    assert policy["ingress"] == [{"ports": [{"port": one["name"]} for one in container["ports"]]}]
    links = {path.name: path for path in (KUBERNETES / "chart/files").iterdir()}
    assert {"alerts.yml", "dashboard.json", "networkpolicy.yaml", "servicemonitor.yaml"} <= set(
        links
    )
    assert all(path.is_symlink() and path.is_file() for path in links.values())
    [made] = loaded(ROOT / "docs/kustomization.yaml")["configMapGenerator"]
    assert made["files"] == [f"binlog2s3.json={links['dashboard.json'].resolve().name}"]


SERVE = KUBERNETES / "serve"


@pytest.mark.parametrize(
    ("name", "args", "options"),
    [("drill", ["drill"], DRILL.options), ("backup", ["backup", "run"], BACKUP["run"].options)],
)
def test_a_cron_job_is_confined(name: str, args: list[str], options: Any) -> None:
    """It names options of its command, runs one at a time, and repeats no failure."""
    spec = loaded(KUBERNETES / f"{name}/cronjob.yaml")["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert spec["jobTemplate"]["spec"]["backoffLimit"] == 0
    container = confined(spec["jobTemplate"]["spec"]["template"]["spec"])
    assert container["args"] == args
    known = {option.environment for option in options} | {"AWS_SHARED_CREDENTIALS_FILE"}
    named = {one["name"] for one in container["env"]}
    assert named <= known
    required = {option.environment for option in options if option.required}
    assert required <= named


def test_the_job_of_restore() -> None:
    """It names options of restore, may be replaced, is confined, and writes into its volume."""
    spec = loaded(KUBERNETES / "restore/job.yaml")["spec"]
    assert spec["backoffLimit"] > 0
    pod = spec["template"]["spec"]
    container = confined(pod)
    known = {option.environment: option for option in RESTORE.options}
    named = {one["name"]: one["value"] for one in container["env"]}
    assert named.keys() <= known.keys() | {"AWS_SHARED_CREDENTIALS_FILE"}
    assert {name for name, option in known.items() if option.required} <= named.keys()
    assert container["args"] == ["restore", "--yes", "--latest"]
    claim = loaded(KUBERNETES / "restore/volume.yaml")["metadata"]["name"]
    [volume] = [one for one in pod["volumes"] if "persistentVolumeClaim" in one]
    assert volume["persistentVolumeClaim"]["claimName"] == claim
    [mount] = [one for one in container["volumeMounts"] if one["name"] == volume["name"]]
    assert named["BINLOG2S3_DATA_DIR"].startswith(f"{mount['mountPath']}/")


def test_the_pod_of_serve() -> None:
    """Options that are, secrets that are mounted, nothing writable, probes as the streamer's."""
    deployment, service = loaded(SERVE / "serve.yaml"), loaded(SERVE / "service.yaml")
    spec = deployment["spec"]["template"]["spec"]
    [container] = spec["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    known = {option.environment for option in (*FILE_OPTIONS, *SERVE_OPTIONS)}
    assert {name for name in environment if name.startswith(ENVIRONMENT_PREFIX)} <= known
    places = [mount["mountPath"] for mount in container["volumeMounts"]]
    for value in environment.values():
        if value.startswith("/"):
            assert str(Path(value).parent) in places
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert all(set(volume) == {"name", "secret"} for volume in spec["volumes"])
    assert spec["securityContext"] == pod()["securityContext"]
    assert container["securityContext"] == pod()["containers"][0]["securityContext"]
    asked = {name: container[name]["httpGet"] for name in container if "Probe" in name}
    assert asked == {
        "startupProbe": {"path": "/live", "port": "status"},
        "livenessProbe": {"path": "/live", "port": "status"},
        "readinessProbe": {"path": "/health", "port": "status"},
    }
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert environment["BINLOG2S3_LISTEN"] == f"0.0.0.0:{ports['replication']}"
    assert environment["BINLOG2S3_STATUS_LISTEN"] == f"0.0.0.0:{ports['status']}"
    assert {one["targetPort"]: one["port"] for one in service["spec"]["ports"]} == ports
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert service["spec"]["selector"] == selector
    assert selector.items() <= labels.items()
    text = (SERVE / "serve.yaml").read_text()
    for volume in spec["volumes"]:
        assert re.search(rf"create secret \w+ {volume['secret']['secretName']} ", text)
