"""Atomic writing of files: a reader sees the old file or the complete new file."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jaxscale.base.errors import InputError, reason_of


def check_writable(path: str | Path, *read: str | Path | None) -> Path:
    """Check before a computation that a file can be written.

    Args:
        path: the file.
        read: input files of the computation, which must not be overwritten.

    Returns:
        The path.

    Raises:
        InputError: the folder is missing or not writable, or the path is a folder or an input file.
    """
    path = Path(path)
    if path.resolve() in [Path(one).resolve() for one in read if one is not None]:
        raise InputError(f"{path}: is a file that is read and would be overwritten; expected another name")
    _temporary_for(_target(path)).unlink()
    return path


def _target(path: Path) -> Path:
    """Target of a write: the file behind a link is replaced, while the link stays."""
    return path.resolve() if _exists(path) and path.is_symlink() else path


def _temporary_for(path: Path) -> Path:
    """Empty temporary file in the folder of the target; creating a file tests more than permissions."""
    if _exists(path) and path.is_dir():
        raise InputError(f"{path}: is a folder; expected the name of a file")
    if _exists(path) and not path.is_file():
        raise InputError(f"{path}: is a device or a pipe, which has no place for a whole file; expected another name")
    if not (_exists(path.parent) and path.parent.is_dir()):
        raise InputError(f"{path}: folder {str(path.parent)!r} does not exist; expected an existing folder")
    return _temporary_in(path.parent, path, path.stem, path.suffix)


def _temporary_in(folder: Path, path: Path, stem: str, suffix: str = "") -> Path:
    """Empty file in a folder, for a later write to `path`."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{stem}.", suffix=suffix, dir=folder)
    except PermissionError:
        raise InputError(f"{path}: folder {str(folder)!r} is closed to writing; expected one open to it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({reason_of(error)}); expected another name or folder") from None
    os.close(handle)
    return Path(name)


def check_folder(path: str | Path) -> Path:
    """Check before a computation that a folder exists or can be created.

    Args:
        path: the folder.

    Returns:
        The path.

    Raises:
        InputError: the path is a file, or the nearest existing folder above the path is not writable.
    """
    path = Path(path)
    existing = next(p for p in (path, *path.absolute().parents) if _exists(p))
    if not existing.is_dir():
        raise InputError(f"{path}: {str(existing)!r} is a file; expected a folder, or a name for a new one")
    _temporary_in(existing, path, path.name if existing != path else "").unlink()
    return path


def _exists(path: Path) -> bool:
    """Whether a file or folder exists; False for a name beyond the system's limit."""
    try:
        return path.exists()
    except OSError:
        return False


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Context that adds the file name `path` to an OSError without a file name, as of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextlib.contextmanager
def whole_file(path: str | Path, *, private: bool = False) -> Iterator[Path]:
    """Context with a temporary file that replaces `path` when the context ends without error.

    Args:
        path: file to write; an existing file is replaced.
        private: whether only the user may read and write the file.

    Yields:
        Path of the temporary file, with the folder and suffix of `path`.

    Raises:
        InputError: the folder is missing or not writable.
    """
    path = _target(Path(path))
    temporary = _temporary_for(path)
    try:
        with writing(path):
            yield temporary
            if not private:
                # mkstemp creates private files; the file gets the permissions that open() would give.
                mask = os.umask(0)
                os.umask(mask)
                temporary.chmod(0o666 & ~mask)
            # Without fsync, a power failure could leave the new name without the content.
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole(path: str | Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file atomically: readers see the old file or the complete new file.

    Args:
        path: file to write.
        content: text (stored as UTF-8) or bytes.
        private: whether only the user may read and write the file.

    Raises:
        InputError: the folder is missing or not writable.
    """
    with whole_file(path, private=private) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def is_private(state: os.stat_result) -> bool:
    """Whether a file or folder belongs to the user and nobody else may write to it."""
    if not hasattr(os, "geteuid"):  # Windows, whose profiles are closed to others
        return True
    return state.st_uid == os.geteuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
