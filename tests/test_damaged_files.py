"""Damaged files are refused in one line that names the file; no number of theirs becomes a result.

Every file is damaged in many ways: bytes are changed, cut off or repeated, and fields of JSON are
removed, renamed or replaced.
"""

import json
import math
import random
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.errors import refuses
from torch import nn

import orderone as o1
from orderone.core.errors import InputError
from orderone.gallery.store import read_provenance, read_records
from orderone.measure.records import read, table, write
from orderone.measure.saved import Saved
from orderone.planning.file import FORMAT

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**400,
    1e308,
    math.nan,
    math.inf,
    "",
    "text",
    "\ud800",
    [],
    [None],
    [[]],
    {},
    {"a": 1},
)
TIMES = 300


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


def places(value: object) -> list[tuple[Any, Any]]:
    """Return (container, key) of every value within a record of JSON."""
    found: list[tuple[Any, Any]] = []
    entries: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = list(enumerate(value))
    for key, inner in entries:
        found.append((value, key))
        found += places(inner)
    return found


def damage_record(record: Any, draw: random.Random) -> Any:
    container, key = draw.choice(places(record))
    kind = draw.randrange(4)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        container[f"{key}x"] = container.pop(key)
    elif kind == 2 and isinstance(container[key], (int, float)):
        container[key] = draw.choice([-container[key], container[key] * 1e300, math.nan])
    else:
        container[key] = draw.choice(ODD)
    return record


def damage_bytes(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content))
    kind = draw.randrange(4)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + content[place // 2 :]
    if kind == 2:
        return (
            content[:place]
            + bytes([content[place] ^ (1 << draw.randrange(8))])
            + content[place + 1 :]
        )
    return content[:place] + draw.randbytes(8) + content[place + 8 :]


def refused_or(path: Path, load: Callable[[], object]) -> object:
    """Return what was loaded; None if the file was refused in one line that names it."""
    refusal = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return load()
        except (UserWarning, InputError) as error:
            refusal = error
    if isinstance(refusal, InputError):
        assert path.name in str(refusal)
        assert "\n" not in str(refusal)
    else:
        assert "[damaged-rows]" in str(refusal)
    return None


@pytest.fixture(scope="module")
def plan_text(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    o1.plan(mlp(32), base=mlp(8), lr=1e-2).save(path)
    return path.read_text()


def test_a_damaged_plan_file_is_refused(tmp_path, plan_text):
    """Whatever is loaded from a damaged file equals the plan that was saved."""
    path = tmp_path / "plan.json"
    path.write_text(plan_text)
    saved = o1.Plan.load(path)
    draw = random.Random(0)
    refused = 0
    for number in range(3 * TIMES):
        content = damage_bytes(plan_text.encode(), draw)
        if number % 2:
            content = json.dumps(damage_record(json.loads(plan_text), draw)).encode()
        path.write_bytes(content)
        loaded = refused_or(path, lambda: o1.Plan.load(path))
        refused += loaded is None
        assert loaded in (None, saved)
    assert refused > 2.9 * TIMES


def test_a_plan_file_without_checksum_is_validated(tmp_path, plan_text):
    """A file that was edited by hand has finite numbers of the right types, or is refused."""
    path = tmp_path / "plan.json"
    draw = random.Random(1)
    for _ in range(TIMES):
        record = json.loads(plan_text)
        del record["checksum"]
        path.write_text(json.dumps(damage_record(record, draw)))
        loaded = refused_or(path, lambda: o1.Plan.load(path))
        if isinstance(loaded, o1.Plan):
            numbers = [row.lr for row in loaded.rows] + [row.init_std for row in loaded.rows]
            assert all(math.isfinite(number) and number >= 0 for number in numbers)
            str(loaded)
            loaded.to_frame()


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("lr", "fast", "rows[0].lr"),
        ("lr", math.nan, "rows[0].lr"),
        ("lr", -1.0, "rows[0].lr"),
        ("init_std", 1e300, "rows[0].init_std"),
        ("order_one", 0.0, "rows[0].order_one"),
        ("carried_multiplier", 0.0, "rows[0].carried_multiplier"),
        ("betas", [0.9, 1.0], "rows[0].betas"),
        ("role", "cat", "rows[0].role"),
        ("shape", [1, "2"], "rows[0].shape[1]"),
        ("factors", {"std": None}, "rows[0].factors.std"),
        ("eps", [1], "rows[0].eps"),
        ("colour", "red", "rows[0].colour"),
    ],
)
def test_the_message_names_file_and_field(tmp_path, plan_text, field, value, where):
    path = tmp_path / "plan.json"
    record = json.loads(plan_text)
    record["rows"][0][field] = value
    path.write_text(json.dumps(record))
    with refuses("not-a-plan-file", argument="path") as caught:
        o1.Plan.load(path)
    assert f"{path}: the plan file is damaged: {where}: expected " in str(caught.value)


