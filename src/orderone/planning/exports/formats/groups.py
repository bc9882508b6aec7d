"""Parameter groups of torch: DeepSpeed, and `create_optimizer` of the Hugging Face Trainer."""

import json
from collections.abc import Collection, Mapping
from typing import ClassVar

from torch import nn

from orderone.optimizers.lion import Lion
from orderone.optimizers.record import default_of
from orderone.planning.exports.content import Content
from orderone.planning.exports.format import (
    Base,
    Data,
    Format,
    Values,
    first_match,
    regex_groups,
    torch_groups,
    trained_tensors,
    values,
)


class _TorchGroups(Format):
    def names_in(self, model: nn.Module) -> list[str]:
        return list(trained_tensors(model))  # `build` looks into wrappers

    def text(self, data: Data) -> str:
        return json.dumps(data, indent=2) + "\n"

    def build(self, data: Data, model: nn.Module | None) -> object:
        return torch_groups(data["groups"], model)

    def read(self, data: Data, names: Collection[str]) -> dict[str, Values]:
        return {name: values(g) for name, g in first_match(data["groups"], names).items()}


class DeepSpeed(_TorchGroups):
    """Section `optimizer` of the configuration, and groups for `model_parameters`."""

    optimizers: ClassVar[Mapping[str, str]] = {
        "adam": "Adam",
        "adamw": "AdamW",
        "lion": "Lion",
        "sgd": "SGD",
    }
    advice: ClassVar[str] = (
        "Pass deepspeed.initialize(model_parameters=export.build(model)). Its own schedulers"
        " (WarmupLR, OneCycle) set the same learning rate for all groups: pass"
        " lr_scheduler=torch.optim.lr_scheduler.LambdaLR(...) instead, which keeps the ratios."
    )
    schedule_remedy: ClassVar[str] = (
        "Pass a list to WarmupLR and WarmupDecayLR, warmup_max_lr=[group['lr'] for group in"
        " plan.param_groups()], with warmup_min_lr=0; or a torch LambdaLR as lr_scheduler"
    )

    def takes(self, optimizer: str, option: str) -> bool:
        return optimizer == "sgd" or option == "decoupled_weight_decay"

    def data(self, content: Content, base: Base) -> Data:
        parameters: Data = {"lr": base.lr, "weight_decay": base.weight_decay}
        if base.optimizer == "sgd":
            parameters |= base.options
        if base.optimizer == "adam":  # DeepSpeed's Adam is AdamW by default
            parameters["adam_w_mode"] = bool(base.options.get("decoupled_weight_decay", False))
        betas = base.betas
        if base.optimizer == "lion" and betas is None:
            betas = default_of(Lion, "betas")  # those of DeepSpeed's Lion are Adam's
        if betas is not None:
            parameters["betas"] = list(betas)
        kind = self.optimizers.get(base.optimizer, base.optimizer)
        return {
            "optimizer": {"type": kind, "params": parameters},
            "groups": regex_groups(content, base),
        }


class HuggingFace(_TorchGroups):
    """`TrainingArguments`, and groups for an optimizer made in `create_optimizer`."""

    optimizers: ClassVar[Mapping[str, str]] = {
        "adafactor": "adafactor",
        "adamw": "adamw_torch",
        "rmsprop": "rmsprop",
        "sgd": "sgd",
    }
    holds: ClassVar[frozenset[str]] = frozenset({"eps", "betas", "options"})
    advice: ClassVar[str] = (
        "orderone.integrations.huggingface.PlanTrainer does this for you. In a Trainer of yours,"
        " make the optimizer in create_optimizer from export.build(self.model)."
    )

    def data(self, content: Content, base: Base) -> Data:
        arguments: Data = {
            "learning_rate": base.lr,
            "weight_decay": base.weight_decay,
            "optim": self.optimizers.get(base.optimizer, base.optimizer),
        }
        if base.betas is not None:
            arguments["adam_beta1"], arguments["adam_beta2"] = base.betas
        return {"training_arguments": arguments, "groups": regex_groups(content, base)}
