"""Errors that prevent silent mistakes: weights scaled twice, a rescaled checkpoint, groups that
leave the ratios of the plan."""

import contextlib
import copy
import io
import math
import re
import warnings
from typing import Any

import pytest
import safetensors.torch as safetensors
import torch
from support.errors import refuses
from support.plan_workers import MODELS, WIDTH, fresh, planned, train
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim import AdamW
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from transformers import get_cosine_schedule_with_warmup

import orderone as o1

EVERY = pytest.mark.parametrize("name", MODELS)
TRAINED = pytest.mark.parametrize("name", ["own", "llama"])


def values(model: nn.Module) -> dict[str, Any]:
    return copy.deepcopy(model.state_dict())


def unchanged(model: nn.Module, before: dict[str, Any]) -> bool:
    return all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def trained(name: str) -> dict[str, Any]:
    """Return the weights of a planned run after a few steps."""
    plan = planned(name, fresh(name))
    model = plan.apply()
    train(name, model, plan.optimizer())
    return values(model)


def reloaded(checkpoint: dict[str, Any], how: str) -> dict[str, Any]:
    """Return the checkpoint read from a file. Only torch.load changes the version of a tensor."""
    if how == "safetensors":
        return safetensors.load(
            safetensors.save({key: value.clone() for key, value in checkpoint.items()})
        )
    file = io.BytesIO()
    torch.save(checkpoint, file)
    file.seek(0)
    return torch.load(file)


# --- apply, once ----------------------------------------------------------------------------------


@EVERY
def test_a_second_apply_is_refused(name):
    plan = planned(name, fresh(name))
    before = values(plan.apply())
    with refuses("already-applied") as caught:
        plan.apply()
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.argument is None  # the plan, not the model
    assert unchanged(plan.bound(), before)


@EVERY
def test_another_plan_for_the_same_model_is_refused(name):
    plan = planned(name, fresh(name))
    before = values(plan.apply())
    with refuses("already-applied", argument="model"):
        planned(name, plan.bound(), lr=1e-3).apply()
    with refuses("already-applied", argument="model"):
        planned(name, nn.DataParallel(plan.bound()), lr=1e-3).apply()
    assert unchanged(plan.bound(), before)


def test_another_plan_for_a_copy_with_multipliers_is_refused():
    model = copy.deepcopy(planned("paper", fresh("paper")).apply())
    before = values(model)
    with refuses("already-applied", argument="model") as caught:
        planned("paper", model, gauge="unit").apply()
    assert "multiplier" in str(caught.value)
    assert unchanged(model, before)


def test_new_weights_in_the_same_model_are_rescaled_with_fresh():
    plan = planned("own", fresh("own"))
    model = plan.apply()
    wanted, batch = values(model), MODELS["own"].batch(0)
    output = model(**batch)
    model.load_state_dict(fresh("own").state_dict())
    plan.apply(fresh=True)
    assert unchanged(model, wanted)
    assert torch.equal(model(**batch), output)


@TRAINED
@pytest.mark.parametrize("assign", [False, True])
def test_a_trained_checkpoint_is_not_rescaled(name, assign):
    checkpoint, model = trained(name), fresh(name)
    plan = planned(name, model)
    model.load_state_dict(checkpoint, assign=assign)
    retied(model)
    with refuses("weights-look-trained", argument="model"):
        plan.apply()
    assert unchanged(model, checkpoint)


@TRAINED
@pytest.mark.parametrize("how", ["torch", "safetensors"])
@pytest.mark.parametrize("assign", [False, True])
def test_a_trained_checkpoint_is_not_rescaled_in_a_model_from_the_meta_device(name, assign, how):
    checkpoint = trained(name)
    with torch.device("meta"):
        model = MODELS[name].build(WIDTH)
    plan = planned(name, model)
    retied(model.to_empty(device="cpu")).load_state_dict(reloaded(checkpoint, how), assign=assign)
    retied(model)
    with refuses("weights-look-trained", argument="model"):
        plan.apply()
    assert unchanged(model, checkpoint)