def test_other_json_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    for text in ("[" * 100_000, "9" * 5000, f'{{"format": "{FORMAT}", "version": true}}'):
        path.write_text(text)
        with refuses("not-a-plan-file", argument="path"):
            o1.Plan.load(path)


def test_damaged_records_are_refused(tmp_path):
    path = tmp_path / "records.jsonl"
    rows = [(w, s, 1, "0", "output", 1.5 * w, True) for w in (8, 16, 32) for s in (0, 1)]
    columns = ["width", "seed", "step", "module", "quantity", "rms", "finite"]
    write(table(rows, columns, {"steps": 3}), path)
    content = path.read_bytes()
    draw = random.Random(2)
    for number in range(TIMES):
        damaged = damage_bytes(content, draw)
        if number % 2:
            lines = [json.loads(line) for line in content.splitlines()]
            damaged = "\n".join(map(json.dumps, damage_record(lines, draw))).encode()
        path.write_bytes(damaged)
        frame = refused_or(path, lambda: read(path))
        assert frame is None or isinstance(frame, pd.DataFrame)
        saved = refused_or(path, lambda: Saved.load(path))
        if isinstance(saved, Saved):
            assert refused_or(path, lambda saved=saved: len(saved.exponents)) is not None


def test_damaged_parquet_files_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "records.parquet"
    write(table([(8, 0, 1.5)], ["width", "seed", "rms"], {}), path)
    content = path.read_bytes()
    draw = random.Random(3)
    for _ in range(TIMES // 10):
        path.write_bytes(damage_bytes(content, draw))
        refused_or(path, lambda: read(path))


def test_damaged_records_of_the_gallery_are_refused(tmp_path):
    path = tmp_path / "provenance.json"
    text = json.dumps({"experiment": "e", "scale": "small", "command": "c", "parts": {"p": {}}})
    (tmp_path / "p.csv").write_text("a,b\n1,2\n")
    draw = random.Random(4)
    for _ in range(TIMES):
        path.write_bytes(damage_bytes(text.encode(), draw))
        refused_or(path, lambda: read_provenance(tmp_path))
    path.write_text(text)
    for content in (b"", b"\xff\xfe\x00", b'a,b\n"1'):
        (tmp_path / "p.csv").write_bytes(content)
        with refuses("damaged-file"):
            read_records(tmp_path)


def test_damaged_stores_are_refused_or_said(tmp_path):
    path = tmp_path / "runs.db"

    def batch(step: int, seed: int) -> Any:
        import torch

        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed + step))
        return x, x[:, 0].long() % 2

    options = {"data": batch, "steps": 2, "progress": False, "widths": [8]}
    o1.sweep(mlp, {"lr": [1e-3, 1e-2, 1e-1]}, store=path, **options)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    saved = o1.Sweep.load(path).frame
    draw = random.Random(5)
    for number in range(TIMES // 3):
        (tmp_path / f"{number}.db").write_bytes(damage_bytes(content, draw))
        copy = tmp_path / f"{number}.db"
        loaded = refused_or(copy, lambda copy=copy: o1.Sweep.load(copy).frame)
        if isinstance(loaded, pd.DataFrame):  # rows that are there are those that were stored
            common = loaded.merge(saved, on=["lr", "loss", "steps"])
            assert len(common) == len(loaded)
