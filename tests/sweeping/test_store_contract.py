"""Contract of a store: what each operation promises, also while others read and write the file.

The last part is in the style of SQLite's own tests: a file layer fails at each write and each sync
in turn, and the files are rebuilt as after a crash at each moment.
"""

import os
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from support.errors import refuses
from support.file_layer import FULL, IO_ERROR, OK, Change, FileLayer, library, only_synced, replay

from orderone.core.errors import InputError, code_of
from orderone.sweeping.store import Store, read_store
from orderone.sweeping.stored_jobs import choose_job, read_jobs
from orderone.sweeping.trial import Trial
from orderone.training.outcome import Outcome


def trial(number: int, job: str = "job") -> Trial:
    return Trial({"lr": 0.1, "seed": number}, job)


def outcome(number: int, job: str = "job", steps: int = 5) -> Outcome:
    losses = np.arange(steps, dtype=np.float32) / 3 + number
    return Outcome(trial(number, job).key, losses, ((5, 0.25),), 0.25, seconds=1.5)


def numbers(results) -> list[int]:
    """Return the seeds of stored trials, after a comparison of their losses with what was added."""
    seeds: list[int] = []
    for stored, result in results.values():
        seed = int(stored.settings["seed"])
        np.testing.assert_array_equal(result.losses, outcome(seed, steps=len(result.losses)).losses)
        seeds.append(seed)
    return seeds


# --- company: others who use the file at the same time --------------------------------------------


def read_on(path: Path) -> None:
    """Read as another process does; a result may lack the newest rows, but no row is partial."""
    with suppress(InputError):  # not yet created
        numbers(read_store(path))
        read_jobs(path)


def write_too(path: Path) -> None:
    """Try to become a second writer, which is refused."""
    if path.exists():
        with refuses("store-in-use", argument="store"):
            Store(path)


def hold(path: Path) -> None:
    """Hold SQLite's lock for writing for a moment, as a program for databases might do."""
    if path.exists():
        with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=1)) as database:
            database.execute("BEGIN IMMEDIATE")
            time.sleep(0.002)
            database.execute("ROLLBACK")


COMPANY = {
    "alone": (),
    "readers": (read_on, read_on),
    "writers": (write_too, hold),
    "all": (read_on, write_too, hold),
}


@pytest.fixture(params=COMPANY)
def store(tmp_path, request) -> Iterator[Store]:
    """An open store, whose file others use all the time."""
    ended = Event()
    errors: list[BaseException] = []

    def repeat(use: Callable[[Path], None]) -> None:
        while not ended.is_set():
            try:
                use(tmp_path / "runs.db")
            except BaseException as error:  # raised again below, in the thread of the test
                errors.append(error)
                return
            ended.wait(0.01)

    with Store(tmp_path / "runs.db") as store:
        threads = [Thread(target=repeat, args=[use]) for use in COMPANY[request.param]]
        for thread in threads:
            thread.start()
        yield store
        ended.set()
        for thread in threads:
            thread.join()
    assert not errors, errors


# --- operations -----------------------------------------------------------------------------------


def test_what_was_added_is_read_in_order(store):
    for number in range(10):
        store.add(trial(number), outcome(number))
        assert numbers(store.read()) == list(range(number + 1))
        assert numbers(read_store(store.path)) == list(range(number + 1))


def test_adding_a_trial_again_replaces_it(store):
    store.add(trial(0), Outcome(trial(0).key, error="RuntimeError: no"))
    store.add(trial(0), outcome(0))
    assert [result.status for _, result in read_store(store.path).values()] == ["done"]


def test_reading_one_job_leaves_out_the_others(store):
    store.add(trial(0, "one"), outcome(0, "one"))
    store.add(trial(1, "two"), outcome(1, "two"))
    assert numbers(store.read("one")) == [0]
    assert numbers(read_store(store.path, "two")) == [1]
    assert read_store(store.path, "three") == {}


def test_jobs_are_listed_with_the_newest_last(store):
    for job in ("one", "two", "one"):
        store.describe(job, {"steps": len(job)})
    store.add(trial(0, "one"), outcome(0, "one"))
    store.add(trial(0, "two"), outcome(0, "two"))
    jobs = read_jobs(store.path)
    assert [(job.fingerprint, job.trials) for job in jobs] == [("two", 1), ("one", 1)]
    assert jobs[0].described == {"steps": 3}
    assert choose_job(jobs, None, store.path).fingerprint == "one"
    assert choose_job(jobs, "tw", store.path).fingerprint == "two"


