"""A model that is wrapped, copied, moved or reloaded trains exactly as after build, plan, apply."""

import copy
import fcntl
import os
from functools import cache
from typing import Any

import pytest
import torch
from support.plan_workers import (
    JOBS,
    MODELS,
    PROCESSES,
    STEPS,
    WIDTH,
    base,
    fresh,
    planned,
    process,
    run,
    train,
)
from support.warm import spawn
from torch import nn
from torch.func import functional_call

import orderone as o1

EVERY = pytest.mark.parametrize("name", MODELS)
HOOKED = pytest.mark.parametrize("name", ["own", "paper"])
TORCHS_OWN = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # dynamo hides it


@cache
def plain(name: str) -> list[float]:
    return run(name, fresh(name))


def same(losses: list[float], name: str, steps: slice = slice(None)) -> bool:
    return losses == pytest.approx(plain(name)[steps], rel=1e-5)


@EVERY
def test_the_plain_run_learns_under_more_than_one_learning_rate(name):
    plan = planned(name, fresh(name))
    assert len(plan.param_groups()) > 1
    assert len(set(plain(name))) == STEPS


@EVERY
def test_a_plan_alone_changes_nothing(name):
    base(name)  # built under a seed of its own, once in a process
    model, state = fresh(name), torch.random.get_rng_state()
    before = copy.deepcopy(model.state_dict())
    planned(name, model).optimizer()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)


# --- compiled -------------------------------------------------------------------------------------


def compiled(model: nn.Module) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="aot_eager")


@EVERY
@TORCHS_OWN
def test_plan_then_compile(name):
    plan = planned(name, fresh(name))
    assert same(train(name, compiled(plan.apply()), plan.optimizer()), name)


@EVERY
@TORCHS_OWN
def test_compile_then_plan(name):
    assert same(run(name, compiled(fresh(name))), name)


@HOOKED
@TORCHS_OWN
def test_compile_and_run_then_plan(name):
    model = compiled(fresh(name))
    model(**MODELS[name].batch(0))
    assert same(run(name, model), name)


@TORCHS_OWN
def test_compiled_in_place_then_planned():
    torch._dynamo.reset()
    model = fresh("paper")
    model.compile(backend="aot_eager")
    assert same(run("paper", model), "paper")


# --- copied ---------------------------------------------------------------------------------------


@EVERY
def test_copied_before_planning(name):
    assert same(run(name, copy.deepcopy(fresh(name))), name)


@EVERY
def test_copied_after_apply(name):
    plan = planned(name, fresh(name))
    model = copy.deepcopy(plan.apply())
    assert same(train(name, model, plan.attach(model).optimizer()), name)


@HOOKED
def test_attached_twice_has_one_multiplier(name):
    plan = planned(name, fresh(name))
    model = copy.deepcopy(plan.apply())
    plan.attach(model)
    assert same(train(name, model, plan.attach(model).optimizer()), name)


@HOOKED
def test_a_copy_and_its_original_both_train(name):
    plan = planned(name, fresh(name))
    model = plan.apply()
    other = copy.deepcopy(model)
    train(name, other, plan.attach(other).optimizer())
    assert same(train(name, model, plan.optimizer()), name)


# --- functional -----------------------------------------------------------------------------------


@EVERY
def test_functional_call_with_the_models_own_tensors(name):
    model = fresh(name)
    plan = planned(name, model)
    plan.apply()
    parameters: dict[str, Any] = dict(model.named_parameters())
    assert same(
        train(
            name, lambda **batch: functional_call(model, parameters, (), batch), plan.optimizer()
        ),
        name,
    )


@HOOKED
def test_gradients_of_a_function_of_the_parameters(name):
    entry, model = MODELS[name], fresh(name)
    plan = planned(name, model)
    plan.apply()
    optimizer, losses = plan.optimizer(), []

    def loss(parameters, batch):
        return entry.loss(functional_call(model, parameters, (), batch), batch)

    for step in range(STEPS):
        parameters = dict(model.named_parameters())
        gradients, value = torch.func.grad_and_value(loss)(parameters, entry.batch(step))
        for key, parameter in parameters.items():
            parameter.grad = gradients[key]
        optimizer.step()
        losses.append(value.item())
    assert same(losses, name)


