"""The power of the gradient's size that steps follow, for optimizers with a known power."""

import pytest
import torch
from torch import nn

from orderone.measure.optimizer_law import degrees, law_of, settles


@pytest.mark.parametrize(
    ("kind", "degree", "first"),
    [
        ("SGD", 1.0, 0),
        ("ASGD", 1.0, 0),
        ("Adam", 0.0, 0),
        ("NAdam", 0.0, 0),
        ("RMSprop", 0.0, 0),
        ("Adagrad", 0.0, 0),
        ("Rprop", 0.0, 0),
        ("Adafactor", 0.0, 0),
        ("RAdam", 0.0, 5),
    ],
)
def test_the_degree_of_known_optimizers(kind, degree, first):
    model = nn.Linear(3, 4)
    before = [p.clone() for p in model.parameters()]
    found = degrees(model, getattr(torch.optim, kind)(model.parameters(), lr=1e-2), 12)
    assert settles(found, degree) == first
    assert settles(found, 1 - degree) is None
    assert all(
        torch.equal(p, old) and p.grad is None
        for p, old in zip(model.parameters(), before, strict=True)
    )


def test_radam_starts_as_sgd():
    model = nn.Linear(3, 4)
    found = degrees(model, torch.optim.RAdam(model.parameters()), 5)
    assert settles(found, 1.0) == 0


def test_without_measurements_no_degree_settles():
    assert settles({}, 0.0) is None


def test_an_optimizer_that_needs_a_closure_is_judged_as_requested():
    model = nn.Linear(3, 4)
    law = law_of(model, torch.optim.LBFGS(model.parameters()), "adamw", 4)
    assert (law.optimizer, law.begins, law.trouble) == ("adamw", 0, "")
    assert "LBFGS is judged as adamw" in law.note
