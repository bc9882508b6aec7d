"""Records are stored part by part, and only missing parts are measured."""

import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier

import pandas as pd
import pytest

from orderone.core.locks import locked
from orderone.gallery import EXPERIMENTS, VERDICTS, Experiment, Finding, load, reproduce, verdict
from orderone.gallery import store as kept_records
from orderone.gallery.choose import choose
from orderone.gallery.run import nearest, settings_of
from orderone.gallery.store import (
    SHIPPED,
    RecordStore,
    _as_json,
    file_of,
    read_provenance,
    read_records,
)


@dataclass(frozen=True)
class Settings:
    seeds: int = 2


def experiment(measured, **changes):
    def part(name, settings):
        def measure():
            measured.append(name)
            return pd.DataFrame(
                {"x": [1 / 3, float("inf"), float("nan")], "word": ["1/2", "a, b", ""]}
            )

        return measure

    made = Experiment(
        name="s0-made",
        title="",
        place="",
        claim="",
        method="",
        scales={"small": Settings(), "paper": Settings(8)},
        parts=lambda settings: {name: part(name, settings) for name in ("first", "second part")},
        judge=lambda records: [Finding("all is there", len(records) == 2, "")],
        draw=lambda records: [],
    )
    return replace(made, **changes)


def test_stored_parts_are_not_measured_again(tmp_path):
    measured = []
    first = reproduce(experiment(measured), folder=tmp_path)
    second = reproduce(experiment(measured), folder=tmp_path)
    assert measured == ["first", "second part"]
    assert first.verdict == "holds"
    for part in first.records:
        pd.testing.assert_frame_equal(first.records[part], second.records[part])
    pd.testing.assert_frame_equal(
        load(experiment([]), "small", tmp_path).records["first"], first.records["first"]
    )


@pytest.mark.parametrize("changed", [{"version": 2}, {"scales": {"small": Settings(3)}}])
def test_other_settings_or_another_version_are_measured(tmp_path, changed):
    measured = []
    reproduce(experiment(measured), folder=tmp_path)
    reproduce(experiment(measured, **changed), folder=tmp_path)
    assert len(measured) == 4


def test_an_interrupted_experiment_continues(tmp_path):
    measured = []

    def stop(part, number, total):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(experiment(measured), folder=tmp_path, tell=stop)
    reproduce(experiment(measured), folder=tmp_path)
    assert measured == ["first", "second part"]
    assert not list(tmp_path.rglob("*.half"))


def test_runs_at_the_same_time_share_the_work(tmp_path):
    """Two runs share a folder: no part is measured twice, and both return all parts."""
    measured, both = [], Barrier(2)

    def part(name):
        def measure():
            measured.append(name)
            time.sleep(0.05)
            return pd.DataFrame({"x": [1.0]})

        return measure

    def parts(settings):
        both.wait(timeout=10)
        return {name: part(name) for name in "abcdef"}

    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(reproduce, experiment([], parts=parts), folder=tmp_path) for _ in range(2)
        ]
        results = [run.result(timeout=20) for run in runs]
    assert sorted(measured) == list("abcdef")
    assert [list(each.records) for each in results] == [
        list("abcdef")
    ] * 2  # in the order of the experiment
    assert set(read_provenance(tmp_path / "s0-made" / "small")["parts"]) == set("abcdef")
    assert not list(tmp_path.rglob("*.lock"))


def test_parts_written_at_the_same_time_are_merged(tmp_path):
    kept, names = (
        RecordStore(tmp_path, experiment([]), "small", Settings()),
        [f"part{k}" for k in range(24)],
    )
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: kept.put(name, pd.DataFrame({"x": [1.0]}), 0.0), names))
    assert set(kept.provenance()["parts"]) == set(names)


def test_a_run_killed_while_it_measures_does_not_block_others(tmp_path, start):
    """Others continue even though the lock file of the killed run still exists."""
    measured, place = [], tmp_path / "s0-made" / "small"
    place.mkdir(parents=True)
    locks = [place / "first.csv.lock", place / "provenance.json.lock"]
    hold = (
        "import sys, time; from pathlib import Path; from orderone.core.locks import locked\nwith"
        " locked(Path(sys.argv[1])), locked(Path(sys.argv[2])): print('held', flush=True);"
        " time.sleep(60)"
    )
    holder = start([sys.executable, "-c", hold, *map(str, locks)])
    assert holder.stdout.readline().strip() == "held"
    with locked(locks[0], wait=False) as ours:
        assert not ours
    holder.kill()
    holder.wait()
    assert all(lock.exists() for lock in locks)
    reproduce(experiment(measured), folder=tmp_path)
    assert measured == ["first", "second part"]
    assert not list(tmp_path.rglob("*.lock"))


