"""Trainer of Hugging Face that trains with a plan.

    from orderone.integrations.huggingface import PlanTrainer

    trainer = PlanTrainer(plan=plan, args=TrainingArguments(...), train_dataset=...)
    trainer.train()

The optimizer is made in `create_optimizer`, where Trainer makes its own. So DDP, FSDP, DeepSpeed
and the other plugins of Accelerate find it as usual. For subclasses of Trainer there is a mixin:

    class MyTrainer(PlanTrainerMixin, SFTTrainer): ...
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from orderone.core.errors import InputError, instance
from orderone.optimizers.table import FUSED
from orderone.planning.plan import Plan, Row
from orderone.planning.schedule import check_ratios

try:
    from transformers import (
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from transformers.trainer_utils import TrainOutput, get_last_checkpoint
except ImportError as _error:
    raise ImportError(
        "transformers and accelerate are needed for PlanTrainer; run: pip install"
        " 'orderone[transformers]' accelerate"
    ) from _error

PLAN_FILE = "orderone_plan.json"
SETTINGS = ("lr", "weight_decay", "eps", "optimizer")
# argument of TrainingArguments -> setting of the plan
SHARED: Mapping[str, str] = {"learning_rate": "lr", "weight_decay": "weight_decay"}


class PlanTrainerMixin(Trainer):
    """Mixin for Trainer and its subclasses (`Seq2SeqTrainer`, TRL's `SFTTrainer`).

    It must stand before the trainer in the list of base classes. Arguments are those of the
    trainer, and `plan`. `model` is by default the model of the plan. A plan that was not applied
    yet is applied first. Learning rates, weight decays and eps are those of the plan: in
    `TrainingArguments`, leave `learning_rate` and `weight_decay` at their defaults, or pass the
    values of the plan. Betas, schedule, clipping and precision are those of `TrainingArguments`.
    """

    def __init__(self, *args: Any, plan: Plan, **options: Any):
        instance(plan, Plan, "plan", "pass the result of orderone.plan")
        if options.get("optimizers", (None, None))[0] is not None:
            raise InputError(
                "optimizers: expected none, since the plan makes the optimizer; for your own"
                " optimizer use transformers.Trainer with"
                " optimizers=(torch.optim.X(plan.param_groups()), None)",
                argument="optimizers",
            )
        if not args:
            options.setdefault("model", plan.bound())
        self.plan: Plan = plan
        model = args[0] if args else options["model"]
        if model is not plan.model:
            self.plan = plan = plan.attach(model)
        if not plan.applied:
            plan.apply()
        super().__init__(*args, **options)
        _must_agree(self.args, plan)
        self.add_callback(_PlanFiles(plan))

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Make the optimizer of the plan from the tensors of `model`, which may be wrapped."""
        made: Any = self.optimizer
        if made is None:
            made = self.plan.optimizer(
                model=self.model if model is None else model, **_options(self.args, self.plan)
            )
            setattr(self, "optimizer", made)  # noqa: B010, its type is that of Trainer
        return made

    def create_scheduler(
        self, num_training_steps: int, optimizer: Optimizer | None = None
    ) -> LRScheduler:
        """Make the schedule; raise BrokenRatios if it changes the ratios of the plan."""
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        used: Any = self.optimizer if optimizer is None else optimizer
        check_ratios(getattr(used, "optimizer", used), scheduler)
        return scheduler

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train; raise an InputError if the checkpoint to resume from has another plan."""
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(str(self.args.output_dir))
        if isinstance(folder, str):
            _must_be_of_plan(Path(folder), self.plan)
        return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)


class PlanTrainer(PlanTrainerMixin):
    """`transformers.Trainer` that trains with a plan: `PlanTrainer(plan=plan, args=...)`."""


class _PlanFiles(TrainerCallback):
    """Writes the plan into every checkpoint."""

    def __init__(self, plan: Plan):
        self.plan = plan

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            self.plan.save(folder / PLAN_FILE)


def _options(args: TrainingArguments, plan: Plan) -> dict[str, Any]:
    """Return options of the optimizer from the arguments of the trainer."""
    options: dict[str, Any] = {}
    if plan.user_class is None and plan.settings.optimizer in ("adam", "adamw"):
        if "betas" not in plan.user_options:
            options["betas"] = (args.adam_beta1, args.adam_beta2)
        fused = str(args.optim).endswith("fused") and plan.settings.optimizer in FUSED
        if fused and torch.cuda.is_available():
            options["fused"] = True
    return options


def _must_agree(args: TrainingArguments, plan: Plan) -> None:
    """Raise an InputError if the arguments of the trainer ask for other settings than the plan."""
    defaults = {field.name: field.default for field in args.__dataclass_fields__.values()}
    for argument, setting in SHARED.items():
        value = getattr(args, argument)
        planned = getattr(plan.settings, setting)
        if value not in (defaults[argument], planned):
            raise InputError(
                f"args: {argument}={value} in TrainingArguments, and the plan was made with"
                f" {setting}={planned}; pass it to the plan, which sets that of every tensor:"
                f" plan(..., {setting}={value})",
                "setting-of-the-plan",
                argument="args",
            )


def _must_be_of_plan(folder: Path, plan: Plan) -> None:
    """Raise an InputError if the checkpoint in `folder` was trained with other settings."""
    path = folder / PLAN_FILE
    if not path.exists():
        raise InputError(
            f"{folder}: expected a checkpoint of PlanTrainer with a file {PLAN_FILE}; a checkpoint"
            " of another trainer has an optimizer with other groups",
            "checkpoint-of-other-plan",
            argument="resume_from_checkpoint",
        )
    saved = {row.name: row for row in Plan.load(path).rows}
    for row in plan.rows:
        before = saved.get(row.name)
        if before is None or _settings(before) != _settings(row):
            was = "is not in it" if before is None else f"had {_settings(before)}"
            raise InputError(
                f"{folder}: it was trained with another plan: {row.name} {was}, and the plan has"
                f" {_settings(row)}",
                "checkpoint-of-other-plan",
                argument="resume_from_checkpoint",
            )


def _settings(row: Row) -> dict[str, object]:
    return {setting: getattr(row, setting) for setting in SETTINGS}
