"""Converts uploads of code to one canonical archive, and refuses whatever could do harm when it is unpacked.

The canonical archive is a tar file with plain files only: sorted by path, without owners, with one fixed time, and with
the mode 0755 for programs and 0644 for other files. Equal contents therefore have equal digests, whether they came as
files, zip or tar.gz.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import struct
import tarfile
import threading
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from accounting.core.errors import Refused
from accounting.core.wording import fixed

FIELD = "code"  # of the errors
WAIT_SECONDS = 20.0
MOST_AT_ONCE = 2  # uploads that one process converts at the same time; each may need 100 MB
LONGEST_PATH, LONGEST_NAME, DEEPEST = (
    400,
    255,
    32,
)  # bytes of a path, bytes of a name in it, folders around a file
# Of every file: after 1980, before which no zip file can hold a time.
TIME = 315_619_200
PIECE = 4096  # bytes of a gzip stream that are read at a time; what a stream leaves over is copied
HEADERS = 2048  # bytes of a tar file that a file may need for its headers
END_OF_ZIP, ENTRY_OF_ZIP, LARGE_ZIP = b"PK\x05\x06", b"PK\x01\x02", b"PK\x06\x07"
ACCEPTED = "Accepted: one .zip, .tar.gz, .tgz or .tar archive, or single files."


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits on an upload: bytes as sent, bytes of all files after unpacking, and the number of files."""

    sent: int
    unpacked: int
    files: int

    @property
    def in_words(self) -> str:
        sizes = f"{mebibytes(self.sent)} as sent, {mebibytes(self.unpacked)} unpacked"
        return f"at most {sizes} and {fixed(self.files)} files"

    def for_unpacked(self) -> Bounds:
        """Returns the limits for a tar file that was not sent: it may be as large as its files and their headers."""
        return replace(self, sent=max(self.sent, self.unpacked + HEADERS * self.files))


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of an upload."""

    path: str
    content: bytes
    is_program: bool = False


@dataclass(frozen=True, slots=True)
class Packed:
    """A canonical archive. `content` is the tar file, compressed with gzip; the digest is of the tar file itself."""

    digest: str
    content: bytes
    paths: tuple[str, ...]
    unpacked: int


def pack_archive(name: str, data: bytes, bounds: Bounds) -> Packed:
    """Returns the canonical archive of the zip, tar or tar.gz file `data`. `name` is its file name, for messages.

    The content decides about the kind of archive. Raises Refused if it is no such archive, exceeds a limit, or contains
    an entry that could leave the folder it is unpacked in.
    """
    _check_sent(len(data), bounds)
    with _turn():
        try:
            return pack(list(_entries(name, data, bounds)), bounds)
        except UnicodeDecodeError as error:
            raise Refused(
                f"The archive has a name that is not UTF-8: {error.object!r}. Rename the file.", FIELD
            ) from None
        except (zipfile.BadZipFile, tarfile.TarError, zlib.error, struct.error) as error:
            raise Refused(
                f"{name or 'The archive'} is damaged: {error}. Create the archive again.", FIELD
            ) from None
        except (EOFError, ValueError, OverflowError, RecursionError, NotImplementedError):
            raise Refused(f"{name or 'The archive'} is damaged. Create the archive again.", FIELD) from None


def pack_files(files: Sequence[tuple[str, bytes]], bounds: Bounds) -> Packed:
    """Returns the canonical archive of single files, given as pairs of path and content.

    A single file that is an archive is unpacked. Raises Refused like `pack_archive`.
    """
    _check_sent(sum(len(content) for _, content in files), bounds)
    if len(files) == 1 and _is_archive(*files[0]):
        return pack_archive(*files[0], bounds)
    with _turn():
        return pack([Entry(path, content) for path, content in files], bounds)


def pack(entries: Sequence[Entry], bounds: Bounds) -> Packed:
    """Returns the canonical archive of `entries`. Raises Refused for an invalid path, for duplicates, and for too many
    or too large files."""
    files = {_checked(entry.path): entry for entry in entries}
    _check_together([_checked(entry.path) for entry in entries])
    if not files:
        raise Refused("The upload contains no files. Add at least one file.", FIELD)
    if len(files) > bounds.files:
        raise Refused(f"The upload has more than {fixed(bounds.files)} files. {_instead(bounds)}", FIELD)
    unpacked = sum(len(entry.content) for entry in entries)
    if unpacked > bounds.unpacked:
        raise Refused(f"The files have more than {mebibytes(bounds.unpacked)}. {_instead(bounds)}", FIELD)
    buffer = io.BytesIO()
    # The GNU format, because small tar programs in images read no long names of the others.
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
        for path in sorted(files):
            about = tarfile.TarInfo(path)
            about.size, about.mtime = len(files[path].content), TIME
            about.mode = 0o755 if files[path].is_program or files[path].content[:2] == b"#!" else 0o644
            tar.addfile(about, io.BytesIO(files[path].content))
    whole = buffer.getvalue()
    return Packed(
        digest=digest_of(whole),
        content=gzip.compress(whole, 6, mtime=0),
        paths=tuple(sorted(files)),
        unpacked=unpacked,
    )


def digest_of(tar: bytes) -> str:
    return f"sha256:{hashlib.sha256(tar).hexdigest()}"


def mebibytes(count: int) -> str:
    return f"{count / 2**20:g} MiB" if count >= 2**20 else f"{count / 1024:g} KiB"


@contextmanager
def _turn() -> Iterator[None]:
    if not _turns.acquire(timeout=WAIT_SECONDS):
        raise Refused("Too many uploads are being read right now. Try again in a moment.", FIELD)
    try:
        yield
    finally:
        _turns.release()


_turns = threading.BoundedSemaphore(MOST_AT_ONCE)


def _check_sent(count: int, bounds: Bounds) -> None:
    if count > bounds.sent:
        raise Refused(f"The upload has more than {mebibytes(bounds.sent)}. {_instead(bounds)}", FIELD)


def _instead(bounds: Bounds) -> str:
    return f"Accepted: {bounds.in_words}. Leave out data and build results, or put them on a volume."


def _is_archive(name: str, data: bytes) -> bool:
    return name.lower().endswith((".zip", ".tar.gz", ".tgz", ".tar"))


def _entries(name: str, data: bytes, bounds: Bounds) -> Iterator[Entry]:
    if data.startswith((b"PK\x03\x04", END_OF_ZIP)):
        return _of_zip(data, bounds)
    if data.startswith(b"\x1f\x8b"):
        return _of_tar(_decompressed(data, bounds), bounds)
    if data[257:262] == b"ustar" or (data and not data.strip(b"\0")):
        return _of_tar(data, bounds)
    raise Refused(f"{name or 'The upload'} is not an archive that Fairlot can read. {ACCEPTED}", FIELD)


def _of_zip(data: bytes, bounds: Bounds) -> Iterator[Entry]:
    _check_directory(data, bounds)
    left = bounds.unpacked
    with zipfile.ZipFile(io.BytesIO(data), metadata_encoding="utf-8") as archive:
        for about in archive.infolist():
            path, kind = about.orig_filename, stat.S_IFMT(about.external_attr >> 16)
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise _no_plain_file(path, "a link" if kind == stat.S_IFLNK else "a device or FIFO")
            if path.endswith("/") or kind == stat.S_IFDIR:
                _checked(path.rstrip("/"), is_folder=True)
                continue
            if about.flag_bits & 1:
                raise Refused(f"{path!r} is encrypted. Create the archive without a password.", FIELD)
            if about.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise Refused(f"{path!r} is compressed in an unusual way. Use deflate, zip's default.", FIELD)
            with archive.open(about) as file:
                content = file.read(left + 1)  # no more than that, whatever the entry claims
            left = _less(left, len(content), bounds)
            yield Entry(path, content, bool(about.external_attr >> 16 & 0o100))


def _check_directory(data: bytes, bounds: Bounds) -> None:
    """Raises Refused if the list of a zip file's entries is too long, before the list is read into memory."""
    at = data.rfind(END_OF_ZIP)
    if at < 0:
        raise zipfile.BadZipFile("its end is missing")
    if data[max(0, at - 20) : at].startswith(LARGE_ZIP):
        raise Refused("The zip file has the format for huge archives (zip64). Use a tar.gz instead.", FIELD)
    # In the whole file, because the place and size of the list are only claims.
    if data.count(ENTRY_OF_ZIP) > 2 * bounds.files:
        raise Refused(f"The upload has more than {fixed(bounds.files)} files. {_instead(bounds)}", FIELD)