def test_flush_says_whether_everything_is_on_disk(store):
    assert store.flush()
    store.add(trial(0), outcome(0))
    assert store.unsaved == {}
    assert store.flush()


def test_a_second_writer_is_refused_by_every_name(store, tmp_path):
    (tmp_path / "link.db").symlink_to("runs.db")
    (tmp_path / "folder").symlink_to(tmp_path)
    for name in ("runs.db", "link.db", "folder/runs.db", "folder/link.db"):
        with refuses("store-in-use", argument="store"):
            Store(tmp_path / name)


def test_reading_follows_symbolic_links(store, tmp_path):
    store.add(trial(0), outcome(0))
    (tmp_path / "link.db").symlink_to("runs.db")
    assert numbers(read_store(tmp_path / "link.db")) == [0]


def test_checkpoints_are_beside_the_file(store, tmp_path):
    assert store.checkpoints == tmp_path.resolve() / "runs.db.checkpoints"


# --- files that are moved, deleted, linked or damaged ---------------------------------------------


def test_checkpoints_of_a_link_are_beside_its_file(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to("real/runs.db")
    with Store(tmp_path / "link.db") as store:
        assert store.checkpoints.parent == (tmp_path / "real").resolve()
    assert (tmp_path / "real" / "runs.db").is_file()


def test_a_file_with_two_names_is_refused(tmp_path):
    Store(tmp_path / "runs.db").close()
    os.link(tmp_path / "runs.db", tmp_path / "other.db")
    with refuses("store-not-usable", argument="store"):
        Store(tmp_path / "other.db")


@pytest.mark.parametrize("path", [":memory:", "./:memory:", Path(":memory:")])
def test_a_store_in_memory_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for use in (Store, read_store):
        with refuses("invalid-argument", argument="store"):
            use(path)
    assert not any(tmp_path.iterdir())


def remove_all(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


@pytest.mark.parametrize(
    "vanish", [remove_all, Path.unlink, lambda path: path.rename(path.with_name("renamed.db"))]
)
def test_a_file_that_vanished_is_written_again(tmp_path, vanish):
    path = tmp_path / "runs.db"
    with Store(path) as store:
        store.describe("job", {"steps": 5})
        store.add(trial(0), outcome(0))
        vanish(path)
        with pytest.warns(UserWarning, match=r"\[store-vanished\]"):
            store.add(trial(1), outcome(1))
        assert numbers(read_store(path)) == [0, 1]
        with refuses("store-in-use", argument="store"):
            Store(path)
        store.add(trial(2), outcome(2))
    assert numbers(read_store(path)) == [0, 1, 2]
    assert [job.described for job in read_jobs(path)] == [{"steps": 5}]


def test_a_file_in_the_place_of_the_store_is_not_touched(tmp_path):
    path = tmp_path / "runs.db"
    with Store(path) as store:
        store.add(trial(0), outcome(0))
        path.rename(tmp_path / "moved.db")
        path.write_text("something else")
        with pytest.warns(UserWarning, match=r"another file.*\[results-not-saved\]"):
            store.add(trial(1), outcome(1))
        assert path.read_text() == "something else"
        path.unlink()
        with pytest.warns(UserWarning, match=r"\[store-vanished\]"):
            assert store.flush()
    assert numbers(read_store(path)) == [0, 1]


def test_a_folder_that_vanished_is_said(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    with Store(folder / "runs.db") as store:
        store.add(trial(0), outcome(0))
        folder.rename(tmp_path / "away")
        with pytest.warns(UserWarning, match=r"\[results-not-saved\]"):
            store.add(trial(1), outcome(1))
        assert len(store.unsaved) == 1
        (tmp_path / "away").rename(folder)
        assert store.flush()
    assert numbers(read_store(folder / "runs.db")) == [0, 1]


def test_a_deleted_lock_is_taken_again_unless_another_has_it(tmp_path):
    path = tmp_path / "runs.db"
    with Store(path) as store:
        (tmp_path / "runs.db.lock").unlink()
        store.add(trial(0), outcome(0))
        with refuses("store-in-use", argument="store"):
            Store(path)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE trials SET final = 0.125 WHERE rowid = 2",
        "UPDATE trials SET losses = zeroblob(20) WHERE rowid = 2",
        'UPDATE trials SET settings = \'{"lr":0.2,"seed":1}\' WHERE rowid = 2',
        "UPDATE trials SET evaluation = '[[5' WHERE rowid = 2",
        "UPDATE trials SET evaluation = '[[-1, 0.5]]' WHERE rowid = 2",
        "UPDATE trials SET settings = '{\"lr\":NaN}' WHERE rowid = 2",
        "UPDATE trials SET settings = '[1]' WHERE rowid = 2",
        pytest.param(f"UPDATE trials SET facts = '{'[' * 100_000}' WHERE rowid = 2", id="deep"),
        "UPDATE trials SET facts = '3' WHERE rowid = 2",
        "UPDATE trials SET final = 'small' WHERE rowid = 2",
        "UPDATE trials SET kind = '<M8[s]' WHERE rowid = 2",
        "UPDATE trials SET seconds = -1.0 WHERE rowid = 2",
        "UPDATE trials SET seconds = 9e999 WHERE rowid = 2",
        "UPDATE trials SET diverged_at = 'never' WHERE rowid = 2",
        "UPDATE trials SET error = x'00' WHERE rowid = 2",
    ],
)
@pytest.mark.parametrize("format", [1, 2])
def test_damaged_rows_are_left_out_with_a_warning(tmp_path, damage, format):
    path = tmp_path / "runs.db"
    with Store(path) as store:
        for number in range(3):
            store.add(trial(number), outcome(number))
    with closing(sqlite3.connect(path)) as database, database:
        if format == 1:
            database.execute("ALTER TABLE trials DROP COLUMN checksum")
            database.execute("PRAGMA user_version = 1")
        database.execute(damage)
    unseen = ("final", "losses")  # such a change cannot be seen without a checksum
    if format == 1 and damage.split()[3] in unseen and "small" not in damage:
        assert len(read_store(path)) == 3
        return
    with pytest.warns(UserWarning, match=r"\[damaged-rows\]"):
        assert numbers(read_store(path)) == [0, 2]
    with Store(path) as store:
        store.add(trial(1), outcome(1))
    assert sorted(numbers(read_store(path))) == [0, 1, 2]


def test_a_store_of_the_first_format_gets_checksums(tmp_path):
    path = tmp_path / "runs.db"
    with Store(path) as store:
        store.add(trial(0), outcome(0))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("ALTER TABLE trials DROP COLUMN checksum")
        database.execute("PRAGMA user_version = 1")
    assert numbers(read_store(path)) == [0]
    with Store(path) as store:
        store.add(trial(1), outcome(1))
    assert numbers(read_store(path)) == [0, 1]


def test_an_error_with_a_name_of_a_file_that_is_no_unicode(tmp_path):
    with Store(tmp_path / "runs.db") as store:
        store.add(trial(0), Outcome(trial(0).key, error="cannot read \udcff.png"))
    [(_, result)] = read_store(tmp_path / "runs.db").values()
    assert result.error == "cannot read \\udcff.png"


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
from sweeping.test_store_contract import Store, outcome, trial
store = Store(sys.argv[1])
for number in range(3): store.add(trial(number), outcome(number))
os.kill(os.getpid(), signal.SIGKILL)
"""
READ_ONLY = """
import os, sys
from orderone.sweeping.store import read_store
from orderone.sweeping.stored_jobs import read_jobs
if os.getuid() == 0: os.setuid(65534)
for path in sys.argv[1:]:
    assert not os.access(os.path.dirname(path), os.W_OK)
    print(len(read_store(path)), len(read_jobs(path)))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> dict[str, bytes]:
    """Files of a store with three trials, whose writer was killed."""
    folder = tmp_path_factory.mktemp("killed")
    tests = str(Path(__file__).parents[1])
    code = [sys.executable, "-c", KILLED, str(folder / "runs.db"), tests]
    assert subprocess.run(code).returncode == -9
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_killed_sweep_is_read_from_a_folder_that_cannot_be_written(tmp_path, killed):
    assert killed["runs.db-wal"]
    left_over = {"all": ("", "-wal", "-shm"), "log": ("", "-wal"), "written-back": ("",)}
    for name, endings in left_over.items():
        folder = tmp_path / name
        folder.mkdir()
        for ending in endings:
            (folder / f"runs.db{ending}").write_bytes(killed[f"runs.db{ending}"])
        if name == "written-back":
            (folder / "runs.db-wal").write_bytes(killed["runs.db-wal"])
            Store(folder / "runs.db").close()
            (folder / "runs.db.lock").unlink()
        folder.chmod(0o555)
    for parent in (tmp_path, *list(tmp_path.parents)[:3]):
        parent.chmod(parent.stat().st_mode | 0o555)
    paths = [str(tmp_path / name / "runs.db") for name in left_over]
    result = subprocess.run(
        [sys.executable, "-c", READ_ONLY, *paths], capture_output=True, text=True
    )
    for name, endings in left_over.items():
        (tmp_path / name).chmod(0o755)
        assert {path.name for path in (tmp_path / name).iterdir()} == {
            f"runs.db{ending}" for ending in endings
        }
    assert result.stdout == "3 1\n" * 3, result.stderr


# --- failures of the file layer -------------------------------------------------------------------

needs_layer = pytest.mark.skipif(
    library() is None, reason="SQLite is built into this Python; its file layer cannot be replaced"
)
ADDED = 3


@needs_layer
@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        pytest.param(IO_ERROR, False, id="error, once"),
        pytest.param(FULL, True, id="full, lasting"),
        pytest.param(FULL, False, id="full, once", marks=pytest.mark.slow),
        pytest.param(IO_ERROR, True, id="error, lasting", marks=pytest.mark.slow),
    ],
)
def test_a_failure_at_any_write_or_sync_loses_nothing(tmp_path, error, lasting):
    """Fail at each change in turn, once or until the store is closed, then write what is left."""
    failures = 0
    for number in count():
        failed: list[Change] = []

        def fail(at: int, change: Change, number=number, failed=failed) -> int:
            if change.kind == "open" or at < number or (failed and not lasting):
                return OK
            failed.append(change)
            return error

        path = tmp_path / f"{number}.db"
        acknowledged = _add_some(path, FileLayer(fail))
        failures += len(failed)
        assert numbers(read_store(path) if path.exists() else {}) == acknowledged
        if not failed:
            break
    assert failures >= 40


