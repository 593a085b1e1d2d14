"""Files of any origin: one reader for arrays, one for JSON and text, one writer.

A file may come from anybody, and may be damaged: what is read here is checked before it is believed, and every error is
in words and names the file. What is written here is whole, or not there.
"""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.logs import printable
from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError

FilePath = str | os.PathLike[str]

#: Kinds of the dtypes that are read: booleans, numbers and texts.
_KINDS = "biufcSU"
_LETTERS = 0x10FFFF
#: Maximum number of arrays in a file; each of them costs time, however small it is.
_MEMBERS = 50_000
#: Maximum size in bytes of a text file that is read whole.
TEXT = 2**26
#: Maximum number of bytes of a compressed file of data: in all, for each of its bytes, and for a small one.
_UNPACKED, _TIMES, _SMALL = 2**30, 100, 2**20
#: Seconds after which a temporary file is what a killed process has left.
_LEFT = 3600.0
_LONGEST_REASON = 500


# --- arrays ---------------------------------------------------------------------------------------------------------


def read_npz(
    path: FilePath, names: Collection[str] | None = None, *, compressed: bool = False
) -> dict[str, NDArray[Any]]:
    """Read the arrays of an ``.npz`` file; they take no more memory than the file has bytes.

    Parameters
    ----------
    path : path-like
        The file.
    names : collection of str, optional
        The arrays to read, where they are there; by default all of them.
    compressed : bool, default False
        Whether the arrays may be compressed, to no less than a hundredth.

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
    with _damage(path, ".npz file"), _opened(path) as file, ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if len(members) < len(archive.infolist()):
            raise ValueError("it holds two arrays of the same name")
        if len(members) > _MEMBERS:
            raise ValueError(f"it holds {len(members)} arrays, expected at most {_MEMBERS}")
        wanted = {name: member for name, member in members.items() if names is None or name in names}
        _check_members(wanted.values(), _size(file), compressed)
        for member in wanted.values():
            with archive.open(member) as content:
                _check_header(content, member.file_size, repr(member.filename))
        return {name: _read(archive, member) for name, member in wanted.items()}


def read_npy(path: FilePath, *, mapped: bool = False) -> NDArray[Any]:
    """Read the array of an ``.npy`` file.

    Parameters
    ----------
    path : path-like
        The file.
    mapped : bool, default False
        Whether the array stays in the file, from which the parts that are used are read.

    Raises
    ------
    ConfigurationError
        If it is no such file, is damaged, holds objects, or claims another size than it has.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_npy(f"{folder}/w.npy", np.arange(3.0))
    ...     print(read_npy(f"{folder}/w.npy"))
    [0. 1. 2.]
    """
    with _damage(path, ".npy file"), _opened(path) as file:
        _check_header(file, _size(file), "it")
        file.seek(0)
        if mapped:
            return np.lib.format.open_memmap(path, mode="r")
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        _check_text(array)
        return array


def read_unpacked(path: FilePath) -> bytes:
    """Read a file whole, and unpack it if it is compressed by gzip, to no less than a hundredth.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    ConfigurationError
        If it is damaged, or unpacks to more.
    FileNotFoundError
        If there is no such file.
    """
    with _damage(path, "file of data"), _opened(path) as file:
        packed, most = file.read(2) == b"\x1f\x8b", _most(_size(file))
        file.seek(0)
        if not packed:
            return file.read()
        with gzip.open(file) as content:
            unpacked = content.read(most + 1)
        if len(unpacked) > most:
            raise ValueError(f"it unpacks to more than {most} bytes")
        return unpacked


def _size(file: BinaryIO) -> int:
    """Return the number of bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def _most(size: int) -> int:
    """Return the number of bytes that a compressed file may unpack to."""
    return min(_UNPACKED, max(_SMALL, _TIMES * size))


def _check_members(members: Collection[ZipInfo], size: int, compressed: bool) -> None:
    """Reject members that take more memory than the file has bytes, or than compressed ones may."""
    total = sum(member.file_size for member in members)
    packed = any(member.compress_type != ZIP_STORED for member in members)
    if packed and not compressed:
        raise ValueError("its arrays are compressed")
    if total > (_most(size) if packed else size):
        raise ValueError(f"it claims {total} bytes of arrays, and has {size} bytes")


