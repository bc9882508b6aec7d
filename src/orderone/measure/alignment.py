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
from itertools import zip_longest
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from orderone.core.errors import function
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.core.roles import Role
from orderone.measure import records
from orderone.measure.alignment_ratios import (
    COLUMNS,
    HELD_OUT,
    TRAINING,
    Layer,
    MeasuredAlignment,
    State,
    layers_of,
    observe,
    ratios,
    some_of,
)
from orderone.measure.inputs import (
    BaseInput,
    BatchesInput,
    BatchInput,
    BuildInput,
    Built,
    LossInput,
    OptimizerInput,
    RateInput,
    RuleInput,
    SeedsInput,
    SizesInput,
)
from orderone.measure.runs import (
    Setup,
    Training,
    model_of,
    read_seeds,
    read_setup,
    read_sizes,
    run_all,
)
from orderone.observe.batches import Batch, call_inputs, is_batch, on_device, read_batches
from orderone.observe.inventory import shapes_of
from orderone.optimizers.table import label_of
from orderone.planning import Plan
from orderone.planning.build import Family, family
from orderone.seeding import preserved, set_seed
from orderone.torch_compat import tree_leaves


def alignment(
    build: BuildInput,
    widths: SizesInput | None = None,
    *,
    rule: RuleInput = "mup",
    optimizer: OptimizerInput = "adamw",
    lr: RateInput | None = None,
    batches: BatchesInput | None = None,
    held_out: BatchInput | None = None,
    loss: LossInput | None = None,
    steps: Count = 4,
    seeds: SeedsInput = 3,
    base: BaseInput | None = None,
    **plan_options: object,
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
    _, sizes = read_sizes(widths, None)
    study = _Study(
        build=build,
        widths=sizes,
        settings={"rule": rule, "optimizer": optimizer, "lr": lr, **plan_options},
        steps=count(steps, "steps"),
        seeds=read_seeds(seeds),
        base=base,
        loss=loss,
    )
    study.read_batches(batches, held_out)
    with preserved():  # the measurement sets seeds of its own
        study.read_layers()
        study.run()
    return MeasuredAlignment(study.frame(), tuple(study.notes))


class _Study:
    """One measurement on its way."""

    def __init__(
        self,
        build: BuildInput,
        widths: list[int],
        settings: dict[str, Any],
        steps: int,
        seeds: list[int],
        base: BaseInput | None,
        loss: LossInput | None,
    ):
        self.build = build
        self.widths = widths
        self.settings = settings  # of `plan`
        self.steps = steps
        self.seeds = seeds
        self.base = base
        self.loss = loss
        self.notes: list[str] = []
        self.rows: list[tuple[object, ...]] = []
        self.batches: list[Batch] = []  # to train on
        self.observed: dict[str, Batch] = {}  # by the name of the tokens
        self.roles: dict[str, str] = {}
        self.layers: set[str] = set()
        self._family: Family | None = None

    # --- before -----------------------------------------------------------------------------------

    def read_batches(self, batches: BatchesInput | None, held_out: BatchInput | None) -> None:
        """Take `steps` batches to train on, and one more to observe."""
        has_no_spare = is_batch(batches) or (
            isinstance(batches, Sequence) and len(batches) <= self.steps
        )
        available = read_batches(batches, self.steps if has_no_spare else self.steps + 1)
        self.batches = available[: self.steps]
        self.observed = {TRAINING: self.batches[0]}
        if len(self.batches) < self.steps:
            self.notes.append(f"batches ran out after {len(self.batches)} of {self.steps} steps")
        if held_out is not None and not is_batch(held_out):
            raise ValueError(
                "held_out: expected one batch (a tensor, a dict of keyword arguments, a pair of"
                f" inputs and targets), got {type(held_out).__name__}"
            )
        other = held_out
        if other is None and len(available) > self.steps:
            other = available[self.steps]
        if other is None or any(_have_same_inputs(other, batch) for batch in self.batches):
            self.notes.append(
                "only training tokens: give held_out=, or more batches than steps, for others"
            )
        else:
            self.observed[HELD_OUT] = other

    def read_layers(self) -> None:
        """Find the layers of the largest model, before anything is trained."""
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
        if not any(parameter.requires_grad for parameter in setup.model.parameters()):
            raise ValueError(
                "build: expected a model that is trained, and every tensor in it is frozen"
            )
        smallest = model_of(self._build(self.widths[0], self.seeds[0]))
        if shapes_of(setup.model) == shapes_of(smallest):
            raise ValueError(
                "build: every width gives a model of the same shapes; does it use its argument?"
            )
        self.roles = self._roles(setup) or self._roles(self._setup(self.widths[0], self.seeds[0]))

        candidates, left_over = layers_of(setup.model, self.roles)
        inputs = observe(setup.model, candidates, self._batches_on(setup.model)).inputs
        layers: list[Layer] = []
        for layer in candidates:
            x = inputs[TRAINING].get(layer.name)
            if x is not None and layer.is_linear(x):
                layers.append(layer)
            else:
                left_over.append(f"{layer.name}.{layer.attribute}")
        if left_over:
            self.notes.append(
                f"not measured, as no module of their own applies them: {some_of(left_over)}"
            )
        if not layers:
            raise ValueError(
                "build: expected hidden or readout matrices, applied by modules of their own, and"
                " found none; if your modules do that, register their type:"
                " orderone.register(MyLinear, weight=orderone.matrix(into=1, out=0))"
            )
        self.layers = {layer.name for layer in layers}
        for tokens, tensors in inputs.items():
            for layer in layers:
                layer.check_tokens(tensors.get(layer.name), tokens)

    def _roles(self, setup: Setup) -> dict[str, str]:
        """Return the roles of tensors that grow: none, for a model that is its own base."""
        plan = setup.plan or self._plan(setup.model)
        return {row.name: row.role for row in plan.rows if row.role != Role.FIXED}

    def _setup(self, width: int, seed: int) -> Setup:
        return read_setup(self._build(width, seed), self._plan, None)

    def _build(self, width: int, seed: int) -> Built:
        set_seed(seed)
        return self.build(width)

    def _plan(self, model: nn.Module) -> Plan:
        if self._family is None:  # the largest is the first to be planned
            inputs = on_device(call_inputs(self.batches[0]), model)
            self._family = family(model, self._base(), **{"inputs": inputs, **self.settings})
        return self._family.plan(model)

    def _base(self) -> nn.Module:
        if isinstance(self.base, nn.Module):
            return self.base
        width = self.widths[0] if self.base is None else count(self.base, "base")
        return model_of(self._build(width, self.seeds[0]))

    def _batches_on(self, model: nn.Module) -> dict[str, Batch]:
        """Return the observed batches on the device of the model."""
        return {tokens: on_device(batch, model) for tokens, batch in self.observed.items()}

    # --- running ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Train all widths and seeds."""
        troubles, _ = run_all(self.widths, self.seeds, self._run, "width")
        self.notes += troubles

    def _run(self, width: int, seed: int) -> None:
        setup = self._setup(width, seed)
        candidates, _ = layers_of(setup.model, self.roles)
        layers = [layer for layer in candidates if layer.name in self.layers]
        training = Training(setup, self.loss)
        for before, now in self._states(training, layers):
            for name, role, tokens, kind, ratio in ratios(layers, before, now):
                self.rows.append((width, seed, training.steps, name, role, tokens, kind, ratio))
        if training.ended:
            self.notes.append(f"width {width}, seed {seed}: {training.ended}")

    def _states(self, training: Training, layers: list[Layer]) -> Iterator[tuple[State, State]]:
        """Train, and yield the states before and after each step."""
        model = training.setup.model
        observed = self._batches_on(model)
        before = observe(model, layers, observed)
        for batch in self.batches:
            if not training.step(on_device(batch, model)):
                return
            now = observe(model, layers, observed)
            yield before, now
            before = now

    # --- after ------------------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """Return the ratios as a table."""
        rule = self.settings["rule"]
        provenance = {
            "rule": rule if isinstance(rule, str) else getattr(rule, "name", ""),
            "optimizer": label_of(self.settings["optimizer"]),
            "lr": self.settings["lr"],
            "widths": self.widths,
            "steps": self.steps,
            "seeds": self.seeds,
        }
        return records.table(self.rows, COLUMNS, provenance | records.versions())


def _have_same_inputs(first: Batch, second: Batch) -> bool:
    """Return whether two batches have the same inputs."""
    leaves = zip_longest(tree_leaves(call_inputs(first)), tree_leaves(call_inputs(second)))
    return all(_are_equal(x, y) for x, y in leaves)


def _are_equal(x: object, y: object) -> bool:
    if x is y:
        return True
    return isinstance(x, Tensor) and isinstance(y, Tensor) and torch.equal(x.cpu(), y.cpu())
