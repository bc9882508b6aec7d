"""Records are read back as they were written, to the last digit, with their provenance."""

import copy
import json
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.errors import refuses
from torch import nn

import orderone as o1
from orderone.measure.records import SIZES, VERSIONS, read, table, write

COLUMNS = ["step", "module", "quantity", *SIZES]
EXTREMES = [0.1 + 0.2, -1 / 3, 1.2345678901234567e-30, 5e-324, 1.7976931348623157e308, -0.0, 0.0]
NOT_FINITE = [float("nan"), float("inf"), -float("inf")]
FORMATS = pytest.mark.parametrize("ending", ["jsonl", "parquet"])


def made(values: list[float], names: list[str] | None = None, **provenance: Any) -> Any:
    names = names or [f"layer.{i}" for i in range(len(values))]
    rows = [
        (i, name, "output", x, -x, abs(x), 1.0)
        for i, (name, x) in enumerate(zip(names, values, strict=True))
    ]
    return table(rows, COLUMNS, provenance)


def same(frame: pd.DataFrame, path: Any) -> pd.DataFrame:
    """Write, read and compare values, types, order and attributes."""
    write(frame, path)
    found = read(path)
    pd.testing.assert_frame_equal(found, frame, check_exact=True)
    assert found.attrs == frame.attrs
    return found


