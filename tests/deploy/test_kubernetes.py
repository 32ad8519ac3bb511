"""The manifests as kustomize makes them: valid, and each name and label where it must be."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema  # comes with kubernetes-validate
import pytest
import yaml

from lab import get
from tests.conftest import _had

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
VALIDATE = Path(sys.executable).parent / "kubernetes-validate"


def built(folder: Path) -> str:
    """What `kustomize build` prints."""
    argv = [str(_had(get.kustomize)), "build", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def by_kind(text: str) -> dict[str, dict[str, Any]]:
    """The documents; there is one of each kind."""
    documents = list(yaml.safe_load_all(text))
    found = {document["kind"]: document for document in documents}
    assert len(found) == len(documents)
    return found


def operators_judge(kind: str) -> jsonschema.Draft202012Validator:
    """The Prometheus Operator's own definition; a field that it does not name is refused."""
    file = _had(get.prometheus_operator) / f"monitoring.coreos.com_{kind.lower()}s.yaml"
    [version] = yaml.safe_load(file.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]

    def close(some: Any) -> None:
        if isinstance(some, dict):
            if some.get("type") == "object" and "properties" in some:
                some.setdefault("additionalProperties", False)
            for one in some.values():
                close(one)
        elif isinstance(some, list):
            for one in some:
                close(one)

    close(schema)
    return jsonschema.Draft202012Validator(schema)  # unchecked: one of its patterns is Go's


def are_valid(documents: Iterable[dict[str, Any]], folder: Path) -> None:
    """By Kubernetes' own schemas, strictly, and those of the Prometheus Operator."""
    own = []
    for document in documents:
        if document["apiVersion"] == "monitoring.coreos.com/v1":
            operators_judge(document["kind"]).validate(document)
        else:
            own.append(document)
    if own:
        file = folder / "documents.yaml"
        file.write_text(yaml.safe_dump_all(own))
        argv = [str(VALIDATE), "--strict", str(file)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert said.count("passed") == len(own)
        assert "WARN" not in said


def of_the_checkout(folder: Path) -> Path:
    """A copy of what kustomize reads, to change something in it: its `kubernetes`."""
    shutil.copytree(ROOT / "kubernetes", folder / "kubernetes", symlinks=True)
    (folder / "docs").mkdir()
    for name in ("kustomization.yaml", "grafana-dashboard.json"):
        shutil.copy(ROOT / "docs" / name, folder / "docs" / name)
    return folder / "kubernetes"


def overlay(folder: Path, **more: Any) -> dict[str, dict[str, Any]]:
    """What the example makes with more in its kustomization."""
    file = of_the_checkout(folder) / "example/kustomization.yaml"
    given = yaml.safe_load(file.read_text())
    for name, items in more.items():
        given[name] = [*given.get(name, []), *items]
    file.write_text(yaml.safe_dump(given))
    return by_kind(built(file.parent))


def guides(pattern: str) -> Any:
    """A block of YAML in the guide that begins like this."""
    guide = (ROOT / "docs/guides/kubernetes.md").read_text()
    [block] = re.findall(rf"(?ms)^```yaml\n({pattern}.*?)^```", guide)
    return yaml.safe_load(block)


KINDS = {
    *("ConfigMap", "Deployment", "PodDisruptionBudget"),
    *("PodMonitor", "Service", "ServiceAccount"),
}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("base", KINDS),
        ("example", KINDS),
        ("rules", {"PrometheusRule"}),
        ("dashboard", {"ConfigMap"}),
    ],
)
def test_what_kustomize_makes_is_valid(name: str, kinds: set[str], tmp_path: Path) -> None:
    """Each folder that is applied, or that an overlay has as its resource."""
    found = by_kind(built(ROOT / "kubernetes" / name))
    assert set(found) == kinds
    are_valid(found.values(), tmp_path)


def test_the_operators_schema_is_strict() -> None:
    """A field that it does not know, or a wrong type, is refused."""
    [good] = by_kind(built(ROOT / "kubernetes/rules")).values()
    judge = operators_judge("PrometheusRule")
    judge.validate(good)
    for name, value in {"runbook": "x", "expr": [], "for": "5 minutes"}.items():
        bad = json.loads(json.dumps(good))
        bad["spec"]["groups"][0]["rules"][0][name] = value
        with pytest.raises(jsonschema.ValidationError):
            judge.validate(bad)


def test_components_go_with_an_overlay(tmp_path: Path) -> None:
    """As the guide switches them on: one monitor; pods and Service of the source alone."""
    found = overlay(tmp_path, **guides("components: "))
    assert set(found) == KINDS - {"PodMonitor"} | {"NetworkPolicy", "ServiceMonitor"}
    are_valid(found.values(), tmp_path)
    monitor, policy = found["ServiceMonitor"]["spec"], found["NetworkPolicy"]["spec"]
    own = found["Deployment"]["spec"]["selector"]["matchLabels"]
    assert own["app.kubernetes.io/instance"] == "orders-primary"
    assert monitor["selector"]["matchLabels"] == policy["podSelector"]["matchLabels"] == own
    assert own.items() <= found["Service"]["metadata"]["labels"].items()
    names = {one["metadata"]["name"] for kind, one in found.items() if kind != "ConfigMap"}
    assert names == {"orders-primary-binlog2s3"}


