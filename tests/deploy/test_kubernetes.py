"""The manifests as kustomize makes them: valid, and each name and label where it must be."""

import subprocess
import sys
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("name", ["base", "example"])
def test_what_kustomize_makes_is_valid(name: str, tmp_path: Path) -> None:
    """By Kubernetes' own schemas, strictly; the PodMonitor is none of Kubernetes' own."""
    text = built(ROOT / "kubernetes" / name)
    assert set(by_kind(text)) == {
        "ConfigMap",
        "Deployment",
        "PodDisruptionBudget",
        "PodMonitor",
        "Service",
        "ServiceAccount",
    }
    file = tmp_path / "built.yaml"
    file.write_text(text)
    done = subprocess.run(
        [str(VALIDATE), "--strict", str(file)], capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert said.count("passed") == 5
    assert [line for line in said.splitlines() if "WARN" in line and "PodMonitor" not in line] == []


def test_an_overlay_has_all_to_itself(tmp_path: Path) -> None:
    """A second source beside the example shares no name and no pod with it; its file is its own."""
    for folder in ("base", "example"):
        (tmp_path / folder).mkdir()
        for file in (ROOT / "kubernetes" / folder).iterdir():
            (tmp_path / folder / file.name).write_bytes(file.read_bytes())
    (tmp_path / "stock").mkdir()
    for file in (tmp_path / "example").iterdir():
        text = file.read_text().replace("orders-primary", "stock")
        (tmp_path / "stock" / file.name).write_text(text)
    found = [by_kind(built(tmp_path / name)) for name in ("example", "stock")]
    for kind in found[0]:
        names = {one[kind]["metadata"]["name"] for one in found}
        assert len(names) == 2, kind
    for one, name in zip(found, ("orders-primary", "stock"), strict=True):
        pod = one["Deployment"]["spec"]["template"]
        labels = {"app.kubernetes.io/name": "binlog2s3", "app.kubernetes.io/instance": name}
        assert pod["metadata"]["labels"] == labels
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
