"""Archives, honest, damaged and malicious."""

import bz2
import gzip
import lzma
import random
import stat
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest
from helpers.archives import as_tar, as_zip

from slide.data import archives as module
from slide.data.archives import UnpackError, unpack

TEXT = b"".join(b"%d 1:%d\n" % (i, i * i) for i in range(4000))
NOISE = np.random.default_rng(0).bytes(60_000)
FILES = {"Set/train.txt": TEXT, "Set/test.txt": NOISE, "Set/deep/other.txt": b"x"}
WANTED = {"train.txt": "Set/train.txt", "test.txt": "Set/test.txt"}
PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


ARCHIVES = {
    "zip": as_zip(FILES),
    "stored zip": as_zip(FILES, zipfile.ZIP_STORED),
    **{f"tar {mode}": as_tar(FILES, mode) for mode in ("w", "w:gz", "w:bz2", "w:xz")},
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def run(content, folder, members=WANTED, name="a.part"):
    archive = folder.parent / "a.part"
    archive.write_bytes(content)
    unpack(archive, {member: folder / target for target, member in members.items()}, name)


def refused(content, folder, message, members=WANTED):
    with pytest.raises(UnpackError, match=message):
        run(content, folder, members)


def written(folder):
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_members_alone_are_written(folder, kind):
    run(ARCHIVES[kind], folder)
    assert written(folder).keys() == {"train.txt", "test.txt"}
    assert (folder / "train.txt").read_bytes() == TEXT
    assert (folder / "test.txt").read_bytes() == NOISE
    run(ARCHIVES[kind], folder, {"deep/a.txt": "Set/deep/other.txt"})
    assert (folder / "deep/a.txt").read_bytes() == b"x"


@pytest.mark.parametrize("packing", PACKERS)
def test_a_single_file(folder, packing):
    packed = PACKERS[packing](TEXT)
    run(packed, folder, {"a.txt": "train.svm"}, name=f"train.svm.{packing}")
    assert (folder / "a.txt").read_bytes() == TEXT
    run(packed + PACKERS[packing](NOISE), folder, {"a": "a"})  # Of several streams.
    assert (folder / "a").read_bytes() == TEXT + NOISE
    refused(packed, folder, r"there is no test.svm in it, it holds a$", {"a": "test.svm"})
    refused(packed[:-9], folder, r"it is damaged", {"a": "a"})


@pytest.mark.parametrize("kind", ["zip", "tar w", "tar w:gz"])
def test_a_missing_member_is_named_with_those_there(folder, kind):
    message = "there is no Set/none.txt in it, it holds Set/train.txt, Set/test.txt, Set/deep/"
    refused(ARCHIVES[kind], folder, message, {"a": "Set/none.txt"})
    many = {f"{i}.txt": b"" for i in range(100)}
    packed = as_zip(many) if kind == "zip" else as_tar(many)
    refused(packed, folder, r"it holds 0.txt, .*, 7.txt and 92 more$", {"a": "b"})


def test_a_member_that_has_moved(folder):
    run(as_zip({"New/train.txt": TEXT, "New/a.txt": NOISE}), folder, {"a": "Set/train.txt"})
    assert (folder / "a").read_bytes() == TEXT
    two = as_zip({"New/train.txt": TEXT, "Old/train.txt": NOISE})
    refused(two, folder, r"no Set/train.txt in it, it holds New/tr", {"a": "Set/train.txt"})
    run(two, folder, {"a": "Old/train.txt"})
    assert (folder / "a").read_bytes() == NOISE


def test_names_are_compared_in_a_plain_form(folder):
    for packed in (as_tar({"./Set/train.txt": TEXT}), as_zip({"Set\\train.txt": TEXT})):
        run(packed, folder, {"a": "Set/train.txt"})
        assert (folder / "a").read_bytes() == TEXT


@pytest.mark.parametrize("pack", [as_zip, as_tar])
@pytest.mark.parametrize("name", ["../../evil.txt", "/tmp/evil.txt", "C:\\evil.txt"])
def test_names_in_archives_lead_nowhere(folder, pack, name):
    packed = pack({name: b"evil", "good.txt": b"good"})
    run(packed, folder, {"a.txt": "good.txt"})
    assert written(folder.parent).keys() == {"a.part", "out/a.txt"}
    # Even where such a name is asked for, the file goes where we say.
    run(packed, folder, {"b.txt": name.replace("\\", "/")})
    assert written(folder.parent).keys() == {"a.part", "out/a.txt", "out/b.txt"}


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]
)
def test_links_in_tar_archives_are_not_followed(folder, kind):
    info = tarfile.TarInfo("Set/train.txt")
    info.type, info.linkname = kind, "/etc/passwd"
    message = "Set/train.txt in it is not a plain file"
    refused(as_tar({info: b""}), folder, message, {"a": "Set/train.txt"})
    assert written(folder) == {}


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO])
def test_links_in_zip_archives_are_not_followed(folder, mode):
    info = zipfile.ZipInfo("train.txt")
    info.external_attr = (mode | 0o777) << 16
    packed = as_zip({info: "/etc/passwd"})
    refused(packed, folder, r"train.txt in it is not a plain file", {"a": "train.txt"})
    refused(as_zip({"a/": b""}), folder, r"a/ in it is not a plain file", {"b": "a/"})