@TRAINED
def test_a_trained_checkpoint_is_not_rescaled_by_a_plan_made_after_loading(name):
    checkpoint, model = trained(name), fresh(name)
    model.load_state_dict(checkpoint)
    with refuses("weights-look-trained", argument="model"):
        planned(name, model).apply()
    assert unchanged(model, checkpoint)


def test_a_checkpoint_loaded_into_an_attached_model_is_not_rescaled(tmp_path):
    planned("paper", fresh("paper")).save(tmp_path / "plan.json")
    model = fresh("paper")
    plan = o1.Plan.load(tmp_path / "plan.json").attach(model)
    checkpoint = {key: 3 * value for key, value in trained("paper").items()}
    model.load_state_dict(checkpoint)
    with refuses("weights-look-trained", argument="model"):
        plan.apply()
    assert unchanged(model, checkpoint)


def test_weights_that_look_trained_are_rescaled_with_fresh():
    model = fresh("own")
    plan = planned("own", model)
    with torch.no_grad():
        model.get_parameter("norm.weight").normal_()
    with refuses("weights-look-trained", argument="model") as caught:
        plan.apply()
    assert "plan.apply(fresh=True)" in str(caught.value)
    plan.apply(fresh=True)


@EVERY
def test_a_plan_saved_after_apply_stays_applied(name, tmp_path):
    plan = planned(name, fresh(name))
    plan.apply()
    plan.save(tmp_path / "plan.json")
    model = fresh(name, seed=2)
    before = values(model)
    attached = o1.Plan.load(tmp_path / "plan.json").attach(model)
    with refuses("already-applied") as caught:
        attached.apply()
    assert caught.value.argument is None  # the plan, not the model
    assert unchanged(model, before)


@EVERY
def test_a_plan_saved_before_apply_is_applied_after_loading(name, tmp_path):
    planned(name, fresh(name)).save(tmp_path / "plan.json")
    model = o1.Plan.load(tmp_path / "plan.json").attach(fresh(name)).apply()
    assert unchanged(model, values(planned(name, fresh(name)).apply()))


def test_a_loaded_plan_without_a_model_is_refused(tmp_path):
    planned("own", fresh("own")).save(tmp_path / "plan.json")
    with refuses("plan-without-model"):
        o1.Plan.load(tmp_path / "plan.json").apply()


# --- memory ---------------------------------------------------------------------------------------


def retied(model: Any) -> Any:
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return model


@pytest.mark.parametrize("name", ["own", "gpt2"])
def test_tensors_that_are_no_longer_tied_are_refused(name):
    with torch.device("meta"):
        model = MODELS[name].build(WIDTH)
    plan = planned(name, model)
    model.to_empty(device="cpu")
    for use in (plan.apply, plan.optimizer, lambda: plan.attach(model)):
        with refuses("tensors-changed", argument="model") as caught:
            use()
        assert "was tied to" in str(caught.value)
    retied(model)
    plan.apply()


def test_a_model_without_memory_is_refused():
    with torch.device("meta"):
        model = MODELS["own"].build(WIDTH)
    with refuses("model-without-memory", argument="model"):
        planned("own", model).apply()


def test_a_plan_for_another_model_is_refused():
    plan = planned("own", fresh("own"))
    with refuses("tensors-changed", argument="model") as caught:
        plan.attach(MODELS["own"].build(2 * WIDTH))
    assert "has shape" in str(caught.value)
    with refuses("tensors-changed", argument="model") as caught:
        plan.attach(MODELS["own"].build(WIDTH, layers=1))
    assert "it has no tensor" in str(caught.value)
    with refuses("tensors-changed", argument="model") as caught:
        plan.attach(fresh("llama"))
    assert "the plan has no row" in str(caught.value)


