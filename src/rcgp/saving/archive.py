"""One file for a saved model: a JSON description and named tensors, in the safetensors format.

Unlike a pickle, the file holds text and numbers only, and reading it runs no code. It names the version that wrote it
and has a checksum, so that damage is an error and never a slightly different model. All files are written atomically.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import secrets
import stat
from typing import Any, BinaryIO

import safetensors.torch
import torch
from torch import Tensor

__all__ = [
    "FORMAT_VERSION",
    "SavedModelError",
    "check_writable",
    "own_version",
    "raw_bytes",
    "read_archive",
    "write_archive",
    "write_atomically",
]

#: The layout of the file that this version writes, and the only one that it reads.
FORMAT_VERSION = 2

#: The last version of rcgp that reads each older layout.
_LAST_READER = {1: "0.1.0"}

_FORMAT = "rcgp"
#: Longest header that safetensors accepts, in bytes; a longer one means another kind of file.
_LARGEST_HEADER = 100_000_000
_REALS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class SavedModelError(ValueError):
    """A model cannot be saved, or a file cannot be read as a saved model; the message says why."""


def write_archive(path: str | os.PathLike[str], description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a description and tensors to one file with :func:`write_atomically`. Cost O(size), in memory too.

    Args:
        path: the file to create or replace.
        description: JSON values: dicts with text as keys, lists, text, finite numbers, booleans and None.
        tensors: dense tensors by name, on any device and in any memory layout.

    Raises:
        SavedModelError: for a description or tensor that the file cannot hold, or a path that cannot be written.
    """
    content = _serialised(description, tensors)
    try:
        write_atomically(path, content)
    except FileNotFoundError as error:
        raise SavedModelError(f"{os.fspath(path)!r} could not be written: its folder does not exist") from error
    except (OSError, ValueError) as error:
        raise SavedModelError(f"{os.fspath(path)!r} could not be written: {_reason(error)}") from error


