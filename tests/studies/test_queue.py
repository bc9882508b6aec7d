"""The queue of all studies: order, time limits, records that come back."""

import sys
import time

import pytest

from studies import queue
from studies.queue import Entry

WRITES = "import pathlib, sys; pathlib.Path(sys.argv[1], 'records.csv').write_text(sys.argv[2])"


@pytest.fixture
def scripts(monkeypatch):
    """Let entries run short scripts: {name: script, with the folder of its study as argument}."""
    by_name: dict[str, str] = {}

    def command(entry, options, minutes):
        folder = str(options.out / entry.study)
        return [sys.executable, "-c", by_name[entry.name], folder, entry.name]

    monkeypatch.setattr(queue, "command", command)
    entries = (Entry("a", "ladder", ""), Entry("b", "depth", ""), Entry("c", "experts", ""))
    monkeypatch.setattr(queue, "QUEUE", entries)
    return by_name


def start(tmp_path, *options):
    return queue.main(["--out", str(tmp_path / "out"), "--store", str(tmp_path), *options])


def test_a_crash_leaves_the_others_alone_and_only_news_comes_back(scripts, tmp_path, capfd):
    scripts |= {"a": "pass", "b": "raise SystemExit(3)", "c": WRITES}
    assert start(tmp_path) == 0
    assert "b: ended with 3" in capfd.readouterr().out
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.glob("out/*/*")]
    assert found == ["out/experts/records.csv"]  # the records of the ladder did not change


def test_the_records_of_the_repository_are_there_when_an_entry_begins(scripts, tmp_path):
    scripts["a"] = "import pathlib, sys; path = pathlib.Path(sys.argv[1], 'records.csv');"
    scripts["a"] += "path.write_text(path.read_text() + 'new')"
    start(tmp_path, "--only", "a")
    before = (queue.ROOT / "studies/ladder/records.csv").read_text()
    assert (tmp_path / "out/ladder/records.csv").read_text() == before + "new"


def test_lanes_run_at_the_same_time(scripts, tmp_path, capfd):
    waits = "import time; time.sleep(1)"
    scripts |= {"a": waits, "b": waits, "c": waits}
    start(tmp_path, "--lanes", "3")
    lines = [line.split(",")[0] for line in capfd.readouterr().out.splitlines()]
    assert lines[:3] == ["a: begins", "b: begins", "c: begins"]


def test_no_large_model_is_trained_before_its_forecast_is_committed(
    scripts, tmp_path, monkeypatch, capfd
):
    writes = WRITES.replace("records.csv", "forecast.json")
    scripts |= {"a": "pass", "forecast": writes, "largest": "raise SystemExit(5)", "c": WRITES}
    entries = (
        Entry("a", "ladder", ""),
        Entry("forecast", "ladder", "", ("--forecast",)),
        Entry("largest", "ladder", ""),
        Entry("c", "experts", ""),
    )
    monkeypatch.setattr(queue, "QUEUE", entries)
    start(tmp_path, "--lanes", "3")
    text = capfd.readouterr().out
    assert "commit forecast.json" in text
    assert "largest: begins" not in text
    assert "c: ended with 0" in text
    assert text.index("a: ended") < text.index("forecast: begins")
    root = tmp_path / "repository"
    (root / "studies/ladder").mkdir(parents=True)
    (root / "studies/ladder/forecast.json").write_text("forecast")  # as the script writes it
    monkeypatch.setattr(queue, "ROOT", root)
    start(tmp_path)
    assert "largest: ended with 5" in capfd.readouterr().out


def test_the_limit_holds(scripts, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(queue, "GRACE", 0.0)
    monkeypatch.setattr(queue, "SHORTEST", 0.01)
    scripts |= {"a": "import time; time.sleep(600)", "b": "pass", "c": "pass"}
    begin = time.monotonic()
    start(tmp_path, "--minutes", "0.02")
    assert time.monotonic() - begin < 60
    text = capfd.readouterr().out
    assert "a: did not stop in time; killed" in text
    assert "no time for b, c" in text


def test_the_repository_itself_loses_no_records(tmp_path, monkeypatch):
    """With --out at its default, records are the files of the repository."""
    studies = tmp_path / "studies"
    (studies / "depth").mkdir(parents=True)
    (studies / "depth/records.csv").write_text("kept")
    monkeypatch.setattr(queue, "ROOT", tmp_path)
    queue.drop_unchanged(studies)
    assert (studies / "depth/records.csv").exists()


def test_collect_copies_records_and_nothing_else(tmp_path):
    for name in ("out/depth/records.csv", "out/depth/log.txt", "out/unknown/records.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("new")
    (tmp_path / "studies/depth").mkdir(parents=True)
    assert queue.collect(tmp_path / "out", tmp_path) == 1
    assert (tmp_path / "studies/depth/records.csv").read_text() == "new"


def test_unknown_names_are_refused():
    with pytest.raises(SystemExit, match="expected names of"):
        queue.chosen("ladder-tuning,unknown")


@pytest.mark.parametrize("entry", queue.QUEUE, ids=lambda entry: entry.name)
def test_every_entry_is_part_of_a_study(entry):
    assert (queue.ROOT / "studies" / entry.study / "run.py").exists()
    assert (queue.ROOT / "studies" / entry.study / "PROTOCOL.md").exists()


@pytest.mark.slow
def test_an_entry_runs(tmp_path):
    assert start(tmp_path, "--tiny", "--only", "experts") == 0
    assert (tmp_path / "out/experts/records.csv").exists()
