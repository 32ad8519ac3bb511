"""`pip install` and `pipx install`, from the package index, into a clean environment."""

import sys
from pathlib import Path

import pytest

from tests.installed import build, run, started

pytestmark = pytest.mark.deploy


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_it_installs_as_users_install_it(kind: str, tmp_path: Path) -> None:
    """It brings what it needs and nothing of ours for development; then it starts."""
    (path,) = build(tmp_path / "built").glob(kind)
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "--quiet", path)
    installed = run(*pip, "freeze").lower()
    assert "binlog2s3" in installed
    assert "botocore==" in installed
    for ours in ("pytest", "hatchling", "ruff", "moto"):
        assert f"{ours}==" not in installed
    started(environment / "bin" / "binlog2s3", tmp_path)