def read_archive(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and tensors of a file made by :func:`write_archive`. Nothing in the file is executed.

    Returns:
        The description, and tensors on the CPU with memory of their own. Cost O(size).

    Raises:
        SavedModelError: for a file that is missing, truncated, damaged, of another program or of another version.
    """
    name = repr(os.fspath(path))
    metadata, content = _checked_content(path, name)
    try:
        tensors = safetensors.torch.load(content)
    except Exception as error:  # its own class of errors, and KeyError for a dtype that torch lacks
        raise SavedModelError(f"{name} is damaged: its tensors cannot be read ({error})") from error
    if metadata.get("sha256") != _digest(metadata, tensors):
        raise SavedModelError(f"{name} is damaged: its content does not match its checksum")
    try:
        description = json.loads(metadata.get("description", ""))
    except (ValueError, RecursionError) as error:
        raise SavedModelError(f"{name} is damaged: its description is not JSON") from error
    if not isinstance(description, dict):
        raise SavedModelError(f"{name} is damaged: its description is not a JSON object")
    # safetensors returns views of its own buffers; clones are ordinary, aligned memory. Made after the checksum, since
    # they would repair a damaged boolean.
    return description, {key: value.clone() for key, value in tensors.items()}


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically: a reader finds the old content or the new, never a part.

    A replaced file keeps its permissions; a new file gets the default ones. Symbolic links are followed.

    Raises:
        OSError: if it cannot be written; an existing file is then unchanged.
    """
    target = os.path.realpath(path)
    mode = _mode_to_keep(target)
    part = os.path.join(os.path.dirname(target), f".rcgp-{secrets.token_hex(8)}.part")
    # os.open instead of tempfile, so that the umask sets the permissions of a new file.
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
    # Flush the folder too, for the new name. Not every system can; the file is complete without it.
    with contextlib.suppress(OSError):
        folder = os.open(os.path.dirname(target), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the OSError with which :func:`write_atomically` would fail, before long work; a disk may still fill up."""
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
    """Permissions of the file to be replaced, ``None`` for a new one; an OSError if it must not be replaced."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(mode):  # such as a device, which a renamed file would replace
        raise OSError(errno.EINVAL, "it is not a regular file")
    if not os.access(target, os.W_OK):  # renaming ignores write protection
        raise PermissionError(errno.EACCES, "it is write-protected")
    return stat.S_IMODE(mode)


def raw_bytes(tensor: Tensor) -> bytes:
    """The numbers of a dense tensor in memory order, row by row."""
    dense = tensor.detach().cpu().contiguous()
    # One number is contiguous with any stride, but not every stride can be viewed as bytes.
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def _serialised(description: dict[str, Any], tensors: dict[str, Tensor]) -> bytes:
    """The bytes of the file."""
    for key, value in tensors.items():
        if not isinstance(key, str) or key == "__metadata__":
            raise SavedModelError(f"a tensor cannot be saved under the name {key!r}")
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.dtype not in _REALS + _INTEGERS:
            kind = f"{value.layout}, {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
            raise SavedModelError(f"{key!r} must be a dense tensor of real numbers, integers or booleans, got {kind}")
    # Clones, since safetensors refuses tensors that share memory.
    owned = {key: value.detach().cpu().clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}
    metadata = {
        "format": _FORMAT,
        "format_version": str(FORMAT_VERSION),
        "rcgp_version": own_version(),
        "description": _strict_json(description),
    }
    metadata["sha256"] = _digest(metadata, owned)
    content = safetensors.torch.save(owned, metadata=metadata)
    if int.from_bytes(content[:8], "little") > _LARGEST_HEADER:
        raise SavedModelError("the description is too long for a file: put large arrays among the tensors")
    return content


def _strict_json(description: dict[str, Any]) -> str:
    """The description as JSON that reads back equal; floats by repr, which is exact."""
    try:
        text = json.dumps(description, allow_nan=False)
        same = json.loads(text) == description
    except (TypeError, ValueError, RecursionError) as error:
        raise SavedModelError(f"the description cannot be written as JSON: {error}") from error
    if not same or not isinstance(description, dict):  # JSON makes text of other keys, and lists of tuples
        raise SavedModelError("the description must be made of dicts with text as keys, lists and plain values")
    return text


def _digest(metadata: dict[str, str], tensors: dict[str, Tensor]) -> str:
    """SHA-256 of the metadata and, by name, of dtype, shape and bytes of each tensor."""
    digest = hashlib.sha256()
    signed = {key: value for key, value in metadata.items() if key != "sha256"}
    digest.update(json.dumps(signed, sort_keys=True).encode() + b"\n")
    for key in sorted(tensors):
        tensor = tensors[key]
        digest.update(json.dumps([key, str(tensor.dtype), list(tensor.shape)]).encode() + b"\n")
        digest.update(raw_bytes(tensor))
    return digest.hexdigest()


def own_version() -> str:
    """The version of rcgp that is installed."""
    try:
        return importlib.metadata.version("rcgp")
    except importlib.metadata.PackageNotFoundError:  # a source tree
        return "unknown"


def _checked_content(path: str | os.PathLike[str], name: str) -> tuple[dict[str, str], bytes]:
    """Metadata and bytes of a complete file in a version that can be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # before opening, which would block on a pipe
            raise SavedModelError(f"{name} is not a file")
        with open(path, "rb") as file:
            metadata = _checked_metadata(file, name)
            file.seek(0)
            return metadata, file.read()
    except SavedModelError:
        raise
    except FileNotFoundError as error:
        raise SavedModelError(f"there is no file {name}") from error
    except (OSError, ValueError) as error:
        raise SavedModelError(f"{name} could not be read: {_reason(error)}") from error


def _checked_metadata(file: BinaryIO, name: str) -> dict[str, str]:
    """The metadata in the header, which is checked before the rest is read."""
    size = os.fstat(file.fileno()).st_size
    if size < 9:
        raise SavedModelError(f"{name} is empty" if size == 0 else f"{name} is too short to be a saved model")
    start = file.read(9)  # the length of the header in 8 bytes, and the brace that opens it
    length = int.from_bytes(start[:8], "little")
    if start[8:] != b"{" or not 2 <= length <= _LARGEST_HEADER:
        raise SavedModelError(f"{name} is not a saved model{_resemblance(start)}")
    header = b"{" + file.read(length - 1)
    if len(header) < length:
        raise SavedModelError(f"{name} is truncated: it ends after {size} bytes, within its header")
    try:
        entries = json.loads(header)
        ends = [entry["data_offsets"][1] for key, entry in entries.items() if key != "__metadata__"]
        missing = 8 + length + max(ends, default=0) - size
        metadata: dict[str, str] = entries.get("__metadata__", {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise TypeError("text expected")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise SavedModelError(f"{name} is damaged: its header cannot be read") from error
    if metadata.get("format") != _FORMAT:
        raise SavedModelError(f"{name} is a safetensors file of another program, not a model saved by rcgp")
    _check_version(metadata, name)
    if missing > 0:
        raise SavedModelError(f"{name} is truncated: it ends after {size} bytes, {missing} too early")
    return metadata


def _check_version(metadata: dict[str, str], name: str) -> None:
    version = metadata.get("format_version", "")
    if not (version.isascii() and version.isdigit() and 0 < len(version) < 10 and int(version) > 0):
        raise SavedModelError(f"{name} is damaged: it names no version of the format")
    written = f"{name} was written by rcgp {metadata.get('rcgp_version', 'unknown')} in format {version}"
    if int(version) > FORMAT_VERSION:
        raise SavedModelError(f"{written}, and this rcgp reads format {FORMAT_VERSION} only: upgrade rcgp to read it")
    if int(version) < FORMAT_VERSION:
        reader = _LAST_READER[int(version)]
        raise SavedModelError(
            f"{written}, with models of an earlier method: read it with rcgp {reader}, or fit the model again"
        )


def _resemblance(start: bytes) -> str:
    """What kind of file it looks like, for the message."""
    if start.startswith(b"PK"):
        return ": it looks like a zip archive, or a checkpoint of torch.save"
    if start.startswith(b"\x80"):
        return ": it looks like a pickle, which can run code and is never loaded"
    return ""


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
