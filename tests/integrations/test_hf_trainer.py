"""PlanTrainer gives the losses of `o1.train`, resumes, and refuses settings that contradict."""

from typing import Any

import pytest
import torch
from support import planned_models
from support.errors import refuses
from support.trainer_workers import ROWS, STEPS, Losses, Rows, batch
from transformers import (
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainingArguments,
)

import orderone as o1
from orderone.integrations.huggingface import PLAN_FILE, PlanTrainer, PlanTrainerMixin


def plan(name="llama", lr: Any = 3e-3):
    base = {"n_embd": 32, "n_head": 2} if name == "gpt2" else planned_models.BASE
    return o1.plan(planned_models.model(name), base=base, lr=lr, weight_decay=0.1)


def arguments(folder, **options):
    settings: dict[str, Any] = {
        "max_steps": STEPS,
        "per_device_train_batch_size": ROWS,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 3,
    }
    return TrainingArguments(str(folder), **(settings | options))


def trained(folder, made, trainer_class=PlanTrainer, resume=None, **options):
    losses = Losses()
    trainer = trainer_class(
        plan=made,
        args=arguments(folder, **options),
        train_dataset=Rows(),
        eval_dataset=Rows(),
        callbacks=[losses],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, losses.values


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_losses_of_train(name, tmp_path):
    trainer, losses = trained(tmp_path, plan(name), lr_scheduler_type="constant", warmup_steps=0)
    ours = o1.train(plan(name), batch, STEPS, clip=1.0, device="cpu")
    assert losses == pytest.approx(list(ours.losses), rel=1e-5)
    assert isinstance(trainer.model, torch.nn.Module)
    for mine, theirs in zip(trainer.model.parameters(), ours.model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_a_mixin_for_other_trainers(tmp_path):
    class Mixed(PlanTrainerMixin, Seq2SeqTrainer):
        pass

    made = plan()
    args = Seq2SeqTrainingArguments(**arguments(tmp_path).to_dict())
    trainer = Mixed(plan=made, args=args, train_dataset=Rows())
    trainer.train()
    groups = {group["lr"] for group in made.param_groups()}
    optimizer: Any = trainer.optimizer
    assert {group["initial_lr"] for group in optimizer.param_groups} == groups


def test_resume_needs_the_same_plan(tmp_path):
    _, losses = trained(tmp_path / "whole", plan())
    trained(tmp_path / "parts", plan(), save_strategy="steps", save_steps=5)
    folder = tmp_path / "parts" / "checkpoint-5"
    assert (folder / PLAN_FILE).exists()
    _, rest = trained(tmp_path / "parts", plan(), resume=str(folder))
    assert rest == pytest.approx(losses[5:], rel=1e-4)
    for path in (str(folder), folder):
        with refuses("checkpoint-of-other-plan", argument="resume_from_checkpoint"):
            trained(tmp_path / "parts", plan(lr=1e-3), resume=path)
    (folder / PLAN_FILE).unlink()
    with refuses("checkpoint-of-other-plan", argument="resume_from_checkpoint"):
        trained(tmp_path / "parts", plan(), resume=str(folder))


def packed_plan(heads):
    """Queries and keys of GPT-2 are rows of one tensor; they follow the size of heads."""
    options = {"lr": 3e-3, "weight_decay": 0.1, "inputs": batch(0)}
    return o1.plan(
        planned_models.model("gpt2"), base={"n_embd": 32, "n_head": heads}, **options
    )  # fmt: skip


def test_resume_needs_the_same_rows_of_packed_projections(tmp_path):
    trained(tmp_path, packed_plan(4), save_strategy="steps", save_steps=5)
    folder = str(tmp_path / "checkpoint-5")
    other = packed_plan(2)
    name = "transformer.h.0.attn.c_attn.weight"
    assert other[name].lr == packed_plan(4)[name].lr
    with refuses("checkpoint-of-other-plan", argument="resume_from_checkpoint"):
        trained(tmp_path, other, resume=folder)
    trained(tmp_path, packed_plan(4), resume=folder)


SCHEDULES: dict[str, dict[str, float]] = {
    "cosine_with_restarts": {"num_cycles": 3},
    "cosine_with_min_lr": {"min_lr": 3e-4},
    "warmup_stable_decay": {"num_decay_steps": 3, "min_lr_ratio": 0.1},
    "polynomial": {"lr_end": 1e-4},
    "inverse_sqrt": {},
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedules_of_the_trainer_keep_the_ratios(kind, tmp_path):
    """Learning rates of all groups have one factor at every step, with warm-up and restarts."""
    options = arguments(tmp_path, lr_scheduler_type=kind, lr_scheduler_kwargs=SCHEDULES[kind])
    trainer = PlanTrainer(plan=plan(), args=options)
    trainer.create_optimizer_and_scheduler(10)
    optimizer: Any = trainer.optimizer
    scheduler: Any = trainer.lr_scheduler
    planned = [group["initial_lr"] for group in optimizer.param_groups]
    factors = []
    for _ in range(12):
        optimizer.step()
        scheduler.step()
        rates = [group["lr"] for group in optimizer.param_groups]
        ratios = [rate / start for rate, start in zip(rates, planned, strict=True)]
        assert ratios == pytest.approx([ratios[0]] * len(ratios), abs=1e-12)
        factors.append(ratios[0])
    assert len({round(factor, 6) for factor in factors}) > 3


def test_a_schedule_that_breaks_the_ratios_is_refused(tmp_path):
    with refuses("broken-ratios", argument="scheduler"):
        trained(
            tmp_path,
            plan(),
            lr_scheduler_type="reduce_lr_on_plateau",
            lr_scheduler_kwargs={"min_lr": 1e-3, "patience": 0},
            eval_strategy="steps",
            eval_steps=100,
        )
    trained(
        tmp_path,
        plan(),
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr": 3e-4},
    )


@pytest.mark.parametrize("kind", ["greedy", "reduce_lr_on_plateau"])
def test_schedules_that_follow_the_loss(kind, tmp_path):
    """Their limits are one number for all groups, unless they are lists. The smallest learning rate
    of GreedyLR is 1e-3 by default, which is more than that of some groups."""
    made = plan()
    rates = [group["lr"] for group in made.param_groups()]
    limits: dict[str, Any] = {"min_lr": [rate / 10 for rate in rates]}
    floor = {"min_lr": 1e-3}
    if kind == "greedy":
        limits["max_lr"] = [rate * 10 for rate in rates]
        floor = {}
    settings = {"lr_scheduler_type": kind, "eval_strategy": "steps", "eval_steps": 100}
    with refuses("broken-ratios", argument="scheduler"):
        trained(tmp_path, made, lr_scheduler_kwargs=floor, **settings)
    trained(tmp_path, plan(), lr_scheduler_kwargs=limits, **settings)


class OwnOptimizer(PlanTrainer):
    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        made = torch.optim.AdamW(self.plan.bound().parameters())
        setattr(self, "optimizer", made)  # noqa: B010, its type is that of Trainer
        return made


class OwnFloor(PlanTrainer):
    def create_scheduler(self, num_training_steps, optimizer=None):
        super().create_scheduler(num_training_steps, optimizer)
        made: Any = self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(made, STEPS, eta_min=1e-3)
        return self.lr_scheduler


class ScheduleOfAnother(PlanTrainer):
    def create_scheduler(self, num_training_steps, optimizer=None):
        another = self.plan.optimizer()  # as many groups, with the same learning rates
        self.lr_scheduler = torch.optim.lr_scheduler.LinearLR(another)
        return self.lr_scheduler


def test_subclasses_that_replace_what_the_plan_made_are_refused(tmp_path):
    with refuses("invalid-argument", argument="scheduler"):
        trained(tmp_path, plan(), ScheduleOfAnother)
    with refuses("setting-of-the-plan", argument="create_optimizer"):
        trained(tmp_path, plan(), OwnOptimizer)
    with refuses("broken-ratios", argument="scheduler"):
        trained(tmp_path, plan(), OwnFloor)


def test_a_plan_from_a_file_trains_the_model_that_is_passed(tmp_path):
    plan().save(tmp_path / "plan.json")
    loaded = o1.Plan.load(tmp_path / "plan.json")
    losses = Losses()
    settings = arguments(tmp_path, lr_scheduler_type="constant", warmup_steps=0)
    trainer = PlanTrainer(
        plan=loaded,
        model=planned_models.model("llama"),
        args=settings,
        train_dataset=Rows(),
        callbacks=[losses],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    ours = o1.train(plan(), batch, STEPS, clip=1.0, device="cpu")
    assert losses.values == pytest.approx(list(ours.losses), rel=1e-5)