# --- several processes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    """Train once, also if several processes of pytest-xdist run tests of this file."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "same-losses"
    folder.mkdir(exist_ok=True)
    results = folder / "results.pt"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not results.exists():
            spawn(process, args=(str(folder),), nprocs=PROCESSES)
    return torch.load(results)


@pytest.mark.parametrize("job", [job for job in JOBS if "never" not in job])
def test_distributed_over_processes(job, parallel):
    losses = parallel[job]
    assert not isinstance(losses, str), losses
    assert same(losses, job.partition(",")[0])


def test_never_written_shards_are_drawn_with_the_planned_sizes_and_differ(parallel):
    found = parallel["paper, fsdp, never written"]
    assert not isinstance(found, str), found
    for name, (size, wanted, alike) in found.items():
        assert size == pytest.approx(wanted, rel=0.5), name
        assert not alike, name


# --- the meta device ------------------------------------------------------------------------------


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return MODELS[name].build(WIDTH)


def tied(model: Any) -> Any:
    """`to_empty` and assigned values break ties."""
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return model


def with_memory(name: str, model: nn.Module) -> Any:
    """`to_empty`, and the buffers that no checkpoint holds (Llama's rotary frequencies)."""
    tied(model.to_empty(device="cpu"))
    buffers = dict(fresh(name).named_buffers())
    for key, buffer in model.named_buffers():
        buffer.copy_(buffers[key])
    return model


@EVERY
def test_from_the_meta_device_with_the_models_own_values(name):
    model = on_meta(name)
    plan = planned(name, model)
    with_memory(name, model).load_state_dict(fresh(name).state_dict())
    plan.apply()
    assert same(train(name, model, plan.optimizer()), name)


@EVERY
def test_from_the_meta_device_with_assigned_values(name, tmp_path):
    torch.save(fresh(name).state_dict(), tmp_path / "initial.pt")
    model = on_meta(name)
    plan = planned(name, model)
    with_memory(name, model).load_state_dict(torch.load(tmp_path / "initial.pt"), assign=True)
    tied(model)
    plan.apply()
    assert same(train(name, model, plan.optimizer()), name)


@EVERY
def test_from_the_meta_device_with_assigned_values_and_no_memory_between(name, tmp_path):
    torch.save(fresh(name).state_dict(), tmp_path / "initial.pt")
    model = on_meta(name)
    plan = planned(name, model)
    model.load_state_dict(torch.load(tmp_path / "initial.pt"), assign=True)
    for key, buffer in fresh(name).named_buffers():
        owner, _, attribute = key.rpartition(".")
        setattr(model.get_submodule(owner), attribute, buffer)
    tied(model)
    plan.apply()
    assert same(train(name, model, plan.optimizer()), name)


@EVERY
def test_memory_never_written_is_drawn_with_the_planned_sizes(name):
    model = on_meta(name)
    plan = planned(name, model)
    with_memory(name, model)
    plan.apply()
    for row in plan.rows:
        value = plan.tensors()[row.name].detach()
        if row.constant is not None:
            assert (value == row.constant).all(), row.name
        else:
            assert value.square().mean().sqrt().item() == pytest.approx(
                row.init_std, rel=5 / value.numel() ** 0.5
            )
    losses = train(name, model, plan.optimizer())
    assert torch.tensor(losses).isfinite().all()
    assert losses[0] == pytest.approx(plain(name)[0], rel=0.2)


def test_memory_that_an_older_model_left_behind_is_drawn_too():
    """An allocator reuses freed memory: some tensors then contain values of a plausible size."""
    model = on_meta("own")
    plan = planned("own", model)
    with_memory("own", model)
    left = {
        row.name: torch.randn(row.shape) * row.init_std for row in plan.rows if row.constant is None
    }
    for key, parameter in model.named_parameters():
        parameter.data.copy_(
            left.get(key, torch.zeros(()))
        )  # which the version of the parameter does not show
    plan.apply()
    for key, value in left.items():
        assert not torch.allclose(plan.tensors()[key], value, rtol=0.5), key


