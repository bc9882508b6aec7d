"""Exponents of the number of experts in planned Hugging Face models, 8 to 64 experts.

    python benchmarks/expert_slopes.py

For Mixtral, Qwen3-MoE, DeepSeek-V3, GPT-OSS and OLMoE (width 32, two layers, random tokens): the
output of the second mixture of experts at initialization, the change of this output and the updates
of its tensors (over their learning rate) after four steps of AdamW, with two active experts, and
with a quarter of all. Two seeds; a minute on one core.

    python benchmarks/expert_slopes.py router    # the bias of GPT-OSS's router, ten seeds
    python benchmarks/expert_slopes.py tokens    # a small mixture, 48 to 3072 tokens per batch
"""

import logging
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.mixtures import INPUTS, OUTPUTS, MixtureNet, moe

import orderone as o1

FAMILIES = ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "olmoe")
EXPERTS = (8, 16, 32, 64)
SEEDS = (0, 1)
STEPS = 4
BLOCK = "model.layers.1.mlp"
TOKENS = (48, 192, 768, 3072)  # of a batch of the small mixture
FEW_EXPERTS = (4, 8, 16, 32)


def sizes(family: str, experts: int, active: int, seed: int, planned: bool) -> dict[str, float]:
    """Return sizes in one short training."""
    torch.manual_seed(seed)
    model = moe(family, experts, active)
    base = moe(family, EXPERTS[0], 2)
    rule = "mup" if planned else None
    plan = o1.plan(model, base=base, lr=3e-3, weight_decay=0, eps=1e-12, expert_rule=rule)
    plan.apply()
    optimizer = plan.optimizer()
    ids = torch.randint(3, 64, (16, 32), generator=torch.Generator().manual_seed(5))
    outputs: list[Tensor] = []
    block = model.get_submodule(BLOCK)

    def record(_module: nn.Module, _args: object, output: object) -> None:
        first = output[0] if isinstance(output, tuple) else output
        assert isinstance(first, Tensor)
        outputs.append(first.detach())

    block.register_forward_hook(record)
    before = {name: p.detach().clone() for name, p in block.named_parameters()}
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    model(input_ids=ids)
    result = {"output": _rms(outputs[0]), "change": _rms(outputs[-1] - outputs[0])}
    for name, p in block.named_parameters():
        rate = plan[f"{BLOCK}.{name}"].factors.lr
        result[f"update {name}"] = _rms((p - before[name]).detach()) / rate
    return result


def exponents(
    family: str, fixed: bool, planned: bool = True, seeds: Sequence[int] = SEEDS
) -> dict[str, float]:
    """Return the exponent of the number of experts for every size."""
    logs: dict[str, list[float]] = {}
    for experts in EXPERTS:
        active = 2 if fixed else experts // 4
        for seed in seeds:
            for key, value in sizes(family, experts, active, seed, planned).items():
                logs.setdefault(key, []).append(math.log(value))
    return _slopes(EXPERTS, len(seeds), logs)


def _slopes(
    experts: Sequence[int], seeds: int, logs: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Return slopes of logarithms, which are ordered by experts and then by seeds."""
    x = torch.tensor([math.log(number) for number in experts for _ in range(seeds)])
    x = x - x.mean()
    return {key: float(x @ torch.tensor(values) / (x @ x)) for key, values in logs.items()}


def small_mixture(experts: int, tokens: int, seed: int) -> dict[str, float]:
    """Return updates in both blocks of a planned mixture after three steps.

    `reached` takes only entries that had a gradient in every step. An expert without a token has
    none, nor has a row of the router whose expert no token chose.
    """
    torch.manual_seed(seed)
    model = MixtureNet(experts, 2, form="fused")
    base = MixtureNet(FEW_EXPERTS[0], 2, form="fused")
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, INPUTS, generator=generator)
    labels = torch.randint(OUTPUTS, (tokens,), generator=generator)
    plan = o1.plan(model, base=base, lr=1e-2, weight_decay=0, eps=1e-12, inputs=x)
    plan.apply()
    optimizer = plan.optimizer()
    mixture = {name: p for name, p in model.named_parameters() if ".mix." in name}
    before = {name: p.detach().clone() for name, p in mixture.items()}
    always = {name: torch.ones_like(p, dtype=torch.bool) for name, p in mixture.items()}
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), labels).backward()
        for name, p in mixture.items():
            assert p.grad is not None
            always[name] &= p.grad != 0
        optimizer.step()
    result: dict[str, float] = {}
    for name, p in mixture.items():
        update = (p - before[name]).detach() / plan[name].factors.lr
        result[f"all {name}"] = _rms(update)
        result[f"reached {name}"] = _rms(update[always[name]])
    return result


def tokens_per_batch() -> None:
    """Print exponents of updates in a small mixture for more and more tokens."""
    print("tokens: experts, all entries | those with a gradient in every step; router, the same")
    for tokens in TOKENS:
        logs: dict[str, list[float]] = {}
        for experts in FEW_EXPERTS:
            for seed in range(10):
                for key, value in small_mixture(experts, tokens, seed).items():
                    logs.setdefault(key, []).append(math.log(value))
        slopes = _slopes(FEW_EXPERTS, 10, logs)
        cells: list[str] = []
        for part in (".moe.", ".router."):
            for kind in ("all", "reached"):
                found = [v for key, v in slopes.items() if key.startswith(kind) and part in key]
                cells.append(f"{min(found):+.2f} to {max(found):+.2f}")
        print(f"{tokens:5}:", " | ".join(cells), flush=True)


def _rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def _line(family: str, slopes: Mapping[str, float]) -> str:
    updates = [slope for key, slope in slopes.items() if key.startswith("update")]
    return (
        f"{family:12} {slopes['output']:+.2f}  {slopes['change']:+.2f}"
        f"  {min(updates):+.2f} to {max(updates):+.2f}"
    )


def router() -> None:
    """Print exponents of updates in GPT-OSS for few and for more seeds."""
    for seeds in (SEEDS, range(10)):
        slopes = exponents("gpt_oss", fixed=False, seeds=seeds)
        updates = {key: slope for key, slope in slopes.items() if key.startswith("update")}
        print(len(seeds), "seeds:", {key: f"{slope:+.2f}" for key, slope in updates.items()})


def main() -> None:
    """Print the tables."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if sys.argv[1:] == ["router"]:
        router()
        return
    if sys.argv[1:] == ["tokens"]:
        tokens_per_batch()
        return
    for title, fixed, planned in (
        ("2 active experts, planned", True, True),
        ("2 active experts, without a rule (expert_rule=None)", True, False),
        ("a quarter of the experts active, planned", False, True),
    ):
        print(f"{title}: output, change, updates")
        for family in FAMILIES:
            print(" ", _line(family, exponents(family, fixed, planned)))


if __name__ == "__main__":
    main()
