"""`orderone reproduce`: list, run, save, continue, and survive an experiment that breaks."""

import json
import sys

import pytest
from support.command_line import assert_refused, orderone

from orderone import gallery
from orderone.cli.main import main

QUICK = "s2-parameters"  # counts parameters and trains nothing


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
    """Keep only one experiment, without training, so that --all is quick."""
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
@pytest.mark.parametrize("listed", [[], ["--list"]])
def test_a_list_takes_no_options_of_a_run(option, listed):
    ended = orderone("reproduce", *listed, *option)
    assert_refused(ended, "option-without-effect", option[0], "list")


def test_results_are_saved_and_not_computed_again(capsys, tmp_path):
    first = json.loads(run(capsys, QUICK, "--json", "--out", tmp_path).out)
    assert first["verdict"] == "holds"
    assert len(first["findings"]) >= 3
    assert first["provenance"]["command"] == f"orderone reproduce {QUICK} --scale small"
    again = run(capsys, QUICK, "--out", tmp_path)
    assert "(1 of 1)" not in again.err  # every part was saved
    assert "the paper: holds" in again.out
    assert "(1 of 1)" in run(capsys, QUICK, "--out", tmp_path, "--again").err


def test_all_of_them(capsys, tmp_path, few):
    result = run(capsys, "--all", "--out", tmp_path, "--json")
    assert [each["name"] for each in json.loads(result.out)] == list(few)


def test_an_experiment_that_breaks_does_not_stop_the_others(capsys, tmp_path, few):
    from dataclasses import replace

    def bad(records):
        raise RuntimeError("no judge")

    few["broken"] = replace(few[QUICK], judge=bad)
    few["last"] = replace(few[QUICK], name="s2-last")
    result = run(capsys, "--all", "--out", tmp_path, "--json", status=1)
    assert [each["name"] for each in json.loads(result.out)] == [QUICK, "s2-last"]
    assert "no judge" in result.err


def test_seeds_apply_to_experiments_that_have_them(capsys, tmp_path, few):
    from dataclasses import dataclass, replace

    @dataclass(frozen=True)
    class Seeded:
        seeds: int = 5

    parts = few[QUICK].parts(few[QUICK].scales["small"])
    few["seeded"] = replace(
        few[QUICK], name="s2-seeded", scales={"small": Seeded()}, parts=lambda settings: parts
    )
    result = json.loads(run(capsys, "--all", "--seeds", 2, "--json", "--out", tmp_path).out)
    settings = [next(iter(each["provenance"]["parts"].values()))["settings"] for each in result]
    assert settings[0].get("seeds") is None
    assert settings[1] == {"seeds": 2}


def test_a_missing_package_is_named_with_the_command_that_installs_it(capsys, tmp_path, few):
    from dataclasses import replace

    def needs_tea():
        raise ImportError("tea is needed; pip install 'orderone[tea]'")

    few["s2-lacking"] = replace(
        few[QUICK], name="s2-lacking", parts=lambda settings: {"cup": needs_tea}
    )
    ended = orderone("reproduce", "s2-lacking", "--out", tmp_path)
    assert ended.status == 2
    assert ended.code == "missing-package"
    assert "orderone: tea is needed; pip install 'orderone[tea]'" in ended.err
    result = run(capsys, "--all", "--out", tmp_path, status=1)
    assert "s2-lacking" in result.err
    assert "tea is needed" in result.err
    assert "Traceback" not in result.err


def test_a_missing_package_for_the_page_is_named_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("orderone.cli.files.find_spec", lambda package: None)
    ended = orderone("reproduce", QUICK, "--out", tmp_path, "--html", tmp_path / "page.html")
    assert_refused(ended, "missing-package", "html: ", "jinja2", "pip install 'orderone[report]'")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["", "file", "file/below"])
def test_an_unwritable_folder_is_refused_before_the_work(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert_refused(orderone("reproduce", QUICK, "--out", out), "cannot-write-file", f"{out!r}")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["s0-table9"], "unknown-name", ["experiment", "'s0-table9'"]),
        (
            ["s0-table1", "--scale", "huge"],
            "unknown-name",
            ["scale", "small, gpu, paper", "'huge'"],
        ),
        (["s0-table1", "--all"], None, ["--all", "--list"]),
        (["--list", "--all"], None, ["--all", "--list"]),
        (["s0-table3", "--seeds", "-1"], None, ["seeds: ", "got -1"]),
        (["s0-table1", "--html", "/nowhere/x.html"], "cannot-write-file", ["html: ", "/nowhere/x"]),
    ],
)
def test_wrong_input_is_refused(tmp_path, arguments, code, words):
    out = [] if "--list" in arguments else ["--out", tmp_path]
    assert_refused(orderone("reproduce", *arguments, *out), code, *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["s0-table1", "--scale", "gpu"], ["s0-table1", "small, paper"]),
        ([QUICK, "--seeds", "2"], [QUICK, "seeds"]),
    ],
)
def test_wrong_input_of_an_experiment_is_refused(tmp_path, arguments, words):
    ended = orderone("reproduce", *arguments, "--out", tmp_path)
    assert ended.status == 2
    assert all(word in ended.err for word in words)
    assert not list(tmp_path.iterdir())