def _add_some(path: Path, layer: FileLayer) -> list[int]:
    """Add trials while the layer fails, then repair it; return the trials that must be there."""
    with layer, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = None
        code = None
        try:
            store = Store(path, patience=0.05)
        except InputError as error:
            code = error.code
        if store is None:
            assert code == "store-not-usable"
            return []
        for number in range(ADDED):
            store.add(trial(number), outcome(number))
        assert bool(store.unsaved) <= bool(caught)  # what is not on disk was said
        layer.failing = False
        assert store.flush()
        store.close()
    assert {code_of(str(warning.message)) for warning in caught} <= {"results-not-saved"}
    return list(range(ADDED))


@needs_layer
@pytest.mark.parametrize(
    "how",
    [
        "synced",
        pytest.param("written", marks=pytest.mark.slow),
        pytest.param("torn", marks=pytest.mark.slow),
    ],
)
def test_a_crash_at_any_moment_loses_nothing(tmp_path, how):
    """Rebuild the files as after each change; what was added before is there, nothing is partial.

    synced: a power cut, which loses what was not synced; torn: half of the last write is lost.
    """
    finished: list[int] = []  # changes when each trial had been added
    with FileLayer() as layer, Store(tmp_path / "runs.db") as store:
        for number in range(ADDED):
            store.add(trial(number), outcome(number))
            finished.append(len(layer.changes))
    assert len(layer.changes) > 40
    for moment in range(len(layer.changes) + 1):
        changes = layer.changes[:moment]
        if how == "synced":
            changes = only_synced(changes)
        folder = tmp_path / str(moment)
        replay(changes, folder, torn=how == "torn")
        with Store(folder / "runs.db") as store:
            present = numbers(store.read())
            added = sum(done <= moment - (how == "torn") for done in finished)
            assert present == list(range(len(present)))
            assert len(present) >= added
            for number in range(ADDED):
                store.add(trial(number), outcome(number))
        assert sorted(numbers(read_store(folder / "runs.db"))) == list(range(ADDED))