# --- groups ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> o1.Plan:
    made = planned("own", fresh("own"))
    made.apply()
    assert len({group["lr"] for group in made.param_groups()}) > 1
    return made


def tensors(plan: o1.Plan) -> list[Any]:
    return list(plan.bound().parameters())


def test_the_optimizer_of_the_plan_passes(plan):
    plan.check(plan.optimizer())
    plan.check(AdamW(plan.param_groups(), betas=(0.9, 0.95)))


def test_one_group_for_all_is_refused(plan):
    with refuses("broken-ratios", argument="optimizer") as caught:
        plan.check(AdamW(tensors(plan), lr=3e-3))
    assert isinstance(caught.value, o1.BrokenRatios)
    assert "group 0" in str(caught.value)


def test_a_learning_rate_for_all_groups_is_refused(plan):
    groups = [
        {key: value for key, value in group.items() if key != "lr"} for group in plan.param_groups()
    ]
    with refuses("broken-ratios", argument="optimizer") as caught:
        plan.check(AdamW(groups, lr=3e-3))
    assert "before the first step" in str(caught.value)


def test_tensors_without_a_group_are_refused(plan):
    with refuses("tensors-without-group", argument="optimizer") as caught:
        plan.check(AdamW(plan.param_groups()[:-1]))
    assert "in no group" in str(caught.value)


def test_tensors_of_another_model_are_refused(plan):
    with refuses("tensors-without-group", argument="optimizer") as caught:
        plan.check(plan.attach(copy.deepcopy(plan.bound())).optimizer())
    assert "group 0" in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value"), [("weight_decay", 0.123), ("weight_decay", 0.0), ("eps", 1e-6)]
)
def test_other_settings_than_those_of_the_plan_are_refused(setting, value, plan):
    groups = [{**group, setting: value} for group in plan.param_groups()]
    with refuses("setting-of-the-plan", argument=setting) as caught:
        plan.check(AdamW(groups))
    assert isinstance(caught.value, o1.BrokenRatios)
    with refuses("setting-of-the-plan", argument=setting):
        plan.optimizer(**{setting: value})


def test_a_group_that_mixes_weight_decays_is_refused():
    plan = planned("own", fresh("own"), no_decay=("*norm*",))
    merged: dict[float, dict[str, Any]] = {}
    for group in plan.param_groups():
        same = merged.setdefault(group["lr"], {**group, "params": []})
        same["params"] += group["params"]
    assert len(merged) < len(plan.param_groups())
    with refuses("setting-of-the-plan", argument="weight_decay"):
        plan.check(AdamW(list(merged.values())))


# --- schedules ------------------------------------------------------------------------------------


def rates(optimizer: Any) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def factors(optimizer: Any) -> list[float]:
    """Return a multiple of the learning rate of each group, as a list for `max_lr`."""
    return [10 * rate for rate in rates(optimizer)]


def warmup(optimizer: Any, **cosine: Any) -> SequentialLR:
    parts = [LinearLR(optimizer, 0.1, total_iters=3), CosineAnnealingLR(optimizer, 20, **cosine)]
    return SequentialLR(optimizer, parts, milestones=[3])


def unlike(optimizer: Any) -> LambdaLR:
    return LambdaLR(
        optimizer, [lambda t, i=i: 0.9 ** (t * i) for i in range(len(optimizer.param_groups))]
    )


