"""The chart, by helm itself: valid, as kustomize makes it, and strict about its values."""

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from binlog2s3 import __version__
from binlog2s3.config.file import read_file
from lab import get
from tests.conftest import _had
from tests.deploy.test_kubernetes import are_valid, overlay

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
CHART = ROOT / "kubernetes/chart"
LEAST = {
    "source": "orders-primary",
    "mysql.host": "db1.example.com",
    "s3.url": "s3://acme-binlogs/prod",
    "s3.region": "eu-central-1",
    "secretName": "orders-primary",
    "roleArn": "arn:aws:iam::111122223333:role/binlog2s3-orders-primary",
    "image.repository": "registry.example.com/binlog2s3",
}
ALL = dict.fromkeys(("prometheusRule", "dashboard", "networkPolicy"), "true")
MORE = ALL | {"serviceMonitor": "true", "monitoringLabels.release": "stack"}


def helm(command: str, values: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Lint the chart, or print what it makes with these values."""
    name = ["orders-primary"] if command == "template" else []
    given = [f"--set={name}={value}" for name, value in values.items()]
    argv = [str(_had(get.helm)), command, *name, str(CHART), "--namespace=binlogs", *given]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def made(**values: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The documents of a release, by kind and name."""
    done = helm("template", LEAST | values)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    assert len(found) == len(documents)
    return found


def test_lint_is_content() -> None:
    """With the least values and with everything."""
    for values in (LEAST, LEAST | MORE):
        done = helm("lint", values)
        assert done.returncode == 0, done.stdout
        assert "[WARNING]" not in done.stdout
        assert "[ERROR]" not in done.stdout


def test_what_it_makes_is_valid(tmp_path: Path) -> None:
    """With everything, and either monitor."""
    for monitor, values in {"PodMonitor": ALL, "ServiceMonitor": MORE}.items():
        found = made(**values)
        kinds = {kind for kind, _ in found}
        assert kinds >= {monitor, "PrometheusRule", "NetworkPolicy"}
        assert len(kinds & {"PodMonitor", "ServiceMonitor"}) == 1
        are_valid(found.values(), tmp_path)


@pytest.mark.parametrize("more", [False, True])
def test_it_makes_what_kustomize_makes(more: bool, tmp_path: Path) -> None:
    """The same objects, but for the configuration's name, in which kustomize has its hash."""
    components = ["../networkpolicy", "../servicemonitor"] if more else []
    by_kustomize = list(overlay(tmp_path, components=components).values())
    by_helm = made(**({"networkPolicy": "true", "serviceMonitor": "true"} if more else {}))
    assert len(by_helm) == len(by_kustomize)
    for one in by_kustomize:
        kind, name = one["kind"], "orders-primary-binlog2s3"
        other = by_helm[kind, name]
        assert other["metadata"]["labels"].pop("app.kubernetes.io/managed-by") == "Helm"
        assert one["metadata"].pop("namespace") == "binlogs"
        if kind == "ConfigMap":
            toml, values = (tomllib.loads(x["data"]["binlog2s3.toml"]) for x in (one, other))
            assert toml == values
            continue
        if kind == "Deployment":
            pod = other["spec"]["template"]
            assert pod["metadata"]["labels"].pop("app.kubernetes.io/managed-by") == "Helm"
            assert pod["metadata"].pop("annotations").keys() == {"checksum/config"}
            volumes = [x["spec"]["template"]["spec"]["volumes"] for x in (one, other)]
            for some in volumes:
                some.sort(key=lambda volume: str(volume["name"]))
                [config] = [volume for volume in some if volume["name"] == "config"]
                assert config["configMap"].pop("name").startswith(name)
        assert other == one


def test_a_value_that_is_missing_or_wrong_is_refused() -> None:
    """A role without its account, a bucket without its form, an unknown name: nothing is made."""
    for name in ("source", "mysql.host", "s3.url", "secretName", "image.repository"):
        done = helm("template", {key: value for key, value in LEAST.items() if key != name})
        assert done.returncode != 0, name
        assert f"'/{name.replace('.', '/')}'" in done.stderr
    for name, value in {
        "roleArn": "arn:aws:iam:::role/binlog2s3",
        "s3.url": "acme-binlogs",
        "replicas": "3",
        "mysql.sslMode": "DISABLED",
        "sorce": "x",
    }.items():
        done = helm("template", LEAST | {name: value})
        assert done.returncode != 0, name


def test_more_options_go_into_the_file(tmp_path: Path) -> None:
    """Below their tables, with their types; they win over those of the chart."""
    more = {
        "config.mysql.port": "3307",
        "config.stream.flush_interval": "5s",
        "config.spool.max_bytes": "4G",
        "config.stream.exit_on_other_writer": "true",
    }
    file = tmp_path / "binlog2s3.toml"
    name = "orders-primary-binlog2s3"
    file.write_text(made(**more)["ConfigMap", name]["data"]["binlog2s3.toml"])
    assert read_file(file)
    tables = tomllib.loads(file.read_text())
    assert tables["mysql"]["port"] == 3307
    assert tables["stream"]["flush_interval"] == "5s"
    assert tables["stream"]["exit_on_other_writer"] is True
    assert tables["spool"]["max_bytes"] == "4G"
    one, other = (made(**values)["Deployment", name] for values in ({}, more))
    annotations = [x["spec"]["template"]["metadata"]["annotations"] for x in (one, other)]
    assert annotations[0] != annotations[1]  # a change restarts the pods


def test_rules_and_dashboard_are_those_of_the_documents() -> None:
    """Word by word, but for the address of the pages."""
    found = made(**ALL, runbookPrefix="https://wiki.example.com/")
    rules = found["PrometheusRule", "orders-primary-binlog2s3"]["spec"]
    text = (ROOT / "docs/alerts.yml").read_text()
    prefixed = re.sub(r"(runbook_url: )docs/", r"\1https://wiki.example.com/docs/", text)
    assert rules == yaml.safe_load(prefixed)
    dashboard = found["ConfigMap", "orders-primary-binlog2s3-dashboard"]
    assert json.loads(dashboard["data"]["binlog2s3.json"]) == json.loads(
        (ROOT / "docs/grafana-dashboard.json").read_text()
    )


def test_what_prometheus_selects_has_its_label() -> None:
    """And keeps its own labels; no pod and no selector has it."""
    own = "monitoringLabels.app\\.kubernetes\\.io/name"
    found = made(**ALL, **{"monitoringLabels.release": "stack", own: "other"})
    labels = {kind: one["metadata"]["labels"] for (kind, _), one in found.items()}
    selected = {kind for kind, some in labels.items() if some.get("release") == "stack"}
    assert selected == {"PodMonitor", "PrometheusRule"}
    assert {some["app.kubernetes.io/name"] for some in labels.values()} == {"binlog2s3"}


def test_each_value_is_documented() -> None:
    """A comment stands above each value; the schema has the same ones."""

    def names(values: dict[str, Any], of: str = "") -> set[str]:
        inner = (names(v, f"{of}{k}.") for k, v in values.items() if isinstance(v, dict))
        return {of + k for k in values}.union(*inner)

    def allowed(schema: dict[str, Any], of: str = "") -> set[str]:
        some = schema.get("properties", {})
        return {of + k for k in some}.union(*(allowed(v, f"{of}{k}.") for k, v in some.items()))

    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert names(yaml.safe_load(text)) | {"global"} == allowed(schema)  # helm's own
    before = ""
    for line in text.splitlines():
        if re.match(r" *\w+: ", line):
            assert before.lstrip().startswith("# "), line
        before = line


def test_the_chart_is_of_this_version() -> None:
    """So the image's tag and the labels are."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