def _decompressed(data: bytes, bounds: Bounds) -> bytes:
    most = bounds.unpacked + HEADERS * 2 * bounds.files + tarfile.RECORDSIZE
    found, view, at = bytearray(), memoryview(data), 0
    while data.startswith(b"\x1f\x8b", at):  # several streams may follow each other
        stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
        while not stream.eof:
            piece = view[at : at + PIECE]
            if not piece:
                raise EOFError
            found += stream.decompress(piece, most + 1 - len(found))
            if len(found) > most:
                raise Refused(
                    f"The files have more than {mebibytes(bounds.unpacked)}. {_instead(bounds)}", FIELD
                )
            at += len(piece) - len(stream.unused_data) - len(stream.unconsumed_tail)
    return bytes(found)


def _of_tar(data: bytes, bounds: Bounds) -> Iterator[Entry]:
    left, count = bounds.unpacked, 0
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="strict") as archive:
        for about in archive:
            count += 1
            if count > 2 * bounds.files:
                raise Refused(
                    f"The upload has more than {fixed(bounds.files)} files. {_instead(bounds)}", FIELD
                )
            if about.isdir():
                _checked(about.name, is_folder=True)
                continue
            if not about.isreg() or about.issparse():
                kind = "a link" if about.issym() or about.islnk() else "a device, FIFO or sparse file"
                raise _no_plain_file(about.name, kind)
            if about.size > left:
                _less(left, about.size, bounds)
            file = archive.extractfile(about)
            content = file.read() if file else b""
            left = _less(left, len(content), bounds)
            yield Entry(about.name, content, bool(about.mode & 0o100))
        # tarfile ends without an error at a header that it cannot read.
        if data[archive.offset : archive.offset + tarfile.BLOCKSIZE].strip(b"\0"):
            raise tarfile.ReadError("an entry in it cannot be read")


