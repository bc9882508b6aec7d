"""Callback for Lightning that checks, saves and watches a training with a plan.

    from orderone.integrations.lightning import PlanCallback

    class Model(lightning.LightningModule):
        def configure_optimizers(self):
            return plan.optimizer()

    trainer = lightning.Trainer(callbacks=[PlanCallback(plan, every=100)])

Lightning makes optimizers in the module's `configure_optimizers`, and a callback cannot. So the
callback raises an error if the optimizer there does not have the groups of the plan.
"""

import math
import warnings
from typing import Any

from torch.optim import Optimizer

from orderone.core.errors import InputError, instance, with_code
from orderone.core.inputs import Count
from orderone.integrations.saved_settings import SavedSettings, must_equal, settings_of
from orderone.measure.inputs import CorridorInput, PatternsInput
from orderone.measure.size_monitor import CORRIDOR, SizeMonitor, read_corridor
from orderone.observe.inventory import unwrap
from orderone.planning.plan import Plan

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as _error:
    raise ImportError(
        "lightning is needed for PlanCallback; run: pip install lightning"
    ) from _error


class PlanCallback(Callback):
    """Train the model of a plan inside a LightningModule.

    Before the training it applies the plan, if that was not done yet, and checks that optimizer and
    schedules have the ratios of the plan. Checkpoints contain the settings of the plan; resuming
    with another plan is an error.

    Args:
        plan: Plan of the module, or of a module inside it.
        every: Steps between two records of sizes, which go to the loggers of the trainer as
            `sizes/NAME`; None records none.
        modules: Patterns of modules to record.
        quantity: "output" or "weight", as in `SizeMonitor`.
        corridor: Smallest and largest size relative to the start. If a size leaves it, the training
            stops, and `reason` says why.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        every: Count | None = None,
        modules: PatternsInput = "*",
        quantity: str = "output",
        corridor: CorridorInput | None = None,
    ):
        self.plan: Plan = instance(plan, Plan, "plan", "pass the result of orderone.plan")
        self.every = every
        self.modules = modules
        self.quantity = quantity
        self.stops: bool = corridor is not None
        limits = CORRIDOR if corridor is None else corridor
        self.corridor: tuple[float, float] = read_corridor(limits)
        self.monitor: SizeMonitor | None = None
        self._start: dict[str, float] = {}  # sizes at the start of a training that continues
        self._knows_checkpoint = False  # whether its settings were compared with the plan
        if self.stops and every is None:
            raise InputError(
                "corridor: sizes are not recorded; pass every=, the steps between two records",
                argument="every",
            )

    @property
    def reason(self) -> str | None:
        """Why the training was stopped; None if it was not."""
        if self.monitor is None or not self.stops:
            return None
        return self.monitor.outside

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Apply the plan before optimizers are made."""
        if stage != "fit":
            return
        model = unwrap(self.plan.bound())
        if all(module is not model for module in pl_module.modules()):
            raise InputError(
                "plan: its model is not part of the LightningModule; make the plan for the module"
                " that is trained, or call plan.attach(module)",
                argument="plan",
            )
        if not self.plan.applied:
            self.plan.apply()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check optimizer and schedules, and begin to record sizes."""
        if len(trainer.optimizers) != 1:
            raise InputError(
                f"configure_optimizers: expected one optimizer, got {len(trainer.optimizers)};"
                " return plan.optimizer(), which has all groups of the plan",
                "tensors-without-group",
                argument="optimizer",
            )
        optimizer: Optimizer = trainer.optimizers[0]
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        for scheduler in schedulers or [None]:  # with it, since its class decides the remedy
            self.plan.check(optimizer, scheduler)
        if trainer.global_step and not self._knows_checkpoint:
            _must_have_rates(optimizer, self.plan)
        if self.every is not None:
            self.monitor = SizeMonitor(
                self.plan.bound(),
                optimizer,
                plan=self.plan,
                every=self.every,
                modules=self.modules,
                quantity=self.quantity,
                corridor=self.corridor,
                first=trainer.global_step,
            )
            self.monitor.start |= self._start
            self.monitor.__enter__()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log sizes that are due; stop if one is outside its corridor."""
        if self.monitor is None:
            return
        values = self.monitor.read()
        if values and trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics(values, step=trainer.global_step)
        if self.reason is not None and not trainer.should_stop:
            trainer.should_stop = True
            if trainer.is_global_zero:
                text = f"the training stops: {self.reason}"
                warnings.warn(with_code(text, "sizes-left-corridor"), stacklevel=2)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove the hooks that record sizes."""
        if self.monitor is not None:
            self.monitor.__exit__()

    def state_dict(self) -> dict[str, Any]:
        """Return the settings of the plan and the sizes at the start, for a checkpoint."""
        if self.monitor is None:
            start = self._start
        else:
            start = self.monitor.start
        return {"settings": settings_of(self.plan), "start": start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise an InputError if the checkpoint was trained with another plan."""
        saved: SavedSettings = state_dict["settings"]
        must_equal(saved, self.plan, "checkpoint", "ckpt_path")
        self._knows_checkpoint = True
        self._start = dict(state_dict["start"])


def _must_have_rates(optimizer: Optimizer, plan: Plan) -> None:
    """Raise an InputError if a checkpoint without a plan brought other learning rates.

    `Plan.check` accepts a common factor of all groups, which a schedule may cause.
    """
    planned = {id(tensor): plan[name] for name, tensor in plan.tensors().items()}
    for group in optimizer.param_groups:
        rate = float(group.get("initial_lr", group["lr"]))
        for parameter in group["params"]:
            row = planned[id(parameter)]
            if not math.isclose(rate, row.lr, rel_tol=1e-6):
                raise InputError(
                    f"checkpoint: it was trained without PlanCallback, and with another plan:"
                    f" {row.name} has the learning rate {rate:.5g}, and {row.lr:.5g} in the plan",
                    "checkpoint-of-other-plan",
                    argument="ckpt_path",
                )
