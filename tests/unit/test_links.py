"""Every link between the documents leads to something: a file that is there, a heading in it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "packaging/README.md"],
)
LINK = re.compile(r"\]\(([^()\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)


def without_code(text: str) -> str:
    """The text without fences and code spans, whose brackets are no links."""
    return re.sub(r"`[^`\n]*`", "code", re.sub(r"(?ms)^ *```.*?^ *```$", "", text))


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub, and the site, give to the headings of a page."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(slug)
    return found


def broken(path: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for groups in LINK.findall(without_code(path.read_text(encoding="utf-8"))):
        link = groups[0] or groups[1]
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Also those that leave docs/."""
    assert broken(path) == []


def test_every_page_is_in_the_contents_of_the_site() -> None:
    """docs/index.md names each page, and each once: otherwise `make docs` fails."""
    index = ROOT / "docs/index.md"
    trees = re.findall(r"(?ms)^```\{toctree\}\n(.*?)^```$", index.read_text(encoding="utf-8"))
    named = [
        (ROOT / "docs" / f"{line}.md").resolve()
        for tree in trees
        for line in tree.splitlines()
        if line and not line.startswith(":")
    ]
    assert len(named) == len(set(named))
    assert set(named) == {path.resolve() for path in DOCUMENTS if path != index}
