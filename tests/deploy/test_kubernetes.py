"""The manifests as kustomize makes them: valid, and each name and label where it must be."""

import re
import shutil
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


def test_the_guides_patch_gives_a_token(tmp_path: Path) -> None:
    """For clusters outside of AWS: variables, a mount and a token of STS's audience, all valid."""
    guide = (ROOT / "docs/guides/kubernetes.md").read_text()
    [patch] = re.findall(r"(?ms)^```yaml\n(- patch: .*?)^```", guide)
    (tmp_path / "kubernetes").mkdir()
    shutil.copytree(ROOT / "kubernetes/base", tmp_path / "kubernetes/base")
    (tmp_path / "kubernetes/own").mkdir()
    (tmp_path / "kubernetes/own/kustomization.yaml").write_text(
        yaml.safe_dump({"resources": ["../base"], "patches": yaml.safe_load(patch)})
    )
    text = built(tmp_path / "kubernetes/own")
    spec = by_kind(text)["Deployment"]["spec"]["template"]["spec"]
    [container] = spec["containers"]
    [file] = [one["value"] for one in container["env"] if one["name"].endswith("TOKEN_FILE")]
    [mount] = [one for one in container["volumeMounts"] if one["name"] == "aws"]
    [volume] = [one for one in spec["volumes"] if one["name"] == "aws"]
    [source] = volume["projected"]["sources"]
    assert file == f"{mount['mountPath']}/{source['serviceAccountToken']['path']}"
    assert {one["name"] for one in spec["volumes"]} >= {"aws", "spool", "secret"}
    (tmp_path / "built.yaml").write_text(text)
    argv = [str(VALIDATE), "--strict", str(tmp_path / "built.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
