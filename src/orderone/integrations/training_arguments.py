"""Arguments of the Trainer that a plan allows, and those that it refuses.

A plan decides optimizer, learning rates, weight decays and eps, and the Trainer has arguments for
some of these. They may stay at their defaults, or agree with the plan. The Trainer would not read
others while the plan makes the optimizer, so they are refused.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import TrainingArguments

from orderone.core.errors import InputError
from orderone.optimizers.table import FUSED
from orderone.planning.plan import Plan

# argument of TrainingArguments -> setting of the plan
SHARED: Mapping[str, str] = {
    "learning_rate": "lr",
    "weight_decay": "weight_decay",
    "adam_epsilon": "eps",
}
# value of `optim` -> optimizer of a plan
OPTIMIZERS: Mapping[str, str] = {
    "adafactor": "adafactor",
    "adagrad": "adagrad",
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "rmsprop": "rmsprop",
    "sgd": "sgd",
}
# arguments that only optimizers of the Trainer read
UNREAD = ("optim_args", "optim_target_modules")
BETAS = ("adam_beta1", "adam_beta2")
DEFAULT_BETAS = (0.9, 0.999)  # of Adam in torch
WITH_BETAS = ("adam", "adamw")


def must_agree(args: TrainingArguments, plan: Plan) -> None:
    """Raise an InputError if the arguments ask for other settings than the plan."""
    for argument, setting in SHARED.items():
        planned = getattr(plan.settings, setting)
        if not _is_default(args, argument) and getattr(args, argument) != planned:
            remedy = f"pass it to the plan: plan(..., {setting}={getattr(args, argument)})"
            raise _contradiction(args, argument, f"{setting}={planned}", remedy)
    _must_agree_on_optimizer(args, plan)
    _must_agree_on_betas(args, plan)
    _must_keep_batch_size(args, plan)


def optimizer_options(args: TrainingArguments, plan: Plan) -> dict[str, Any]:
    """Return options of the optimizer that the arguments decide."""
    options: dict[str, Any] = {}
    if plan.user_class is not None or plan.settings.optimizer not in WITH_BETAS:
        return options
    betas = (args.adam_beta1, args.adam_beta2)
    if "betas" not in plan.user_options and betas != DEFAULT_BETAS:
        options["betas"] = betas
    fused = str(args.optim).endswith("fused") and plan.settings.optimizer in FUSED
    if fused and torch.cuda.is_available():
        options["fused"] = True
    return options


def must_leave_optimizer_to_plan(deepspeed_plugin: Any) -> None:
    """Raise an InputError if the configuration of DeepSpeed has its own optimizer or schedule.

    The Trainer would use these, without a message, in place of the plan's.
    """
    config: Any = getattr(deepspeed_plugin, "deepspeed_config", None) or {}
    for section in ("optimizer", "scheduler"):
        if section in config:
            raise InputError(
                f"args: the configuration of DeepSpeed has a section {section!r}, which would"
                " replace that of the plan: one learning rate for all tensors. Leave it out; the"
                " optimizer is that of the plan, and the schedule lr_scheduler_type of"
                " TrainingArguments",
                "setting-of-the-plan",
                argument="args",
            )


def _must_agree_on_optimizer(args: TrainingArguments, plan: Plan) -> None:
    name = str(getattr(args.optim, "value", args.optim))
    planned = plan.settings.label
    agrees = plan.user_class is None and OPTIMIZERS.get(name) == plan.settings.optimizer
    if not _is_default(args, "optim") and not agrees:
        remedy = (
            "leave optim at its default and pass the optimizer, a name or a class, to the plan:"
            " plan(..., optimizer=...)"
        )
        raise _contradiction(args, "optim", f"optimizer={planned}", remedy)
    for argument in UNREAD:
        if not _is_default(args, argument):
            remedy = (
                "the plan makes the optimizer; pass options to it: plan(...,"
                " optimizer=functools.partial(torch.optim.AdamW, ...))"
            )
            raise _contradiction(args, argument, f"optimizer={planned}", remedy)


def _must_agree_on_betas(args: TrainingArguments, plan: Plan) -> None:
    betas = (args.adam_beta1, args.adam_beta2)
    planned = plan.user_options.get("betas")
    if all(_is_default(args, argument) for argument in BETAS) or betas == planned:
        return
    takes_betas = plan.user_class is None and plan.settings.optimizer in WITH_BETAS
    if planned is None and takes_betas:
        return
    chosen = next(argument for argument in BETAS if not _is_default(args, argument))
    remedy = (
        "leave it at its default, and pass betas with the class of the optimizer to the plan:"
        " plan(..., optimizer=functools.partial(torch.optim.AdamW, betas=(0.9, 0.95)))"
    )
    found = f"optimizer={plan.settings.label} and betas={planned}"
    raise _contradiction(args, chosen, found, remedy)


def _must_keep_batch_size(args: TrainingArguments, plan: Plan) -> None:
    if args.auto_find_batch_size and "batch" in plan.settings.axes:
        base, target = plan.settings.axes["batch"]
        remedy = "set per_device_train_batch_size, and leave auto_find_batch_size off"
        found = f"batch=({base:g}, {target:g})"
        raise _contradiction(args, "auto_find_batch_size", found, remedy)


def _is_default(args: TrainingArguments, argument: str) -> bool:
    return getattr(args, argument) == type(args).__dataclass_fields__[argument].default


def _contradiction(args: TrainingArguments, argument: str, planned: str, remedy: str) -> InputError:
    value = getattr(args, argument)
    return InputError(
        f"args: {argument}={getattr(value, 'value', value)} in TrainingArguments, and the plan was"
        f" made with {planned}; {remedy}",
        "setting-of-the-plan",
        argument="args",
    )
