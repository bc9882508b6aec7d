"""Alignment of weights, inputs and their changes in the layers of a model: ratios and exponents.

    omega   RMS(W dx)  / (RMS(W)  RMS(dx))      S0 (15)
    alpha   RMS(dW x)  / (RMS(dW) RMS(x))       S0 (16)
    u       RMS(dW dx) / (RMS(dW) RMS(dx))      S0 (17)

W and x are those before a step; dW and dx are their changes, so that the three products add up to
the change of W x. A layer is a module that has one matrix and is linear in it. The product is the
forward pass of the module with another weight and zero bias, so that convolutions and transposed
weights need no code here. Multipliers that a plan put into hooks are no part of W (S0 writes them
as n^{-a} in front), so the hooks are left out.

The exponent e of a ratio is omega, alpha or u:

    log(ratio) = e log n + k

A role has one exponent: the ratios of its layers are averaged (in the logarithm) within each run
and then fitted. This gives the mean of the layers' exponents, and an interval that respects that
layers of one run are not independent.

S0: Stratos, "Scale-Invariant Parameterizations".
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, TypedDict, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call

from orderone.core.errors import InputError, hint_on_codes, one_of, with_code
from orderone.core.exact import count
from orderone.core.inputs import Count, Name
from orderone.core.roles import Role
from orderone.core.text_table import text_table, wrapped
from orderone.measure.fit import Fit, fit_exponent
from orderone.observe.batch_errors import naming_batch
from orderone.observe.batches import Batch, call_inputs, repeatable
from orderone.observe.derivatives import without_gradients
from orderone.observe.hooks import watching
from orderone.observe.inventory import Item, Place, inventory, modules_by_name
from orderone.observe.moments import WIDE, Ledger
from orderone.observe.precision import SINGLE, Precision
from orderone.observe.quantities import Quantity
from orderone.observe.trace import call_with
from orderone.theory.exponents.updates import ALIGNED_ROLES, KINDS
from orderone.torch_compat import parameter_registry

TRAINING = "training"
HELD_OUT = "held-out"
FEWEST_TOKENS = 8
COLUMNS = ["width", "seed", "step", "module", "role", "tokens", "quantity", "ratio"]
NAMED = 4  # modules in a note
DECIMALS = 2  # digits of the exponents in `as_alignment`; a few widths do not determine more

Group = tuple[Any, ...]  # a row of a table, or a part of it
Inputs = dict[str, Tensor]  # by layer
Ratio = tuple[str, str, str, str, float]  # layer, role, tokens, quantity, ratio


# --- layers ---------------------------------------------------------------------------------------


class _WithoutHooks(nn.Module):
    """A module whose call skips the hooks."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> object:
        return self.module.forward(x)


@dataclass(frozen=True)
class Layer:
    """A module that applies one matrix."""

    name: str
    role: str
    module: nn.Module
    attribute: str
    fan_in: int

    @property
    def weight(self) -> Tensor:
        """The matrix."""
        return cast(Tensor, parameter_registry(self.module)[self.attribute])

    def product(self, weight: Tensor, x: Tensor) -> Tensor:
        """Return the forward pass on `x` with another weight and without bias."""
        tensors = {f"module.{self.attribute}": weight}
        for name, parameter in self.module.named_parameters(recurse=False):
            if name != self.attribute:
                tensors[f"module.{name}"] = torch.zeros_like(parameter)
        return functional_call(_WithoutHooks(self.module), tensors, (x,))

    @torch.no_grad()
    def is_linear(self, x: Tensor) -> bool:
        """Return whether the weight times -2 gives exactly the output times -2.

        Multiplication by -2 has no rounding error.
        """
        if next(self.module.children(), None) is not None:
            return False
        try:
            plain = self.product(self.weight, x)
            scaled = self.product(-2 * self.weight, x)
        except Exception:  # it needs more inputs, or refuses another weight (mup's readout)
            return False
        return isinstance(plain, Tensor) and torch.equal(-2 * plain, scaled)

    def is_measurable(self, x: Tensor) -> bool:
        """Return whether `x` has enough tokens and the layer is linear."""
        return x.numel() // self.fan_in >= FEWEST_TOKENS and self.is_linear(x)

    def check_tokens(self, x: Tensor | None, tokens: str) -> None:
        """Raise an InputError if `x` has too few tokens."""
        if x is None:
            return
        rows = x.numel() // self.fan_in
        if rows < FEWEST_TOKENS:
            message = (
                f"batches: expected at least {FEWEST_TOKENS} {tokens} tokens, got {rows} (rows of"
                f" the input of {self.name}); with fewer, the exponent of a product is noise"
                " (erratum S0.6)"
            )
            raise InputError(message, "too-few-tokens", argument="batches")


