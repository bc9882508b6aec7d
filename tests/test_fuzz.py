"""Public functions answer odd arguments with an InputError, never with a raw error from within."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("calls", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_odd_arguments_are_refused_clearly(calls):
    command = [sys.executable, "-m", "support.fuzz", str(calls)]
    result = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=1800
    )
    record = json.loads(result.stdout)
    assert record["functions"] > 150
    assert record["calls"] == calls
    assert not record["wrong"], json.dumps(record["wrong"], indent=1)
