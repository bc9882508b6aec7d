"""Plans of 24 unmodified Hugging Face families against muP derived by hand from their modules."""

import pytest
import torch
from support import hf_families
from torch import nn

import orderone as o1

WIDTH = 16
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


def modules_of(model: nn.Module) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Return the linear layers, convolutions and tables that share no tensor, by tensor."""
    holders: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        holders[id(parameter)] = holders.get(id(parameter), 0) + 1
    result: dict[str, tuple[nn.Module, torch.Tensor]] = {}
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding, *CONVOLUTIONS)):
            weight = module.weight
            if holders[id(weight)] == 1 and weight.requires_grad:
                result[f"{name}.weight"] = (module, weight)
    return result


def by_hand(module: nn.Module, weight: torch.Tensor, base: torch.Tensor) -> tuple[float, float]:
    """Return the factors of learning rate (AdamW) and initial size, by Table 8 of Yang et al."""
    if isinstance(module, nn.Embedding):
        return 1.0, 1.0
    fan_in = weight.shape[1] / base.shape[1]
    fan_out = weight.shape[0] / base.shape[0]
    if fan_in == 1:
        return 1.0, 1.0
    if fan_out == 1:
        return 1 / fan_in, 1 / fan_in
    return 1 / fan_in, fan_in**-0.5


def fan_in(module: nn.Module, weight: torch.Tensor) -> int:
    if isinstance(module, nn.Embedding):
        return 1
    return weight[0].numel()


@pytest.mark.parametrize("family", hf_families.MORE)
def test_a_plan_is_mup_derived_by_hand(family):
    torch.manual_seed(0)
    model = hf_families.build(family, 2 * WIDTH)
    base = hf_families.build(family, WIDTH)
    plan = o1.plan(model, base=base, lr=1e-2)
    theirs = modules_of(base)
    compared = 0
    for name, (module, weight) in modules_of(model).items():
        expected = by_hand(module, weight, theirs[name][1])
        factors = plan[name].factors
        assert (factors.lr, factors.std) == pytest.approx(expected), name
        compared += 1
    assert compared >= 4
    model = plan.apply().eval()
    batch = hf_families.batch_of(family)(0, 0)
    with torch.no_grad():
        logits = model(**batch).logits
        baked = plan.bake(model).eval()(**batch).logits
    assert torch.allclose(baked, logits, rtol=1e-4, atol=1e-6)
    assert not [note for note in plan.notes if "the output of" in note]


@pytest.mark.parametrize("family", hf_families.MORE)
def test_the_start_at_fan_in_is_the_one_by_hand_at_both_widths(family):
    torch.manual_seed(0)
    base = hf_families.build(family, WIDTH)
    plans = [
        o1.plan(hf_families.build(family, width), base=base, lr=1e-2, init="fan-in")
        for width in (WIDTH, 2 * WIDTH)
    ]
    drawn = {row.name: row.base_std for row in plans[0].rows if row.draw is not None}
    assert drawn == {row.name: row.base_std for row in plans[1].rows if row.draw is not None}
    tied = {row.name for row in plans[0].rows if len(row.uses) > 1}
    for name, (module, weight) in modules_of(base).items():
        beside_a_tied_table = bool(tied) and isinstance(module, nn.Embedding)
        if not beside_a_tied_table and name in drawn:
            assert drawn[name] == pytest.approx(fan_in(module, weight) ** -0.5), name
