"""A store returns what was added, and explains why it cannot be written."""

import os
import sqlite3
import subprocess
import sys
from math import inf, nan

import numpy as np
import pytest
from support.errors import refuses

from orderone.sweeping.store import Store, read_store
from orderone.sweeping.trial import Trial
from orderone.training.outcome import Outcome


def trial(number: int) -> Trial:
    return Trial({"lr": 0.1, "seed": number}, "job")


def outcome(number: int, steps: int = 5) -> Outcome:
    losses = np.arange(steps, dtype=np.float32) / 3
    return Outcome(
        trial(number).key, losses, ((5, 0.25),), 0.25, seconds=1.5, facts={"engine": "alone"}
    )


def test_outcomes_are_read_as_they_were_added(tmp_path):
    kinds = [
        outcome(0),
        Outcome(trial(1).key, np.array([1.0, inf]), (), inf, diverged_at=1),
        Outcome(trial(2).key, error="RuntimeError: no"),
        Outcome(trial(3).key, np.array([nan], np.float32), (), 3.0, stopped_at=1),
    ]
    with Store(tmp_path / "runs.db") as store:
        for number, one in enumerate(kinds):
            store.add(trial(number), one)
        found = store.read("job")
        assert store.read("another") == {}
    assert list(found) == list(read_store(tmp_path / "runs.db"))
    for number, one in enumerate(kinds):
        back_trial, back = found[trial(number).key]
        assert back_trial == trial(number)
        assert back.losses.dtype == one.losses.dtype
        np.testing.assert_array_equal(back.losses, one.losses)
        np.testing.assert_array_equal(back.final, one.final)
        names = ("evaluation", "diverged_at", "stopped_at", "seconds", "error", "facts", "status")
        assert [getattr(back, name) for name in names] == [getattr(one, name) for name in names]


def test_a_full_disk_keeps_outcomes_in_memory_and_writes_them_later(tmp_path):
    path = tmp_path / "runs.db"
    with Store(path) as store:
        pages = store._database.execute("PRAGMA page_count").fetchone()[0]
        store._database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.warns(UserWarning, match=r"full.*\[results-not-saved\]"):
            store.add(trial(0), outcome(0, steps=20_000))
        store.add(trial(1), outcome(1, steps=20_000))  # no second warning
        assert len(store.unsaved) == 2
        store._database.execute("PRAGMA max_page_count = 100000")
        store.add(trial(2), outcome(2))
        assert not store.unsaved
        assert store.trouble is None
    assert len(read_store(path)) == 3


def test_a_locked_file_is_waited_for_once(tmp_path):
    path = tmp_path / "runs.db"
    with Store(path, patience=0.05) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.warns(UserWarning, match=r"locked.*\[results-not-saved\]"):
            store.add(trial(0), outcome(0))
        other.execute("COMMIT")
        other.close()
        assert store.flush()
    assert len(read_store(path)) == 1


def test_a_file_that_is_locked_from_the_start(tmp_path):
    path = tmp_path / "runs.db"
    Store(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with refuses("store-not-usable", argument="store") as caught:
        Store(path, patience=0.05)
    assert "locked" in str(caught.value)
    assert "close the program" in str(caught.value)
    other.close()


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "runs.db"
    with Store(path) as store:
        store.add(trial(0), outcome(0))
        with refuses("store-in-use", argument="store") as caught:
            Store(path)
        assert f"process {os.getpid()} " in str(caught.value)
        assert len(read_store(path)) == 1  # reading is possible at any time
    Store(path).close()


@pytest.mark.slow
def test_a_writer_that_was_killed_leaves_no_lock(tmp_path):
    code = (
        "import os, signal, sys; from orderone.sweeping.store import Store\n"
        "store = Store(sys.argv[1]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "runs.db")]).returncode == -9
    Store(tmp_path / "runs.db").close()


def foreign(path):
    path.write_bytes(b"not a database, and long enough to be read" * 100)


def of_another_program(path):
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE cats (name TEXT)")
    database.commit()
    database.close()


def of_another_version(path):
    Store(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.commit()
    database.close()


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (foreign, "not-a-store", "not a store of orderone"),
        (of_another_program, "not-a-store", "another program"),
        (of_another_version, "store-of-other-version", "has format 99"),
        (lambda path: path.mkdir(), "not-a-store", "folder"),
    ],
)
def test_files_that_are_not_stores_are_not_changed(tmp_path, make, code, words):
    make(tmp_path / "runs.db")
    before, beside = (tmp_path / "runs.db").stat().st_mtime_ns, set(tmp_path.iterdir())
    with refuses(code, argument="store") as caught:
        Store(tmp_path / "runs.db")
    assert words in str(caught.value)
    assert (tmp_path / "runs.db").stat().st_mtime_ns == before
    assert set(tmp_path.iterdir()) == beside


@pytest.mark.parametrize("path", [5, "", ["runs.db"]])
def test_a_store_needs_a_path(path):
    for use in (Store, read_store):
        with refuses("wrong-type", argument="store"):
            use(path)


def test_a_missing_folder_or_file_is_named(tmp_path):
    with refuses("invalid-argument", argument="store") as caught:
        Store(tmp_path / "no" / "runs.db")
    assert str(tmp_path / "no") in str(caught.value)
    with refuses("not-a-store", argument="store") as caught:
        read_store(tmp_path / "runs.db")
    assert str(tmp_path / "runs.db") in str(caught.value)


READ_ONLY = """
import os, sys
from orderone.sweeping.store import Store, read_store
os.setuid(65534) if os.getuid() == 0 else None
try:
    Store(sys.argv[1])
except ValueError as error:
    print(error)
print(len(read_store(sys.argv[1])))
"""


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_can_be_read(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    with Store(folder / "runs.db") as store:
        store.add(trial(0), outcome(0))
    (folder / "runs.db").chmod(0o444)
    folder.chmod(0o555)
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        parent.chmod(parent.stat().st_mode | 0o555)
    code = [sys.executable, "-c", READ_ONLY, str(folder / "runs.db")]
    result = subprocess.run(code, capture_output=True, text=True)
    folder.chmod(0o755)
    assert "[store-not-usable]" in result.stdout, result.stderr
    assert result.stdout.endswith("\n1\n")
