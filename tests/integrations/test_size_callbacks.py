"""Callbacks that log sizes, and stop when these leave their corridor."""

import pytest
import torch
from support.errors import refuses
from support.trainer_workers import STEPS, Rows
from test_hf_trainer import arguments, plan
from torch import nn
from transformers import PrinterCallback, Trainer, TrainerCallback

from orderone.integrations.huggingface import (
    SIZES_FILE,
    CorridorCallback,
    PlanTrainer,
    SizesCallback,
)
from orderone.measure.size_monitor import SizeMonitor

EVERY = 4
MODULE = "model.layers.0.mlp"
RATIO = 2  # of the widths of plan()


class Logged(TrainerCallback):
    def __init__(self):
        self.sizes = {}

    def on_log(self, args, state, control, logs=None, **kwargs):
        sizes = {name: value for name, value in (logs or {}).items() if name.startswith("sizes/")}
        if sizes:
            self.sizes[state.global_step] = sizes


def made(folder, *callbacks, **options):
    trainer = PlanTrainer(
        plan=plan(),
        args=arguments(folder, **options),
        train_dataset=Rows(),
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def test_sizes_are_logged_where_the_trainer_logs(tmp_path):
    logged = Logged()
    callback = SizesCallback(every=EVERY)
    trainer = made(tmp_path, callback, logged)
    measured = []
    module: nn.Module = trainer.plan.bound().get_submodule(MODULE)
    module.register_forward_hook(
        lambda _, args, out: measured.append(out.detach().square().mean().sqrt().item())
    )
    trainer.train()
    assert list(logged.sizes) == [1, 1 + EVERY, 1 + 2 * EVERY]
    assert sum("loss" in entry for entry in trainer.state.log_history) == STEPS
    for number, sizes in enumerate(logged.sizes.values()):
        assert sizes[f"sizes/{MODULE}"] == pytest.approx(measured[EVERY * number] / measured[0])
    assert not module._forward_hooks or len(module._forward_hooks) == 1  # the probe's are removed


def test_a_readout_may_grow_as_much_as_it_starts_smaller(tmp_path):
    callback = CorridorCallback(every=EVERY, corridor=(0.01, 40))
    made(tmp_path, callback, max_steps=1).train()
    assert callback.monitor is not None
    assert callback.reason is None
    high = {size.name: size.high for size in callback.monitor.sizes}
    assert high["lm_head"] == pytest.approx(40 * RATIO**0.5)  # starts at ratio^-1/2 of the base's
    assert high["model.embed_tokens"] == high[MODULE] == 40


def test_a_training_stops_with_the_reason(tmp_path):
    callback = CorridorCallback(every=1, modules="*.mlp", corridor=(0.9999, 1.0001))
    trainer = made(tmp_path, callback, lr_scheduler_type="constant", warmup_steps=0)
    with pytest.warns(UserWarning, match="sizes-left-corridor"):
        trainer.train()
    assert trainer.state.global_step == 2
    assert callback.reason is not None
    assert callback.reason.startswith(MODULE)


def test_sizes_of_a_resumed_training_are_relative_to_its_start(tmp_path):
    whole, rest = Logged(), Logged()
    saving = {"save_strategy": "steps", "save_steps": EVERY}
    made(tmp_path, SizesCallback(every=EVERY, modules=MODULE), whole, **saving).train()
    resumed = made(tmp_path, SizesCallback(every=EVERY, modules=MODULE), rest)
    folder = tmp_path / f"checkpoint-{EVERY}"
    resumed.train(resume_from_checkpoint=str(folder))
    for step in (1 + EVERY, 1 + 2 * EVERY):
        assert rest.sizes[step] == pytest.approx(whole.sizes[step], rel=1e-4)
    (folder / SIZES_FILE).unlink()
    resumed = made(tmp_path, SizesCallback(every=EVERY, modules=MODULE), max_steps=EVERY + 1)
    with pytest.warns(UserWarning, match="sizes-without-start"):
        resumed.train(resume_from_checkpoint=str(folder))


def test_another_trainer_attaches_itself(tmp_path):
    logged = Logged()
    made_plan = plan()
    model = made_plan.apply()
    callback = SizesCallback(every=EVERY, modules="*norm*", quantity="weight")
    trainer = Trainer(
        model, arguments(tmp_path, max_steps=1), train_dataset=Rows(), callbacks=[callback, logged]
    )
    trainer.remove_callback(PrinterCallback)
    with refuses("callback-without-trainer", argument="callbacks"):
        trainer.train()
    callback.attach(trainer)
    trainer.train()
    assert set(logged.sizes[1].values()) == {1.0}
    assert all("norm.weight" in name for name in logged.sizes[1])


@pytest.mark.parametrize("corridor", [(1.0, 2.0), (0.5,), (0.5, 0.9), (-1, 2)])
def test_a_corridor_contains_the_start(corridor):
    with refuses("invalid-argument", argument="corridor"):
        CorridorCallback(corridor=corridor)


def test_values_that_are_not_finite_and_tensors_that_start_at_zero():
    last = nn.Linear(2, 2)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    model = nn.Sequential(nn.Linear(2, 2), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
        return monitor.read()

    with SizeMonitor(model, optimizer, every=1, modules=["0", "1"]) as monitor:
        assert step(torch.ones(3, 2)) == {"sizes/0": 1.0}
        assert step(torch.ones(3, 2))["sizes/1"] == 1.0  # relative to the first that is not zero
        assert monitor.outside is None
        step(torch.full((3, 2), float("inf")))
        assert monitor.outside is not None
        assert "not finite" in monitor.outside
    assert list(monitor.frame.step) == [0, 1, 1, 2, 2]
