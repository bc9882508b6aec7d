"""`orderone report`: which results it shows, and its errors if there are none."""

import json
import shutil

import pytest
from support.command_line import assert_refused, orderone

from orderone import gallery
from orderone.cli.main import main
from orderone.core.errors import code_of
from orderone.gallery.choose import choose
from orderone.gallery.store import SHIPPED


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Work in an empty folder, with three entries of the gallery."""
    monkeypatch.chdir(tmp_path)
    few = {name: gallery.EXPERIMENTS[name] for name in ("s0-table1", "s0-table2", "s0-table3")}
    monkeypatch.setattr(gallery, "EXPERIMENTS", few)


def run(capsys, *arguments, status=None):
    if status is None:
        main(["report", *map(str, arguments)])
    else:
        with pytest.raises(SystemExit) as left:
            main(["report", *map(str, arguments)])
        assert left.value.code == status
    return capsys.readouterr()


def save_copy(folder, name="s0-table1", scale="small", **changes):
    """Copy results of the package, as if they were measured here."""
    place = folder / name / scale
    shutil.copytree(SHIPPED / name / "small", place)
    record = json.loads((place / "provenance.json").read_text())
    for part in record["parts"].values():
        part.update(changes)
    (place / "provenance.json").write_text(json.dumps(record))
    return place


def chosen(folder, name="s0-table1"):
    entry, notes = choose(gallery.EXPERIMENTS[name], [folder, SHIPPED])
    assert entry is not None
    return entry.scale, next(iter(entry.provenance["parts"].values()))["measured"], notes


# --- the gallery ----------------------------------------------------------------------------------


def test_the_whole_gallery_of_the_package(capsys, tmp_path):
    result = run(capsys, "--html", "all.html")
    assert "Sizes in training" in result.out
    assert "holds in" in result.out
    assert result.err == "wrote all.html\n"
    page = (tmp_path / "all.html").read_text(encoding="utf-8")
    assert page.count("<article") == 3
    assert 'href="#s0-table2"' in page


def test_verdicts_and_findings_as_json(capsys):
    result = json.loads(run(capsys, "gallery", "--json").out)
    assert [each["name"] for each in result] == ["s0-table1", "s0-table2", "s0-table3"]
    assert result[1]["verdict"] == "holds in part"
    assert result[1]["corrected"] == "holds"
    assert {"claim", "holds", "numbers", "of", "erratum"} == set(result[1]["findings"][0])
    assert result[1]["provenance"]["command"].startswith("orderone reproduce s0-table2")


def test_one_entry_with_its_findings(capsys, tmp_path):
    (tmp_path / "s0-table3").mkdir()  # a name of the gallery is not read as a folder
    result = run(capsys, "S0-Table3", "--html", "one.html")
    assert "SP (A.2)" in result.out
    assert "does not hold" in result.out
    assert (tmp_path / "one.html").read_text(encoding="utf-8").count("<article") == 1


def test_a_folder_shows_only_its_results(capsys, tmp_path):
    save_copy(tmp_path / "mine", "s0-table2")
    result = json.loads(run(capsys, "mine", "--json").out)
    assert [each["name"] for each in result] == ["s0-table2"]


def test_own_results_are_shown_where_they_are_larger_or_newer(tmp_path):
    shipped = chosen(tmp_path)[1]
    save_copy(tmp_path / "older", measured="2000-01-01")
    assert chosen(tmp_path / "older")[:2] == ("small", shipped)
    save_copy(tmp_path / "newer", measured="2999-01-01")
    assert chosen(tmp_path / "newer")[:2] == ("small", "2999-01-01")
    save_copy(tmp_path / "larger", scale="paper", measured="2000-01-01")
    assert chosen(tmp_path / "larger")[:2] == ("paper", "2000-01-01")


def test_the_default_folder_is_used_without_an_option(capsys, tmp_path):
    save_copy(tmp_path / "reproduced", scale="paper")
    assert [each["scale"] for each in json.loads(run(capsys, "--json").out)] == [
        "paper",
        "small",
        "small",
    ]
    (tmp_path / "reproduced").rename(tmp_path / "elsewhere")
    result = json.loads(run(capsys, "s0-table1", "--folder", "elsewhere", "--json").out)
    assert result[0]["scale"] == "paper"


def test_unfinished_outdated_and_broken_results_are_left_out_with_a_note(capsys, tmp_path):
    place = save_copy(tmp_path / "half", "s0-table2", "paper")
    record = json.loads((place / "provenance.json").read_text())
    del record["parts"]["row 1 with norm"]
    (place / "provenance.json").write_text(json.dumps(record))
    scale, _, notes = chosen(tmp_path / "half", "s0-table2")
    assert (scale, len(notes)) == ("small", 1)
    assert "1 of 6 parts are missing" in notes[0]
    assert code_of(notes[0]) == "records-skipped"
    save_copy(tmp_path / "old", scale="paper", version=0)
    assert "another version" in chosen(tmp_path / "old")[2][0]
    (save_copy(tmp_path / "lost", scale="paper") / "rates.csv").unlink()
    assert "cannot be read (FileNotFoundError" in chosen(tmp_path / "lost")[2][0]
    (save_copy(tmp_path / "torn", scale="paper") / "provenance.json").write_text('{"parts": ')
    assert "cannot be read (InputError" in chosen(tmp_path / "torn")[2][0]
    assert "note: s0-table1, paper, in torn: cannot be read" in run(capsys, "--folder", "torn").err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["s0-tabel1"], "unknown-name", ["'s0-table1'?"]),
        (["runs.db"], "no-results", ["runs.db: "]),
        (["nowhere/at/all"], "no-results", ["nowhere/at/all: "]),
        (["empty"], "no-results", ["empty: "]),
        (["--folder", "nowhere"], "no-results", ["folder: ", "'nowhere'"]),
        (["--html", "nowhere/a.html"], "cannot-write-file", ["html: ", "'nowhere/a.html'"]),
        (["empty", "--folder", "empty"], "option-without-effect", ["--folder 'empty'", "gallery"]),
        (["notes.db", "--folder", "empty"], "option-without-effect", ["--folder", "notes.db"]),
    ],
)
def test_missing_results_are_refused(tmp_path, arguments, code, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.db").write_text("milk, bread, and much more than that: " * 40)
    assert_refused(orderone("report", *arguments), code, *words)


@pytest.mark.parametrize("name", ["notes.db", "other.jsonl"])
def test_files_of_other_programs_are_refused(tmp_path, name):
    (tmp_path / "notes.db").write_text("milk, bread, and much more than that: " * 40)
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    ended = orderone("report", name)
    assert (ended.status, ended.out) == (2, "")
    assert name in ended.err


# --- sweeps and checks ----------------------------------------------------------------------------


def test_a_check_is_drawn_from_its_records_without_verdicts(capsys, tmp_path):
    call = [
        "--model",
        "mlp",
        "--widths",
        "8,16,32",
        "--steps",
        "1",
        "--seeds",
        "2",
        "--save",
        "mine.jsonl",
    ]
    with pytest.raises(SystemExit):
        main(["check", *call])
    capsys.readouterr()
    result = run(capsys, "mine.jsonl", "--html", "mine.html")
    assert "Exponents of the width" in result.out
    assert "no verdicts" in result.out
    assert "not judged" in (tmp_path / "mine.html").read_text(encoding="utf-8")
    exponents = json.loads(run(capsys, "mine.jsonl", "--json").out)["exponents"]
    assert all(each["low"] <= each["exponent"] <= each["high"] for each in exponents)
    weight = next(
        each for each in exponents if each["module"] == "" and each["quantity"] == "change"
    )
    assert weight["step"] == 1


def test_the_store_of_a_sweep_gives_its_transfer_study(capsys, tmp_path):
    call = [
        "--task",
        "digits",
        "--widths",
        "8:16",
        "--lr",
        "1e-3,1e-2",
        "--seeds",
        "1",
        "--steps",
        "2",
        "--batch",
        "4",
    ]
    with pytest.raises(SystemExit):
        main(["sweep", *call, "--device", "cpu", "--store", "mine.db"])
    capsys.readouterr()
    result = run(capsys, "mine.db", "--html", "mine.html")
    assert "4 trials" in result.out
    assert "Transfer in mine.db" in (tmp_path / "mine.html").read_text(encoding="utf-8")
    assert json.loads(run(capsys, "mine.db", "--json").out)["verdict"] == "inconclusive"
