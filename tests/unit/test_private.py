"""Files where another user may have put something: no link is followed, nothing of his is used."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from binlog2s3 import private

STRANGER = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
MAKE = os.O_RDWR | os.O_CREAT


def to_a_file(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def to_nothing(path: Path, secret: Path) -> None:
    path.symlink_to(secret.with_name("new"))


def a_second_name(path: Path, secret: Path) -> None:
    path.hardlink_to(secret)


def a_pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def a_directory(path: Path, _: Path) -> None:
    path.mkdir()


TRAPS = (to_a_file, to_nothing, a_second_name, a_pipe, a_directory)


@pytest.mark.parametrize("trap", TRAPS)
def test_what_is_no_file_of_ours_is_not_opened(
    tmp_path: Path, trap: Callable[[Path, Path], None]
) -> None:
    """Nothing behind it is made, changed or waited for."""
    secret, path = tmp_path / "secret", tmp_path / "lock"
    secret.write_text("kept")
    trap(path, secret)
    with pytest.raises(OSError, match=r"link|one name|[Dd]irectory"):
        private.open_own(path, MAKE)
    assert secret.read_text() == "kept"
    assert not secret.with_name("new").exists()


@pytest.mark.parametrize("trap", TRAPS[:-1])
def test_a_new_file_takes_the_place_of_what_was_there(
    tmp_path: Path, trap: Callable[[Path, Path], None]
) -> None:
    """What a link named stays as it was."""
    secret, path = tmp_path / "secret", tmp_path / "note"
    secret.write_text("kept")
    trap(path, secret)
    os.close(private.create(path))
    assert secret.read_text() == "kept"
    assert not secret.with_name("new").exists()
    assert path.lstat().st_mode == 0o100600


@as_root
def test_what_another_user_owns_is_not_used(tmp_path: Path) -> None:
    """Neither a file, nor a directory, nor a link to one of ours; by root either."""
    file, directory, link = tmp_path / "lock", tmp_path / "spool", tmp_path / "link"
    file.touch()
    directory.mkdir()
    link.symlink_to(directory)
    private.check_directory(link)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(PermissionError, match=f"belongs to user {STRANGER}"):
        private.check_directory(link)
    os.chown(directory, STRANGER, STRANGER)
    os.chown(file, STRANGER, STRANGER)
    for use in (
        lambda: private.check_directory(directory),
        lambda: private.check_inner(directory),
        lambda: private.open_own(file, MAKE),
    ):
        with pytest.raises(PermissionError, match=f"belongs to user {STRANGER}"):
            use()
    assert not private.is_own_directory(directory)


def test_a_link_in_the_place_of_an_inner_directory(tmp_path: Path) -> None:
    """Not even one to a directory of ours; the operator's own path may be a link."""
    (tmp_path / "other").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "other")
    private.check_directory(tmp_path / "run")
    with pytest.raises(OSError, match="a link is in its place"):
        private.check_inner(tmp_path / "run")
    with pytest.raises(NotADirectoryError):
        private.check_directory(Path("/dev/null"))