def strict(path: Any) -> list[Any]:
    """Parse with a strict JSON parser, which rejects NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


@FORMATS
def test_every_digit_survives(ending, tmp_path):
    found = same(made(EXTREMES), tmp_path / f"records.{ending}")
    assert [np.float64(x).tobytes() for x in found["rms"]] == [
        np.float64(x).tobytes() for x in EXTREMES
    ]


@FORMATS
def test_numbers_that_are_not_finite_survive(ending, tmp_path):
    found = same(made([*NOT_FINITE, 1.0]), tmp_path / f"records.{ending}")
    assert np.isnan(found["rms"][0])
    assert found["rms"][1:].tolist() == [np.inf, -np.inf, 1.0]
    assert found["max"][1:].tolist() == [np.inf, np.inf, 1.0]


def test_lines_are_strict_json_also_for_numbers_that_are_not_finite(tmp_path):
    write(made([*NOT_FINITE, 1.0], seed=float("inf")), tmp_path / "records.jsonl")
    head, *lines = strict(tmp_path / "records.jsonl")
    assert [line["rms"] for line in lines] == ["NaN", "Infinity", "-Infinity", 1.0]
    assert [float(line["max"]) for line in lines][1:] == [np.inf, np.inf, 1.0]
    assert head["attrs"]["provenance"] == {"seed": "Infinity"}
    assert head["columns"]["rms"] == "float64"


@FORMATS
def test_units_and_provenance_survive(ending, tmp_path):
    known: dict[str, Any] = {
        "seed": 3,
        "plan": "a1b2",
        "rates": [0.1, 0.2],
        "nested": {"wide": True, "none": None},
    } | VERSIONS
    found = same(made([1.0], **known), tmp_path / f"records.{ending}")
    assert found.attrs["provenance"] == known
    assert set(found.attrs["units"]) == {"step", *SIZES}


@FORMATS
def test_provenance_that_json_cannot_represent_is_written_as_text(ending, tmp_path):
    odd = {
        "share": Fraction(1, 3),
        "width": np.int64(64),
        "lr": np.float32(0.5),
        "sizes": (1, 2),
        7: torch.float32,
    }
    frame = table([(0, 1.0)], ["step", "rms"], odd)  # pyright: ignore[reportArgumentType]
    before = copy.deepcopy(frame.attrs)
    write(frame, tmp_path / f"records.{ending}")
    wanted = {"share": "1/3", "width": 64, "lr": 0.5, "sizes": [1, 2], "7": "torch.float32"}
    assert read(tmp_path / f"records.{ending}").attrs["provenance"] == wanted
    assert frame.attrs == before


@FORMATS
def test_names_in_any_script(ending, tmp_path):
    names = [
        "блок.0",
        "層.注意",
        "a\u2028b",
        'quote"\\',
        "line\nbreak",
        "🙂",
        "",
        "NaN",
        "null",
        "Infinity",
    ]
    found = same(made([1.0] * len(names), names), tmp_path / f"записи.{ending}")
    assert found["module"].tolist() == names


@FORMATS
@pytest.mark.parametrize(
    "column",
    [
        pd.Series([1, 2**60, -3]),
        pd.Series([True, False, True]),
        pd.Series([0.1, 0.2, np.nan], dtype="float32"),
        pd.Series(["a", None, "nan"]),
        pd.Series([1, None, 3], dtype="Int64"),
    ],
    ids=["integers", "booleans", "single precision", "text with gaps", "integers with gaps"],
)
def test_types_of_columns_survive(ending, column, tmp_path):
    same(pd.DataFrame({"step": [0, 1, 2], "value": column}), tmp_path / f"records.{ending}")


@FORMATS
def test_an_empty_table_keeps_its_columns(ending, tmp_path):
    found = same(table([], COLUMNS, {"seed": 1}), tmp_path / f"records.{ending}")
    assert list(found) == COLUMNS


@FORMATS
def test_a_selection_is_written_without_its_index(ending, tmp_path):
    frame = made([1.0, 2.0, 3.0], seed=1)
    write(frame[frame["rms"] > 1], tmp_path / f"records.{ending}")
    found = read(tmp_path / f"records.{ending}")
    assert found["rms"].tolist() == [2.0, 3.0]
    assert list(found) == COLUMNS
    assert found.attrs["provenance"] == {"seed": 1}


@FORMATS
def test_records_of_a_probe_survive(ending, tmp_path):
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with o1.probe(model, optimizer, provenance={"seed": 5}) as p:
        for x in (torch.randn(2, 4), torch.full((2, 4), float("inf"))):
            model(x).sum().backward()
            optimizer.step()
    assert not np.isfinite(p.frame["rms"]).all()
    found = same(p.frame, tmp_path / f"records.{ending}")
    assert found.attrs["provenance"] == {"seed": 5} | VERSIONS


# --- several tables -------------------------------------------------------------------------------


def test_joined_tables_of_the_same_provenance_keep_it():
    both = pd.concat([made([1.0], seed=1), made([2.0], seed=1)])
    assert both.attrs == made([1.0], seed=1).attrs


def test_joined_tables_of_different_provenance_have_none():
    both = pd.concat([made([1.0], seed=1), made([2.0], seed=2)])
    assert both.attrs.get("provenance") is None


def test_a_selection_keeps_its_provenance():
    frame = made([1.0, 2.0], seed=1)
    means: Any = frame[frame["rms"] > 1].groupby("module")["rms"].mean()
    assert means.attrs == frame.attrs
    assert frame.copy().attrs == frame.attrs


def test_changes_of_provenance_stay_in_their_table():
    known = {"seed": 1}
    frame = table([(0, 1.0)], ["step", "rms"], known)
    frame.attrs["provenance"]["seed"] = 2
    assert known == {"seed": 1}


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["records.csv", "records", "records.json", "jsonl"])
def test_other_endings_are_refused(name, tmp_path):
    with refuses("invalid-argument", argument="path") as caught:
        write(made([1.0]), tmp_path / name)
    assert name in str(caught.value)
    with refuses("invalid-argument", argument="path"):
        read(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["", "[]\n", '{"rms": 1.0}\n{"rms": 2.0}\n'])
def test_files_without_records_are_refused(content, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(content)
    with refuses("not-records", argument="path") as caught:
        read(path)
    assert "records.jsonl" in str(caught.value)


def test_parquet_without_pyarrow_is_refused(tmp_path, monkeypatch):
    write(made([1.0]), tmp_path / "kept.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refuses("needs-pyarrow"):
        write(made([1.0]), tmp_path / "records.parquet")
    with refuses("needs-pyarrow"):
        read(tmp_path / "kept.parquet")
    write(made([1.0]), tmp_path / "records.jsonl")
    assert len(read(tmp_path / "records.jsonl")) == 1
