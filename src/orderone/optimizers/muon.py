"""Muon (Jordan et al. 2024) as torch.optim.Muon: momentum, made nearly orthogonal by Newton-Schulz
iterations.

It takes the hidden matrices; AdamW takes the rest. A tensor of three dimensions that holds one
matrix for every expert is a stack of matrices, each of which is made orthogonal by itself.
torch.optim.Muon takes no such tensor; `Muon` does, and knows all conventions of lr (`muon_rates`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number, UserInput
from orderone.core.reals import real
from orderone.optimizers.blocks import SpectralEps
from orderone.optimizers.muon_rates import convention_name, muon_factor
from orderone.optimizers.record import Algorithm, Shape
from orderone.optimizers.update import Options, Settings, State, Update
from orderone.rules.axes import Memory
from orderone.theory.exponents.updates import OPTIMIZERS

Flag: TypeAlias = Annotated[bool, UserInput]
Coefficients: TypeAlias = Annotated[tuple[float, float, float], UserInput]

REST = "adamw"  # optimizer of all other tensors
CONVENTION = "adjust_lr_fn"  # torch's name of the convention of lr
OF_TORCH = ("original", "match_rms_adamw")  # conventions that torch.optim.Muon knows


def orthogonal(g: Tensor, eps: Tensor | float, coefficients: Sequence[float], steps: int) -> Tensor:
    """Return the nearly orthogonal factor U V^T of every matrix in `g`, shape (..., rows, columns).

    These are the iterations of torch.optim.Muon, in its precision.
    """
    a, b, c = coefficients
    is_tall = g.shape[-2] > g.shape[-1]
    x = g.bfloat16()
    if is_tall:
        x = x.mT
    norm = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)
    smallest = torch.as_tensor(eps, dtype=x.dtype, device=x.device)
    x = x / torch.maximum(norm, smallest)
    stack = x.shape
    x = x.reshape(-1, *stack[-2:])
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.reshape(stack)
    if is_tall:
        return x.mT
    return x


class Muon(torch.optim.Muon):
    """torch.optim.Muon for matrices and stacks of matrices, with every convention of the rate.

    Args:
        params: Matrices, or tensors of shape (experts, rows, columns).
        adjust_lr_fn: Convention of lr, see `orderone.optimizers.muon_factor`.
        lr: Learning rate in the convention `adjust_lr_fn`. This and all other arguments are those
            of torch.optim.Muon.
        weight_decay: As in torch.
        momentum: As in torch.
        nesterov: As in torch.
        ns_coefficients: As in torch.
        eps: As in torch.
        ns_steps: As in torch.
    """

    def __init__(
        self,
        params: Any,
        lr: Number = 1e-3,
        weight_decay: Number = 0.1,
        momentum: Number = 0.95,
        nesterov: Flag = True,
        ns_coefficients: Coefficients = (3.4445, -4.7750, 2.0315),
        eps: Number = 1e-7,
        ns_steps: Count = 5,
        adjust_lr_fn: Name | None = None,
    ) -> None:
        if not isinstance(nesterov, bool):
            raise InputError(
                f"nesterov: expected True or False; got {nesterov!r}", argument="nesterov"
            )
        if not isinstance(lr, Tensor):  # a tensor stays one, so that a captured step can read it
            lr = real(lr, "lr", least=0)
        defaults = {
            "lr": lr,
            "weight_decay": real(weight_decay, "weight_decay", least=0),
            "momentum": real(momentum, "momentum", least=0),
            "nesterov": nesterov,
            "ns_coefficients": _three(ns_coefficients),
            "eps": real(eps, "eps", least=0),
            "ns_steps": count(ns_steps, "ns_steps"),
            CONVENTION: adjust_lr_fn,
        }
        try:
            # torch's constructor refuses stacks of matrices
            Optimizer.__init__(self, params, defaults)
        except InputError:
            raise
        except (TypeError, ValueError) as error:
            raise InputError(
                f"params: expected tensors, or groups of tensors with their settings; {error}",
                argument="params",
            ) from error

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        convention_name(group[CONVENTION], CONVENTION)
        for p in group["params"]:
            if p.ndim not in (2, 3):
                raise InputError(
                    "params: Muon takes matrices and stacks of matrices (experts, rows, columns),"
                    f" got a tensor of shape {tuple(p.shape)}; pass it to AdamW",
                    argument="params",
                )

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group)
        return loss

    def _update(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(g, memory_format=torch.preserve_format)
        buffer = state["momentum_buffer"].lerp_(g, 1 - group["momentum"])
        if group["nesterov"]:
            direction = g.lerp(buffer, group["momentum"])
        else:
            direction = buffer
        step = orthogonal(direction, group["eps"], group["ns_coefficients"], group["ns_steps"])
        lr = float(group["lr"])
        p.mul_(1 - lr * group["weight_decay"])
        p.add_(step.to(p.dtype), alpha=-lr * muon_factor(p.shape, group[CONVENTION]))


def _three(coefficients: Coefficients) -> tuple[float, float, float]:
    """Return the coefficients of Newton-Schulz iterations."""
    if isinstance(coefficients, (tuple, list)):
        values = tuple(coefficients)
    else:
        values = ()
    if len(values) != 3:
        raise InputError(
            f"ns_coefficients: expected three numbers; got {coefficients!r}",
            argument="ns_coefficients",
        )
    a, b, c = (real(value, "ns_coefficients") for value in values)
    return a, b, c


class MuonUpdate(Update):
    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay", "momentum", "eps")
    shared: ClassVar[tuple[str, ...]] = ("nesterov", "ns_coefficients", "ns_steps", CONVENTION)
    refused: ClassVar[Mapping[str, object]] = {}
    elementwise: ClassVar[bool] = False
    inner_precision: ClassVar[torch.dtype | None] = torch.bfloat16  # of Newton-Schulz, as in torch

    def state(self, p: Tensor) -> State:
        return {"momentum": torch.zeros_like(p)}

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        return {
            "lr": h["lr"],
            "keep": 1 - h["lr"] * h["weight_decay"],
            "momentum": h["momentum"],
            "fresh": 1 - h["momentum"],
            "eps": h["eps"],
        }

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        buffer = state["momentum"].lerp_(g, c["fresh"].expand_as(g))
        if self.options["nesterov"]:
            direction = g.lerp(buffer, c["momentum"].expand_as(g))
        else:
            direction = buffer
        step = orthogonal(
            direction, c["eps"], self.options["ns_coefficients"], self.options["ns_steps"]
        )
        factor = muon_factor(p.shape, self.options[CONVENTION])
        p.mul_(c["keep"]).sub_(factor * c["lr"] * step.to(p.dtype))


def takes_matrices(is_hidden: bool, shape: Shape) -> bool:
    """Return whether an optimizer of hidden matrices takes a tensor."""
    return is_hidden and len(shape) == 2


def _takes_stacks(is_hidden: bool, shape: Shape) -> bool:
    return is_hidden and len(shape) in (2, 3)


def _changes(options: Options) -> dict[str, Any]:
    """Return the fields of the record that depend on options of the constructor."""
    convention = convention_name(options.get(CONVENTION), CONVENTION)
    if convention == "original":
        return {}
    return {
        "rate_factor": partial(muon_factor, convention=convention),
        "convention": convention,
    }


def _check_options(options: Options) -> None:
    convention_name(options.get(CONVENTION), CONVENTION)


def class_for(
    kind: type[Optimizer], shapes: Sequence[Shape], convention: str | None
) -> type[Optimizer]:
    """Return `Muon` in place of torch.optim.Muon for stacks and conventions that torch lacks."""
    needs_ours = any(len(shape) == 3 for shape in shapes)
    needs_ours |= convention not in (None, *OF_TORCH)
    if kind is torch.optim.Muon and needs_ours:
        return Muon
    return kind


MUON = Algorithm(
    "muon",
    law="muon",
    torch_class=torch.optim.Muon,
    stacked=MuonUpdate,
    lr=1e-3,
    weight_decay=0.1,
    eps=1e-7,
    takes=_takes_stacks,
    rest=REST,
    scaled_eps=SpectralEps(OPTIMIZERS["muon"], None),
    rate_factor=muon_factor,
    check_options=_check_options,
    changes=_changes,
    memory=Memory.MOMENTUM,
)