@pytest.mark.parametrize("filler", [0.0, 1e30, float("nan")])
def test_memory_never_written_is_drawn_whatever_it_contains(filler):
    model = on_meta("own")
    plan = planned("own", model)
    with_memory("own", model)
    for parameter in model.parameters():
        parameter.data.fill_(filler)
    plan.apply()
    assert train("own", model, plan.optimizer())[0] == pytest.approx(plain("own")[0], rel=0.2)


# --- kept and resumed -----------------------------------------------------------------------------


def interrupted(name: str, folder: Any, steps: int = 2) -> None:
    """A run that is saved after a few steps: plan, weights, and state of the optimizer."""
    plan = planned(name, fresh(name))
    model, optimizer = plan.apply(), plan.optimizer()
    assert same(train(name, model, optimizer, range(steps)), name, slice(steps))
    plan.save(folder / "plan.json")
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "run.pt"
    )


@EVERY
def test_resumed_in_a_new_model(name, tmp_path):
    interrupted(name, tmp_path)
    model = fresh(name, seed=2)
    optimizer = o1.Plan.load(tmp_path / "plan.json").attach(model).optimizer()
    kept = torch.load(tmp_path / "run.pt", weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    assert same(train(name, model, optimizer, range(2, STEPS)), name, slice(2, None))


@EVERY
def test_weights_loaded_before_the_plan_is_attached_are_not_rescaled(name, tmp_path):
    interrupted(name, tmp_path)
    kept = torch.load(tmp_path / "run.pt", weights_only=True)
    model = fresh(name, seed=2)
    model.load_state_dict(kept["model"])
    optimizer = o1.Plan.load(tmp_path / "plan.json").attach(model).optimizer()
    optimizer.load_state_dict(kept["optimizer"])
    assert all(torch.equal(value, kept["model"][key]) for key, value in model.state_dict().items())
    assert same(train(name, model, optimizer, range(2, STEPS)), name, slice(2, None))


@HOOKED
def test_resumed_on_the_meta_device(name, tmp_path):
    interrupted(name, tmp_path)
    kept = torch.load(tmp_path / "run.pt", weights_only=True)
    model = on_meta(name)
    plan = o1.Plan.load(tmp_path / "plan.json").attach(model)
    model.load_state_dict(kept["model"], assign=True)
    optimizer = plan.optimizer(model=tied(model))
    optimizer.load_state_dict(kept["optimizer"])
    assert same(train(name, model, optimizer, range(2, STEPS)), name, slice(2, None))


@HOOKED
def test_resumed_with_the_saved_plan_as_base(name, tmp_path):
    interrupted(name, tmp_path)
    kept = torch.load(tmp_path / "run.pt", weights_only=True)
    model = fresh(name, seed=2)
    model.load_state_dict(kept["model"])
    gauge = "paper" if name == "paper" else "folded"
    plan = o1.plan(model, base=tmp_path / "plan.json", lr=3e-3, weight_decay=0.1, gauge=gauge)
    optimizer = plan.optimizer()
    optimizer.load_state_dict(kept["optimizer"])
    assert same(train(name, model, optimizer, range(2, STEPS)), name, slice(2, None))


def test_a_multiplier_reaches_an_input_given_by_keyword():
    plan = planned("paper", fresh("paper"))
    first, x = plan.apply().get_submodule("net.0"), MODELS["paper"].batch(0)["x"]
    assert torch.equal(first(input=x), first(x))


@HOOKED
def test_a_pickled_model_keeps_its_multipliers(name, tmp_path):
    plan = planned(name, fresh(name))
    torch.save(plan.apply(), tmp_path / "model.pt")
    model = torch.load(tmp_path / "model.pt", weights_only=False)
    assert same(train(name, model, plan.attach(model).optimizer()), name)


@HOOKED
def test_a_copys_multipliers_can_be_removed(name):
    plan = planned(name, fresh(name))
    other = plan.attach(copy.deepcopy(plan.apply()))
    batch = MODELS[name].batch(0)
    output = other.bound()(**batch)
    other.remove_multipliers()
    assert not torch.equal(other.bound()(**batch), output)
