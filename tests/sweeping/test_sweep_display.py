"""How a sweep is shown: printed, in a notebook, and after Ctrl-C."""

import os
import signal
from typing import Any

import pytest
from support.sweep_subjects import batch, mlp

from orderone.core.errors import code_of
from orderone.sweeping.result import Interrupted, Sweep
from orderone.sweeping.sweep import sweep

RATES = [1e-7, 1e-6, 1e-2]
CALL: dict[str, Any] = {"data": batch, "steps": 8, "stacked": False, "device": "cpu"}


@pytest.fixture(scope="module")
def found() -> Sweep:
    return sweep(mlp, {"lr": RATES, "seed": range(2)}, widths=[8, 16], **CALL)


def test_the_best_rate_at_an_end_of_the_grid_is_told(found):
    (note,) = found.edge_notes
    assert code_of(note) == "optimum-outside-grid"
    assert "largest lr, 0.01" in note
    assert "8" in note
    assert "16" in note
    assert "optimum-outside-grid" in str(found)
    assert "orderone explain" in str(found)


def test_the_best_rate_inside_the_grid_is_no_note(found):
    wider = sweep(mlp, {"lr": [1e-6, 1e-2, 1e6], "seed": 0}, widths=[8], **CALL)
    assert wider.edge_notes == []
    assert wider.best()["lr"].tolist() == [1e-2]


def test_one_rate_or_no_trial_is_no_note():
    one = sweep(mlp, {"lr": 1e-2, "seed": 0}, widths=[8], **CALL)
    assert one.edge_notes == []
    assert Sweep({}, {}).edge_notes == []
    assert "no trials" in Sweep({}, {})._repr_html_()


def test_a_sweep_in_a_notebook_is_a_table_and_its_repr_is_short(found):
    html = found._repr_html_()
    assert html.count("<table>") == 1
    assert html.count("<tr>") == 1 + 2
    assert "12 trials: 12 done" in html
    assert "optimum-outside-grid" in html
    assert "color" not in html  # the theme of the notebook decides
    assert repr(found) == "<Sweep of 12 trials: 12 done>"


def test_a_printed_sweep_needs_no_unicode(found):
    assert str(found).isascii()


@pytest.mark.parametrize("saved", [True, False])
def test_ctrl_c_says_what_was_saved_and_how_to_continue(tmp_path, saved):
    calls = []

    def data(step: int, seed: int):
        calls.append(step)
        if len(calls) == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return batch(step, seed)

    store = tmp_path / "runs.db" if saved else None
    call = CALL | {"data": data, "store": store, "name": "net"}
    with pytest.raises(Interrupted) as caught:
        sweep(mlp, {"lr": RATES, "seed": range(2)}, widths=[8], **call)
    message = str(caught.value)
    assert message.startswith("interrupted: 2 of 6 trials finished; ")
    if saved:
        assert str(store) in message
        assert message.endswith("run the same call again to continue")
        return
    assert "nothing was saved to disk" in message
    assert "store=" in message
