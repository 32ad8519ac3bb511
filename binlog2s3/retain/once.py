"""Documents of the archive that are written once: base backups, floors, results of drills."""

from binlog2s3.archive.catalog import fetch
from binlog2s3.archive.codec import Document
from binlog2s3.errors import PreconditionError
from binlog2s3.store.contract import Store
from binlog2s3.stream.remote import where_absent


def put_once(store: Store, key: str, document: Document) -> None:
    """Write a document that nothing replaces. Raises PreconditionError if there is another one.

    ArchiveError if it could not be read again. If an answer was lost, what is there is this one.
    """
    data = document.to_json()
    document.from_json(data, key)
    try:
        where_absent(lambda absent: store.put(key, data, if_absent=absent, kept=True))
    except PreconditionError:
        if fetch(store, key, document.MOST) != data:
            raise
