"""The text that is on every machine: it is Python code, and the same at every call."""

import sysconfig
from pathlib import Path

import pytest
import torch
from support.errors import refuses

from orderone.data import text, text_batch, text_batches
from orderone.data.text import _files, _text


def test_the_text_is_python():
    found = text(50_000)
    assert len(found) == 50_000
    assert b"import " in found
    assert b"\r\n" not in found
    assert text(1_000) == found[:1_000]


def test_only_sources_that_every_installation_has():
    folder = Path(sysconfig.get_path("stdlib"))
    names = [path.relative_to(folder).as_posix() for path in _files(folder)]
    assert {"ast.py", "json/decoder.py"} <= set(names)
    assert names == list(dict.fromkeys(names))
    assert not [
        name
        for name in names
        if {"test", "tests", "site-packages", "idlelib"} & set(name.split("/"))
    ]
    assert not [name for name in names if name.startswith("_sysconfigdata")]


def test_files_come_in_the_order_of_their_names(tmp_path):
    for name in ("b.py", "a.py", "c.txt", "pkg/z.py", "pkg/test/t.py", "site-packages/s.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("")
    assert [path.relative_to(tmp_path).as_posix() for path in _files(tmp_path)] == [
        "a.py",
        "b.py",
        "pkg/z.py",
    ]


def test_a_batch_is_pieces_of_the_text():
    ids = text_batch(seed=3, batch=4, length=32)
    assert (ids.shape, ids.dtype) == ((4, 32), torch.long)
    assert all(bytes(row.tolist()) in text() for row in ids)
    assert torch.equal(ids, text_batch(seed=3, batch=4, length=32))
    assert not torch.equal(ids, text_batch(seed=4, batch=4, length=32))


def test_batches_differ_and_start_alike():
    several = text_batches(3, seed=3, batch=4, length=32)
    assert torch.equal(several[0], text_batch(seed=3, batch=4, length=32))
    assert len({tuple(ids.flatten().tolist()) for ids in several}) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "^batch: .*1 or more"),
        ({"length": 2.5}, "^length: .*2.5"),
        ({"length": 1 << 30}, "^length: expected at most"),
        ({"seed": -1}, "^seed: .*0 or more"),
    ],
)
def test_errors_name_the_argument(options, message):
    with pytest.raises(ValueError, match=message):
        text_batch(**options)


def test_a_python_without_sources_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "python311.zip"))
    _text.cache_clear()
    with refuses("missing-data") as caught:
        text()
    assert "python311.zip" in str(caught.value)
