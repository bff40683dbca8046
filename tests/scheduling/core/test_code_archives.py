"""Uploads of the same files have the same digest, and no upload can leave its folder or exceed the limits."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.core.errors import Refused
from scheduling.core.code_archives import Bounds, Packed, digest_of, pack_archive, pack_files

SMALL = Bounds(sent=200_000, unpacked=100_000, files=20)
FILES = {"train.py": b"print(1)\n", "src/model.py": b"x = 1\n", "run.sh": b"#!/bin/sh\n"}


def zipped(
    files: dict[str, bytes], *, kind: int = stat.S_IFREG | 0o644, how: int = zipfile.ZIP_DEFLATED
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in files.items():
            about = zipfile.ZipInfo(name)
            about.external_attr, about.compress_type = kind << 16, how
            archive.writestr(about, content)
    return buffer.getvalue()


def tarred(files: dict[str, bytes], *, compress: bool = True, **changes: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size, about.mtime, about.uid, about.uname = len(content), 1_700_000_000, 1234, "bob"
            for field, value in changes.items():
                setattr(about, field, value)
            archive.addfile(about, io.BytesIO(content) if about.isreg() else None)
    return gzip.compress(buffer.getvalue()) if compress else buffer.getvalue()


def contents(packed: Packed) -> dict[str, tuple[bytes, int]]:
    with tarfile.open(fileobj=io.BytesIO(packed.content), mode="r:gz") as archive:
        return {one.name: (archive.extractfile(one).read(), one.mode) for one in archive}  # type: ignore[union-attr]


def test_files_zip_and_tar_of_the_same_content_have_the_same_digest() -> None:
    backwards = dict(reversed(FILES.items()))
    dotted = {f"./{name}": content for name, content in FILES.items()}
    packs = [
        pack_files(list(FILES.items()), SMALL),
        pack_archive("a.zip", zipped(backwards), SMALL),
        pack_archive("a.tar.gz", tarred(dotted), SMALL),
        pack_archive("a.tar", tarred(FILES, compress=False), SMALL),
        pack_files([("a.zip", zipped(FILES))], SMALL),
    ]
    assert len({one.digest for one in packs}) == 1
    assert packs[0].digest == digest_of(gzip.decompress(packs[0].content))
    assert contents(packs[0]) == {
        "run.sh": (b"#!/bin/sh\n", 0o755), "src/model.py": (b"x = 1\n", 0o644), "train.py": (b"print(1)\n", 0o644),
    }  # fmt: skip
    assert pack_files([*FILES.items(), ("more", b"")], SMALL).digest != packs[0].digest


@given(
    st.dictionaries(st.text("ab.é/", min_size=1, max_size=6), st.binary(max_size=20), max_size=5),
    st.randoms(),
)
def test_a_packed_upload_has_exactly_its_files_inside_one_folder(
    files: dict[str, bytes], random: object
) -> None:
    try:
        packed = pack_files(list(files.items()), SMALL)
    except Refused:
        return
    found = contents(packed)
    assert sorted(content for content, _ in found.values()) == sorted(files.values())
    for path in found:
        assert not path.startswith("/")
        assert not {"", ".", ".."} & set(path.split("/"))
    again = [(path, content) for path, (content, _) in found.items()]
    random.shuffle(again)  # type: ignore[attr-defined]
    assert pack_files(again, SMALL).digest == packed.digest


BAD_NAMES = {
    "../x": r"contains \.\.", "a/../../x": r"contains \.\.", "/etc/passwd": "is absolute", "C:x": "is absolute",
    "a\\..\\x": "a backslash", "a\nb": "control characters", "x" * 256: "is longer than",
    "/".join("a" * 40): "folders deep", "./.": "has no name",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("make", [zipped, tarred])
def test_a_path_that_leads_elsewhere_is_refused_by_name(name: str, make: Callable[..., bytes]) -> None:
    with pytest.raises(Refused, match=BAD_NAMES[name]):
        pack_archive("a", make({"ok": b"1", name: b"2"}), SMALL)


def test_links_and_devices_are_refused_by_name() -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        with pytest.raises(Refused, match=r"'evil' is a (link|device)"):
            pack_archive("a", tarred({"evil": b""}, type=kind, linkname="/etc/passwd"), SMALL)
    for mode in (stat.S_IFLNK, stat.S_IFIFO):
        with pytest.raises(Refused, match=r"'evil' is a (link|device)"):
            pack_archive("a", zipped({"evil": b"/etc/passwd"}, kind=mode | 0o777), SMALL)


def test_the_same_path_twice_is_refused_also_after_normalisation() -> None:
    for one, other in (("a", "./a"), ("a/b", "a//b"), ("\u00e9", "e\u0301")):
        with pytest.raises(Refused, match="twice"):
            pack_files([(one, b"1"), (other, b"2")], SMALL)
    with pytest.raises(Refused, match="is a file and also the folder"):
        pack_files([("a", b"1"), ("a/b", b"2")], SMALL)


def test_names_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(Refused, match="not UTF-8"):
        pack_archive("a", zipped({"xxxx": b"1"}).replace(b"xxxx", b"x\xff\xfex"), SMALL)
    data = tarred({"x": b"1"}, compress=False)
    head = bytearray(data[:512])
    head[0:2] = b"\xff\xfe"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    with pytest.raises(Refused, match="not UTF-8"):
        pack_archive("a", bytes(head) + data[512:], SMALL)


def test_bombs_are_refused_before_they_fill_the_memory() -> None:
    with pytest.raises(Refused, match="more than 97"):
        pack_archive("a", zipped({"zeros": b"\0" * 10_000_000}), SMALL)
    with pytest.raises(Refused, match="more than 97"):
        pack_archive("a", tarred({"zeros": b"\0" * 10_000_000}), SMALL)
    many = {f"{n}": b"" for n in range(100)}
    for make in (zipped, tarred):
        with pytest.raises(Refused, match="more than 20 files"):
            pack_archive("a", make(many), SMALL)
    with pytest.raises(Refused, match="more than 20 files"):
        pack_files([(f"{n}", b"") for n in range(21)], SMALL)
    with pytest.raises(Refused, match="more than 195"):
        pack_archive("a", bytes(200_001), SMALL)


def test_many_empty_streams_in_one_file_are_read_in_one_pass() -> None:
    whole = Bounds(sent=8 * 2**20, unpacked=100_000, files=20)
    empty = gzip.compress(b"", mtime=0)
    archive = empty * 100_000 + tarred(FILES)  # takes minutes if the rest is copied for each stream
    assert pack_archive("a.tgz", archive, whole).digest == pack_archive("a.tgz", tarred(FILES), whole).digest


@pytest.mark.parametrize("compress", [False, True])
def test_a_tar_that_is_damaged_behind_its_first_file_is_refused(compress: bool) -> None:
    plain = bytearray(tarred(FILES, compress=False))
    plain[1024 + 148] ^= 1  # the checksum of the second file
    data = gzip.compress(plain) if compress else bytes(plain)
    with pytest.raises(Refused, match="damaged"):
        pack_archive("a.tar", data, SMALL)


def test_a_zip_that_understates_a_size_is_refused() -> None:
    data = bytearray(zipped({"zeros": b"\0" * 5000}))
    at = data.rfind(b"PK\x01\x02")
    data[at + 24 : at + 28] = (10).to_bytes(4, "little")
    with pytest.raises(Refused, match="damaged"):
        pack_archive("a.zip", bytes(data), SMALL)


@given(st.sampled_from([zipped(FILES), tarred(FILES), tarred(FILES, compress=False)]), st.data())
def test_a_damaged_archive_is_refused_or_read_but_breaks_nothing(archive: bytes, data: st.DataObject) -> None:
    damaged = bytearray(archive)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        packed = pack_archive("a", bytes(damaged[: data.draw(st.integers(0, len(damaged)))]), SMALL)
    except Refused:
        return
    assert packed.paths


def test_what_is_no_archive_is_refused_with_what_is_accepted() -> None:
    with pytest.raises(Refused, match=r"notes.txt is not an archive.*Accepted: one .zip"):
        pack_archive("notes.txt", b"hello", SMALL)
    with pytest.raises(Refused, match="no files"):
        pack_files([], SMALL)
    locked = bytearray(zipped({"a": b"1"}))
    locked[locked.rfind(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(Refused, match="encrypted"):
        pack_archive("a", bytes(locked), SMALL)
