"""Trainer of Hugging Face that trains with a plan.

    from orderone.integrations.huggingface import PlanTrainer

    trainer = PlanTrainer(plan=plan, args=TrainingArguments(...), train_dataset=...)
    trainer.train()

The optimizer is made in `create_optimizer`, where Trainer makes its own. So DDP, FSDP, DeepSpeed
and the other plugins of Accelerate find it as usual. For subclasses of Trainer there is a mixin:

    class MyTrainer(PlanTrainerMixin, SFTTrainer): ...

`SizesCallback` logs the sizes of activations to whatever the Trainer logs to. `CorridorCallback`
also stops the training when they leave their corridor.
"""

import json
import warnings
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import InputError, instance, with_code
from orderone.core.inputs import Count
from orderone.integrations.saved_settings import must_equal, settings_of
from orderone.measure.inputs import CorridorInput, PatternsInput
from orderone.measure.size_monitor import CORRIDOR, SizeMonitor, read_corridor
from orderone.planning.plan import Plan
from orderone.planning.schedule import check_ratios, unwrapped

try:
    from transformers import (
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from transformers.trainer_utils import TrainOutput, get_last_checkpoint

    from orderone.integrations.training_arguments import (
        must_agree,
        must_leave_optimizer_to_plan,
        optimizer_options,
    )
except ImportError as _error:
    raise ImportError(
        "transformers and accelerate are needed for PlanTrainer; run: pip install"
        " 'orderone[transformers]' accelerate"
    ) from _error

PLAN_FILE = "orderone_plan.json"
SIZES_FILE = "orderone_sizes.json"


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
        _refuse_what_replaces_the_plan(options)
        if not args and options.get("model") is None:
            options["model"] = plan.bound()
        self.plan: Plan = plan
        if args:
            model = args[0]
        else:
            model = options["model"]
        if model is not plan.model:
            self.plan = plan = plan.attach(model)
        if not plan.applied:
            plan.apply()
        self._planned_optimizer: Optimizer | None = None
        self._checked_scheduler: object = None
        super().__init__(*args, **options)
        self.add_callback(_InForceCallback(self))
        must_agree(self.args, plan)
        must_leave_optimizer_to_plan(getattr(self.accelerator.state, "deepspeed_plugin", None))

    def add_callback(self, callback: type[TrainerCallback] | TrainerCallback) -> None:
        """Add a callback, as `Trainer` does."""
        super().add_callback(callback)
        self._attach_callbacks()

    def _attach_callbacks(self) -> None:
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, SizesCallback):
                callback.attach(self)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Make the optimizer of the plan from the tensors of `model`, which may be wrapped."""
        made: Any = self.optimizer
        if made is None:
            trained = self.model
            if model is not None:
                trained = model
            options = optimizer_options(self.args, self.plan)
            made = self.plan.optimizer(model=trained, **options)
            setattr(self, "optimizer", made)  # noqa: B010, its type is that of Trainer
            self._planned_optimizer = made
        return made

    def create_scheduler(
        self, num_training_steps: int, optimizer: Optimizer | None = None
    ) -> Any:  # GreedyLR of Transformers is no LRScheduler
        """Make the schedule; raise BrokenRatios if it changes the ratios of the plan."""
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        used: Any = optimizer
        if used is None:
            used = self.optimizer
        check_ratios(getattr(used, "optimizer", used), scheduler)
        self._checked_scheduler = scheduler
        return scheduler

    def must_be_in_force(self) -> None:
        """Raise an error if a subclass has replaced the plan's optimizer, or broken its ratios."""
        if self._planned_optimizer is None:
            raise InputError(
                "create_optimizer: the optimizer of this training was not made by the plan, so that"
                " its tensors do not have their learning rates; call super().create_optimizer() in"
                " your subclass, and set no optimizer",
                "setting-of-the-plan",
                argument="create_optimizer",
            )
        scheduler: Any = unwrapped(self.lr_scheduler)
        if scheduler is not None and scheduler is not self._checked_scheduler:
            check_ratios(self._planned_optimizer, scheduler)

    def train(
        self,
        resume_from_checkpoint: str | PathLike[str] | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train; raise an InputError if the checkpoint to resume from has another plan."""
        resumed: Any = resume_from_checkpoint
        if isinstance(resumed, PathLike):
            resumed = fspath(resumed)
        folder = resumed
        if resumed is True:
            folder = get_last_checkpoint(str(self.args.output_dir))
        if isinstance(folder, str):
            _must_be_of_plan(Path(folder), self.plan)
        return super().train(resumed, trial, ignore_keys_for_eval)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as the Trainer does, and the plan beside it: in every checkpoint, too."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            folder = Path(str(self.args.output_dir) if output_dir is None else output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            self.plan.save(folder / PLAN_FILE)


class PlanTrainer(PlanTrainerMixin):
    """`transformers.Trainer` that trains with a plan: `PlanTrainer(plan=plan, args=...)`."""


class _InForceCallback(TrainerCallback):
    """Check optimizer and schedule of a `PlanTrainer` when they are final."""

    def __init__(self, trainer: PlanTrainerMixin):
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.must_be_in_force()


class SizesCallback(TrainerCallback):
    """Logs the sizes of activations relative to their start, as `sizes/NAME`.

    They go wherever the Trainer logs to (`report_to`). With `PlanTrainer`, pass it in `callbacks`;
    with another trainer, call `callback.attach(trainer)` before `train`. Arguments are those of
    `orderone.measure.size_monitor.SizeMonitor`.
    """

    def __init__(self, every: Count = 100, modules: PatternsInput = "*", quantity: str = "output"):
        self.every = every
        self.modules = modules
        self.quantity = quantity
        self.corridor: tuple[float, float] = CORRIDOR
        self.trainer: Trainer | None = None
        self.monitor: SizeMonitor | None = None

    def attach(self, trainer: Trainer) -> None:
        """Log with this trainer."""
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        trainer: Any = self._attached()
        optimizer: Any = trainer.optimizer
        self.monitor = SizeMonitor(
            trainer.model_wrapped,
            getattr(optimizer, "optimizer", optimizer),
            plan=getattr(trainer, "plan", None),
            every=self.every,
            modules=self.modules,
            quantity=self.quantity,
            corridor=self.corridor,
            first=state.global_step,
        )
        if state.global_step:
            self._restore_start(_folder(args, state))
        self.monitor.__enter__()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.monitor is None:
            return
        values = self.monitor.read()
        if values:
            should_log = control.should_log
            self._attached().log(values)
            control.should_log = should_log  # `log` resets it, and the loss would not be logged

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.monitor is not None:
            self.monitor.__exit__()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        folder = _folder(args, state)
        if self.monitor is not None and state.is_world_process_zero and folder.is_dir():
            (folder / SIZES_FILE).write_text(json.dumps(self.monitor.start), encoding="utf-8")

    def _restore_start(self, folder: Path) -> None:
        """Read the sizes at the start of a training that continues."""
        path = folder / SIZES_FILE
        if self.monitor is not None and path.exists():
            self.monitor.start |= json.loads(path.read_text(encoding="utf-8"))
        else:
            text = f"{path} is missing; sizes are relative to those when the training was resumed"
            warnings.warn(with_code(text, "sizes-without-start"), stacklevel=2)

    def _attached(self) -> Trainer:
        if self.trainer is None:
            raise InputError(
                f"callbacks: {type(self).__name__} has no trainer to log with; use PlanTrainer, or"
                " call callback.attach(trainer) before trainer.train()",
                "callback-without-trainer",
                argument="callbacks",
            )
        return self.trainer


class CorridorCallback(SizesCallback):
    """Logs sizes as `SizesCallback` does, and stops the training when one leaves its corridor.

    `reason` then says which, and a warning does. `corridor` is the smallest and the largest size
    relative to the start.
    """

    def __init__(
        self,
        every: Count = 100,
        modules: PatternsInput = "*",
        quantity: str = "output",
        corridor: CorridorInput = CORRIDOR,
    ):
        super().__init__(every, modules, quantity)
        self.corridor: tuple[float, float] = read_corridor(corridor)

    @property
    def reason(self) -> str | None:
        """Why the training was stopped; None if it was not."""
        if self.monitor is None:
            return None
        return self.monitor.outside

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_step_end(args, state, control, **kwargs)
        if self.reason is not None and not control.should_training_stop:
            control.should_training_stop = True
            if state.is_world_process_zero:
                text = f"the training stops: {self.reason}"
                warnings.warn(with_code(text, "sizes-left-corridor"), stacklevel=2)


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder of the checkpoint of this step."""
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


def _refuse_what_replaces_the_plan(options: Mapping[str, Any]) -> None:
    """Raise an InputError for arguments of the trainer that bring another optimizer or model."""
    own, schedule = options.get("optimizers", (None, None))
    if own is not None or options.get("optimizer_cls_and_kwargs") is not None:
        if own is None:
            argument = "optimizer_cls_and_kwargs"
        else:
            argument = "optimizers"
        raise InputError(
            f"{argument}: expected none, since the plan makes the optimizer: plan(...,"
            " optimizer=YourOptimizer). For an optimizer with groups of your own use"
            " transformers.Trainer with optimizers=(torch.optim.X(plan.param_groups()), None)",
            argument=argument,
        )
    if schedule is not None:
        raise InputError(
            "optimizers: expected no scheduler, since the optimizer that it would change is made"
            " later, by the plan: pass lr_scheduler_type in TrainingArguments, or make the"
            " scheduler in create_scheduler of a subclass",
            argument="optimizers",
        )
    if options.get("model_init") is not None:
        raise InputError(
            "model_init: expected none, since a plan belongs to one model, which model_init would"
            " replace at every call of train; make a plan and a PlanTrainer for each training",
            argument="model_init",
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
    must_equal(settings_of(Plan.load(path)), plan, str(folder), "resume_from_checkpoint")
