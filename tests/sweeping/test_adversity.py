"""Sweeps of models that fail: trials report their errors, and the others continue."""

import pytest
import torch
from torch import nn

import orderone as o1
from orderone.core.errors import code_of, without_code


class NotANumber(nn.Module):
    """Model with NaN outputs, for example from a division by zero in its constructor."""

    def __init__(self, width):
        super().__init__()
        self.first, self.head = nn.Linear(6, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.first(x).relu()) * float("nan")


def mlp(width):
    if width == 16:
        raise RuntimeError("no such width")
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))


def batch(step, seed):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * seed + step))
    return x, (x[:, 0] > 0).long()


def run(build, space=None, **options):
    return o1.sweep(
        build, space or {"lr": [1e-3, 1e-2]}, data=batch, steps=2, progress=False, **options
    )


def test_a_model_with_nan_outputs_diverges_at_every_width():
    assert set(run(NotANumber, widths=[8, 16]).frame["status"]) == {"diverged"}


def test_a_model_with_nan_outputs_can_be_planned():
    x = torch.randn(4, 6)
    assert [row.role for row in o1.plan(NotANumber(16), base=NotANumber(8), inputs=x).rows] == [
        "embedding",
        "vector",
        "readout",
        "fixed",
    ]


class LosesTheDevice(nn.Linear):
    """Layer whose second width fails as a kernel of a GPU does."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.out_features == 16:
            raise torch.AcceleratorError("CUDA error: unspecified launch failure")
        return super().forward(input)


def test_a_failed_device_is_named_once():
    def build(width: int) -> nn.Module:
        return nn.Sequential(LosesTheDevice(6, width), nn.ReLU(), nn.Linear(width, 3))

    found = run(build, widths=[8, 16], stacked=False)
    assert list(found.frame["status"]) == ["done", "done", "failed", "failed"]
    assert [code_of(note) for note in found.notes].count("device-failed") == 1


def test_a_width_that_cannot_be_built_is_failed():
    found = run(mlp, widths=[8, 16])
    assert list(found.frame["status"]) == ["done", "done", "failed", "failed"]
    assert len(found.notes) == 2
    for note in found.notes:
        assert code_of(note) == "trial-failed"
        assert without_code(note).endswith("RuntimeError: no such width")
        assert "width 16" in note


def test_a_seed_that_torch_cannot_take_is_named():
    with pytest.raises(ValueError, match=r"^seed: "):
        run(mlp, {"lr": [1e-3], "seed": [2**70]}, widths=[8])