def _check_header(file: Any, size: int, name: str) -> None:
    """Reject an array whose header claims another size than there is, or another dtype than numbers and text."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"{name} has the format {version}, expected (1, 0) or (2, 0)")
    shape, _, dtype = readers[version](file)
    if dtype.kind not in _KINDS or dtype.hasobject or not dtype.itemsize:
        raise ValueError(f"{name} holds {dtype}, expected numbers or text")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"{name} claims {dtype}{list(shape)} in {size} bytes")


def _read(archive: ZipFile, member: ZipInfo) -> NDArray[Any]:
    with archive.open(member) as content:
        array: NDArray[Any] = np.lib.format.read_array(content, allow_pickle=False)
        if content.read(1):
            raise ValueError(f"{member.filename!r} does not end with its array")
        _check_text(array)
        return array


def _check_text(array: NDArray[Any]) -> None:
    """Reject numbers that stand for no letter: Python fails where such a text is used."""
    if array.dtype.kind == "U" and array.size:
        letters = np.frombuffer(array.tobytes(), np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if letters.max() > _LETTERS:
            raise ValueError(f"it has a letter {letters.max()}, expected at most {_LETTERS}")


def check_csr(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], rows: int, columns: int, name: str = "a matrix"
) -> None:
    """Reject parts that are no matrix in CSR: compiled code would read and write beyond their ends.

    Parameters
    ----------
    data : ndarray, shape (k,)
        The entries, row by row.
    indices : ndarray of int, shape (k,)
        Their columns, ascending within each row, none of them twice.
    indptr : ndarray of int, shape (rows + 1,)
        Where each row begins in the two, and the end.
    rows, columns : int
        The matrix's shape.
    name : str, default "a matrix"
        For the message.

    Raises
    ------
    ValueError
        If the parts are anything else.

    Examples
    --------
    >>> check_csr(np.ones(1), np.array([3]), np.array([0, 1]), 1, 3)
    Traceback (most recent call last):
    ...
    ValueError: a matrix has a column 3, expected 0 to 2
    """
    if any(part.ndim != 1 for part in (data, indices, indptr)) or {indices.dtype.kind, indptr.dtype.kind} - set("iu"):
        raise ValueError(f"{name} has parts that are no vectors, or indices that are no whole numbers")
    if rows < 0 or columns < 0 or data.dtype.kind not in "biufc":
        raise ValueError(f"{name} is {data.dtype}[{rows}, {columns}], expected numbers in a matrix")
    if indptr.size != rows + 1 or data.size != indices.size:
        what = f"{name} has {rows} rows, {indptr.size} row ends, {data.size} entries and {indices.size} columns of them"
        raise ValueError(f"{what}; expected one end more than rows, and a column for each entry")
    # Differences of unsigned numbers would never be negative.
    if indptr[0] != 0 or int(indptr[-1]) != data.size or (indptr[1:] < indptr[:-1]).any():
        raise ValueError(f"{name} has row ends that do not ascend from 0 to {data.size}")
    if indices.size and not (indices.min() >= 0 and int(indices.max()) < columns):
        wrong = int(indices.min() if indices.min() < 0 else indices.max())
        raise ValueError(f"{name} has a column {wrong}, expected 0 to {columns - 1}")
    falls = np.flatnonzero(indices[1:] <= indices[:-1]) + 1
    # They may fall where a row begins.
    if falls.size and not np.isin(falls, indptr).all():
        raise ValueError(f"{name} has a row whose columns do not ascend")


# --- text -----------------------------------------------------------------------------------------------------------


def read_text(path: FilePath, most: int = TEXT) -> str:
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
    with _damage(path, "text file"), _opened(path) as file:
        content = file.read(most + 1)
        if len(content) > most:
            raise ValueError(f"it has more than {most} bytes")
        return content.decode("utf-8")


def parse_json(text: str | bytes) -> Any:
    """Return the value that a text is in JSON.

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
    """Return the object that a text is in JSON.

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
        raise ValueError(f"it holds a {type(value).__name__}, expected an object {{...}}")
    if kinds is None:
        return value
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
    with _damage(path, "file of JSON"):
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
    target = Path(path)
    before = _status(target)
    if before is not None and _is_stream(before):
        with target.open("wb") as stream:
            _fill(stream, content)
        return
    if before is not None and not os.access(target, os.W_OK):
        raise PermissionError(13, os.strerror(13), os.fspath(target))
    _remove_what_was_left(target)
    partial = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}.partial")
    try:
        mode = 0o600 if secret else 0o666 if before is None else stat.S_IMODE(before.st_mode)
        with _created(partial, mode) as file:
            if before is not None and not secret:
                # Whatever the umask takes away.
                os.chmod(partial, mode)
            _fill(file, content)
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
    _sync_folder(target.parent)


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
        with ZipFile(file, "w", ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)

    write_file(path, fill, secret=secret)


def write_npy(path: FilePath, array: NDArray[Any]) -> None:
    """Write an array to an ``.npy`` file, as :func:`write_file` writes.

    Parameters
    ----------
    path : path-like
        The file.
    array : ndarray
        Numbers or text.

    Raises
    ------
    ValueError
        If it holds objects.
    OSError
        If it cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_npy(f"{folder}/w.npy", np.eye(2))
    ...     print(np.load(f"{folder}/w.npy").tolist())
    [[1.0, 0.0], [0.0, 1.0]]
    """
    write_file(path, lambda file: np.lib.format.write_array(file, array, allow_pickle=False))


def append_text(path: FilePath, text: str) -> None:
    """Append a text to a file, which is made if there is none; a link is not followed.

    Parameters
    ----------
    path : path-like
        The file.
    text : str
        The text, written as UTF-8.

    Raises
    ------
    OSError
        If it cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     append_text(f"{folder}/log.txt", "round 1, ")
    ...     append_text(f"{folder}/log.txt", "round 2")
    ...     print(read_text(f"{folder}/log.txt"))
    round 1, round 2
    """
    with open_log(path) as file:
        file.write(text.encode())


def open_log(path: FilePath) -> BinaryIO:
    """Open a file to append to it, for the output of a process; it is made if there is none, a link is not followed.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    OSError
        If it cannot be opened.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for line in (b"begins, ", b"ends"):
    ...         with open_log(f"{folder}/log.txt") as log:
    ...             _ = log.write(line)
    ...     print(read_text(f"{folder}/log.txt"))
    begins, ends
    """
    before = _status(Path(path))
    follows = 0 if before is not None and _is_stream(before) else _NO_LINKS
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _BINARY | follows, 0o666), "ab")


# The one is not on Windows, the other only there.
_NO_LINKS, _BINARY = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_BINARY", 0)


def _created(path: Path, mode: int) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY | _NO_LINKS, mode), "wb")


def _fill(file: BinaryIO, content: bytes | str | Callable[[BinaryIO], object]) -> None:
    if callable(content):
        content(file)
    else:
        file.write(content.encode() if isinstance(content, str) else content)


def _status(path: Path) -> os.stat_result | None:
    """Return what is known of a file, or of what a link leads to."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None
    except ValueError as error:  # a name with a zero byte, or with half a letter
        raise OSError(errno.EINVAL, f"no file can have this name ({error})", shown(path)) from error


