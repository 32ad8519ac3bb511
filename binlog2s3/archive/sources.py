"""Which sources a bucket has below a prefix, and what to say if the named one is missing."""

from binlog2s3.archive.codec import SOURCE
from binlog2s3.archive.layout import Layout
from binlog2s3.errors import ArchiveError, StoreError
from binlog2s3.formatting import some
from binlog2s3.store.contract import Store

BEGUN = "its streamer has begun, and the bucket has no binlog of it yet: try again soon"
_MOST_NAMES = 10


def sources(store: Store, prefix: str) -> tuple[list[str], list[str]]:
    """The sources that have an archive under a prefix, and foreign keys. One listing."""
    layout, found, foreign = Layout(prefix, ""), [], []
    for name in store.list_names(layout.sources):
        if _is_source(name):
            found.append(name.rstrip("/"))
        else:
            foreign.append(layout.sources + name)
    return found, foreign


def all_sources(store: Store, prefix: str) -> tuple[list[str], list[str]]:
    """All sources that have any object, in order, and foreign keys. Two listings."""
    names, foreign = sources(store, prefix)
    root = Layout(prefix, "").live.removesuffix("/")
    for name in store.list_names(root):
        if not _is_source(name):
            foreign.append(f"{root}{name}")
        elif name.rstrip("/") not in names:
            names.append(name.rstrip("/"))
    return sorted(names), foreign


def nothing_of(store: Store, prefix: str, source: str | None, target: str) -> ArchiveError:
    """The error if a bucket has nothing of a source, or of any, below a prefix of this URL."""
    text = f"there is nothing below {target}"
    if source:
        text = f"there is nothing of source {source} below {target}"
    return ArchiveError(text, hint=_where_to_look(store, prefix, source))


def _where_to_look(store: Store, prefix: str, source: str | None) -> str:
    """A hint: which sources there are."""
    try:
        names, _ = all_sources(store, prefix)
    except StoreError:  # a policy may allow only one source
        names = []
    if source in names:
        return BEGUN
    if not names:
        return "check that --s3-url is the streamer's bucket and prefix, and that it has started"
    return f"the sources there are: {some(names, _MOST_NAMES)}"


def _is_source(folder: str) -> bool:
    return folder.endswith("/") and bool(SOURCE.fullmatch(folder[:-1]))
