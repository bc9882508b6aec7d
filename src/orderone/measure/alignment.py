"""`alignment`: how strongly weights, updates and activations of a model align as it grows.

    RMS(W dx)  = n^omega RMS(W)  RMS(dx)      S0 (15)
    RMS(dW x)  = n^alpha RMS(dW) RMS(x)       S0 (16)
    RMS(dW dx) = n^u     RMS(dW) RMS(dx)      S0 (17)

for every hidden and readout matrix and every step, on training tokens and on held-out tokens. The
exponents decide which learning rates are stable: `theory.exponents.max_lr`, `rules.from_alignment`.
Expect omega = 1/2 in hidden layers and nearly 1 at the readout (erratum S0.5), alpha near 1 on
training tokens, and u rising from 1/2 at the first step (S0.6).

S0: Stratos, "Scale-Invariant Parameterizations".
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from orderone.core.errors import InputError, function, with_code
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.core.roles import Role
from orderone.loading.examples import read_examples
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
    CollateInput,
    LossInput,
    OptimizerInput,
    RateInput,
    RuleInput,
    SeedsInput,
    SizesInput,
)
from orderone.measure.runs import (
    Builder,
    Setup,
    Training,
    model_of,
    plan_family,
    read_seeds,
    read_setup,
    read_sizes,
    run_all,
)
from orderone.observe.batches import Batch, call_inputs, is_batch, on_device
from orderone.observe.inventory import shapes_of
from orderone.optimizers.table import label_of
from orderone.planning import Plan
from orderone.planning.build import Family
from orderone.seeding import preserved
from orderone.torch_compat import tree_leaves


def alignment(
    build: BuildInput,
    widths: SizesInput | None = None,
    *,
    rule: RuleInput = "mup",
    optimizer: OptimizerInput = "adamw",
    lr: RateInput | None = None,
    batches: BatchesInput | None = None,
    batch_size: Count | None = None,
    collate_fn: CollateInput | None = None,
    held_out: BatchInput | None = None,
    loss: LossInput | None = None,
    steps: Count = 4,
    seeds: SeedsInput = 3,
    base: BaseInput | None = None,
    **plan_options: object,
) -> MeasuredAlignment:
    """Measure omega, alpha and u of all hidden and readout matrices in training at several widths.

    Args:
        build: A function of the width. It returns an nn.Module, to which `rule` is applied; or a
            plan; or (module, optimizer) for a model that is scaled already.
        widths: At least two sizes; four or five are better.
        rule: As in `plan`.
        optimizer: As in `plan`.
        lr: As in `plan`.
        batches: As in `coord_check`. Training tokens are those of the first batch.
        batch_size: As in `coord_check`.
        collate_fn: As in `coord_check`.
        held_out: A batch that is not trained on. The default is the batch that follows the first
            `steps` batches, if there is one.
        loss: As in `coord_check`.
        steps: Number of updates; the ratios are measured across each of them.
        seeds: Number of seeds, or a list of seeds.
        base: The size whose hyperparameters were tuned, or a module of that size; the default is
            the smallest size.
        plan_options: Further options of `plan`: weight_decay, depth, gauge, decay, overrides, ...
    """
    function(loss, "loss", "of output and target")
    _, sizes = read_sizes(widths=widths)
    seed_list = read_seeds(seeds)
    study = _Study(
        builder=Builder(build, "width", base, seed_list[0]),
        widths=sizes,
        settings={"rule": rule, "optimizer": optimizer, "lr": lr, **plan_options},
        steps=count(steps, "steps"),
        seeds=seed_list,
        loss=loss,
    )
    study.read_batches(batches, held_out, batch_size, collate_fn)
    with preserved():  # the measurement sets seeds
        study.read_layers()
        study.run()
    return MeasuredAlignment(study.frame(), tuple(study.notes))


class _Study:
    """The runs of one measurement."""

    def __init__(
        self,
        builder: Builder,
        widths: list[int],
        settings: dict[str, Any],
        steps: int,
        seeds: list[int],
        loss: LossInput | None,
    ):
        self.builder = builder
        self.widths = widths
        self.settings = settings  # keyword arguments of `plan`
        self.steps = steps
        self.seeds = seeds
        self.loss = loss
        self.notes: list[str] = []
        self.rows: list[tuple[object, ...]] = []
        self.batches: list[Batch] = []  # to train on
        self.observed: dict[str, Batch] = {}  # by the name of the tokens
        self.roles: dict[str, str] = {}
        self.layers: set[str] = set()
        self._family: Family | None = None

    # --- before training --------------------------------------------------------------------------

    def read_batches(
        self,
        batches: BatchesInput | None,
        held_out: BatchInput | None,
        batch_size: Count | None,
        collate_fn: CollateInput | None,
    ) -> None:
        """Take `steps` batches to train on, and one more as held-out tokens."""
        needed = self.steps + 1
        if is_batch(batches) or (isinstance(batches, Sequence) and len(batches) <= self.steps):
            needed = self.steps
        example = read_examples(batches, needed, batch_size, collate_fn)
        self.notes += example.notes
        available = example.batches
        self.batches = available[: self.steps]
        self.observed = {TRAINING: self.batches[0]}
        if len(self.batches) < self.steps:
            note = f"batches ran out after {len(self.batches)} of {self.steps} steps"
            self.notes.append(with_code(note, "too-few-batches"))
        if held_out is not None and not is_batch(held_out):
            message = (
                "held_out: expected one batch (a tensor, a dict of keyword arguments, a pair of"
                f" inputs and targets), got {type(held_out).__name__}"
            )
            raise InputError(message, "wrong-type", argument="held_out")
        other = held_out
        if other is None and len(available) > self.steps:
            other = available[self.steps]
        if other is None or any(_have_same_inputs(other, batch) for batch in self.batches):
            note = "only training tokens were measured: pass held_out=, or more batches than steps"
            self.notes.append(with_code(note, "no-held-out-tokens"))
        else:
            self.observed[HELD_OUT] = other

    def read_layers(self) -> None:
        """Find the layers of the largest model, before anything is trained."""
        if len(self.widths) * len(self.seeds) < 3:
            message = (
                "seeds: expected at least two for two widths: a line through two points has no"
                " confidence interval"
            )
            raise InputError(message, argument="seeds")
        self.smallest = model_of(self.builder.built(self.widths[0], self.seeds[0]))
        setup = self._setup(self.widths[-1], self.seeds[0])
        if not any(parameter.requires_grad for parameter in setup.model.parameters()):
            message = "build: expected a model to train, got one whose tensors are all frozen"
            raise InputError(message, "frozen-tensor", argument="build")
        if shapes_of(setup.model) == shapes_of(self.smallest):
            message = (
                "build: expected models that grow with the width, got the same shapes at every"
                " width; does build use its argument?"
            )
            raise InputError(message, "same-shapes", argument="build")
        self.roles = self._roles(setup) or self._roles(self._setup(self.widths[0], self.seeds[0]))
        self._choose_layers(setup)

    def _choose_layers(self, setup: Setup) -> None:
        """Choose the layers that can be measured, and check that they read enough tokens."""
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
            note = f"alignment not measured: no module applies only {some_of(left_over)}"
            self.notes.append(with_code(note, "layers-not-measured"))
        if not layers:
            message = (
                "build: expected modules that each apply one hidden or readout matrix, got none; if"
                " your modules do that, register their type: orderone.register(MyLinear,"
                " weight=orderone.matrix(into=1, out=0))"
            )
            raise InputError(message, "layers-not-measured", argument="build")
        self.layers = {layer.name for layer in layers}
        for tokens, tensors in inputs.items():
            for layer in layers:
                layer.check_tokens(tensors.get(layer.name), tokens)

    def _roles(self, setup: Setup) -> dict[str, str]:
        """Return the roles of tensors that grow; none if the model is the base."""
        plan = setup.plan or self._plan(setup.model)
        return {row.name: row.role for row in plan.rows if row.role != Role.FIXED}

    def _setup(self, width: int, seed: int) -> Setup:
        return read_setup(self.builder.built(width, seed), self._plan, None)

    def _plan(self, model: nn.Module) -> Plan:
        if self._family is None:  # the largest is the first to be planned
            base = self.builder.base_model(self.smallest)
            self._family = plan_family(model, base, self.batches[0], self.settings)
        return self._family.plan(model)

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
            note = f"width {width}, seed {seed}: {training.ended}"
            self.notes.append(with_code(note, "run-diverged"))

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

    # --- after training ---------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """Return the ratios as a table."""
        rule = self.settings["rule"]
        if not isinstance(rule, str):
            rule = getattr(rule, "name", "")
        provenance = {
            "rule": rule,
            "optimizer": label_of(self.settings["optimizer"]),
            "lr": self.settings["lr"],
            "widths": self.widths,
            "steps": self.steps,
            "seeds": self.seeds,
        }
        return records.table(self.rows, COLUMNS, provenance | records.VERSIONS)


def _have_same_inputs(first: Batch, second: Batch) -> bool:
    """Return whether two batches have the same inputs."""
    leaves = zip_longest(tree_leaves(call_inputs(first)), tree_leaves(call_inputs(second)))
    return all(_are_equal(x, y) for x, y in leaves)


def _are_equal(x: object, y: object) -> bool:
    if x is y:
        return True
    return isinstance(x, Tensor) and isinstance(y, Tensor) and torch.equal(x.cpu(), y.cpu())
