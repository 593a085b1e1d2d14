"""Files of any origin: one reader for arrays, one for JSON and text, one writer.

A file may come from anybody, and may be damaged: what is read here is checked before it is believed, and every error is
in words and names the file. What is written here is whole, or not there.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import methodcaller
from pathlib import Path
from typing import IO, Any, BinaryIO
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from flwr_fco.core.validation import checked, of_type, printable
from flwr_fco.errors import ConfigurationError

FilePath = str | os.PathLike[str]

#: Kinds of the dtypes that are read: booleans, numbers and texts.
_KINDS = "biufcSU"
#: Maximum number of arrays in a file; each of them costs time, however small it is.
_MEMBERS = 50_000
#: Maximum length in bytes of an array's header, which is evaluated: the required content takes a hundred.
_LONGEST_HEADER = 4096


# --- arrays ---------------------------------------------------------------------------------------------------------


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array in NumPy's format: its shape, whether columns come first, its dtype.

    Nothing of the array is read, so nothing that a header claims costs memory.

    Parameters
    ----------
    file : binary file
        At the beginning of the array; afterwards where its numbers begin.

    Raises
    ------
    ValueError
        If it is no header of the formats 1.0 and 2.0, or one of anything but numbers and texts.

    Examples
    --------
    >>> from io import BytesIO
    >>> file = BytesIO()
    >>> np.save(file, np.zeros((2, 3)))
    >>> npy_header(BytesIO(file.getvalue()))
    ((2, 3), False, dtype('float64'))
    """
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"it has the format {version}, expected (1, 0) or (2, 0)")
    shape, columns_first, dtype = readers[version](file, max_header_size=_LONGEST_HEADER)
    if dtype.kind not in _KINDS or dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"it holds {dtype}{list(shape)}, expected numbers or text")
    return shape, columns_first, dtype


def _array(file: IO[bytes], size: int) -> NDArray[Any]:
    """Read an array of so many bytes, unless its header claims another number of them."""
    shape, _, dtype = npy_header(file)
    if math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"it claims {dtype}{list(shape)} in {size} bytes")
    file.seek(0)
    array: NDArray[Any] = npy.read_array(file, allow_pickle=False, max_header_size=_LONGEST_HEADER)
    if array.dtype.kind == "U":
        # Python fails on numbers that stand for no character, here instead of where such a text is used.
        array.tolist()
    return array


def read_npz(path: FilePath) -> dict[str, NDArray[Any]]:
    """Read the arrays of an ``.npz`` file that is not compressed; they take no more memory than the file has bytes.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    ConfigurationError
        If it is no such file, is damaged, holds objects, or claims more than it has.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "model.npz")
    >>> write_npz(path, {"w": np.ones(2)})
    >>> read_npz(path)
    {'w': array([1., 1.])}
    """
    with _opened(path, ".npz file") as file, ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if len(members) < len(archive.infolist()) or len(members) > _MEMBERS:
            prefix = f"it holds {len(archive.infolist())} arrays of {len(members)} names"
            raise ValueError(f"{prefix}, expected at most {_MEMBERS}, each with a name of its own")
        if any(member.compress_type != ZIP_STORED for member in members.values()):
            raise ValueError("its arrays are compressed")
        size = os.fstat(file.fileno()).st_size
        total = sum(member.file_size for member in members.values())
        if total > size:
            raise ValueError(f"it claims {total} bytes of arrays, expected at most {size}")
        arrays = {}
        for name, member in members.items():
            with archive.open(member) as content:
                try:
                    arrays[name] = _array(content, member.file_size)
                except ValueError as error:
                    raise ValueError(f"{member.filename!r}: {error}") from error
        return arrays


# --- text -----------------------------------------------------------------------------------------------------------


def read_text(path: FilePath, most: int = 2**26) -> str:
    """Read a file of UTF-8.

    Parameters
    ----------
    path : path-like
        The file.
    most : int, default 67108864
        Maximum number of bytes.

    Raises
    ------
    ConfigurationError
        If it is larger, is no UTF-8, or is no file.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_file(f"{folder}/note.txt", "two rounds")
    ...     print(read_text(f"{folder}/note.txt", most=100))
    two rounds
    """
    with _opened(path, "text file") as file:
        content = file.read(most + 1)
        if len(content) > most:
            raise ValueError(f"it has more than {most} bytes")
        return content.decode("utf-8")


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises
    ------
    ValueError
        If it is none, or is nested too deeply.

    Examples
    --------
    >>> parse_json('{"rounds": [1, 2]}')
    {'rounds': [1, 2]}
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_object(text: str | bytes, kinds: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Parse a JSON text that holds an object.

    Parameters
    ----------
    text : str or bytes
        The text.
    kinds : mapping of str to type or annotation, optional
        The fields that it must have, and no others, as :func:`flwr_fco.core.validation.checked` knows them.

    Raises
    ------
    ValueError
        If it is no object, or has other fields.

    Examples
    --------
    >>> json_object("[1]")
    Traceback (most recent call last):
    ...
    ValueError: it holds a list, expected an object {...}
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"it holds {of_type(value)}, expected an object {{...}}")
    kinds = dict.fromkeys(value, Any) if kinds is None else kinds
    if value.keys() != kinds.keys():
        raise ValueError(f"it has {', '.join(map(repr, value)) or 'nothing'}, expected {', '.join(kinds)}")
    return {name: checked(name, value[name], kind) for name, kind in kinds.items()}


