"""Exports of many models, each applied by the trainer's own code for parameter groups.

Every tensor gets exactly its values, under the names of the trainer's model and inside wrappers, or
the export is refused with a code. The names are those of the planned model unless the trainer has
its own ones for it.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from support import hf_families, nanogpt
from support.errors import refuses
from support.named import Named
from support.one_process import one_process
from test_exports_in_trainers import checkpointed

import orderone as o1
from orderone.planning.exports.content import Group, content
from orderone.planning.exports.export import FORMATS, Export
from orderone.planning.plan import Plan

pytestmark = pytest.mark.filterwarnings("ignore")  # of these packages

LOSSES = ("eps", "multipliers", "rows")
# wrapper of the trainer: name of a tensor -> its name inside
WRAPPERS: dict[str, Callable[[str], str]] = {
    "torchtitan": checkpointed,
    "nemo": checkpointed,
    "olmo-core": checkpointed,
    "megatron": lambda name: f"module.module.{name}",
}
# built as Llama, Qwen3 or Mixtral, and some more
LLAMAS = {
    "cohere", "gemma", "granite", "llama", "mistral", "mixtral", "olmoe", "qwen3", "qwen3-moe",
    "smollm3",
}  # fmt: skip
KNOWN = {
    "megatron": LLAMAS | {"gpt2"},
    "olmo-core": LLAMAS | {"exaone4", "gemma2", "gemma3", "olmo2"},
}
LAYER_OF_LLAMAS = re.compile(
    r"model\.layers\.\d+\.(input_layernorm|self_attn\.[qkvo]_(proj|norm)|mlp\.\w+_proj)\.weight"
)
OTHERS = ("packed nanoGPT", "nanoGPT packed by head")


@cache
def plan(name: str) -> Plan:
    torch.manual_seed(0)
    if name in OTHERS:
        packing = "by head" if name.endswith("head") else "packed"
        models = [nanogpt.NanoGPT(width, packing=packing) for width in (64, 32)]
        inputs: Any = nanogpt.tokens()
    else:
        models = [hf_families.build(name, width) for width in (64, 32)]
        inputs = hf_families.batch_of(name)(0, 0)
    model, base = models
    # vectors without weight decay make more groups
    options = {"lr": 3e-3, "weight_decay": 0.1, "decay_vectors": False}
    return o1.plan(model, base=base, inputs=inputs, **options)


# --- the trainers' own code: lr, weight decay and eps of every tensor -----------------------------

Applied = Iterator[tuple[torch.Tensor, float, float, float | None]]


def by_torchtitan(export: Export, model: Named) -> Applied:
    module = pytest.importorskip("torchtitan.components.optimizer")
    groups, _ = module.OptimizersContainer._build_param_groups(model, export.build(), {})
    assert set(groups) == {"AdamW"}
    return of_torch(torch.optim.AdamW(groups["AdamW"]).param_groups)


def by_olmo_core(export: Export, model: Named) -> Applied:
    module = pytest.importorskip("olmo_core.optim")
    options = {name: export.data[name] for name in ("lr", "weight_decay")}
    optimizer = module.AdamWConfig(**options, group_overrides=export.build()).build(model)
    return of_torch(optimizer.param_groups)


def by_nemo(export: Export, model: Named) -> Applied:
    module = pytest.importorskip("nemo_automodel.components.optim.optimizer")
    base = export.data["optimizer"]
    for group in module._build_param_groups(list(model.named_parameters()), export.build()):
        for tensor in group["params"]:  # the scheduler multiplies
            lr = base["lr"] * group.get("lr_mult", 1.0)
            yield tensor, lr, base["weight_decay"] * group.get("wd_mult", 1.0), None


def by_megatron(export: Export, model: Named) -> Applied:
    module = pytest.importorskip("megatron.core.optimizer")
    one_process()
    options = {name: export.data[name] for name in ("lr", "min_lr", "weight_decay")}
    config = module.OptimizerConfig(optimizer="adam", **options)
    for group in module._get_param_groups([model], config, export.build()):
        for tensor in group["params"]:
            weight_decay = options["weight_decay"] * group["wd_mult"]
            yield tensor, group["max_lr"], weight_decay, group["eps"]


def by_torch(export: Export, model: Named) -> Applied:
    groups: Any = export.build(model)
    return of_torch(torch.optim.AdamW(groups).param_groups)


def of_torch(groups: list[dict[str, Any]]) -> Applied:
    for group in groups:
        for tensor in group["params"]:
            yield tensor, group["lr"], group["weight_decay"], group["eps"]


APPLIED: dict[str, Callable[[Export, Named], Applied]] = {
    "torchtitan": by_torchtitan,
    "olmo-core": by_olmo_core,
    "nemo": by_nemo,
    "megatron": by_megatron,
    "deepspeed": by_torch,
    "huggingface": by_torch,
}


def must_apply(export: Export, wanted: dict[str, Group]) -> None:
    """Every tensor is in one group, once, with its values."""
    model = Named(wanted)
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    found: list[str] = []
    for tensor, lr, weight_decay, eps in APPLIED[export.target](export, model):
        name = names[id(tensor)]
        found.append(name)
        assert lr == pytest.approx(wanted[name].lr, rel=1e-15)
        assert weight_decay == pytest.approx(wanted[name].weight_decay, rel=1e-15)
        assert eps is None or eps == wanted[name].eps
    assert sorted(found) == sorted(wanted)


def must_read(export: Export, wanted: dict[str, Group]) -> None:
    """Our own reader finds the values in JSON and YAML, which no trainer reads."""
    found = export.settings()
    assert set(found) == set(wanted)
    for name, values in found.items():
        group = wanted[name]
        assert (values.lr, values.eps) == (group.lr, group.eps)
        assert values.weight_decay == group.weight_decay


def lists_layers(export: Export) -> bool:
    """Whether a pattern of OLMo-core is the name of one layer's tensor.

    A star also matches dots. Where it would match other tensors, names are listed, and OLMo-core
    raises an error if these are inside wrappers.
    """
    patterns = [p for entry in export.data.get("group_overrides", ()) for p in entry["params"]]
    return any(checkpointed(pattern) != pattern for pattern in patterns)


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("name", [*hf_families.FAMILIES, *OTHERS])
def test_every_tensor_gets_its_values(name, target):
    made = plan(name)
    known = target not in KNOWN or name in KNOWN[target]
    if target == "olmo-core":  # it has no model whose layers have other names alone
        known |= not any(LAYER_OF_LLAMAS.match(row.name) for row in made.rows)
    if not known:
        with refuses("export-names", argument="names"):
            made.export(target, allow_loss=LOSSES)
    for names in (None, "as-is") if known else ("as-is",):
        export = made.export(target, allow_loss=LOSSES, names=names)
        groups = content(made, target, names).groups
        wanted = {name: group for group in groups for name in group.names}
        if target not in APPLIED:
            must_read(export, wanted)
            continue
        must_apply(export, wanted)
        if target in WRAPPERS and not lists_layers(export):
            must_apply(export, {WRAPPERS[target](name): wanted[name] for name in wanted})


def test_a_plan_of_other_sizes_is_refused():
    """Patterns do not say sizes, but names: a deeper model with other tensors has no settings."""
    export = plan("phi3").export("deepspeed")
    with refuses("invalid-argument", argument="model"):
        export.build(hf_families.build("llama", 64))
