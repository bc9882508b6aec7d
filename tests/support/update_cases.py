"""Optimizers of other packages, made for one hidden matrix, with the law that they follow."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

from support.update_slopes import Setting

ABOVE_ROUNDING = 1e-5  # eps: directions without a gradient hold rounding errors, see SOAP


@dataclass(frozen=True)
class Case:
    """One optimizer: where it is, how it is constructed, and its law."""

    package: str
    name: str
    law: str
    options: dict[str, Any] = field(default_factory=dict)
    in_groups: bool = False  # it wants groups with a flag
    setting: Setting = field(default_factory=Setting)
    remark: str = ""

    @property
    def title(self) -> str:
        return f"{self.package}.{self.name}{f', {self.remark}' if self.remark else ''}"

    def make(self) -> Callable[..., Any]:
        """Return the function that constructs it from parameters and lr."""
        module = import_module(self.package)
        if self.package == "heavyball":
            module.utils.compile_mode = None
        kind = getattr(module, self.name)

        def made(params: list[Any], lr: float) -> Any:
            if self.in_groups:
                groups = [{"params": params, "use_muon": True, "lr": lr, "weight_decay": 0.0}]
                return kind(groups, **self.options)
            options = dict(self.options)
            if options.pop("one_side", False):  # of a matrix with more rows than this
                options["max_precondition_dim"] = 2 * params[0].shape[1]
            return kind(params, lr=lr, **options)

        return made


def _blocked_shampoo(**options: Any) -> dict[str, Any]:
    """Return options of ScalableShampoo: by default without grafting, warm-up and merging."""
    return {
        "betas": (0.0, 0.9),
        "start_preconditioning_step": 1,
        "preconditioning_compute_steps": 1,
        "graft_type": 0,
        "shape_interpretation": False,
        "nesterov": False,
        "use_svd": True,
        "matrix_eps": 1e-12,
        "block_size": 4096,
        **options,
    }


_SHAMPOO = ("pytorch_optimizer", "ScalableShampoo")
_SINGLE = Setting(dtype=torch.float32, lr=1e-4)  # packages that compute in single precision
# Newton-Schulz iterations end with singular values between 0.7 and 1.2
_WIDE = Setting(widths=(32, 128, 512))
# of github.com/microsoft/dion, which is not on PyPI
_DION = {"weight_decay": 0.0, "epsilon": 1e-3}
_SOAP = {"weight_decay": 0.0, "precondition_frequency": 1, "eps": ABOVE_ROUNDING}

CASES = (
    Case("torch.optim", "AdamW", "adamw", {"weight_decay": 0.0}),
    Case("torch.optim", "SGD", "sgd"),
    Case("torch.optim", "Muon", "muon", {"weight_decay": 0.0}),
    Case("pytorch_optimizer", "AdEMAMix", "ademamix"),
    Case("schedulefree", "AdamWScheduleFree", "schedule-free"),
    Case("torchao.optim", "AdamW8bit", "adam8bit", {"weight_decay": 0.0}, setting=_SINGLE),
    Case("pytorch_optimizer", "NorMuon", "normuon", {"foreach": False}, in_groups=True),
    Case("pytorch_optimizer", "SCION", "dion", {"norm_type": 2}, remark="spectral norm"),
    Case("dion", "DionSimple", "dion", _DION),
    Case("dion", "DionReference", "dion", {**_DION, "qr_method": "qr"}),
    Case("dion", "Dion", "dion", _DION, setting=_SINGLE),
    Case("muon", "SingleDeviceMuon", "muon", setting=_WIDE),
    Case("pytorch_optimizer", "SOAP", "soap", _SOAP),
    Case("heavyball", "SOAP", "soap", _SOAP, setting=_SINGLE),
    Case(
        "pytorch_optimizer",
        "SOAP",
        "soap-in",
        {**_SOAP, "one_side": True},
        setting=Setting(tall=4),
        remark="inputs only",
    ),
    Case("pytorch_optimizer", "Shampoo", "shampoo", {"matrix_eps": 1e-12}),
    Case(*_SHAMPOO, "shampoo", _blocked_shampoo()),
    Case(*_SHAMPOO, "shampoo-blocked", _blocked_shampoo(block_size=16), remark="blocks of 16"),
    Case(*_SHAMPOO, "sgd", _blocked_shampoo(graft_type=1), remark="grafted on SGD"),
    Case(*_SHAMPOO, "adam", _blocked_shampoo(graft_type=3), remark="grafted on RMSProp"),
    Case(
        *_SHAMPOO,
        "shampoo-1/2",
        _blocked_shampoo(inverse_exponent_override=2),
        remark="power 1/2",
    ),
    Case(
        *_SHAMPOO,
        "shampoo-in",
        _blocked_shampoo(inverse_exponent_override=4, pre_conditioner_type=1),
        remark="inputs only",
    ),
    Case(
        *_SHAMPOO,
        "shampoo-1/2-in",
        _blocked_shampoo(inverse_exponent_override=2, pre_conditioner_type=1),
        remark="inputs only, power 1/2",
    ),
)
