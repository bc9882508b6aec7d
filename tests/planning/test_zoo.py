"""Unmodified models of many architectures: planned, applied, trained, and compared with the
predictions."""

import copy
import math
from functools import cache

import pytest
import torch
from support.zoo import ZOO
from torch import nn

import orderone as o1
from orderone.planning.init_check import TOLERANCE

EXPLAINED = {  # what the probe finds in these, and why it is right to tell
    # one key and value for all heads: a bottleneck, and values shrink like n^-1/2 at first
    "llama-mqa",
    "albert",  # a bottleneck before the readout that is normalized again
    "clip",  # its outputs are normalized features: gradients follow another law
}


def planned(name: str, width: int, base: int = 64, **options) -> tuple[nn.Module, o1.Plan]:
    """Plan a model. Those of Hugging Face are traced without an example batch; others need one."""
    torch.manual_seed(0)
    entry = ZOO[name]
    model = entry.build(width)
    inputs = None if hasattr(model, "base_model_prefix") else entry.batch(0)
    options = {"rule": "mup", "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.1} | options
    return model, o1.plan(model, base=entry.build(base), inputs=inputs, **options)


@cache
def four_times_as_wide(name: str) -> tuple[nn.Module, o1.Plan]:
    """Return one plan for two tests; only one of them applies it."""
    base = 64 if name == "resnet" else 32  # a narrower one has too few channels for an average
    return planned(name, 4 * base, base)


@pytest.mark.parametrize("name", ZOO)
def test_every_model_is_planned_applied_and_trained(name):
    model, plan = four_times_as_wide(name)
    assert {row.name for row in plan.rows} == {n for n, _ in model.named_parameters()}
    before = list(model.state_dict())
    plan.apply()
    assert list(model.state_dict()) == before
    losses = ZOO[name].train(model, plan.optimizer())
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ZOO)
def test_sizes_at_initialization_follow_the_predicted_exponents(name):
    _, plan = four_times_as_wide(name)
    assert plan.observations
    off = [o for o in plan.observations if o.off > TOLERANCE[o.quantity]]
    assert bool(off) == (name in EXPLAINED), "\n".join(map(str, off))


@pytest.mark.parametrize(
    "name", ["gpt2", "llama-gqa", "gemma2", "t5", "vit", "mlp", "cnn-batchnorm", "nano-gpt"]
)
def test_at_base_size_everything_is_the_original_bit_for_bit(name):
    entry = ZOO[name]
    model, plan = planned(name, 64)
    original = copy.deepcopy(model)
    plan.apply()
    assert plan.headline.startswith("mup for adamw: the target equals its base: every factor is 1")
    assert len(plan.param_groups()) == 1
    assert not plan.multipliers
    ours = entry.train(model, plan.optimizer())
    plain = entry.train(
        original, torch.optim.AdamW(original.parameters(), lr=1e-3, weight_decay=0.1)
    )
    assert ours == plain
    for (key, one), other in zip(
        model.state_dict().items(), original.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), key


def sizes_after_training(name: str, width: int, lr: float, plain: bool) -> dict[str, float]:
    """Return the RMS of every module's output after four steps."""
    entry = ZOO[name]
    model, plan = planned(name, width, lr=lr, weight_decay=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    if not plain:
        plan.apply()
        optimizer = plan.optimizer()
    entry.train(model, optimizer)
    sizes = {}

    def record(name):
        def hook(_module, _inputs, output):
            output = output[0] if isinstance(output, tuple) else output
            if isinstance(output, torch.Tensor) and output.is_floating_point():
                sizes[name] = output.detach().square().mean().sqrt().item()

        return hook

    for path, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(record(path))
    with torch.no_grad():
        model(**entry.batch(0))
    return sizes


@pytest.mark.parametrize("name", ["mistral", "gpt-neox", "opt", "gemma2"])
def test_activations_stop_growing_with_width_after_four_steps(name):
    """The law, and a case that must fail: the same model without a plan, with one learning rate."""
    widths, lr = (64, 256), 1e-2
    worst = {}
    for plain in (True, False):
        sizes = [sizes_after_training(name, width, lr, plain) for width in widths]
        doublings = [
            math.log2(last / first) / 2
            for last, first in zip(sizes[-1].values(), sizes[0].values(), strict=True)
        ]
        worst[plain] = max(doublings)
    assert worst[False] < 0.15
    assert worst[True] > 1
