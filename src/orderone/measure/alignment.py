"""`alignment`: how strongly weights, updates and activations of a real model line up as it grows.

    RMS(W dx)  = n^omega RMS(W)  RMS(dx)      S0 (15)
    RMS(dW x)  = n^alpha RMS(dW) RMS(x)       S0 (16)
    RMS(dW dx) = n^u     RMS(dW) RMS(dx)      S0 (17)

for every hidden and readout matrix and every step, on tokens that are trained on and on others. The
exponents decide which learning rates are stable: `theory.exponents.max_lr`, `rules.from_alignment`.
Expect omega = 1/2 in hidden layers and nearly 1 at the readout (erratum S0.5), alpha near 1 on
training tokens, and u rising from 1/2 at the first step (S0.6).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from orderone.core.errors import function
from orderone.core.exact import count
from orderone.core.roles import Role
from orderone.measure import records
from orderone.measure.alignment_result import (
    COLUMNS,
    HELD_OUT,
    TRAINING,
    MeasuredAlignment,
    some_of,
)
from orderone.measure.ratios import Layer, State, layers_of, observe, ratios
from orderone.measure.runs import Run, Setup, model_of, read_setup, run_all, step
from orderone.measure.sizes import read_seeds, read_sizes
from orderone.observe.batches import Loss, call_inputs, is_batch, on_device, read_batches
from orderone.observe.inventory import shapes_of
from orderone.optimizers.table import label_of
from orderone.planning import Plan
from orderone.planning.build import Family, family
from orderone.seeding import preserved, set_seed
from orderone.torch_compat import tree_leaves


def alignment(
    build: Any,
    widths: Any = None,
    *,
    rule: Any = "mup",
    optimizer: Any = "adamw",
    lr: Any = None,
    batches: Any = None,
    held_out: Any = None,
    loss: Any = None,
    steps: Any = 4,
    seeds: Any = 3,
    base: Any = None,
    **plan_options: Any,
) -> MeasuredAlignment:
    """Measure omega, alpha and u of every hidden and readout matrix while models of several widths
    train.

    Args:
        build: A function of the width that returns an nn.Module, to which `rule` is applied; or a
            plan; or (module, optimizer) for a model that is scaled already.
        widths: At least two sizes, better four or five.
        rule, optimizer, lr: As in `plan`.
        batches: As in `coord_check`. Training tokens are those of the first batch.
        held_out: A batch that is not trained on. By default, what follows the `steps` batches, if
            anything does.
        loss: As in `coord_check`.
        steps: Updates; the ratios are measured across each of them.
        seeds: How many, or which.
        base: The size that was tuned, or a module; by default the smallest.
        plan_options: weight_decay, depth, gauge, decay, overrides, ... of `plan`.
    """
    function(loss, "loss", "of output and target")
    study = _Study(
        build,
        read_sizes(widths, None)[1],
        {"rule": rule, "optimizer": optimizer, "lr": lr, **plan_options},
        count(steps, "steps"),
        read_seeds(seeds),
        base,
        loss,
    )
    study.take(batches, held_out)
    with preserved():  # the measurement sets seeds of its own
        study.look()
        study.run()
    return MeasuredAlignment(study.frame(), tuple(study.notes))


@dataclass
class _Study:
    """One measurement on its way."""

    build: Any
    widths: list[int]
    asked: dict[str, Any]
    steps: int
    seeds: list[int]
    base: Any
    loss: Loss | None
    notes: list[str] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    _family: Family | None = None

    def take(self, batches: Any, held_out: Any) -> None:
        """`steps` batches to train on, and one more to look at."""
        enough = is_batch(batches) or (isinstance(batches, Sequence) and len(batches) <= self.steps)
        found = read_batches(batches, self.steps if enough else self.steps + 1)
        self.batches = found[: self.steps]
        spare = found[self.steps :]
        self.watched = {TRAINING: self.batches[0]}
        if len(self.batches) < self.steps:
            self.notes.append(f"batches ran out after {len(self.batches)} of {self.steps} steps")
        if held_out is not None and not is_batch(held_out):
            raise ValueError(
                "held_out: expected one batch (a tensor, a dict of keyword arguments, a pair of"
                f" inputs and targets), got {type(held_out).__name__}"
            )
        other = next(iter(spare), None) if held_out is None else held_out
        if other is None or any(_same(other, batch) for batch in self.batches):
            self.notes.append(
                "only training tokens: give held_out=, or more batches than steps, for others"
            )
        else:
            self.watched[HELD_OUT] = other

    # --- before -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Which layers there are, on the largest model, before anything is trained."""
        if isinstance(self.build, nn.Module) or not callable(self.build):
            raise ValueError(
                f"build: expected a function of the width, got {type(self.build).__name__}"
            )
        if len(self.widths) * len(self.seeds) < 3:
            raise ValueError(
                "seeds: expected at least two for two widths: a line through two points has no"
                " interval"
            )
        setup = self._setup(self.widths[-1], self.seeds[0])
        if not any(p.requires_grad for p in setup.model.parameters()):
            raise ValueError(
                "build: expected a model that is trained, and every tensor in it is frozen"
            )
        if shapes_of(setup.model) == shapes_of(model_of(self._make(self.widths[0], self.seeds[0]))):
            raise ValueError(
                "build: every width gives a model of the same shapes; does it use its argument?"
            )
        self.roles = self._roles(setup) or self._roles(self._setup(self.widths[0], self.seeds[0]))
        found, left = layers_of(setup.model, self.roles)
        inputs = observe(setup.model, found, self._batches_for(setup.model)).inputs
        layers = [
            x for x in found if x.name in inputs[TRAINING] and x.is_linear(inputs[TRAINING][x.name])
        ]
        left += [f"{x.name}.{x.attribute}" for x in found if x not in layers]
        if left:
            self.notes.append(
                f"not measured, as no module of their own applies them: {some_of(left)}"
            )
        if not layers:
            raise ValueError(
                "build: expected hidden or readout matrices, applied by modules of their own, and"
                " found none; if your modules do that, register their type:"
                " orderone.register(MyLinear, weight=orderone.matrix(into=1, out=0))"
            )
        self.layers = {layer.name for layer in layers}
        for tokens, seen in inputs.items():
            for layer in layers:
                layer.check_tokens(seen.get(layer.name), tokens)

    def _roles(self, setup: Setup) -> dict[str, str]:
        """Of tensors that grow: none, for a model that is its own base."""
        plan = setup.plan or self._plan(setup.model)
        return {row.name: row.role for row in plan.rows if row.role != Role.FIXED}

    def _setup(self, width: int, seed: int) -> Setup:
        return read_setup(self._make(width, seed), self._plan, None)

    def _make(self, width: int, seed: int) -> Any:
        set_seed(seed)
        return self.build(width)

    def _plan(self, model: nn.Module) -> Plan:
        if self._family is None:  # the largest is the first to be planned
            inputs = on_device(call_inputs(self.batches[0]), model)
            self._family = family(model, self._base(), **{"inputs": inputs, **self.asked})
        return self._family.plan(model)

    def _base(self) -> nn.Module:
        if isinstance(self.base, nn.Module):
            return self.base
        width = self.widths[0] if self.base is None else count(self.base, "base")
        return model_of(self._make(width, self.seeds[0]))

    def _batches_for(self, model: nn.Module) -> dict[str, Any]:
        return {tokens: on_device(batch, model) for tokens, batch in self.watched.items()}

    # --- running ----------------------------------------------------------------------------------

    def run(self) -> None:
        self.notes += run_all(self.widths, self.seeds, self._run, "width")[0]

    def _run(self, width: int, seed: int) -> None:
        setup = self._setup(width, seed)
        layers = [x for x in layers_of(setup.model, self.roles)[0] if x.name in self.layers]
        run = Run(width, seed)
        for before, now in self._states(setup, layers, run):
            found = ratios(layers, before, now)
            self.rows += [
                (width, seed, run.steps, name, role, *rest) for name, role, *rest in found
            ]
        if run.ended:
            self.notes.append(f"width {width}, seed {seed}: {run.ended}")

    def _states(self, setup: Setup, layers: list[Layer], run: Run) -> Iterator[tuple[State, State]]:
        watched = self._batches_for(setup.model)
        before = observe(setup.model, layers, watched)
        for batch in self.batches:
            if not step(setup, on_device(batch, setup.model), self.loss, run):
                return
            now = observe(setup.model, layers, watched)
            yield before, now
            before = now

    # --- after ------------------------------------------------------------------------------------

    def frame(self) -> Any:
        rule = self.asked["rule"]
        name = rule if isinstance(rule, str) else getattr(rule, "name", "")
        provenance = {
            "rule": name,
            "optimizer": label_of(self.asked["optimizer"]),
            "lr": self.asked["lr"],
        }
        sizes = {"widths": self.widths, "steps": self.steps, "seeds": self.seeds}
        return records.table(self.rows, COLUMNS, provenance | sizes | records.versions())


def _same(one: Any, two: Any) -> bool:
    """Whether two batches have the same inputs."""
    pairs = zip_longest(*(tree_leaves(call_inputs(batch)) for batch in (one, two)))
    return all(
        a is b
        or (isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a.cpu(), b.cpu()))
        for a, b in pairs
    )