def test_the_guides_label_is_on_what_prometheus_selects(tmp_path: Path) -> None:
    """And on nothing else."""
    found = overlay(tmp_path, resources=["../rules"], **guides("patches:\n  - target"))
    labelled = {kind for kind, one in found.items() if "release" in one["metadata"]["labels"]}
    assert labelled == {"PodMonitor", "PrometheusRule"}


def test_rules_and_dashboard_are_those_of_the_documents() -> None:
    """Word by word; the dashboard's name stays when it changes."""
    text = built(ROOT / "kubernetes/rules")
    [rules] = by_kind(text).values()
    alerts = [rule for group in rules["spec"]["groups"] for rule in group["rules"]]
    assert text.count("runbook_url: docs/") == len(alerts)  # what the guide's sed looks for
    assert rules["spec"] == yaml.safe_load((ROOT / "docs/alerts.yml").read_text())
    [dashboard] = by_kind(built(ROOT / "kubernetes/dashboard")).values()
    assert dashboard["metadata"]["name"] == "binlog2s3-dashboard"
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    text = (ROOT / "docs/grafana-dashboard.json").read_text()
    assert dashboard["data"] == {"binlog2s3.json": text}


def test_a_role_has_to_be_given() -> None:
    """Without one the base asks for none: no account is made up."""
    text = built(ROOT / "kubernetes/base")
    assert "annotations" not in by_kind(text)["ServiceAccount"]["metadata"]
    assert "arn:" not in text


def test_the_guides_patch_gives_a_token(tmp_path: Path) -> None:
    """For clusters outside of AWS: variables, a mount and a token of STS's audience, all valid."""
    found = overlay(tmp_path, patches=guides("- patch: "))
    spec = found["Deployment"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    [file] = [one["value"] for one in container["env"] if one["name"].endswith("TOKEN_FILE")]
    [mount] = [one for one in container["volumeMounts"] if one["name"] == "aws"]
    [volume] = [one for one in spec["volumes"] if one["name"] == "aws"]
    [source] = volume["projected"]["sources"]
    assert file == f"{mount['mountPath']}/{source['serviceAccountToken']['path']}"
    assert {one["name"] for one in spec["volumes"]} >= {"aws", "spool", "secret"}
    are_valid(found.values(), tmp_path)


def test_no_selector_has_the_version() -> None:
    """A Deployment's selector cannot be changed; the pods have the labels."""
    found = by_kind(built(ROOT / "kubernetes/example"))
    spec = found["Deployment"]["spec"]
    own = {f"app.kubernetes.io/{name}" for name in ("component", "part-of", "version")}
    assert not own & set(spec["selector"]["matchLabels"])
    assert own <= set(spec["template"]["metadata"]["labels"])
    for document in found.values():
        assert own <= set(document["metadata"]["labels"])
    assert not own & set(found["Service"]["spec"]["selector"])
    assert not own & set(found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"])


def test_an_overlay_has_all_to_itself(tmp_path: Path) -> None:
    """A second source beside the example shares no name and no pod with it; its file is its own."""
    folder = of_the_checkout(tmp_path)
    (folder / "stock").mkdir()
    for file in (folder / "example").iterdir():
        text = file.read_text().replace("orders-primary", "stock")
        (folder / "stock" / file.name).write_text(text)
    found = [by_kind(built(folder / name)) for name in ("example", "stock")]
    for kind in found[0]:
        names = {one[kind]["metadata"]["name"] for one in found}
        assert len(names) == 2, kind
    for one, name in zip(found, ("orders-primary", "stock"), strict=True):
        pod = one["Deployment"]["spec"]["template"]
        labels = {"app.kubernetes.io/name": "binlog2s3", "app.kubernetes.io/instance": name}
        assert labels.items() <= pod["metadata"]["labels"].items()
        for selector in (
            one["Deployment"]["spec"]["selector"]["matchLabels"],
            one["Service"]["spec"]["selector"],
            one["PodMonitor"]["spec"]["selector"]["matchLabels"],
            one["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        ):
            assert selector == labels
        assert pod["spec"]["serviceAccountName"] == one["ServiceAccount"]["metadata"]["name"]
        role = one["ServiceAccount"]["metadata"]["annotations"]["eks.amazonaws.com/role-arn"]
        assert role.endswith(f"/binlog2s3-{name}")
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        config = one["ConfigMap"]
        assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
        assert config["metadata"]["name"] != f"{name}-binlog2s3"  # changes with its content
        assert f'source = "{name}"' in config["data"]["binlog2s3.toml"]
        assert volumes["secret"]["secret"]["secretName"] == name