def read_json(path: FilePath, kinds: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read a file that holds a JSON object.

    Parameters
    ----------
    path : path-like
        The file.
    kinds : mapping of str to type or annotation, optional
        As for :func:`json_object`.

    Raises
    ------
    ConfigurationError
        If it holds anything else, or is larger than 64 MiB.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_file(f"{folder}/settings.json", '{"rounds": 5}')
    ...     print(read_json(f"{folder}/settings.json", {"rounds": int}))
    {'rounds': 5}
    """
    text = read_text(path)
    with _opened(path, "file of JSON"):
        return json_object(text, kinds)


# --- writing --------------------------------------------------------------------------------------------------------


def write_file(path: FilePath, content: bytes | str | Callable[[BinaryIO], object], *, secret: bool = False) -> None:
    """Write a file whole: to a temporary file next to it, which then takes its name.

    A process that is killed, a full disk or a power cut leaves the old file; two processes that write the same file
    leave that of one of them. A link is replaced and not followed. A device or a pipe is written to directly.

    Parameters
    ----------
    path : path-like
        The file.
    content : bytes, str or callable
        What it is to hold, a text in UTF-8; or a function that writes it.
    secret : bool, default False
        Whether only the owner may read it, from its creation on. Otherwise it has the permissions of the file that it
        replaces.

    Raises
    ------
    OSError
        If it cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_file(f"{folder}/note.txt", "old")
    ...     write_file(f"{folder}/note.txt", lambda file: file.write(b"new"))
    ...     print(os.listdir(folder), read_text(f"{folder}/note.txt"))
    ['note.txt'] new
    """
    data = content.encode() if isinstance(content, str) else content
    fill = data if callable(data) else methodcaller("write", data)
    target = Path(path)
    if target.exists() and not target.is_file():
        with target.open("wb") as stream:
            fill(stream)
        return
    before = 0o600 if secret else target.stat().st_mode & 0o777 if target.exists() else None
    partial = target.with_name(f".{target.name[-50:]}.{secrets.token_hex(8)}.partial")
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, before or 0o666)) as file:
            if before is not None:
                # Whatever the umask takes away.
                os.chmod(partial, before)
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            # The temporary file's name says nothing to anybody.
            raise OSError(error.errno, error.strerror, os.fspath(target)) from error
        raise
    # A new name is only there once its folder is on the disk; some file systems cannot say so.
    with suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_npz(path: FilePath, arrays: Mapping[str, Any], *, secret: bool = False) -> None:
    """Write arrays to an ``.npz`` file, not compressed, as :func:`write_file` writes.

    Parameters
    ----------
    path : path-like
        The file.
    arrays : mapping of str to array
        Any names are allowed, those of arguments of ``np.savez`` too.
    secret : bool, default False
        As for :func:`write_file`.

    Raises
    ------
    ValueError
        If an array holds objects.
    OSError
        If it cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "model.npz")
    >>> write_npz(path, {"file": np.ones(2)})
    >>> np.load(path)["file"]
    array([1., 1.])
    """

    def fill(file: BinaryIO) -> None:
        archive = ZipFile(file, "w", ZIP_STORED)
        try:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, np.asanyarray(array), allow_pickle=False)
            archive.close()
        finally:
            # To close what an interrupt has left half open is an error, which would hide the interrupt.
            archive.fp = None

    write_file(path, fill, secret=secret)


# --- reading --------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: FilePath, expected: str) -> Iterator[BinaryIO]:
    """Open a file, and nothing else; raise any error about its content in words."""
    try:
        # A pipe would block, a device has no end.
        if Path(path).exists() and not Path(path).is_file():
            raise ValueError("it is a folder, a device or a pipe")
        with open(path, "rb") as file:
            yield file
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # zipfile, zlib and NumPy have no error in common for bytes that are none of theirs
        reason = f"it is no {expected}, or not a whole one: {str(error) or type(error).__name__}"
        raise ConfigurationError(f"{shown(path)} is damaged: {printable(reason):.500}") from error


def shown(path: FilePath) -> str:
    r"""Return a file's name as it may be shown: whoever made the file may have chosen it to forge a line of a log.

    Parameters
    ----------
    path : path-like
        The file.

    Examples
    --------
    >>> print(shown("runs\nINFO: all is well.npz"))
    runs\nINFO: all is well.npz
    """
    return printable(os.fsdecode(path)) or "''"