@pytest.mark.parametrize("kind", ["zip", "tar w:gz", "tar w:xz"])
def test_the_size_is_bounded(folder, kind, monkeypatch):
    bomb = {"Set/train.txt": bytes(5_000_000), "Set/test.txt": b""}
    packed = as_zip(bomb) if kind == "zip" else as_tar(bomb, kind.removeprefix("tar "))
    assert len(packed) < 10_000
    monkeypatch.setattr(module, "MAX_BYTES", 4_000_000)
    refused(packed, folder, r"it unpacks to more than 4000000 bytes")
    assert sum(path.stat().st_size for path in written(folder).values()) == 0
    monkeypatch.setattr(module, "MAX_BYTES", 6_000_000)
    run(packed, folder)


def test_a_single_file_and_what_is_passed_over_are_bounded_too(folder, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1_000_000)
    passed = as_tar({"other": bytes(5_000_000), "Set/train.txt": b""}, "w:gz")
    endless = gzip.compress(as_tar({"Set/train.txt": b""}) + bytes(5_000_000))
    single = gzip.compress(bytes(5_000_000))
    for packed, member in ((passed, "Set/train.txt"), (endless, "Set/train.txt"), (single, "a")):
        refused(packed, folder, "it unpacks to more than", {"a": member})
        assert sum(path.stat().st_size for path in written(folder).values()) <= 1_000_000


def test_a_zip_that_lies_about_sizes(folder, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 10_000)
    packed = bytearray(as_zip({"a": bytes(5_000_000)}))
    real, claimed = (5_000_000).to_bytes(4, "little"), (1000).to_bytes(4, "little")
    assert packed.count(real) == 2
    lying = bytes(packed.replace(real, claimed))
    refused(lying, folder, "it is damaged", {"a": "a"})
    assert (folder / "a").stat().st_size <= 1000


def test_the_number_of_members_is_bounded(folder, monkeypatch):
    monkeypatch.setattr(module, "MAX_MEMBERS", 3)
    refused(as_tar({str(i): b"" for i in range(4)}), folder, "more than 3 files", {"a": "0"})


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_is_bounded(folder, kind, monkeypatch):
    """All of it is read into memory, and zeros are packed a thousandfold."""
    header = tarfile.TarInfo("header")
    header.type, header.size = kind, 6_000_000
    packed = gzip.compress(header.tobuf() + bytes(6_000_128) + as_tar({"a": b"x"}), 1)
    assert len(packed) < 50_000
    refused(packed, folder, "it has a header of more than 4194304 bytes", {"a": "a"})


def test_headers_of_passed_members_are_not_kept(folder):
    infos = [tarfile.TarInfo(str(i)) for i in range(40)]
    for info in infos:
        info.pax_headers = {"comment": "x" * 1_000_000}
    packed = as_tar(dict.fromkeys(infos, b"") | {"a": TEXT}, "w:gz")
    tracemalloc.start()
    try:
        run(packed, folder, {"a": "a"})
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
    assert (folder / "a").read_bytes() == TEXT


def test_a_long_list_of_files_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(module, "MAX_LIST", 100_000)
    names = {f"{i:0100}": b"" for i in range(1000)}
    message = r"its list of files has 1\d{5} bytes, more than 100000"
    refused(as_zip(names), folder, message, {"a": "0" * 100})


def test_little_space(folder, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("", (), {"free": 1000}))
    for kind in ("zip", "tar w:gz"):
        with pytest.raises(OSError, match="not enough space: the unpacked archive takes"):
            run(ARCHIVES[kind], folder)


def test_what_cannot_be_unpacked(folder):
    packed = bytearray(ARCHIVES["stored zip"])
    packed[6] |= 1
    packed[packed.index(b"PK\1\2") + 8] |= 1
    refused(bytes(packed), folder, "it is damaged: .*encrypted")
    for content in (b"", b"P", TEXT, NOISE, b"<html></html>"):
        refused(content, folder, "it is no archive")
    refused(b"PK\3\4" + NOISE, folder, "it is damaged: File is not a zip file")


@pytest.mark.parametrize("kind", ARCHIVES)
def test_damaged_archives_give_an_error_or_the_files(folder, kind):
    """A check sum covers all but the tar archive that is not compressed."""
    chance = random.Random(kind)
    whole = ARCHIVES[kind]
    outcomes = set()
    for _ in range(40):
        packed = bytearray(whole)
        if chance.random() < 0.3:
            del packed[chance.randrange(len(packed)) :]
        else:
            for _ in range(chance.choice([1, 1, 10])):
                packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
        try:
            run(bytes(packed), folder)
        except UnpackError:
            outcomes.add("error")
        else:
            outcomes.add("files")
            if kind != "tar w":
                assert (folder / "train.txt").read_bytes() == TEXT
                assert (folder / "test.txt").read_bytes() == NOISE
    assert "error" in outcomes


def test_sparse_files_count_with_the_size_that_they_get(folder, monkeypatch):
    """An archive of few bytes, whose files are holes."""
    monkeypatch.setattr(module, "MAX_BYTES", 5_000_000)
    header = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "3000000"}
    files = {tarfile.TarInfo(name): b"1\n3000000\n0\n".ljust(512, b"\0") for name in FILES}
    for info in files:
        info.pax_headers = {**header, "GNU.sparse.name": info.name}
    packed = as_tar(files)
    refused(packed, folder, "it unpacks to more than 5000000 bytes")
    monkeypatch.setattr(module, "MAX_BYTES", 6_500_000)
    run(packed, folder)
    assert {path.stat().st_size for path in written(folder).values()} == {3_000_000}