def test_a_run_killed_while_it_writes_leaves_no_mixture(tmp_path, monkeypatch):
    """Records of other settings are on disk, but the provenance does not list them."""
    reproduce(experiment([]), folder=tmp_path)
    # fails between the file and its provenance: a function cannot be written as JSON
    monkeypatch.setattr(kept_records, "VERSIONS", {"torch": print})
    with pytest.raises(TypeError):
        reproduce(experiment([]), folder=tmp_path, seeds=9)
    monkeypatch.undo()
    assert RecordStore(tmp_path, experiment([]), "small", Settings()).get("first") is None


@pytest.mark.parametrize("damage", ["", "a,b\n1,2,3\n4,5,6,7", "\udcff", None])
def test_a_lost_or_damaged_part_is_measured_again(tmp_path, damage):
    measured = []
    reproduce(experiment(measured), folder=tmp_path)
    part = tmp_path / "s0-made" / "small" / "first.csv"
    part.unlink() if damage is None else part.write_bytes(damage.encode(errors="surrogateescape"))
    assert reproduce(experiment(measured), folder=tmp_path).verdict == "holds"
    assert measured == ["first", "second part", "first"]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"[]",
        b"{}",
        b'{"parts": []}',
        b'{"parts": null}',
        b'{"parts": {"first": 3}}',
        b"\xff",
        b'"',
    ],
)
def test_a_damaged_provenance_is_ignored(tmp_path, damage):
    measured = []
    reproduce(experiment(measured), folder=tmp_path)
    record = tmp_path / "s0-made" / "small" / "provenance.json"
    record.write_bytes(damage)
    assert choose(experiment([]), [tmp_path])[0] is None
    assert reproduce(experiment(measured), folder=tmp_path).verdict == "holds"
    assert len(measured) == 4
    assert choose(experiment([]), [tmp_path])[0] is not None


def test_a_folder_never_mixes_settings(tmp_path):
    def stop(part, number, total):
        if number == 2:
            raise KeyboardInterrupt

    reproduce(experiment([]), folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        reproduce(experiment([]), folder=tmp_path, seeds=9, tell=stop)
    chosen, notes = choose(experiment([]), [tmp_path])
    assert chosen is None
    assert "1 of 2 parts are missing" in notes[0]


def test_records_that_cannot_be_judged_are_skipped(tmp_path):
    reproduce(experiment([]), folder=tmp_path)
    chosen, notes = choose(experiment([], judge=lambda records: records["first"].lost), [tmp_path])
    assert chosen is None
    assert "cannot be judged (AttributeError" in notes[0]


def test_a_verdict_in_one_word():
    def of(*holds):
        return verdict([Finding("", each, "") for each in holds])

    assert of(True, True) == "holds"
    assert of(True, True, None) == "holds, some undecided"
    assert of(True, False) == of(True, False, None) == "holds in part"
    assert of(False, None) == "does not hold"
    assert of(None) == of() == "unclear"
    both = [Finding("", False, ""), Finding("", True, "", of="corrected", erratum="S0.1")]
    assert (verdict(both), verdict(both, "corrected")) == ("does not hold", "holds")


def test_every_verdict_has_its_colour_on_the_page_and_in_the_terminal():
    from orderone.cli.show import COLOURS, coloured
    from orderone.report.gallery_view import CLASSES

    assert tuple(CLASSES) == VERDICTS
    assert set(VERDICTS) <= set(COLOURS)
    assert (
        coloured("the paper: holds, some undecided").spans[-1].style
        == COLOURS["holds, some undecided"]
    )


def test_the_nearest_scale():
    assert nearest(experiment([]), "gpu") == "small"
    assert nearest(experiment([]), "paper") == "paper"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_complete(name):
    e = EXPERIMENTS[name]
    assert {"small", "paper"} <= set(e.scales)
    assert all(e.parts(settings_of(e, scale)) for scale in e.scales)
    for scale in e.scales:  # on every system, also where A is a
        files = [file_of(part).lower() for part in e.parts(settings_of(e, scale))]
        assert len(set(files)) == len(files)
        assert all(re.fullmatch(r"[a-z0-9][a-z0-9 ._=+()-]*", file) for file in files)
    assert e.title
    assert e.claim
    assert e.method


@pytest.mark.parametrize(
    "place", sorted(SHIPPED.glob("*/*")), ids=lambda place: f"{place.parent.name}-{place.name}"
)
def test_shipped_results_match_the_code_and_can_be_judged_and_drawn(place):
    e = EXPERIMENTS[place.parent.name]
    known = read_provenance(place)["parts"]
    assert set(known) == set(e.parts(e.scales[place.name]))
    for part in known.values():
        assert part["settings"] == _as_json(e.scales[place.name])
        assert part["version"] == e.version
    assert e.judge(read_records(place))
    assert e.draw(read_records(place))


def test_every_experiment_has_shipped_results():
    assert {place.parent.name for place in SHIPPED.glob("*/small")} == set(EXPERIMENTS)