def _is_stream(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) or stat.S_ISFIFO(status.st_mode)


def _remove_what_was_left(target: Path) -> None:
    """Remove the temporary files that killed processes have left."""
    with suppress(OSError):
        for path in target.parent.iterdir():
            if path.name.startswith(f".{target.name[:50]}.") and path.name.endswith(".partial"):
                with suppress(OSError):
                    if time.time() - path.lstat().st_mtime > _LEFT:
                        path.unlink()


def _sync_folder(folder: Path) -> None:
    """Write a folder to the disk: a new name is only there once its folder is."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# --- reading --------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: FilePath) -> Iterator[BinaryIO]:
    """Open a file, and nothing else: a pipe would block, a device has no end."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    except ValueError as error:  # a name with a zero byte, or with half a letter
        raise FileNotFoundError(errno.ENOENT, f"no file can have this name ({error})", shown(path)) from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is a folder, a device or a pipe")
        with os.fdopen(handle, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(handle)


@contextmanager
def _damage(path: FilePath, expected: str) -> Iterator[None]:
    """Raise any error about a file's content in words."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # zipfile, zlib and NumPy have no error in common for bytes that are none of theirs
        reason = f"it is no {expected}, or not a whole one: {str(error) or type(error).__name__}"
        raise ConfigurationError(f"{shown(path)} is damaged: {printable(reason):.{_LONGEST_REASON}}") from error


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
    return printable(os.fsdecode(path))
