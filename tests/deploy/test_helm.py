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
from tests.deploy.test_kubernetes import VALIDATE, built

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
    for values in (LEAST, LEAST | ALL):
        done = helm("lint", values)
        assert done.returncode == 0, done.stdout
        assert "[WARNING]" not in done.stdout
        assert "[ERROR]" not in done.stdout


def test_what_it_makes_is_valid(tmp_path: Path) -> None:
    """By Kubernetes' own schemas, strictly; two kinds are the Prometheus Operator's."""
    found = made(**ALL)
    own = [one for (kind, _), one in found.items() if kind not in ("PodMonitor", "PrometheusRule")]
    assert len(found) == len(own) + 2
    file = tmp_path / "made.yaml"
    file.write_text(yaml.safe_dump_all(own))
    argv = [str(VALIDATE), "--strict", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed") == len(own)


def test_it_makes_what_kustomize_makes() -> None:
    """The same objects, but for the configuration's name, in which kustomize has its hash."""
    by_kustomize = list(yaml.safe_load_all(built(ROOT / "kubernetes/example")))
    by_helm = made()
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


def test_the_chart_is_of_this_version() -> None:
    """So the image's tag and the labels are."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__