def layers_of(model: nn.Module, roles: Mapping[str, str]) -> tuple[list[Layer], list[str]]:
    """Return the hidden and readout matrices, and the names of those that are left over.

    A matrix is left over if no module applies it alone.
    """
    items = inventory(model)
    modules = modules_by_name(model)
    matrices = []
    for item in items.values():
        for place in item.places:
            if _is_matrix(place):
                matrices.append(place.module)

    layers: list[Layer] = []
    left_over: list[str] = []
    for name, item in items.items():
        role = _aligned_role(item, roles.get(name, ""))
        if not role:
            continue
        applied_alone = False
        for place in item.places:
            if not _is_matrix(place) or matrices.count(place.module) > 1:
                continue
            assert place.layout is not None  # `_is_matrix` has checked it
            fan_in = item.shape[place.layout.fan_in[0]]
            layers.append(Layer(place.module, role, modules[place.module], place.attribute, fan_in))
            applied_alone = True
        if not applied_alone:
            left_over.append(name)
    return layers, left_over


def _is_matrix(place: Place) -> bool:
    return place.layout is not None and place.layout.kind == "matrix"


def _aligned_role(item: Item, role: str) -> str:
    """Return the role if alignment is measured for it, else an empty string.

    If one module uses a tensor as an embedding and another applies it as a matrix, the tensor is
    the readout of the second.
    """
    kinds = {place.layout.kind for place in item.places if place.layout is not None}
    if role == Role.EMBEDDING and kinds >= {"lookup", "matrix"}:
        return Role.READOUT
    if role in ALIGNED_ROLES:
        return role
    return ""


# --- ratios ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """The model at one step: its weights, and the inputs of its layers on every set of tokens."""

    weights: Inputs
    inputs: dict[str, Inputs]


def observe(
    model: nn.Module,
    layers: Sequence[Layer],
    batches: Mapping[str, Batch],
    precision: Precision = SINGLE,
) -> State:
    """Run a forward pass on each of the `batches`, always with the same random numbers."""
    inputs = {}
    for tokens, batch in batches.items():
        args, kwargs = call_with(call_inputs(batch))
        with (
            repeatable(model),
            without_gradients(model),
            precision.passes(model),
            reading(model, layers) as inputs[tokens],
            naming_batch("batches", batch, model),
        ):
            model(*args, **kwargs)
    return State(weights_of(layers), inputs)


def weights_of(layers: Sequence[Layer]) -> Inputs:
    """Copy the weights of the layers."""
    return {layer.name: layer.weight.detach().clone() for layer in layers}


@contextmanager
def reading(model: nn.Module, layers: Sequence[Layer], copy: bool = True) -> Iterator[Inputs]:
    """Collect the inputs of the layers in a forward pass inside the context.

    Under autocast they are in half precision, and weights in single precision; products need one.
    Without `copy`, code that follows may write into them: only their shapes are reliable.
    """
    inputs: Inputs = {}
    dtypes = {layer.name: layer.weight.dtype for layer in layers}

    def copy_input(name: str, quantity: Quantity, x: Tensor) -> None:
        if name in inputs:  # not the first call
            return
        if x.is_floating_point():
            dtype = torch.promote_types(x.dtype, dtypes[name])
        else:
            dtype = x.dtype
        inputs[name] = x.detach().to(dtype, copy=copy)  # code that follows may write into it

    with watching(model, copy_input, dtypes.__contains__, (Quantity.INPUT,)):
        yield inputs


@torch.no_grad()
def ratios(
    layers: Sequence[Layer], before: State, now: State, kinds: Collection[str] = KINDS
) -> Iterator[Ratio]:
    """Yield the ratios of these `kinds`, of every layer on every set of tokens.

    The numbers are fetched from the device together. Each kind costs one forward pass of products;
    alpha needs no values of the present inputs.
    """
    ledger = Ledger()
    keys: list[tuple[str, str, str, str]] = []
    for tokens, inputs in before.inputs.items():
        for layer in layers:
            x = inputs.get(layer.name)
            x_now = now.inputs[tokens].get(layer.name)
            if x is None or x_now is None or x.shape != x_now.shape:
                continue  # experts get different tokens in every pass
            W = before.weights[layer.name]
            dW = now.weights[layer.name] - W
            for kind, product in _products(layer, W, dW, x, x_now, kinds):
                keys.append((layer.name, layer.role, tokens, kind))
                ledger.add(product)
    for key, moments in zip(keys, ledger.fetch(), strict=True):
        yield (*key, moments.rms)


