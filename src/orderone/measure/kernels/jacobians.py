"""Jacobians of the outputs of some examples with respect to every trainable parameter.

    f        = forward pass of one example, mapped over examples by `torch.vmap`
    delta    = df / d tap, where every z that a parameter makes is z + tap (`uses.Taps`)
    J_W      = factors from delta and the activations of the forward pass (`uses`)

One backward pass per output serves all examples and all parameters, and it computes no gradient of
a parameter. Parameters without factors are differentiated themselves, one copy per example. If
vmap cannot run the model (decisions that depend on values, writing in place, custom autograd
functions), examples run one after another.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from orderone.core.errors import InputError
from orderone.measure.kernels.examples import Examples, Select, read_output
from orderone.measure.kernels.factors import Factor, Indices, Jacobian, over_outputs
from orderone.measure.kernels.substituted import call_at
from orderone.measure.kernels.uses import Call, Survey, Taps, UnexpectedUseError
from orderone.torch_compat import set_vmap_fallback_warning

Jacobians = dict[str, list[Jacobian]]  # uses by name of the parameter
# relative differences that rounding explains
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3}
HALF_TOLERANCE = 5e-2


@dataclass(frozen=True)
class Size:
    """Work and memory of one example."""

    outputs: int
    flops: float  # of one forward pass
    graph: int  # bytes that a backward pass needs
    taps: int  # bytes of all derivatives delta of one output
    others: int  # bytes of the parameters without factors
    # bytes of the Jacobian of one output, by name of the parameter: of its factors, and of itself
    factored: Mapping[str, int]
    explicit: Mapping[str, int]
    parameters: int  # numbers
    jacobians: "Jacobians"  # of at most two outputs: their shapes tell the work of contractions


@dataclass
class Differentiable:
    """A model as a function from examples to Jacobians."""

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    select: Select | None
    others: set[str] = field(default_factory=set)  # parameters without factors
    vectorized: bool = True  # whether vmap runs the model
    _made: dict[object, list[Tensor]] = field(default_factory=dict)

    def factored(self) -> dict[int, str]:
        """Return the names of the parameters with factors, by their id."""
        return {id(p): name for name, p in self.parameters.items() if name not in self.others}

    # --- one forward pass

    def run(
        self, examples: Examples, rows: Sequence[Tensor], others: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Return the outputs of a batch."""
        args, kwargs = examples.call(rows)
        if others:
            output = call_at(self.model, others, args, kwargs)
        else:
            output = self.model(*args, **kwargs)
        return read_output(output, self.select)

    def one(
        self,
        examples: Examples,
        rows: Sequence[Tensor],
        tap: Callable[[Tensor], Tensor],
        others: Mapping[str, Tensor],
    ) -> tuple[Tensor, Taps]:
        """Return the flat outputs of one example, whose rows have no axis of examples."""
        taps = Taps(self.factored(), tap)
        with taps:
            output = self.run(examples, [row.unsqueeze(0) for row in rows], others)
        return output[0].reshape(-1), taps

    # --- many

    def tile(self, examples: Examples, which: slice) -> "Tile":
        """Run some examples, ready for backward passes."""
        rows = examples.rows(which)
        if self.vectorized:
            return self._mapped(examples, rows)
        return self._looped(examples, rows)

    def _mapped(self, examples: Examples, rows: Sequence[Tensor]) -> "Tile":
        number = rows[0].shape[0]
        shapes = self._shapes(examples, [row[0] for row in rows])
        taps = []
        for z in shapes:  # zeros that take no memory
            taps.append(z.new_zeros(()).expand(number, *z.shape).requires_grad_())
        others = self._copies(number)
        record: list[Taps] = []

        def forward(
            rows: list[Tensor], taps: list[Tensor], others: dict[str, Tensor]
        ) -> tuple[Tensor, list[Tensor]]:
            remaining = iter(taps)
            output, mode = self.one(examples, rows, lambda z: next(remaining), others)
            record.append(mode)
            return output, [read for read in mode.reads if read is not None]

        with sdpa_kernel(SDPBackend.MATH), quiet_vmap():
            output, kept = torch.vmap(forward)(list(rows), taps, others)
        [mode] = record
        present = iter(kept)
        reads = [None if read is None else next(present) for read in mode.reads]
        return Tile(output, taps, reads, mode.calls, others)

    def _looped(self, examples: Examples, rows: Sequence[Tensor]) -> "Tile":
        parts: list[Tile] = []
        for i in range(rows[0].shape[0]):
            taps: list[Tensor] = []

            def tap(z: Tensor, taps: list[Tensor] = taps) -> Tensor:
                taps.append(torch.zeros_like(z).unsqueeze(0).requires_grad_())
                return taps[-1][0]

            others = self._copies(1)
            single = {name: tensor[0] for name, tensor in others.items()}
            output, mode = self.one(examples, [row[i] for row in rows], tap, single)
            reads = [None if read is None else read.unsqueeze(0) for read in mode.reads]
            parts.append(Tile(output.unsqueeze(0), taps, reads, mode.calls, others))
        if len(parts) == 1:
            return parts[0]
        return Tile(torch.cat([part.output for part in parts]), [], [], [], {}, parts)

    def _copies(self, number: int) -> dict[str, Tensor]:
        """Return one copy per example of each parameter without factors."""
        copies: dict[str, Tensor] = {}
        for name in sorted(self.others):
            value = self.parameters[name].detach()
            copies[name] = value.expand(number, *value.shape).requires_grad_()
        return copies

    def _shapes(self, examples: Examples, rows: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors like those that need a tap."""
        key = (frozenset(self.others), *((row.shape, row.dtype) for row in rows))
        if key in self._made:
            return self._made[key]
        made: list[Tensor] = []

        def tap(z: Tensor) -> Tensor:
            made.append(z.new_empty((), dtype=z.dtype).expand(z.shape))
            return torch.zeros_like(z)

        with torch.no_grad():
            plain = {name: self.parameters[name].detach() for name in self.others}
            self.one(examples, rows, tap, plain)
        self._made[key] = made
        return made

    # --- preparation

    def prepare(self, examples: Examples) -> Size:
        """Find how parameters are used; verify it on one example, against autograd."""
        rows = [row[0] for row in examples.rows(slice(0, 1))]
        survey = Survey(self.factored())
        counter = FlopCounterMode(display=False)
        with survey, counter, torch.no_grad():
            output = self.run(examples, [row.unsqueeze(0) for row in rows])
        if output.is_complex() or not output.is_floating_point():
            raise InputError(
                f"model: expected outputs of a real floating type, got {output.dtype}",
                argument="model",
            )
        self.others |= survey.others
        self.others |= {name for name, p in self.parameters.items() if p.is_complex()}
        tile, graph = self._measured(examples, rows)
        if self._correct(examples, rows, tile):
            tile, graph = self._measured(examples, rows)
        self._choose_vmap(examples, tile)
        return self._size(tile, graph, float(counter.get_total_flops()))

    def _measured(self, examples: Examples, rows: Sequence[Tensor]) -> "tuple[Tile, int]":
        """Return one example, and the bytes that its backward pass needs."""
        saved: dict[int, int] = {}
        own = {p.untyped_storage().data_ptr() for p in self.parameters.values()}

        def pack(x: Tensor) -> Tensor:
            storage = x.untyped_storage()
            if storage.data_ptr() not in own:
                saved[storage.data_ptr()] = storage.nbytes()
            return x

        while True:
            try:
                with torch.enable_grad(), saved_tensors_hooks(pack, lambda x: x):
                    tile = self._looped(examples, [row.unsqueeze(0) for row in rows])
                return tile, sum(saved.values())
            except UnexpectedUseError as unexpected:  # the pass with gradients is another one
                self.others |= unexpected.names

    def _correct(self, examples: Examples, rows: Sequence[Tensor], tile: "Tile") -> bool:
        """Compare the gradient of a random sum of outputs with autograd, for each parameter.

        Parameters for which they differ are treated as those without factors. Return whether there
        are any.
        """
        names = [name for name in self.parameters if name not in self.others]
        if not names or not tile.output.requires_grad:
            return False
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(tile.output.shape, generator=generator).to(tile.output)
        with torch.enable_grad():
            output = self.run(examples, [row.unsqueeze(0) for row in rows]).reshape(1, -1)
            parameters = [self.parameters[name] for name in names]
            expected = torch.autograd.grad(output, parameters, weights, allow_unused=True)
        found = tile.jacobians_of(weights.unsqueeze(0))
        tolerance = TOLERANCE.get(output.dtype, HALF_TOLERANCE)
        wrong: set[str] = set()
        for name, gradient in zip(names, expected, strict=True):
            difference = torch.zeros_like(self.parameters[name]).flatten()
            if gradient is not None:
                difference = dense(gradient.detach()).flatten().clone()
            scale = difference.norm()
            for use in found.get(name, ()):
                difference -= use.values()[0, 0].to(difference.dtype)
            if not bool(difference.norm() <= tolerance * scale + 1e-30):
                wrong.add(name)
        self.others |= wrong
        return bool(wrong)

    def _choose_vmap(self, examples: Examples, first: "Tile") -> None:
        """Use vmap if it runs the model, and gives its outputs and Jacobians.

        `first` is the first example, alone.
        """
        if not self.vectorized:
            return
        which = slice(0, min(2, len(examples)))
        with torch.enable_grad():
            try:
                tile = self._mapped(examples, examples.rows(which))
            except torch.OutOfMemoryError:
                raise
            except Exception:  # vmap raises errors of many classes
                self.vectorized = False
                return
        rows = examples.rows(which)
        with torch.no_grad():
            alone = self.run(examples, rows).reshape(rows[0].shape[0], -1)
        if not _close(tile.output, alone) or not _same_gradients(tile, first):
            self.vectorized = False

    def _size(self, tile: "Tile", graph: int, flops: float) -> Size:
        taps = sum(tap.numel() * tap.element_size() for tap in tile.taps)
        reads = sum(read.numel() * read.element_size() for read in tile.reads if read is not None)
        for tensor in tile.prepared.values():
            reads += tensor.numel() * tensor.element_size()
        others = 0
        for name in self.others:
            others += self.parameters[name].numel() * self.parameters[name].element_size()
        jacobians = tile.jacobians(slice(0, 2))
        factored: dict[str, int] = {}
        explicit: dict[str, int] = {}
        for name, uses in jacobians.items():
            factors = sum(use.columns.vectors[:, :1].numel() for use in uses)
            for use in uses:
                if isinstance(use.rows, Factor) and use.rows.vectors.shape[1] > 1:
                    factors += use.rows.vectors[:, :1].numel()
            factored[name] = factors * tile.output.element_size()
            explicit[name] = self.parameters[name].numel() * tile.output.element_size()
        return Size(
            factored=factored,
            explicit=explicit,
            outputs=tile.output.shape[1],
            flops=flops,
            graph=graph + reads,
            taps=taps,
            others=others,
            parameters=sum(p.numel() for p in self.parameters.values()),
            jacobians=jacobians,
        )


def dense(gradient: Tensor) -> Tensor:
    """Return a gradient with all of its zeros; those of tables may be sparse."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def _close(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape:
        return False
    tolerance = TOLERANCE.get(expected.dtype, HALF_TOLERANCE)
    return bool((found - expected).norm() <= tolerance * expected.norm() + 1e-30)


def _same_gradients(tile: "Tile", first: "Tile") -> bool:
    """Compare the gradients of a random sum of the outputs of the first example."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(first.output.shape, generator=generator).to(first.output).unsqueeze(0)
    found = tile.jacobians_of(weights)
    expected = first.jacobians_of(weights)
    if found.keys() != expected.keys():
        return False
    for name, uses in expected.items():
        mine = torch.stack([use.values()[0] for use in found[name]]).sum(0)
        if not _close(mine, torch.stack([use.values()[0] for use in uses]).sum(0)):
            return False
    return True


@dataclass
class Tile:
    """Outputs of some examples, (examples, outputs), with what their Jacobians need."""

    output: Tensor
    taps: list[Tensor]
    reads: list[Tensor | None]
    calls: list[list[Call]]
    others: Mapping[str, Tensor]
    parts: "list[Tile] | None" = None  # examples that ran one after another
    prepared: dict[int, Tensor] = field(default_factory=dict)  # reads after their preparation

    def jacobians(self, outputs: slice, explicit: Set[str] = frozenset()) -> Jacobians:
        """Return the Jacobians of these outputs, one backward pass for each.

        Those of the parameters `explicit` are multiplied out after each pass, which keeps no delta.
        """
        number = self.output.shape[1]
        chosen = range(number)[outputs]
        seeds = torch.zeros(len(chosen), 1, number).to(self.output)
        for i, output in enumerate(chosen):
            seeds[i, 0, output] = 1
        return self.jacobians_of(seeds, explicit)

    def jacobians_of(self, seeds: Tensor, explicit: Set[str] = frozenset()) -> Jacobians:
        """Return the Jacobians of sums of outputs; `seeds` are (sums, 1 or examples, outputs)."""
        if self.parts is not None:
            return _joined([part.jacobians_of(seeds, explicit) for part in self.parts])
        if not self.output.requires_grad:
            return {}
        passes: dict[tuple[str, int], list[Jacobian]] = {}
        whole: dict[tuple[str, int], Tensor] = {}  # (examples, sums, entries)
        for i, seed in enumerate(seeds):
            for key, jacobian in self._one_pass(seed, explicit):
                if not jacobian.is_explicit or len(seeds) == 1:
                    passes.setdefault(key, []).append(jacobian)
                    continue
                values = jacobian.values()[:, 0]
                if key not in whole:
                    whole[key] = values.new_empty(len(values), len(seeds), values.shape[1])
                whole[key][:, i] = values
        found: Jacobians = {}
        for (name, _), parts in passes.items():
            found.setdefault(name, []).append(over_outputs(parts))
        for (name, _), values in whole.items():
            found.setdefault(name, []).append(Jacobian.explicit(values, values.shape[2:]))
        return found

    def _one_pass(
        self, seed: Tensor, explicit: Set[str]
    ) -> Iterator[tuple[tuple[str, int], Jacobian]]:
        """Yield the Jacobian of every use, for one sum of outputs."""
        deltas = torch.autograd.grad(
            self.output,
            [*self.taps, *self.others.values()],
            seed.expand_as(self.output),
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        place = 0
        for call, delta in zip(self.calls, deltas, strict=False):
            for use in call:
                jacobian = use.derivative(self._prepared(place, use), delta.unsqueeze(1))
                if use.name in explicit and not jacobian.is_explicit:
                    values = jacobian.values()
                    jacobian = Jacobian.explicit(values, values.shape[2:])
                yield (use.name, place), jacobian
                place += 1
        for name, gradient in zip(self.others, deltas[len(self.taps) :], strict=True):
            values = dense(gradient)
            if values.is_complex():
                values = torch.view_as_real(values)
            yield (name, place), Jacobian.explicit(values.unsqueeze(1), values.shape[1:])

    def _prepared(self, place: int, use: Call) -> Tensor | None:
        read = self.reads[place]
        if read is None or use.prepare is None:
            return read
        if place not in self.prepared:
            self.prepared[place] = use.prepare(read)
        return self.prepared[place]


class LastJacobians:
    """Jacobians of one tile; those of the last outputs stay in memory."""

    def __init__(
        self, function: Differentiable, examples: Examples, which: slice, explicit: Set[str]
    ) -> None:
        with torch.enable_grad():
            self._tile = function.tile(examples, which)
        self._explicit = explicit
        self._outputs: slice | None = None
        self._jacobians: Jacobians = {}

    def of(self, outputs: slice) -> Jacobians:
        """Return the Jacobians of these outputs."""
        if outputs != self._outputs:
            self._jacobians = {}  # before the next ones need their memory
            self._jacobians = self._tile.jacobians(outputs, self._explicit)
            self._outputs = outputs
        return self._jacobians


def _joined(parts: Sequence[Jacobians]) -> Jacobians:
    """Return the Jacobians of all parts; explicit ones where their factors differ in shape."""
    joined: Jacobians = {}
    names = dict.fromkeys(name for part in parts for name in part)
    for name in names:
        uses = [part.get(name, []) for part in parts]
        forms = {tuple(_form(use) for use in several) for several in uses}
        if len(forms) == 1:
            joined[name] = [_concatenated(several) for several in zip(*uses, strict=True)]
            continue
        like = next(use for several in uses for use in several).values()
        totals: list[Tensor] = []
        for several in uses:
            total = torch.zeros_like(like[:1])
            for use in several:
                total = total + use.values()
            totals.append(total)
        joined[name] = [Jacobian.explicit(torch.cat(totals), (like.shape[2],))]
    return joined


def _form(use: Jacobian) -> tuple[object, ...]:
    if isinstance(use.rows, Indices):
        rows = use.rows.indices
    else:
        rows = use.rows.vectors
    return type(use.rows), tuple(rows.shape[1:]), tuple(use.columns.vectors.shape[1:])


def _concatenated(uses: Sequence[Jacobian]) -> Jacobian:
    columns = Factor(torch.cat([use.columns.vectors for use in uses]))
    first = uses[0].rows
    if isinstance(first, Indices):
        indices = [use.rows.indices for use in uses if isinstance(use.rows, Indices)]
        return Jacobian(Indices(torch.cat(indices), first.size), columns)
    vectors = [use.rows.vectors for use in uses if isinstance(use.rows, Factor)]
    return Jacobian(Factor(torch.cat(vectors)), columns)


@contextmanager
def quiet_vmap() -> Iterator[Any]:
    """Do not warn about operations that vmap runs one by one."""
    set_vmap_fallback_warning(False)
    try:
        yield
    finally:
        set_vmap_fallback_warning(True)
