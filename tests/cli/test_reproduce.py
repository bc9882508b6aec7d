"""`orderone reproduce`: lists, runs, keeps, goes on, and survives an experiment that breaks."""

import json
import sys

import pytest

from orderone import gallery
from orderone.cli.main import main


def run(capsys, *arguments, status=None):
    if status is None:
        main(["reproduce", *map(str, arguments)])
    else:
        with pytest.raises(SystemExit) as left:
            main(["reproduce", *map(str, arguments)])
        assert left.value.code == status
    return capsys.readouterr()


@pytest.fixture
def few(monkeypatch):
    """Only what needs no simulation, so that --all is quick."""
    known = gallery.EXPERIMENTS
    for module in (gallery, sys.modules["orderone.gallery"]):
        monkeypatch.setattr(module, "EXPERIMENTS", {"s0-table1": known["s0-table1"]})
    return gallery.EXPERIMENTS


def test_lists(capsys):
    assert "s0-table3" in run(capsys).out
    assert run(capsys).out == run(capsys, "--list").out
    listed = json.loads(run(capsys, "--list", "--json").out)
    assert [each["name"] for each in listed] == list(gallery.EXPERIMENTS)
    assert all({"small", "paper"} <= set(each["scales"]) for each in listed)


def test_runs_and_keeps(capsys, tmp_path):
    first = json.loads(run(capsys, "s0-table1", "--json", "--out", tmp_path).out)
    assert first["verdict"] == "holds"
    assert len(first["findings"]) >= 4
    assert first["provenance"]["command"] == "orderone reproduce s0-table1 --scale small"
    again = run(capsys, "s0-table1", "--out", tmp_path)
    assert "(1 of 1)" not in again.err  # nothing was left to run
    assert "the paper: holds" in again.out
    assert "(1 of 1)" in run(capsys, "s0-table1", "--out", tmp_path, "--again").err


def test_all_of_them(capsys, tmp_path, few):
    told = run(capsys, "--all", "--out", tmp_path, "--json")
    assert [each["name"] for each in json.loads(told.out)] == list(few)


def test_one_that_breaks_does_not_stop_the_others(capsys, tmp_path, few):
    from dataclasses import replace

    def bad(records):
        raise RuntimeError("no judge")

    few["broken"] = replace(few["s0-table1"], judge=bad)
    few["last"] = replace(few["s0-table1"], name="s0-last")
    told = run(capsys, "--all", "--out", tmp_path, "--json", status=1)
    assert [each["name"] for each in json.loads(told.out)] == ["s0-table1", "s0-last"]
    assert "no judge" in told.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["s0-table9"], "unknown experiment"),
        (["s0-table1", "--scale", "huge"], "unknown scale: expected one of small, gpu, paper"),
        (["s0-table1", "--scale", "gpu"], "unknown scale of s0-table1: expected one of small, paper"),
        (["s0-table1", "--all"], "expected a name, --all or --list"),
        (["s0-table3", "--seeds", "-1"], "seeds: expected a whole number"),
        (["s0-table1", "--seeds", "2"], "s0-table1 has no number of seeds"),
        (["s0-table1", "--html", "/nowhere/x.html"], "html: cannot write"),
    ],
)
def test_wrong_arguments_are_told(capsys, tmp_path, arguments, said):
    assert said in run(capsys, *arguments, "--out", tmp_path, status=2).err
    assert not list(tmp_path.iterdir())
