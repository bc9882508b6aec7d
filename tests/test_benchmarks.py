"""`benchmarks/compare.py` says what became slower."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "compare.py"


@pytest.fixture(scope="module")
def compare():
    spec = importlib.util.spec_from_file_location("compare", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seconds(median, low, high):
    return {"median": median, "low": low, "high": high, "samples": 5}


def write(path, times, gpu="A"):
    content = {"versions": {"torch": "2"}, "device": {"gpu": gpu}, "seconds": times}
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.parametrize(
    ("new", "status", "word"),
    [
        (seconds(1.3, 1.2, 1.4), 1, "SLOWER"),
        (seconds(1.3, 1.0, 1.4), 0, None),  # intervals overlap
        (seconds(1.06, 1.055, 1.08), 0, None),  # too little
        (seconds(0.5, 0.4, 0.6), 0, "faster"),
    ],
)
def test_changes_beyond_noise(compare, tmp_path, capsys, new, status, word):
    old = write(tmp_path / "old.json", {"case": seconds(1.0, 0.9, 1.05)})
    assert compare.main([old, write(tmp_path / "new.json", {"case": new})]) == status
    printed = capsys.readouterr().out
    assert ("SLOWER" in printed) == (word == "SLOWER")
    assert ("faster" in printed) == (word == "faster")


def test_other_devices_are_refused(compare, tmp_path):
    old = write(tmp_path / "old.json", {"case": seconds(1.0, 0.9, 1.1)})
    new = write(tmp_path / "new.json", {"case": seconds(3.0, 2.9, 3.1)}, gpu="B")
    assert compare.main([old, new]) == 2
    assert compare.main([old, new, "--anyway"]) == 1
