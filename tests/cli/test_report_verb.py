"""`orderone report`: what it finds, which of several results it shows, and what it says when there
is nothing."""

import json
import shutil

import pytest

from orderone import gallery
from orderone.cli.main import main
from orderone.core.codes import code_of
from orderone.gallery.choose import choose
from orderone.gallery.store import SHIPPED


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """In an empty folder, with three entries of the gallery."""
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


def keep(folder, name="s0-table1", scale="small", **changes):
    """A copy of shipped results, as if measured here."""
    place = folder / name / scale
    shutil.copytree(SHIPPED / name / "small", place)
    record = json.loads((place / "provenance.json").read_text())
    for part in record["parts"].values():
        part.update(changes)
    (place / "provenance.json").write_text(json.dumps(record))
    return place


def chosen(folder, name="s0-table1"):
    found, notes = choose(gallery.EXPERIMENTS[name], [folder, SHIPPED])
    assert found is not None
    return found.scale, next(iter(found.provenance["parts"].values()))["measured"], notes


# --- the gallery ----------------------------------------------------------------------------------


def test_the_whole_gallery_as_it_is_shipped(capsys, tmp_path):
    told = run(capsys, "--html", "all.html")
    assert "Sizes in training" in told.out
    assert "holds in part" in told.out
    assert told.err == "wrote all.html\n"
    page = (tmp_path / "all.html").read_text(encoding="utf-8")
    assert page.count("<article") == 3
    assert 'href="#s0-table2"' in page


def test_verdicts_and_findings_as_json(capsys):
    told = json.loads(run(capsys, "gallery", "--json").out)
    assert [each["name"] for each in told] == ["s0-table1", "s0-table2", "s0-table3"]
    assert told[1]["verdict"] == "holds in part"
    assert told[1]["corrected"] == "holds"
    assert {"claim", "holds", "numbers", "of", "erratum"} == set(told[1]["findings"][0])
    assert told[1]["provenance"]["command"].startswith("orderone reproduce s0-table2")


def test_one_entry_with_its_findings(capsys, tmp_path):
    (tmp_path / "s0-table3").mkdir()  # a name of the gallery is that, whatever lies about
    told = run(capsys, "S0-Table3", "--html", "one.html")
    assert "SP (A.2)" in told.out
    assert "does not hold" in told.out
    assert (tmp_path / "one.html").read_text(encoding="utf-8").count("<article") == 1


def test_a_folder_shows_what_it_holds_and_no_more(capsys, tmp_path):
    keep(tmp_path / "mine", "s0-table2")
    told = json.loads(run(capsys, "mine", "--json").out)
    assert [each["name"] for each in told] == ["s0-table2"]


def test_own_results_are_shown_where_they_are_larger_or_newer(tmp_path):
    shipped = chosen(tmp_path)[1]
    keep(tmp_path / "older", measured="2000-01-01")
    assert chosen(tmp_path / "older")[:2] == ("small", shipped)
    keep(tmp_path / "newer", measured="2999-01-01")
    assert chosen(tmp_path / "newer")[:2] == ("small", "2999-01-01")
    keep(tmp_path / "larger", scale="paper", measured="2000-01-01")
    assert chosen(tmp_path / "larger")[:2] == ("paper", "2000-01-01")


def test_the_usual_folder_is_looked_at_unasked(capsys, tmp_path):
    keep(tmp_path / "reproduced", scale="paper")
    assert [each["scale"] for each in json.loads(run(capsys, "--json").out)] == [
        "paper",
        "small",
        "small",
    ]
    (tmp_path / "reproduced").rename(tmp_path / "elsewhere")
    told = json.loads(run(capsys, "s0-table1", "--folder", "elsewhere", "--json").out)
    assert told[0]["scale"] == "paper"


def test_what_is_half_done_outdated_or_broken_is_left_out_and_named(capsys, tmp_path):
    place = keep(tmp_path / "half", "s0-table2", "paper")
    record = json.loads((place / "provenance.json").read_text())
    del record["parts"]["row 1 with norm"]
    (place / "provenance.json").write_text(json.dumps(record))
    scale, _, notes = chosen(tmp_path / "half", "s0-table2")
    assert (scale, len(notes)) == ("small", 1)
    assert "1 of 6 parts are missing" in notes[0]
    assert code_of(notes[0]) == "records-skipped"
    keep(tmp_path / "old", scale="paper", version=0)
    assert "another version" in chosen(tmp_path / "old")[2][0]
    (keep(tmp_path / "lost", scale="paper") / "rates.csv").unlink()
    assert "cannot be read (FileNotFoundError" in chosen(tmp_path / "lost")[2][0]
    (keep(tmp_path / "torn", scale="paper") / "provenance.json").write_text('{"parts": ')
    assert "cannot be read (JSONDecodeError" in chosen(tmp_path / "torn")[2][0]
    assert "note: s0-table1, paper, in torn: cannot be read" in run(capsys, "--folder", "torn").err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["s0-tabel1"], "did you mean 's0-table1'?"),
        (["runs.db"], "runs.db: no such file or folder"),
        (["nowhere/at/all"], "no such file or folder"),
        (["empty"], "empty: no results in this folder"),
        (["--folder", "nowhere"], "folder: expected one that `orderone reproduce` filled"),
        (["--html", "nowhere/a.html"], "html: cannot write 'nowhere/a.html'"),
        (
            ["empty", "--folder", "empty"],
            "folder: empty has no use for --folder (it belongs to the gallery), got 'empty'",
        ),
        (["notes.db", "--folder", "empty"], "folder: notes.db has no use for --folder"),
        (["notes.db"], "notes.db is not a store of orderone"),
        (["other.jsonl"], "other.jsonl, whose first line names no columns"),
    ],
)
def test_what_cannot_be_shown_is_explained(capsys, tmp_path, arguments, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.db").write_text("milk, bread, and much more than that: " * 40)
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    told = run(capsys, *arguments, status=2)
    assert words in told.err
    assert told.out == ""


# --- sweeps and checks ----------------------------------------------------------------------------


def test_a_check_is_drawn_from_its_records_and_says_that_it_is_not_judged(capsys, tmp_path):
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
    told = run(capsys, "mine.jsonl", "--html", "mine.html")
    assert "Exponents of width" in told.out
    assert "no verdicts" in told.out
    assert "not judged" in (tmp_path / "mine.html").read_text(encoding="utf-8")
    exponents = json.loads(run(capsys, "mine.jsonl", "--json").out)["exponents"]
    assert all(each["low"] <= each["exponent"] <= each["high"] for each in exponents)
    weight = next(
        each for each in exponents if each["module"] == "" and each["quantity"] == "change"
    )
    assert weight["step"] == 1


def test_the_store_of_a_sweep_is_its_transfer_study(capsys, tmp_path):
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
    told = run(capsys, "mine.db", "--html", "mine.html")
    assert "4 trials: 4 done" in told.out
    assert "Transfer in mine.db" in (tmp_path / "mine.html").read_text(encoding="utf-8")
    assert json.loads(run(capsys, "mine.db", "--json").out)["verdict"] == "not enough data"
