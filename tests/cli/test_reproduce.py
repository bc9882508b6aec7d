"""`orderone reproduce`: lists, runs, keeps, goes on, and survives an experiment that breaks."""

import json
import sys

import pytest

from orderone import gallery
from orderone.cli.main import main

QUICK = "s2-parameters"  # counts, and trains nothing


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
        monkeypatch.setattr(module, "EXPERIMENTS", {QUICK: known[QUICK]})
    return gallery.EXPERIMENTS


def test_lists(capsys):
    assert "s0-table3" in run(capsys).out
    assert run(capsys).out == run(capsys, "--list").out
    listed = json.loads(run(capsys, "--list", "--json").out)
    assert [each["name"] for each in listed] == list(gallery.EXPERIMENTS)
    assert all({"small", "paper"} <= set(each["scales"]) for each in listed)


@pytest.mark.parametrize(
    "option", [["--scale", "paper"], ["--out", "x"], ["--seeds", "2"], ["--again"], ["--html", "x"]]
)
@pytest.mark.parametrize("asked", [[], ["--list"]])
def test_a_list_takes_no_options_of_a_run(capsys, option, asked):
    assert f"a list has no use for {option[0]}" in run(capsys, *asked, *option, status=2).err


def test_runs_and_keeps(capsys, tmp_path):
    first = json.loads(run(capsys, QUICK, "--json", "--out", tmp_path).out)
    assert first["verdict"] == "holds"
    assert len(first["findings"]) >= 3
    assert first["provenance"]["command"] == f"orderone reproduce {QUICK} --scale small"
    again = run(capsys, QUICK, "--out", tmp_path)
    assert "(1 of 1)" not in again.err  # nothing was left to run
    assert "the paper: holds" in again.out
    assert "(1 of 1)" in run(capsys, QUICK, "--out", tmp_path, "--again").err


def test_all_of_them(capsys, tmp_path, few):
    told = run(capsys, "--all", "--out", tmp_path, "--json")
    assert [each["name"] for each in json.loads(told.out)] == list(few)


def test_one_that_breaks_does_not_stop_the_others(capsys, tmp_path, few):
    from dataclasses import replace

    def bad(records):
        raise RuntimeError("no judge")

    few["broken"] = replace(few[QUICK], judge=bad)
    few["last"] = replace(few[QUICK], name="s2-last")
    told = run(capsys, "--all", "--out", tmp_path, "--json", status=1)
    assert [each["name"] for each in json.loads(told.out)] == [QUICK, "s2-last"]
    assert "no judge" in told.err


def test_all_takes_seeds_where_an_experiment_has_them(capsys, tmp_path, few):
    from dataclasses import dataclass, replace

    @dataclass(frozen=True)
    class Seeded:
        seeds: int = 5

    parts = few[QUICK].parts(few[QUICK].scales["small"])
    few["seeded"] = replace(
        few[QUICK], name="s2-seeded", scales={"small": Seeded()}, parts=lambda settings: parts
    )
    told = json.loads(run(capsys, "--all", "--seeds", 2, "--json", "--out", tmp_path).out)
    settings = [next(iter(each["provenance"]["parts"].values()))["settings"] for each in told]
    assert settings[0].get("seeds") is None
    assert settings[1] == {"seeds": 2}


def test_a_missing_package_is_named_with_the_command_that_brings_it(capsys, tmp_path, few):
    from dataclasses import replace

    def lacks():
        raise ImportError("tea is needed; pip install 'orderone[tea]'")

    few["s2-lacking"] = replace(
        few[QUICK], name="s2-lacking", parts=lambda settings: {"cup": lacks}
    )
    assert (
        "orderone: tea is needed; pip" in run(capsys, "s2-lacking", "--out", tmp_path, status=2).err
    )
    told = run(capsys, "--all", "--out", tmp_path, status=1)
    assert "s2-lacking cannot run: tea is needed" in told.err
    assert "Traceback" not in told.err


def test_a_page_that_could_not_be_drawn_is_told_before_the_work(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("orderone.cli.files.find_spec", lambda package: None)
    told = run(capsys, QUICK, "--out", tmp_path, "--html", tmp_path / "page.html", status=2)
    assert "html: this needs plotly; pip install 'orderone[report]'" in told.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["", "file", "file/below"])
def test_a_folder_that_cannot_be_written_is_told_before_the_work(
    capsys, tmp_path, monkeypatch, out
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert f"out: cannot write into {out!r}" in run(capsys, QUICK, "--out", out, status=2).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["s0-table9"], "unknown experiment"),
        (["s0-table1", "--scale", "huge"], "unknown scale: expected one of small, gpu, paper"),
        (
            ["s0-table1", "--scale", "gpu"],
            "unknown scale of s0-table1: expected one of small, paper",
        ),
        (["s0-table1", "--all"], "expected a name, --all or --list"),
        (["--list", "--all"], "expected a name, --all or --list"),
        (["s0-table3", "--seeds", "-1"], "seeds: expected a whole number"),
        ([QUICK, "--seeds", "2"], "s2-parameters has no number of seeds"),
        (["s0-table1", "--html", "/nowhere/x.html"], "html: cannot write"),
    ],
)
def test_wrong_arguments_are_told(capsys, tmp_path, arguments, said):
    assert said in run(capsys, *arguments, "--out", tmp_path, status=2).err
    assert not list(tmp_path.iterdir())