BROKEN = {
    "cosine": lambda o: CosineAnnealingLR(o, 20, eta_min=1e-4),
    "warm restarts": lambda o: CosineAnnealingWarmRestarts(o, 10, eta_min=1e-4),
    "one cycle": lambda o: OneCycleLR(o, max_lr=1e-2, total_steps=20),
    "cyclic": lambda o: CyclicLR(o, base_lr=1e-3, max_lr=1e-2, step_size_up=5),
    "plateau": lambda o: ReduceLROnPlateau(o, min_lr=1e-4),
    "patient plateau": lambda o: ReduceLROnPlateau(o, patience=600, factor=0.5, min_lr=1e-4),
    "warmup": lambda o: warmup(o, eta_min=1e-4),
    "chained": lambda o: ChainedScheduler(
        [ConstantLR(o, 0.5, 3), CosineAnnealingLR(o, 20, eta_min=1e-4)]
    ),
    "lambdas": unlike,
    "restarts inside": lambda o: SequentialLR(
        o, [ConstantLR(o, 1.0, 3), CosineAnnealingWarmRestarts(o, 10, eta_min=1e-4)], [3]
    ),
    "late floor": lambda o: SequentialLR(
        o, [ConstantLR(o, 1.0, 3000), CosineAnnealingLR(o, 20, eta_min=1e-4)], [3000]
    ),
}
KEPT = {
    "exponential": lambda o: ExponentialLR(o, 0.9),
    "exponential, by epochs": lambda o: ExponentialLR(o, 0.1),
    "steps": lambda o: StepLR(o, 4),
    "steps, many": lambda o: StepLR(o, 1, 0.5),
    "milestones": lambda o: MultiStepLR(o, [3, 7]),
    "linear": lambda o: LinearLR(o, 0.1, total_iters=5),
    "polynomial": lambda o: PolynomialLR(o, 10, power=2.0),
    "lambda": lambda o: LambdaLR(o, lambda t: 1 / (1 + t)),
    "lambda that ends": lambda o: LambdaLR(o, lambda t: [1.0, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0][t]),
    "multiplicative": lambda o: MultiplicativeLR(o, lambda t: 0.95),
    "one cycle": lambda o: OneCycleLR(o, max_lr=factors(o), total_steps=20),
    "cyclic": lambda o: CyclicLR(o, base_lr=rates(o), max_lr=factors(o), step_size_up=5),
    "cosine": lambda o: CosineAnnealingLR(o, 20),
    "warm restarts": lambda o: CosineAnnealingWarmRestarts(o, 10, T_mult=2),
    "warmup": warmup,
    "chained": lambda o: ChainedScheduler([ConstantLR(o, 0.5, 3), CosineAnnealingLR(o, 20)]),
    "plateau": lambda o: ReduceLROnPlateau(o, patience=5),
    "square root": lambda o: LambdaLR(o, lambda t: (1 - t / 100) ** 0.5),
    "transformers": lambda o: get_cosine_schedule_with_warmup(o, 3, 20),
}


@pytest.mark.parametrize("schedule", BROKEN)
def test_a_schedule_that_leaves_the_ratios_is_refused(schedule, plan):
    optimizer = plan.optimizer()
    with refuses("broken-ratios") as caught:
        plan.check(optimizer, BROKEN[schedule](optimizer))
    assert isinstance(caught.value, o1.BrokenRatios)


def test_an_optimizer_with_another_update_law_is_refused(plan):
    """Groups of AdamW in SGD train with wrong learning rates, and in RMSprop with right ones."""
    plan.check(torch.optim.RMSprop(plan.param_groups(), eps=1e-8))
    for kind in (torch.optim.SGD, torch.optim.Adafactor):
        groups = [
            {key: group[key] for key in ("params", "lr", "weight_decay")}
            for group in plan.param_groups()
        ]
        with refuses("other-update-law", argument="optimizer"):
            plan.check(kind(groups))


@pytest.mark.parametrize("floor", [1e-4, 1e-6, 1e-8])
def test_the_message_shows_how_the_ratios_differ(floor, plan):
    """A low floor changes the ratio after the first step in a late digit."""
    optimizer = plan.optimizer()
    with refuses("broken-ratios") as caught:
        plan.check(optimizer, CosineAnnealingLR(optimizer, 100, eta_min=floor))
    present, planned_ratio = re.findall(r"\(ratio ([^)]*)\)", str(caught.value))
    assert present != planned_ratio
    assert float(present) == pytest.approx(float(planned_ratio), rel=0.01)


