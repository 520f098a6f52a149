"""Files that are written whole or not at all: what every file of this package goes through."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat

__all__ = ["check_writable", "write_whole"]


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file in one step: whoever reads it, at any time, finds the old content or the new, whole.

    The file has the permissions of the one that it replaces, or those of any new file. Where the path is a symbolic
    link, the file that it points to is replaced.

    Args:
        path: the file to make or to replace.
        content: all of it.

    Raises:
        OSError: if it cannot be written; an old file is then as it was.
    """
    target = os.path.realpath(path)
    mode = _mode_to_keep(target)
    part = os.path.join(os.path.dirname(target), f".rcgp-{secrets.token_hex(8)}.part")
    # By os.open and not by tempfile, so that the umask decides on the permissions of a new file.
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode or 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if mode is not None:
                os.chmod(part, mode)
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:  # an interrupt from the keyboard too
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    # The new name is on disk only once its folder is. Not every system can do this, and the file is whole without.
    with contextlib.suppress(OSError):
        folder = os.open(os.path.dirname(target), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the OSError with which :func:`write_whole` would fail, before the work whose result it should write.

    Not every failure can be foreseen: a disk may fill up meanwhile.
    """
    target = os.path.realpath(path)
    try:
        _mode_to_keep(target)
        folder = os.path.dirname(target)
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {folder!r} to write it in")
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, f"the folder {folder!r} cannot be written to")
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None


def _mode_to_keep(target: str) -> int | None:
    """Permissions of the file to be replaced, None where there is none. An error where it must not be replaced."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(mode):  # a device, say, which a renamed file would push aside
        raise OSError(errno.EINVAL, "it is not a regular file")
    if not os.access(target, os.W_OK):  # renaming would not mind
        raise PermissionError(errno.EACCES, "it is write-protected")
    return stat.S_IMODE(mode)
