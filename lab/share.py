"""The manual pages and shell completions, as they lie below share/ of an installation.

The wheel has them (hatch_build.py); the Debian package and the RPM make their own (lab.package).
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

COMPLETIONS = {
    "bash": "bash-completion/completions/binlog2s3",
    "fish": "fish/vendor_completions.d/binlog2s3.fish",
    "zsh": "zsh/site-functions/_binlog2s3",
}
MANUAL = "man/man1"


def fill(share: Path, command: Sequence[str] = (sys.executable, "-m", "binlog2s3")) -> None:
    """Write them below a directory. `command` runs the program that they describe."""
    for shell, name in COMPLETIONS.items():
        path = share / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = subprocess.run([*command, "completion", shell], check=True, capture_output=True)
        path.write_bytes(text.stdout)
    (share / MANUAL).mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, "man", "--output-dir", str(share / MANUAL)], check=True)