@pytest.mark.parametrize("schedule", KEPT)
def test_a_schedule_that_multiplies_passes(schedule, plan):
    optimizer = plan.optimizer()
    plan.check(optimizer, KEPT[schedule](optimizer))


def test_a_plateau_passes_down_to_the_smallest_rates():
    plan = planned("own", fresh("own"), lr=2e-3)
    optimizer = plan.optimizer()
    plan.check(optimizer, ReduceLROnPlateau(optimizer))


@pytest.mark.parametrize("schedule", KEPT)
def test_a_schedule_passes_in_the_middle_of_a_run(schedule, plan):
    optimizer = plan.optimizer()
    scheduler = KEPT[schedule](optimizer)
    for _ in range(4):
        step(optimizer, scheduler)
    plan.check(optimizer, scheduler)


def remedy(plan: o1.Plan, optimizer: Any, scheduler: Any) -> str:
    with pytest.raises(o1.BrokenRatios) as told:
        plan.check(optimizer, scheduler)
    return str(told.value)


@pytest.mark.parametrize("schedule", ["cosine", "warm restarts", "warmup", "chained"])
def test_the_floor_that_the_message_offers_passes(schedule, plan):
    optimizer = plan.optimizer()
    message = remedy(plan, optimizer, BROKEN[schedule](optimizer))
    found = re.search(r"(LambdaLR\(optimizer, lambda t: .*\)) with f = (\S+)", message)
    assert found, message
    optimizer = plan.optimizer()
    f = float(found[2].rstrip("."))
    scheduler = eval(found[1], {"LambdaLR": LambdaLR, "optimizer": optimizer, "math": math, "f": f})
    plan.check(optimizer, scheduler)
    lowest = []
    for _ in range(21):
        lowest.append(max(rates(optimizer)))
        step(optimizer, scheduler)
    assert 0.9e-4 < min(lowest) < 2e-4


@pytest.mark.parametrize("schedule", ["cosine", "warm restarts"])
def test_the_floor_that_the_message_offers_follows_the_original_schedule(schedule, plan):
    """For the group with the largest learning rate it is the same schedule, with restarts."""
    optimizer = plan.optimizer()
    scheduler = BROKEN[schedule](optimizer)
    message = remedy(plan, optimizer, scheduler)
    found = re.search(r"lambda t: (.*)\) with f = (\S+)", message)
    assert found, message
    top = max(range(len(rates(optimizer))), key=rates(optimizer).__getitem__)
    start = rates(optimizer)[top]
    for t in range(18):
        offered = eval(found[1], {"math": math, "t": t, "f": float(found[2].rstrip("."))})
        assert start * offered == pytest.approx(rates(optimizer)[top], rel=1e-3)
        step(optimizer, scheduler)


def listed(message: str, name: str) -> list[float]:
    found = re.search(rf"{name}=(\[.*?\])", message)
    assert found, message
    return eval(found[1])


def test_the_peaks_that_the_message_offers_pass(plan):
    optimizer = plan.optimizer()
    peaks = listed(remedy(plan, optimizer, BROKEN["one cycle"](optimizer)), "max_lr")
    assert max(peaks) == pytest.approx(1e-2)
    optimizer = plan.optimizer()
    plan.check(optimizer, OneCycleLR(optimizer, max_lr=peaks, total_steps=20))


def test_the_bounds_of_a_cycle_that_the_message_offers_pass(plan):
    optimizer = plan.optimizer()
    own = rates(optimizer)
    message = remedy(plan, optimizer, BROKEN["cyclic"](optimizer))
    peaks = listed(message, "max_lr")
    assert "base_lr" in message
    assert max(peaks) == pytest.approx(1e-2)
    optimizer = plan.optimizer()
    low = [1e-3 * rate / max(own) for rate in own]
    plan.check(optimizer, CyclicLR(optimizer, base_lr=low, max_lr=peaks, step_size_up=5))


