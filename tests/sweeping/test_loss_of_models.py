"""Losses that a model returns itself, in the forms that training scripts have."""

import pytest
from support.sweep_subjects import batch, mlp
from torch import Tensor, nn

import orderone as o1


class WithAccuracy(nn.Module):
    """Model that returns its loss behind another scalar, as many training scripts have it."""

    def __init__(self, width: int):
        super().__init__()
        self.body = mlp(width)

    def forward(self, x, y):
        logits = self.body(x)
        loss = nn.functional.cross_entropy(logits, y)
        accuracy = (logits.argmax(-1) == y).float().mean()
        return logits, accuracy, loss


def test_a_loss_that_the_model_returns_in_a_tuple():
    def data(step: int, seed: int) -> dict[str, Tensor]:
        x, y = batch(step, seed)
        return {"x": x, "y": y}

    call = {
        "space": {"lr": [1e-3, 1e-2], "seed": range(2)},
        "widths": [8],
        "data": data,
        "held_out": [data(0, 999), data(1, 999)],
        "steps": 4,
        "device": "cpu",
        "progress": False,
    }
    together = o1.sweep(WithAccuracy, **call)
    alone = o1.sweep(WithAccuracy, **call, stacked=False)
    assert together.notes == []
    for key, outcome in together.outcomes.items():
        wanted = alone.outcomes[key]
        assert outcome.facts["engine"] == "stacked"
        assert outcome.losses == pytest.approx(wanted.losses, rel=1e-5)
        assert outcome.evaluation[-1][1] == pytest.approx(wanted.evaluation[-1][1], rel=1e-5)
        assert wanted.evaluation[-1][1] > 0.5  # no accuracy: that is at most 1, and here lower
