"""Exports that the trainers' own code applies: `make test-trainers` installs the trainers."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import planned_models
from support.errors import refuses
from support.named import Named
from support.one_process import one_process
from torch import nn

import orderone as o1
from orderone.planning.exports import names as tables
from orderone.planning.exports.content import content

SEPARATE = ("type", "group_overrides")  # not numbers of a configuration of OLMo-core


def exported(name, target, wrapped: Callable[[str], str] = str, **options):
    """Return an export, a model with the trainer's names, tensors -> names, names -> groups.

    `wrapped` returns a name as the trainer's wrappers change it.
    """
    plan = planned_models.plan(name)
    export = plan.export(target, **options)
    expected = {}
    for group in content(plan, target, None).groups:
        expected.update({wrapped(name): group for name in group.names})
    model = Named([wrapped(name) for name in export.names])
    names = {p: name for name, p in model.named_parameters()}
    return export, model, names, expected


def checkpointed(name):
    """Return a name as activation checkpointing of layers changes it."""
    return re.sub(r"((?:layers|blocks|h)\.\d+)", r"\1._checkpoint_wrapped_module", name)


def parallel(name):
    """Return a name as DDP, and the DDP of OLMo-core, change it."""
    return f"module.{name}"


def compiled(name):
    """Return a name as torch.compile of a DDP model changes it."""
    return f"_orig_mod.module.{name}"


def compare(groups, names, expected, lr="lr", decay=lambda group: group["weight_decay"]):
    seen = []
    for group in groups:
        for p in group["params"]:
            wanted = expected[names[p]]
            assert group[lr] == pytest.approx(wanted.lr, rel=1e-15)
            assert decay(group) == pytest.approx(wanted.weight_decay, rel=1e-15)
            if "eps" in group:
                assert group["eps"] == wanted.eps
            seen.append(names[p])
    assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize("wrapped", [str, checkpointed])
@pytest.mark.parametrize("name", planned_models.NAMES)
def test_torchtitan(name, wrapped):
    module = pytest.importorskip("torchtitan.components.optimizer")
    export, model, names, expected = exported(name, "torchtitan", wrapped)
    made = module.OptimizersContainer._build_param_groups(model, export.build(), {})
    groups_by_optimizer, _ = made
    assert set(groups_by_optimizer) == {"AdamW"}
    optimizer = torch.optim.AdamW(groups_by_optimizer["AdamW"])
    compare(optimizer.param_groups, names, expected)


@pytest.mark.parametrize("wrapped", [str, checkpointed])
@pytest.mark.parametrize("name", planned_models.NAMES)
def test_olmo_core(name, wrapped):
    module = pytest.importorskip("olmo_core.optim")
    export, model, names, expected = exported(name, "olmo-core", wrapped)
    data = export.data
    config = module.AdamWConfig(
        lr=data["lr"], weight_decay=data["weight_decay"], group_overrides=export.build()
    )
    optimizer = config.build(model)
    compare(optimizer.param_groups, names, expected)
    # a schedule multiplies the initial learning rate of each group
    schedule = module.scheduler.CosWithWarmup(warmup=2, alpha_f=0.1)
    rates = [schedule.get_lr(group["initial_lr"], 5, 10) for group in optimizer.param_groups]
    factors = [
        rate / group["lr"] for rate, group in zip(rates, optimizer.param_groups, strict=True)
    ]
    assert factors == pytest.approx([factors[0]] * len(factors))


@pytest.mark.parametrize("name", planned_models.NAMES)
def test_olmo_core_with_its_own_ddp(name):
    """It adds `module.` to all names, and goes on if patterns match nothing."""
    module = pytest.importorskip("olmo_core.optim")
    export, model, names, expected = exported(name, "olmo-core", parallel)
    config = module.OLMoDDPOptimizerConfig(group_overrides=export.build(model))
    groups = config.build_groups([model], strict=False)
    torch_groups = [{**g, "params": list(g.pop("named_params").values())} for g in groups]
    compare(torch_groups, names, expected)


@pytest.mark.parametrize("optimizer", ["adam", "lion"])
def test_other_optimizers_of_olmo_core(optimizer):
    """Its configurations have different fields: that of Adam has no weight decay."""
    module = pytest.importorskip("olmo_core.optim")
    options: dict[str, Any] = {"lr": 3e-3, "weight_decay": 0.1, "optimizer": optimizer}
    plan = o1.plan(planned_models.model("llama"), base=planned_models.BASE, **options)
    export = plan.export("olmo-core", names="as-is")
    config = {"adam": module.AdamConfig, "lion": module.LionConfig}[export.data["type"]]
    settings = {name: export.data[name] for name in export.data if name not in SEPARATE}
    built = config(**settings, group_overrides=export.build()).build(plan.bound())
    expected = {id(p): group for group in plan.optimizer().param_groups for p in group["params"]}
    for group in built.param_groups:
        for p in group["params"]:
            for setting in ("lr", "weight_decay", "betas"):
                assert group[setting] == expected[id(p)][setting]


@pytest.mark.parametrize("wrapped", [str, checkpointed, parallel, compiled])
@pytest.mark.parametrize("name", planned_models.NAMES)
def test_nemo(name, wrapped):
    module = pytest.importorskip("nemo_automodel.components.optim.optimizer")
    export, model, names, expected = exported(name, "nemo", wrapped, allow_loss="eps")
    base = export.data["optimizer"]
    groups = module._build_param_groups(list(model.named_parameters()), export.build())
    for group in groups:  # as its scheduler does
        group["lr"] = base["lr"] * group.get("lr_mult", 1.0)
        group["weight_decay"] = base["weight_decay"] * group.get("wd_mult", 1.0)
    compare(groups, names, expected)


@pytest.mark.parametrize("prefix", ["", "module.", "module.module."])
@pytest.mark.parametrize("name", planned_models.NAMES)
def test_megatron(name, prefix):
    """Data parallelism and mixed precision each add `module.` to all names."""
    module = pytest.importorskip("megatron.core.optimizer")
    scheduling = pytest.importorskip("megatron.core.optimizer_param_scheduler")
    export, model, names, expected = exported(
        name, "megatron", lambda name: prefix + name, min_lr=3e-4
    )
    one_process()
    data = export.data
    config = module.OptimizerConfig(
        optimizer="adam", lr=data["lr"], min_lr=data["min_lr"], weight_decay=data["weight_decay"]
    )
    groups = module._get_param_groups([model], config, export.build())

    def decay(group):
        return data["weight_decay"] * group["wd_mult"]

    compare(groups, names, expected, lr="max_lr", decay=decay)
    optimizer = torch.optim.AdamW(groups)
    scheduler = scheduling.OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=data["lr"], min_lr=data["min_lr"], lr_warmup_steps=2,
        lr_decay_steps=10, lr_decay_style="cosine", start_wd=data["weight_decay"],
        end_wd=data["weight_decay"], wd_incr_steps=10, wd_incr_style="constant",
    )  # fmt: skip
    for _ in range(12):  # warm-up, decay and the end at min_lr
        scheduler.step(1)
        factors = [group["lr"] / group["max_lr"] for group in optimizer.param_groups]
        assert factors == pytest.approx([factors[0]] * len(factors))
        assert [group["weight_decay"] for group in optimizer.param_groups] == pytest.approx(
            [decay(group) for group in optimizer.param_groups]
        )


def factors(rates, starts):
    """Return by which factor a schedule multiplied each learning rate."""
    return [rate / start for rate, start in zip(rates, starts, strict=True)]


def torchtitan_optimizers(name="llama"):
    module = pytest.importorskip("torchtitan.components.optimizer")
    export, model, *_ = exported(name, "torchtitan")
    config = module.OptimizersContainer.Config(
        param_groups=export.build(), implementation="for-loop"
    )
    return module.OptimizersContainer(config, model_parts=[model])


@pytest.mark.parametrize("decay", ["linear", "sqrt", "cosine"])
def test_schedules_of_torchtitan_keep_the_ratios(decay):
    """Warm-up, constant part, decay to a smallest rate."""
    optimizers = torchtitan_optimizers()
    module = pytest.importorskip("torchtitan.components.optimizer.lr_scheduler")
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    starts = [group["lr"] for group in groups]
    config = module.LRSchedulersContainer.Config(
        warmup_steps=3, decay_ratio=0.5, decay_type=decay, min_lr_factor=0.1
    )
    schedule = config.build(optimizers=optimizers, training_steps=12)
    seen = set()
    for _ in range(12):
        found = factors([group["lr"] for group in groups], starts)
        assert found == pytest.approx([found[0]] * len(found))
        seen.add(round(found[0], 6))
        optimizers.step()
        schedule.step()
    assert len(seen) > 5
    planned_models.plan("llama").export("torchtitan").check_schedule(schedule, steps=12)


@pytest.mark.parametrize("style", ["linear", "cosine", "inverse-square-root", "WSD"])
def test_schedules_of_nemo_keep_the_ratios(style):
    module = pytest.importorskip("nemo_automodel.components.optim.optimizer")
    scheduling = pytest.importorskip("nemo_automodel.components.optim.scheduler")
    export, model, names, expected = exported("llama", "nemo", allow_loss="eps")
    base = export.data["optimizer"]
    groups = module._build_param_groups(list(model.named_parameters()), export.build())
    optimizer = torch.optim.AdamW(groups, lr=base["lr"], weight_decay=base["weight_decay"])
    schedule = scheduling.OptimizerParamScheduler(
        optimizer, init_lr=0.0, max_lr=base["lr"], min_lr=3e-4, lr_warmup_steps=2,
        lr_decay_steps=10, lr_decay_style=style, start_wd=base["weight_decay"],
        end_wd=base["weight_decay"], wd_incr_steps=10, wd_incr_style="constant",
        wsd_decay_steps=4, lr_wsd_decay_style="cosine",
    )  # fmt: skip
    planned = [expected[names[group["params"][0]]] for group in optimizer.param_groups]
    for _ in range(12):
        schedule.step(1)
        rates = [group["lr"] for group in optimizer.param_groups]
        found = factors(rates, [group.lr for group in planned])
        assert found == pytest.approx([found[0]] * len(found))
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        assert decays == pytest.approx([group.weight_decay for group in planned])
    export.check_schedule(schedule, steps=12)


OLMO_SCHEDULES = {
    "ConstantWithWarmup": {"warmup": 2},
    "WSD": {"warmup": 2, "decay": 4, "decay_fraction": None},
    "LinearWithWarmup": {"warmup": 2, "alpha_f": 0.1},
    "InvSqrtWithWarmup": {"warmup": 2, "alpha_f": 0.1},
    "CosWithWarmup": {"warmup": 2, "alpha_f": 0.1},
    "HalfCosWithWarmup": {"warmup": 2, "alpha_f": 0.1},
    "CosWithWarmupAndLinearDecay": {"warmup": 2, "alpha_f": 0.1, "decay_fraction": 0.3},
    "ExponentialScheduler": {"lr_min": 1e-4},
}


@pytest.mark.parametrize("kind", OLMO_SCHEDULES)
def test_schedules_of_olmo_core_keep_the_ratios(kind):
    """Except those with a smallest rate for all groups, which docs/exports.md names."""
    module = pytest.importorskip("olmo_core.optim.scheduler")
    schedule = getattr(module, kind)(**OLMO_SCHEDULES[kind])
    starts = [1e-2, 1e-3]
    spread = 0.0
    for step in range(12):
        found = factors([float(schedule.get_lr(lr, step, 12)) for lr in starts], starts)
        spread = max(spread, abs(found[0] - found[1]))
    export = planned_models.plan("llama").export("olmo-core")
    if kind == "ExponentialScheduler":
        assert spread > 1e-3
        with refuses("broken-ratios", argument="schedule"):
            export.check_schedule(schedule, steps=12)
        return
    assert spread < 1e-9
    export.check_schedule(schedule, steps=12)
    if "warmup" in OLMO_SCHEDULES[kind]:
        floor = getattr(module, kind)(**OLMO_SCHEDULES[kind], warmup_min_lr=1e-4)
        rates = [float(floor.get_lr(lr, 0, 12)) for lr in starts]
        assert rates[0] == rates[1]  # one number for all groups
        with refuses("broken-ratios", argument="schedule"):
            export.check_schedule(floor, steps=12)


def test_floors_and_restarts_of_olmo_core():
    """A floor at the end is refused; stages and restarts that multiply are not."""
    module = pytest.importorskip("olmo_core.optim.scheduler")
    export = planned_models.plan("llama").export("olmo-core")
    with refuses("broken-ratios", argument="schedule"):
        floor = module.WSD(warmup=2, decay=4, decay_fraction=None, decay_min_lr=1e-4)
        export.check_schedule(floor, steps=12)
    stages = [module.CosWithWarmup(warmup=2, alpha_f=0.1) for _ in range(2)]
    restarts = module.SequentialScheduler(schedulers=stages, schedulers_max=[6])
    export.check_schedule(restarts, steps=12)


def test_schedules_of_megatron_are_checked():
    module = pytest.importorskip("megatron.core.optimizer_param_scheduler")
    plan = planned_models.plan("llama")

    def schedule(export, init_lr=0.0):
        data = export.data
        groups = []
        for entry in data["config_overrides"]:
            settings = {key: entry[key] for key in ("max_lr", "min_lr", "wd_mult")}
            groups.append({"params": [nn.Parameter(torch.zeros(1))], **settings})
        return module.OptimizerParamScheduler(
            torch.optim.AdamW(groups, lr=data["lr"]), init_lr=init_lr, max_lr=data["lr"],
            min_lr=data["min_lr"], lr_warmup_steps=3, lr_decay_steps=10, lr_decay_style="cosine",
            start_wd=0.1, end_wd=0.1, wd_incr_steps=10, wd_incr_style="constant",
        )  # fmt: skip

    export = plan.export("megatron", min_lr=3e-4)
    export.check_schedule(schedule(export), steps=12)
    with refuses("broken-ratios", argument="schedule"):
        export.check_schedule(schedule(export, init_lr=1e-4), steps=12)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=3e-3)
    one_group = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with refuses("broken-ratios", argument="schedule"):  # the groups of the export are missing
        export.check_schedule(one_group, steps=12)


def test_names_are_those_of_olmo_core():
    convert = pytest.importorskip("olmo_core.nn.hf.convert")
    own = (
        convert.HF_TO_OLMO_CORE_WEIGHT_MAPPINGS
        | (convert.MODEL_TYPE_SPECIFIC_HF_TO_OLMO_CORE_WEIGHT_MAPPINGS["llama"])
    )
    theirs = {
        re.sub(r"\[\w+\]", "{}", hugging_face): re.sub(r"\[\w+\]", "{}", olmo)
        for hugging_face, olmo in own.items()
    }
    for name, found in tables.OLMO_CORE.items():
        if ".experts." not in name:  # Hugging Face packs them since Transformers 5
            assert found == (theirs[name],)


def test_names_are_those_of_torchtitan():
    pytest.importorskip("triton")
    llama = pytest.importorskip("torchtitan.models.llama3.state_dict_adapter")
    theirs = llama.Llama3StateDictAdapter(None, None).from_hf_map
    for name, target in theirs.items():
        if target is not None:
            assert target in tables.TORCHTITAN[name]