@pytest.mark.parametrize("schedule", ["plateau", "patient plateau"])
def test_the_floors_of_a_plateau_that_the_message_offers_pass(schedule, plan):
    optimizer = plan.optimizer()
    floors = listed(remedy(plan, optimizer, BROKEN[schedule](optimizer)), "min_lr")
    assert max(floors) == pytest.approx(1e-4)
    optimizer = plan.optimizer()
    plan.check(optimizer, ReduceLROnPlateau(optimizer, min_lr=floors))


# --- the check changes nothing --------------------------------------------------------------------


def step(optimizer: Any, scheduler: Any) -> list[float]:
    optimizer.step()
    scheduler.step(1.0) if isinstance(scheduler, ReduceLROnPlateau) else scheduler.step()
    return rates(optimizer)


def state(scheduler: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # LambdaLR asks for the optimizer's state to be saved too
        return copy.deepcopy(scheduler.state_dict())


@pytest.mark.parametrize("schedule", [*KEPT, *(f"broken {name}" for name in BROKEN)])
def test_a_check_leaves_optimizer_and_scheduler_as_they_were(schedule, plan):
    make = (
        BROKEN[schedule.removeprefix("broken ")]
        if schedule.startswith("broken ")
        else KEPT[schedule]
    )
    first, second = plan.optimizer(), plan.optimizer()
    checked, other = make(first), make(second)
    before = copy.deepcopy(first.state_dict()), state(checked), torch.random.get_rng_state()
    with contextlib.suppress(o1.BrokenRatios):
        plan.check(first, checked)
    assert first.state_dict() == before[0]
    assert repr(state(checked)) == repr(before[1])
    assert torch.equal(torch.random.get_rng_state(), before[2])
    assert [step(first, checked) for _ in range(5)] == [step(second, other) for _ in range(5)]


def test_a_scheduler_of_another_optimizer_is_refused(plan):
    with refuses("invalid-argument", argument="scheduler"):
        plan.check(plan.optimizer(), ExponentialLR(plan.optimizer(), 0.9))


@pytest.mark.filterwarnings("ignore:.*NO_SHARD")  # torch says so for one process
def test_fsdp1_is_refused_and_fsdp2_is_named(tmp_path):
    plan = o1.plan(nn.Linear(16, 4), base=nn.Linear(4, 4), lr=1e-2)
    store = f"file://{tmp_path}/store"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        model = FullyShardedDataParallel(plan.apply(), device_id=torch.device("cpu"))
        with refuses("flattened-by-fsdp1", argument="model") as caught:
            plan.attach(model).optimizer()
    finally:
        distributed.destroy_process_group()
    assert "fully_shard" in str(caught.value)


class Moving(nn.Module):
    """Model that moves a layer to another name in its first pass."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, width), nn.Linear(width, 2)])

    def forward(self, x):
        if len(self.layers) == 2:
            self.head = self.layers[1]
            del self.layers[1]
        return self.head(self.layers[0](x).relu())


def test_a_model_whose_first_pass_renames_tensors_is_named():
    with refuses("tensors-changed", argument="model") as caught:
        o1.plan(Moving(16), base=Moving(8), lr=0.1, inputs=torch.ones(2, 4))
    assert "layers.1" in str(caught.value)


def test_wrappers_of_accelerate_are_checked():
    accelerate = pytest.importorskip("accelerate")

    def build(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 4))

    made = o1.plan(build(64), base=build(16), lr=1e-2)
    made.apply()
    floor, good = made.optimizer(), made.optimizer()
    accelerator = accelerate.Accelerator(cpu=True)
    prepared = accelerator.prepare(good, LambdaLR(good, lambda step: 1 / (step + 1)))
    made.check(*prepared)
    with refuses("broken-ratios", argument="scheduler"):
        made.check(*accelerator.prepare(floor, CosineAnnealingLR(floor, 8, eta_min=1e-3)))
