"""The tables of the judge: complete, explained, and printed in the documentation as they are."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from support.errors import refuses
from torch import nn

import orderone as o1
from orderone.core.codes import SECTIONS
from orderone.measure.judge.causes import TABLE as CAUSES
from orderone.measure.judge.quantities import JUDGE
from orderone.measure.judge.quantities import TABLE as QUANTITIES
from orderone.measure.judge.thresholds import THRESHOLDS

ROOT = Path(__file__).parents[3]


def test_the_documentation_has_the_tables_of_the_judge():
    script = runpy.run_path(str(ROOT / "docs" / "make_read_a_check.py"))
    text = (ROOT / "docs" / "read-a-check.md").read_text(encoding="utf-8")
    assert script["page"](text) == text, "run python docs/make_read_a_check.py"


@pytest.mark.parametrize("row", QUANTITIES, ids=lambda row: str(row.quantity))
def test_every_quantity_has_thresholds_and_theory(row):
    assert set(row.tolerance) <= set(THRESHOLDS)
    assert (ROOT / row.source).is_file()


@pytest.mark.parametrize("row", QUANTITIES, ids=lambda row: str(row.quantity))
def test_at_most_five_files_decide_a_line(row):
    assert len(row.code) <= 5
    for place in row.code:
        file, _, name = place.partition(": ")
        text = (ROOT / JUDGE / file).read_text(encoding="utf-8")
        last = name.rpartition(".")[2]
        assert re.search(rf"^ *(def {last}\(|class {last}\b|{last}: )", text, re.MULTILINE), place


def test_a_lower_end_is_explained_by_its_parts(capsys):
    def build(width):
        return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))

    x = torch.randn(16, 8)
    check = o1.coord_check(build, widths=(16, 32, 64), batches=(x, x[:, :4].argmax(-1)), seeds=1)
    ranges = [line for line in check.judgements if line.parts]
    assert ranges
    for line in ranges:
        (_, largest), *smaller = line.parts
        assert line.least == pytest.approx(largest - sum(power for _, power in smaller))
    check.explain("2")
    assert "lower end: " in capsys.readouterr().out


def test_every_cause_has_a_code():
    codes = {code for section in SECTIONS.values() for code in section}
    assert {cause.code for cause in CAUSES} <= codes


def test_lines_are_explained(capsys):
    def build(width):
        return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))

    x = torch.randn(16, 8)
    check = o1.coord_check(build, widths=(16, 32, 64), batches=(x, x[:, :4].argmax(-1)), seeds=1)
    check.explain("2")
    text = capsys.readouterr().out
    for part in ("2.weight: learning rate", "prediction (mup)", "threshold 0.1", "theory: src/"):
        assert part in text
    assert "interval" in text
    with refuses("invalid-argument", argument="name"):
        check.explain("3")
