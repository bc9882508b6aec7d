"""Options of the probe: quantities, modules, wrong arguments, provenance."""

from typing import Any

import pandas as pd
import pytest
import torch
from probe_oracle import SIZES, adamw, batch, train, twins
from support.probe_workers import net
from support.zoo import FEATURES

import orderone as o1
from orderone.measure.recording import DEFAULT


@pytest.mark.parametrize("quantity", DEFAULT)
def test_one_quantity_is_the_same_alone(quantity):
    model, other = twins(net)
    alone = train(model, adamw(model), quantities=quantity, batch=batch(9, 5, 6))
    everything = train(other, adamw(other), batch=batch(9, 5, 6))
    assert set(alone["quantity"]) == {quantity}
    pd.testing.assert_frame_equal(
        alone, everything[everything["quantity"] == quantity].reset_index(drop=True)
    )


@pytest.mark.parametrize("patterns", ["0*", ["0*", "3.bias"]])
def test_some_modules(patterns):
    model, other = twins(net)
    some, everything = train(model, adamw(model), modules=patterns), train(other, adamw(other))
    wanted: Any = {"0", "0.weight", "0.bias"} | (
        {"3.bias"} if isinstance(patterns, list) else set()
    )
    assert set(some["module"]) == wanted
    pd.testing.assert_frame_equal(
        some, everything[everything["module"].isin(wanted)].reset_index(drop=True)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 3}, r"model: .*Module.*\[wrong-type\]"),
        ({"optimizer": "adamw"}, r"optimizer: .*Optimizer.*\[wrong-type\]"),
        ({"quantities": "outputs"}, r"quantity.*'output'.*\[unknown-name\]"),
        ({"modules": "head*"}, r"modules: .*'head\*'.*\[unknown-name\]"),
        ({"every": 0}, "every: .* 0"),
        ({"batch": 3}, r"batch: .*int \[wrong-type\]"),
        (
            {"batch": (torch.zeros(2, FEATURES), torch.zeros(2))},
            r"batch: .*\[batch-not-accepted\]",
        ),
        (
            {"batch": {"inputs": torch.zeros(2, FEATURES)}},
            r"batch: .*\[batch-not-accepted\]",
        ),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message), o1.probe(options.pop("model", net()), **options):
        pass


def test_provenance_and_units_are_in_the_frame():
    model = net()
    frame = train(model, adamw(model), provenance={"seed": 3})
    assert frame.attrs["provenance"]["seed"] == 3
    assert frame.attrs["provenance"]["torch"] == torch.__version__
    assert set(frame.attrs["units"]) == {"step", *SIZES}