def _products(
    layer: Layer, W: Tensor, dW: Tensor, x: Tensor, x_now: Tensor, kinds: Collection[str]
) -> Iterator[tuple[str, Tensor]]:
    """Multiply factors of RMS one: the RMS of the product is the ratio, and nothing underflows.

    Weights of single or double precision are divided by their size behind the product, which has
    fewer entries.
    """
    if "omega" in kinds:
        yield "omega", _unit_product(layer, W, _unit(x_now - x))
    if "alpha" in kinds:
        yield "alpha", _unit_product(layer, dW, _unit(x))
    if "u" in kinds:
        yield "u", _unit_product(layer, dW, _unit(x_now - x))


def _unit_product(layer: Layer, W: Tensor, x: Tensor) -> Tensor:
    """Return the product of a layer whose weight has the size one."""
    if W.dtype in WIDE:
        return layer.product(_unit(W), x)
    return layer.product(W, x) / _rms(W)


def _unit(x: Tensor) -> Tensor:
    return x / _rms(x)


def _rms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dtype=WIDE.get(x.dtype)) / x.numel() ** 0.5


# --- exponents ------------------------------------------------------------------------------------


class RoleExponent(TypedDict):
    """One row of `MeasuredAlignment.by_role`."""

    role: str
    tokens: str
    step: int
    quantity: str
    exponent: float
    low: float
    high: float


class LayerExponent(RoleExponent):
    """One row of `MeasuredAlignment.exponents`."""

    module: str


