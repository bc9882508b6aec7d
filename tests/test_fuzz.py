"""Public functions answer odd arguments with an InputError, never with a raw error from within."""

import json
from pathlib import Path

import pytest
from support.warm import WARM


@pytest.mark.parametrize("calls", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_odd_arguments_are_refused_clearly(calls):
    result = WARM.module("support.fuzz", str(calls), cwd=Path(__file__).parent, timeout=1800)
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["functions"] > 150
    assert record["calls"] == calls
    assert not record["wrong"], json.dumps(record["wrong"], indent=1)