def _less(left: int, count: int, bounds: Bounds) -> int:
    if count > left:
        raise Refused(f"The files have more than {mebibytes(bounds.unpacked)}. {_instead(bounds)}", FIELD)
    return left - count


def _no_plain_file(path: str, kind: str) -> Refused:
    return Refused(
        f"{path!r} is {kind}. Only files and folders are accepted; copy what a link leads to.", FIELD
    )


def _checked(path: str, *, is_folder: bool = False) -> str:
    """Returns the path without `.` and empty parts. Raises Refused if it could lead out of the folder, or if it cannot
    be a path of a file."""
    why = ""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise Refused(f"The name {path!r} is not UTF-8. Rename the file.", FIELD) from None
    if path.startswith("/") or (len(path) > 1 and path[1] == ":"):
        why = "is absolute"
    elif ".." in parts:
        why = "contains .."
    elif "\\" in path:
        why = "contains a backslash"
    elif not path.isprintable():
        why = "contains control characters"
    elif not parts and not is_folder:
        why = "has no name"
    elif size > LONGEST_PATH or any(len(part.encode()) > LONGEST_NAME for part in parts):
        why = f"is longer than {LONGEST_PATH} bytes, or a name in it than {LONGEST_NAME}"
    elif len(parts) > DEEPEST:
        why = f"is more than {DEEPEST} folders deep"
    if why:
        raise Refused(f"The path {path[:LONGEST_PATH]!r} {why}. Use relative paths inside one folder.", FIELD)
    return "/".join(parts)


def _check_together(paths: Iterable[str]) -> None:
    """Raises Refused if two of the paths are the same, also as normalised Unicode, or if a file is also a folder."""
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for path in paths:
        plain = unicodedata.normalize("NFC", path)
        if plain in seen:
            raise Refused(f"The upload contains {path!r} twice. Keep one of the files.", FIELD)
        seen[plain] = path
        parts = plain.split("/")
        folders |= dict.fromkeys(("/".join(parts[:n]) for n in range(1, len(parts))), path)
    if both := sorted(set(seen) & set(folders)):
        raise Refused(
            f"{both[0]!r} is a file and also the folder of {folders[both[0]]!r}. Rename one.", FIELD
        )
