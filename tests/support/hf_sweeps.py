"""Sweeps of Hugging Face families, one after another and stacked, and how far they are apart."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

import orderone as o1
from support import hf_families
from support.other_kernels import products_by_bmm

STEPS = 10


def losses(
    family: str,
    device: str,
    *,
    stacked: bool,
    precision: str = "bfloat16",
    attention: str | None = None,
    steps: int = STEPS,
) -> np.ndarray:
    """Return the losses of four members, after checking whether they were stacked as requested."""
    options = {} if attention is None else {"attn_implementation": attention}

    def build(width: int) -> nn.Module:
        return hf_families.build(family, width, **options)

    result = o1.sweep(
        build,
        space={"lr": [1e-3, 4e-3], "seed": range(2)},
        widths=[32],
        data=hf_families.batch_of(family),
        steps=steps,
        precision=precision,
        device=device,
        stacked="auto" if stacked else False,
        progress=False,
    )
    assert result.notes == []
    assert {outcome.facts["engine"] for outcome in result.outcomes.values()} == {
        "stacked" if stacked else "alone"
    }
    return np.array([outcome.losses for outcome in result.outcomes.values()], float)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one / other - 1).max())


@contextmanager
def other_convolutions(device: str) -> Iterator[None]:
    """Compute convolutions without oneDNN on a CPU, and without cuDNN on a GPU."""
    backend = torch.backends.mkldnn if device == "cpu" else torch.backends.cudnn
    with backend.flags(enabled=False):
        yield


def distance_of_kernels(
    family: str, device: str, alone: np.ndarray, precision: str, attention: str | None
) -> float:
    """Return the largest distance between `alone` and stand-alone runs with other kernels.

    Runs that would repeat another one are left out: the attention of `alone`, and other
    convolutions where there are none.
    """
    steps = alone.shape[1]
    model = hf_families.build(family, 32)
    used: str = attention or model.config._attn_implementation  # pyright: ignore
    has_convolutions = any("Conv" in type(module).__name__ for module in model.modules())

    def others(attention: str | None = attention) -> float:
        options = {"precision": precision, "attention": attention, "steps": steps}
        other = losses(family, device, stacked=False, **options)
        return distance(other, alone)

    distances = [others(name) for name in hf_families.attentions(family) if name != used]
    with products_by_bmm():
        distances.append(others())
        if has_convolutions:
            with other_convolutions(device):
                distances.append(others())
    return max(distances)
