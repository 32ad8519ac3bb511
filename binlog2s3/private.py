"""Files in directories that only this user, or root, may write to. Every error is an OSError.

Law: a link in the place of a file is never followed, and what another user owns is neither read nor
written: not by root either, who could be led anywhere by it. Nothing is changed before that is
known.
"""

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path


def trusts(user: int, owner: int) -> bool:
    """Whether a user works with what this owner has: only with their own, and with root's."""
    return owner in (user, 0)


def check_directory(path: Path, *, others: Collection[int] = ()) -> None:
    """Raise OSError if it is no directory, or another user owns it, or a link that leads to it.

    `others`: users that may own it, too.
    """
    for found in (path.lstat(), path.stat()):
        _check_owner(found, others)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def check_inner(path: Path, *, others: Collection[int] = ()) -> None:
    """The same for a directory that this program made in its own one: it must be no link."""
    if path.is_symlink():
        raise _link()
    check_directory(path, others=others)


def is_own_directory(path: Path, *, others: Collection[int] = ()) -> bool:
    """Whether `check_inner` finds nothing wrong."""
    try:
        check_inner(path, others=others)
    except OSError:
        return False
    return True


def open_here(path: Path, flags: int) -> int:
    """Open a file, or make it (mode 0600); its descriptor. No link is followed, no pipe waited for.

    Whose it is does not matter.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)


def open_own(path: Path, flags: int) -> int:
    """Open a file, or make it (mode 0600) if `flags` say so; its descriptor.

    Raises OSError if it is a link, has a second name, is no regular file, or is another user's.
    """
    try:
        descriptor = open_here(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link() from error
        raise
    try:
        _check_file(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create(path: Path) -> int:
    """Make an empty file (mode 0600) in the place of what has its name; its descriptor."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _check_file(found: os.stat_result) -> None:
    _check_owner(found)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise OSError(errno.EINVAL, "it is not a file with one name")


def _check_owner(found: os.stat_result, others: Collection[int] = ()) -> None:
    user = os.geteuid()
    if not trusts(user, found.st_uid) and found.st_uid not in others:
        raise PermissionError(
            errno.EPERM, f"it belongs to user {found.st_uid}, and this program runs as user {user}"
        )


def _link() -> OSError:
    return OSError(errno.ELOOP, "a link is in its place")
