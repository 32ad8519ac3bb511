"""What the build adds to wheel and sdist: shell completions, manual pages, links that work on PyPI.

`make release` and the tests set both variables. PACKAGE_SHARE is a directory that `lab.share` has
filled: pip puts its files below share/ of the environment. PACKAGE_HOMEPAGE is the address of the
public repository: relative links of README.md become links into it, at the tag of the version.

Law: without the variables a build needs nothing but this checkout, and leaves both out.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SHARE = "build/share"
"""Where an sdist has the files, so that a wheel of it has them, too."""
_LINK = re.compile(r"(!?)(\[[^\]]*\]\()([^()\s]+)(\))")


class ShareHook(BuildHookInterface):
    """Adds the completions and the manual pages."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the directory, if there is one."""
        del version
        share = Path(os.environ.get("PACKAGE_SHARE") or Path(self.root, SHARE))
        if not share.is_dir():
            return
        if self.target_name == "wheel":
            build_data["shared_data"][str(share)] = "share"
        else:
            build_data["force_include"][str(share)] = SHARE


class ReadmeHook(MetadataHookInterface):
    """Makes README.md the description, with links that work on a page elsewhere."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme`, and the addresses of the project."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        homepage = os.environ.get("PACKAGE_HOMEPAGE", "")
        if homepage:
            text = absolute(text, homepage, metadata["version"])
        metadata["urls"] = {"Repository": homepage} if homepage else {}
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, homepage: str, version: str) -> str:
    """A Markdown text whose relative links lead to a tag of the repository.

    >>> absolute("[a](docs/a.md#b) ![c](c.svg) [d](#e) [f](https://g)", "https://h/i", "1.0")
    '[a](https://h/i/blob/v1.0/docs/a.md#b) ![c](https://h/i/raw/v1.0/c.svg) [d](#e) [f](https://g)'
    """

    def linked(found: re.Match[str]) -> str:
        image, begin, link, end = found.groups()
        if not re.match(r"[a-z]+:|#", link):
            link = f"{homepage}/{'raw' if image else 'blob'}/v{version}/{link}"
        return f"{image}{begin}{link}{end}"

    return _LINK.sub(linked, text)