class MeasuredAlignment:
    """Result of `alignment`.

    `frame` has the ratios, `exponents` the fits by layer, `by_role` the fits by role.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...]

    def __init__(self, frame: pd.DataFrame, notes: tuple[str, ...] = ()):
        ratios = frame["ratio"].to_numpy(float)
        usable = np.isfinite(ratios) & (ratios > 0)
        self.frame = _select(frame, usable)
        self.notes = (*notes, *_left_out(_select(frame, ~usable)))

    @cached_property
    def exponents(self) -> pd.DataFrame:
        """Fits by layer: module, role, tokens, step, quantity, exponent, low, high."""
        key = ["module", "role", "tokens", "step", "quantity"]
        return _fits(_rows(self.frame, [*key, "width", "ratio"]), key, self.frame.attrs)

    @cached_property
    def by_role(self) -> pd.DataFrame:
        """Fits by role, over all its layers: role, tokens, step, quantity, exponent, low, high."""
        key = ["role", "tokens", "step", "quantity"]
        rows = list(_rows(self.frame, [*key, "module", "width", "seed", "ratio"]))
        runs_of_layer: dict[Group, set[Group]] = {}
        runs_of_role: dict[Group, set[Group]] = {}
        for *group, module, width, seed, _ in rows:
            runs_of_layer.setdefault((*group, module), set()).add((width, seed))
            runs_of_role.setdefault(tuple(group), set()).add((width, seed))
        logs: dict[Group, list[float]] = {}
        for *group, module, width, seed, ratio in rows:
            if runs_of_layer[*group, module] == runs_of_role[tuple(group)]:
                logs.setdefault((*group, width, seed), []).append(math.log(ratio))
        means = []
        for (*group, width, _), values in logs.items():
            means.append((*group, width, math.exp(math.fsum(values) / len(values))))
        return _fits(means, key, self.frame.attrs)

    @property
    def layer_rows(self) -> list[LayerExponent]:
        """The rows of `exponents`."""
        return cast(list[LayerExponent], self.exponents.to_dict("records"))

    @property
    def role_rows(self) -> list[RoleExponent]:
        """The rows of `by_role`."""
        return cast(list[RoleExponent], self.by_role.to_dict("records"))

    @property
    def omega(self) -> dict[str, float]:
        """Exponents omega by layer, on training tokens across the last step."""
        return self._by_layer("omega")

    @property
    def alpha(self) -> dict[str, float]:
        """Exponents alpha by layer, on training tokens across the last step."""
        return self._by_layer("alpha")

    @property
    def u(self) -> dict[str, float]:
        """Exponents u by layer, on training tokens across the last step."""
        return self._by_layer("u")

    def _by_layer(self, kind: str) -> dict[str, float]:
        rows = [row for row in self.layer_rows if row["tokens"] == TRAINING]
        last = max((row["step"] for row in rows), default=0)
        exponents = {}
        for row in rows:
            if row["step"] == last and row["quantity"] == kind:
                exponents[row["module"]] = row["exponent"]
        return exponents

    def as_alignment(
        self, tokens: Name = TRAINING, step: Count | None = None
    ) -> dict[str, dict[str, Fraction]]:
        """Return the exponents in the form that `max_lr` takes, at the last step or another.

        The form is {"omega": {"hidden": ..., "readout": ...}, "alpha": ..., "u": ...}. Exponents
        are rounded to hundredths within [0, 1]. Those that could not be measured are missing;
        `max_lr` takes them as `full`.
        """
        values: dict[str, dict[str, Fraction]] = {}
        for row in self._at(tokens, step):
            values.setdefault(row["quantity"], {})[row["role"]] = _hundredths(row["exponent"])
        return {kind: values[kind] for kind in KINDS if kind in values}

    def _at(self, tokens: Name, step: Count | None) -> list[RoleExponent]:
        one_of(tokens, (TRAINING, HELD_OUT), "tokens")
        rows = [row for row in self.role_rows if row["tokens"] == tokens]
        if not rows:
            message = f"tokens: no exponent was fitted on {tokens} tokens: {'; '.join(self.notes)}"
            raise InputError(message, "no-held-out-tokens", argument="tokens")
        steps = sorted({row["step"] for row in rows})
        chosen = steps[-1]
        if step is not None:
            chosen = count(step, "step")
        if chosen not in steps:
            message = f"step: expected one of {', '.join(map(str, steps))}, got {chosen}"
            raise InputError(message, argument="step")
        return [row for row in rows if row["step"] == chosen]

    # --- text -------------------------------------------------------------------------------------

    def __str__(self) -> str:
        """Return a table: for every role, the exponents at the first and at the last step."""
        cells: dict[tuple[str, str, int, str], str] = {}
        for row in self.role_rows:
            fit = Fit(row["exponent"], row["low"], row["high"])
            cells[row["role"], row["tokens"], row["step"], row["quantity"]] = str(fit)
        steps = sorted({step for _, _, step, _ in cells})
        ends = list(dict.fromkeys([*steps[:1], *steps[-1:]]))

        lines: list[tuple[str, ...]] = [("role", "tokens", "step", *KINDS)]
        for role in ALIGNED_ROLES:
            for tokens in (TRAINING, HELD_OUT):
                for step in ends:
                    fits = [cells.get((role, tokens, step, kind), "") for kind in KINDS]
                    if any(fits):
                        lines.append((role, tokens, str(step), *fits))
        text = [*wrapped(self._headline, indent=0), *text_table(lines)]
        for note in self.notes:
            text += wrapped(f"note: {note}", indent=0)
        return "\n".join([*text, *hint_on_codes(self.notes)])

    __repr__ = __str__

    @property
    def _headline(self) -> str:
        provenance = self.frame.attrs.get("provenance", {})
        if "widths" not in provenance:
            return "alignment"
        widths = ", ".join(map(str, provenance["widths"]))
        return (
            f"alignment: {provenance['rule']} for {provenance['optimizer']}, widths {widths},"
            f" {provenance['steps']} steps, {len(provenance['seeds'])} seeds"
        )


def _rows(frame: pd.DataFrame, columns: Sequence[str]) -> Iterator[Group]:
    """Yield the rows of a frame; loops over them are many times faster than groups of pandas."""
    return zip(*(frame[column].tolist() for column in columns), strict=True)


def _fits(rows: Iterable[Group], key: list[str], attributes: dict[Any, Any]) -> pd.DataFrame:
    """Return one fit for each group with at least two widths and three points.

    A row has the values of `key`, a width and a ratio.
    """
    groups: dict[Group, tuple[list[float], list[float]]] = {}
    for *group, width, ratio in rows:
        widths, ratios = groups.setdefault(tuple(group), ([], []))
        widths.append(width)
        ratios.append(ratio)
    fitted = []
    for group, (widths, ratios) in groups.items():
        if len(set(widths)) > 1 and len(widths) > 2:
            fit = fit_exponent(widths, ratios, correction=False)
            fitted.append((*group, fit.exponent, fit.low, fit.high))
    result = pd.DataFrame(fitted, columns=pd.Index([*key, "exponent", "low", "high"]))
    result.attrs = attributes
    return result


def _select(frame: pd.DataFrame, rows: np.ndarray) -> pd.DataFrame:
    return cast(pd.DataFrame, frame[rows]).reset_index(drop=True)


def _left_out(frame: pd.DataFrame) -> list[str]:
    if frame.empty:
        return []
    texts = []
    for kind, group in frame.groupby("quantity", sort=False):
        texts.append(f"{kind} of {some_of(dict.fromkeys(group['module']))}")
    note = f"left out {len(frame)} ratios that are 0 or not finite: {'; '.join(texts)}"
    return [with_code(note, "ratios-left-out")]


def some_of(names: Iterable[str]) -> str:
    """Return the first few names, and the number of the others."""
    names = list(names)
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def _hundredths(exponent: float) -> Fraction:
    return Fraction(round(min(max(exponent, 0.0), 1.0) * 10**DECIMALS), 10**DECIMALS)
