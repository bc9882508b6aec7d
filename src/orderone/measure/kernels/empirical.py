"""Kernels of a PyTorch model at its present parameters.

    NTK     Theta[a, b, o, p] = sum_w df_o(a)/dw df_p(b)/dw        over trained parameters w
    NNGP    K[a, b, o, p]     = f_o(a) f_p(b)

The model is any nn.Module. It runs in eval mode: no dropout, and batch norm with its running
statistics. Its parameters, buffers and modes are as before afterwards.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal, TypeAlias, overload

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError, instance
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, UserInput
from orderone.measure.kernels.costs import Costs, costs, working_memory
from orderone.measure.kernels.examples import Examples, Inputs, Select, read_examples, read_output
from orderone.measure.kernels.factors import accurate, contract
from orderone.measure.kernels.groups import Groups, SomeGroups, read_groups, trained_parameters
from orderone.measure.kernels.jacobians import (
    HALF_TOLERANCE,
    TOLERANCE,
    Differentiable,
    Jacobians,
    LastJacobians,
    Size,
)
from orderone.measure.kernels.products import ntk_by_products, products_agree
from orderone.measure.kernels.stored_tensors import without_new_tensors
from orderone.observe.batch_errors import naming_batch
from orderone.observe.batches import draws_randomly
from orderone.observe.inventory import unwrap
from orderone.observe.recomputed import without_recomputation
from orderone.observe.trace import undisturbed

Model: TypeAlias = Annotated[nn.Module, UserInput]
Outputs: TypeAlias = Annotated[Literal["all", "trace", "mean"] | int | tuple[int, ...], UserInput]
SelectInput: TypeAlias = Annotated[Select | None, UserInput]
ALL = "everything"  # the group of all parameters
TOGETHER = 4  # examples that are compared with each of them alone


@overload
def empirical_ntk(
    model: Model,
    x1: Inputs,
    x2: Inputs | None = None,
    outputs: Outputs = "trace",
    groups: None = None,
    *,
    select: SelectInput = None,
    method: Name = "auto",
    memory: Count | None = None,
) -> Tensor: ...


@overload
def empirical_ntk(
    model: Model,
    x1: Inputs,
    x2: Inputs | None = None,
    outputs: Outputs = "trace",
    *,
    groups: SomeGroups,
    select: SelectInput = None,
    method: Name = "auto",
    memory: Count | None = None,
) -> dict[str, Tensor]: ...


@overload
def empirical_ntk(
    model: Model,
    x1: Inputs,
    x2: Inputs | None,
    outputs: Outputs,
    groups: SomeGroups,
    *,
    select: SelectInput = None,
    method: Name = "auto",
    memory: Count | None = None,
) -> dict[str, Tensor]: ...


def empirical_ntk(
    model: Model,
    x1: Inputs,
    x2: Inputs | None = None,
    outputs: Outputs = "trace",
    groups: Groups = None,
    *,
    select: SelectInput = None,
    method: Name = "auto",
    memory: Count | None = None,
) -> Tensor | dict[str, Tensor]:
    """Return the neural tangent kernel of a model between the examples `x1` and `x2` (or `x1`).

    `x1` is a batch: a tensor, a dict of keyword arguments, or a tuple of positional ones.

    Args:
        outputs: "trace" sums over the outputs of an example, "mean" divides this by their number
            (as in `theory.kernels`): (x1, x2). An index selects one output, an int or one int per
            axis: (x1, x2). "all" has every pair: (x1, x2, *outputs, *outputs).
        groups: None for all parameters; a dict of patterns by name of the group, a sequence of
            patterns, or "each": then the result is a dict of kernels.
        select: function from what the model returns to the tensor of outputs, (examples, ...). The
            default is the logits, or the first tensor.
        method: "jacobian" contracts Jacobians, "products" multiplies by vectors, "auto" takes the
            cheaper one (`ntk_costs`).
        memory: bound of working memory in bytes, beside the result: 512 MiB on a CPU, 40 % of the
            free memory of a GPU.
    """
    with _problem(model, x1, x2, outputs, groups, select, method, memory) as problem:
        kernels = problem.solve()
    if groups is None:
        return kernels[ALL]
    return kernels


def ntk_costs(
    model: Model,
    x1: Inputs,
    x2: Inputs | None = None,
    outputs: Outputs = "trace",
    groups: Groups = None,
    *,
    select: SelectInput = None,
    method: Name = "auto",
    memory: Count | None = None,
) -> Costs:
    """Return what `empirical_ntk` with the same arguments would do: method, tiles, operations."""
    with _problem(model, x1, x2, outputs, groups, select, method, memory) as problem:
        return problem.costs


def empirical_nngp(
    model: Model,
    x1: Inputs,
    x2: Inputs | None = None,
    outputs: Outputs = "trace",
    *,
    select: SelectInput = None,
    batch: Count = 128,
) -> Tensor:
    """Return the empirical NNGP kernel, the products f(x1) f(x2) of the outputs of examples.

    `outputs` and `select` are those of `empirical_ntk`. `batch` examples run at a time.
    """
    batch = count(batch, "batch")
    model = unwrap(instance(model, nn.Module, "model", "pass a PyTorch model"))
    with without_new_tensors(model), undisturbed(model), torch.no_grad():
        left = read_examples(x1, model, "x1")
        mine, shape = _outputs_of(model, left, select, batch)
        theirs = mine
        if x2 is not None:
            theirs, _ = _outputs_of(model, read_examples(x2, model, "x2"), select, batch)
        reading = read_outputs(outputs, shape)
        if not reading.trace:
            product = torch.einsum("ao,bp->abop", mine, theirs)
            return product.reshape(*product.shape[:2], *shape, *shape)
        chosen = list(reading.chosen)
        return mine[:, chosen] @ theirs[:, chosen].T / reading.divisor


def _outputs_of(
    model: nn.Module, examples: Examples, select: Select | None, batch: int
) -> tuple[Tensor, torch.Size]:
    """Return flat outputs of all examples, and the shape of those of one."""
    parts: list[Tensor] = []
    shape = torch.Size()
    for first in range(0, len(examples), batch):
        rows = examples.rows(slice(first, first + batch))
        output = _run(model, examples, rows, select)
        shape = output.shape[1:]
        if first == 0:
            _check_alone(model, examples, rows, output, select)
        parts.append(accurate(output.reshape(output.shape[0], -1)))
    return torch.cat(parts), shape


@dataclass(frozen=True)
class Reading:
    """Outputs that a kernel is about."""

    chosen: range  # of the flat outputs
    trace: bool  # summed over them
    divisor: int


def read_outputs(outputs: object, shape: torch.Size) -> Reading:
    """Return the outputs that a user asks for, among those of `shape`."""
    number = prod(shape)
    if outputs == "all":
        return Reading(range(number), False, 1)
    if outputs == "trace":
        return Reading(range(number), True, 1)
    if outputs == "mean":
        return Reading(range(number), True, number)
    index = outputs if isinstance(outputs, tuple) else (outputs,)
    known = len(index) == len(shape)
    flat = 0
    for i, size in zip(index, shape, strict=False):
        if isinstance(i, bool) or not isinstance(i, int) or not -size <= i < size:
            known = False
            break
        flat = flat * size + i % size
    if not known:
        raise InputError(
            'outputs: expected "all", "trace", "mean", or an index of one output; an example has'
            f" outputs of shape {tuple(shape)}, got {outputs!r}; to use a part of them, pass"
            " select=lambda output: ...",
            argument="outputs",
        )
    return Reading(range(flat, flat + 1), True, 1)


# --- one problem ----------------------------------------------------------------------------------


@dataclass
class _Problem:
    function: Differentiable
    left: Examples
    right: Examples
    shape: torch.Size
    reading: Reading
    groups: dict[str, list[str]]
    size: Size
    costs: Costs
    method: str  # that the user asked for

    @property
    def symmetric(self) -> bool:
        return self.left is self.right

    def solve(self) -> dict[str, Tensor]:
        kernels = None
        if self.costs.method == "products":
            kernels = self._by_products()
        if kernels is None:
            kernels = self._by_jacobians()
        return {group: self._shaped(kernel) for group, kernel in kernels.items()}

    def _shaped(self, kernel: Tensor) -> Tensor:
        if self.reading.trace:
            return kernel / self.reading.divisor
        return kernel.reshape(*kernel.shape[:2], *self.shape, *self.shape)

    def _by_products(self) -> dict[str, Tensor] | None:
        """Return the kernels; None if products do not work for this model and nobody asked."""
        names = list(self.function.parameters)
        if not products_agree(self.function, self.right, names):
            if self.method == "auto":
                return None
            raise InputError(
                'method: "products" differentiates a backward pass, which is not possible for this'
                ' model; use method="jacobian"',
                "products-not-exact",
                argument="method",
            )
        kernels: dict[str, Tensor] = {}
        for group, names in self.groups.items():
            full = ntk_by_products(
                self.function,
                self.left,
                self.right,
                self.reading.chosen,
                names,
                self.costs.tile,
                self.costs.chunk,
            )
            if self.reading.trace:
                full = full.diagonal(dim1=2, dim2=3).sum(-1)
            kernels[group] = full
        return kernels

    def _by_jacobians(self) -> dict[str, Tensor]:
        outputs = len(self.reading.chosen)
        shape = (len(self.left), len(self.right))
        if not self.reading.trace:
            shape = (*shape, outputs, outputs)
        parameter = next(iter(self.function.parameters.values()))
        like = accurate(parameter.detach()).real
        kernels = {group: like.new_zeros(shape) for group in self.groups}
        explicit = self.costs.explicit
        left = right = None
        for rows in _slices(len(self.left), self.costs.tile):
            if left is None or not self.symmetric:
                left = LastJacobians(self.function, self.left, rows, explicit)
            for columns in self._columns(rows):
                right = None  # before the next tile needs its memory
                if self.symmetric and columns == rows:
                    right = left
                else:
                    right = LastJacobians(self.function, self.right, columns, explicit)
                for mine, theirs in self._chunks():
                    mine_jacobians = left.of(mine)
                    self._add(
                        kernels, rows, columns, mine, theirs, mine_jacobians, right.of(theirs)
                    )
            left = right  # if symmetric, the last columns are the next rows
        if self.symmetric:
            for kernel in kernels.values():
                self._mirror(kernel)
        return kernels

    def _columns(self, rows: slice) -> list[slice]:
        """Return the columns for these rows; if symmetric, the next rows are the last columns."""
        columns = list(_slices(len(self.right), self.costs.tile))
        if not self.symmetric:
            return columns
        later = [part for part in columns if part.start > rows.start]
        return [rows, *reversed(later)]

    def _chunks(self) -> Iterator[tuple[slice, slice]]:
        chosen = self.reading.chosen
        slices = [
            slice(chosen.start + part.start, chosen.start + part.stop)
            for part in _slices(len(chosen), self.costs.chunk)
        ]
        for mine in slices:
            for theirs in (mine,) if self.reading.trace else slices:
                yield mine, theirs

    def _add(
        self,
        kernels: dict[str, Tensor],
        rows: slice,
        columns: slice,
        mine: slice,
        theirs: slice,
        left: Jacobians,
        right: Jacobians,
    ) -> None:
        """Add the inner products of all parameters to the kernels of their groups."""
        for name, uses in left.items():
            others = right.get(name)
            groups = [group for group, names in self.groups.items() if name in names]
            if others is None or not groups:
                continue
            product = contract(uses, others, self.reading.trace)
            for group in groups:
                if self.reading.trace:
                    kernels[group][rows, columns] += product
                else:
                    kernels[group][rows, columns, mine, theirs] += product.permute(0, 2, 1, 3)

    def _mirror(self, kernel: Tensor) -> None:
        """Fill the tiles below the diagonal, which were not computed."""
        for rows in _slices(len(self.left), self.costs.tile):
            above = kernel[: rows.start, rows]
            if self.reading.trace:
                kernel[rows, : rows.start] = above.transpose(0, 1)
            else:
                kernel[rows, : rows.start] = above.permute(1, 0, 3, 2)


def _slices(number: int, step: int) -> Iterator[slice]:
    for first in range(0, number, step):
        yield slice(first, min(number, first + step))


@contextmanager
def _problem(
    model: Model,
    x1: Inputs,
    x2: Inputs | None,
    outputs: Outputs,
    groups: Groups,
    select: Select | None,
    method: Name,
    memory: Count | None,
) -> Iterator[_Problem]:
    """Read the arguments and look at the model, which is in eval mode in the meantime."""
    model = unwrap(instance(model, nn.Module, "model", "pass a PyTorch model"))
    check_tables(model)
    parameters = trained_parameters(model)
    table = {ALL: list(parameters)} if groups is None else read_groups(groups, parameters)
    wanted = {name for names in table.values() for name in names}
    parameters = {name: p for name, p in parameters.items() if name in wanted}
    device = next(iter(parameters.values())).device
    bound = working_memory(memory, device)
    with without_new_tensors(model), undisturbed(model), without_recomputation():
        left = read_examples(x1, model, "x1")
        right = left if x2 is None else read_examples(x2, model, "x2")
        shape = _checked(model, left, select)
        if right is not left:
            _check_same_outputs(shape, _checked(model, right, select))
        reading = read_outputs(outputs, shape)
        function = Differentiable(model, parameters, select)
        size = function.prepare(left)
        numbers = len(left), len(right)
        chosen = len(reading.chosen)
        choice = costs(
            size,
            numbers,
            chosen,
            reading.trace,
            len(table),
            bound,
            method,
            symmetric=right is left,
        )
        yield _Problem(function, left, right, shape, reading, table, size, choice, method)


def check_tables(model: nn.Module) -> None:
    """Raise an InputError for tables whose rows are no parameters of a fixed function."""
    for name, module in model.named_modules():
        if getattr(module, "scale_grad_by_freq", False):
            raise InputError(
                f"model: expected gradients that do not depend on the batch, got {name!r} with"
                " scale_grad_by_freq=True; set it to False",
                "examples-not-independent",
                argument="model",
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise InputError(
                f"model: expected a forward pass that does not write into parameters, got {name!r}"
                " with max_norm; set it to None",
                argument="model",
            )


def _run(
    model: nn.Module, examples: Examples, rows: Sequence[Tensor], select: Select | None
) -> Tensor:
    args, kwargs = examples.call(rows)
    with naming_batch("inputs", [*args, *kwargs.values()], model):
        found = model(*args, **kwargs)
    output = read_output(found, select)
    if output.dim() == 0 or output.shape[0] != rows[0].shape[0]:
        raise InputError(
            f"model: expected outputs with one row for each of {rows[0].shape[0]} examples, got the"
            f" shape {tuple(output.shape)}; pass select=lambda output: ... to arrange them",
            argument="select",
        )
    return output


def _equal(found: Tensor, alone: Tensor) -> bool:
    if found.shape != alone.shape:
        return False
    if not found.is_floating_point() or not bool(torch.isfinite(alone).all()):
        return True
    tolerance = TOLERANCE.get(alone.dtype, HALF_TOLERANCE)
    return bool((found - alone).norm() <= tolerance * alone.norm() + 1e-30)


@torch.no_grad()
def _check_same_outputs(left: torch.Size, right: torch.Size) -> None:
    if left != right:
        raise InputError(
            f"x2: expected examples whose outputs have the shape of those of x1, {tuple(left)}",
            argument="x2",
        )


def _checked(model: nn.Module, examples: Examples, select: Select | None) -> torch.Size:
    """Return the shape of the outputs of one example; refuse models that are no function of it."""
    rows = examples.rows(slice(0, TOGETHER))
    together = _run(model, examples, rows, select)
    _check_alone(model, examples, rows, together, select)
    return together.shape[1:]


def _check_alone(
    model: nn.Module,
    examples: Examples,
    rows: Sequence[Tensor],
    together: Tensor,
    select: Select | None,
) -> None:
    """Raise an InputError if examples alone have other outputs than `together`."""
    same = True
    for i in range(min(len(together), TOGETHER)):
        alone = _run(model, examples, [row[i : i + 1] for row in rows], select)
        same = same and _equal(together[i : i + 1], alone)
    if same:
        return
    args, kwargs = examples.call(rows)
    if draws_randomly(model, kwargs or tuple(args)):
        raise InputError(
            "model: expected outputs that depend on the inputs only, got a model that draws random"
            " numbers in eval mode; switch this off",
            "examples-not-independent",
            argument="model",
        )
    raise InputError(
        "model: expected examples that do not influence each other, got another output for an"
        " example alone than in a batch; a kernel needs a function of one example",
        "examples-not-independent",
        argument="model",
    )
