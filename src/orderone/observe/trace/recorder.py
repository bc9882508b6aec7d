"""`trace`: run a model once and record every operation as a step.

The pass runs in eval mode and without gradients, under a dispatch mode that receives every aten
operation, whatever Python code called it. Buffers, modes and random state are restored afterwards.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from orderone.observe.derivatives import without_gradients
from orderone.observe.trace.facts import Constant, Trace, Use
from orderone.observe.trace.graph import Graph
from orderone.observe.trace.operations import (
    ADDITIONS,
    BENDS,
    CONTRACTIONS,
    JOINS,
    LINEAR,
    LOOKUPS,
    MOVES,
    OVERWRITES,
    READ_NO_ENTRY,
    ROOTS,
    SOFTMAXES,
)
from orderone.observe.trace.parameter_views import (
    derived,
    dims_after_index,
    is_spread,
    memory,
    place_of,
    read_number,
    tensors_in,
    weights_of_view,
)
from orderone.observe.trace.steps import Level, Operation, Step, Value, is_of
from orderone.observe.trace.terms import scaled_terms
from orderone.seeding import seeded
from orderone.torch_compat import (
    OpOverload,
    TorchDispatchMode,
    buffer_registry,
    operator_schema,
    tree_map,
)

Inputs = Mapping[str, object] | Sequence[object] | Tensor


def trace(model: nn.Module, inputs: Inputs) -> Trace:
    """Run one forward pass and return how it uses the parameters.

    `inputs` is one tensor, a sequence of positional arguments, or a mapping of keyword arguments.
    """
    args, kwargs = call_with(inputs)
    recorder = Recorder(dict(model.named_parameters()), (args, kwargs))
    with (
        undisturbed(model),
        without_gradients(model),
        _reporting_inputs(model, recorder),
        _reporting_modules(model, recorder),
        recorder,
        WholeAttention(recorder),
    ):
        outputs = model(*args, **kwargs)
    graph = Graph(recorder.steps)
    output_values = recorder.values_of(outputs)
    all_outputs = recorder.values_of(outputs, least=1)
    scores, score_sums = graph.scores()
    return Trace(
        uses={name: tuple(uses) for name, uses in recorder.uses.items()},
        constants=(*recorder.scaled_parameters, *graph.constants()),
        scores=scores,
        branches=graph.branches(score_sums),
        carriers=graph.carriers(),
        parallel=graph.parallel_lists(recorder.used_at),
        normalized=graph.normalized_matrices(),
        data_readers=graph.data_readers(),
        at_output=graph.makers_of(output_values),
        readouts=graph.readouts(output_values),
        last_makers=graph.last_makers(all_outputs),
        output_makers=graph.output_makers(all_outputs),
        summed=tuple(recorder.summed),
        terms=scaled_terms(graph, output_values),
        generated=graph.generated_matrices(),
        outside=frozenset(recorder.outside),
    )


@contextmanager
def _reporting_modules(model: nn.Module, recorder: "Recorder") -> Iterator[None]:
    """Let the recorder know which parameters belong to the modules that run at the moment.

    Code may use the weight of a module without calling it. A hook of the module then does nothing.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    handles: list[RemovableHandle] = []
    for module in model.modules():
        held = Counter(names[id(parameter)] for parameter in module.parameters(recurse=False))
        if not held:
            continue

        def enter(_module: nn.Module, _args: object, held: Counter[str] = held) -> None:
            recorder.running += held

        def leave(
            _module: nn.Module, _args: object, _output: object, held: Counter[str] = held
        ) -> None:
            recorder.running -= held

        handles.append(module.register_forward_pre_hook(enter))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _reporting_inputs(model: nn.Module, recorder: "Recorder") -> Iterator[None]:
    """Let the recorder see the inputs of layers: modules with parameters and without children.

    The calls of layers with one matrix are noted, too.
    """
    handles: list[RemovableHandle] = []
    for name, module in model.named_modules():
        parameters = list(module.parameters(recurse=False))
        if list(module.children()) or not parameters:
            continue
        handles.append(module.register_forward_pre_hook(recorder.note_input))
        if name and sum(parameter.ndim > 1 for parameter in parameters) == 1:
            handles.append(module.register_forward_pre_hook(recorder.enter(name)))
            handles.append(module.register_forward_hook(recorder.leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def call_with(inputs: Inputs) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the positional and the keyword arguments of a call on `inputs`."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return ((), dict(inputs))
    return (tuple(inputs), {})


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Switch to eval mode, with the attention fast path off, which hides its operations.

    Modes, buffers, tables with max_norm, which is applied to the table itself, and random state are
    restored afterwards.
    """
    before: list[tuple[nn.Module, bool, dict[str, Tensor | None]]] = []
    for module in model.modules():
        before.append((module, module.training, dict(buffer_registry(module))))
    changing = [*model.buffers(), *_tables_with_a_bound(model)]
    contents = [(tensor, tensor.detach().clone()) for tensor in changing]
    devices = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    fastpath = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        model.eval()
        with seeded(0, devices):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        for module, training, buffers in before:
            module.training = training
            buffer_registry(module).clear()
            buffer_registry(module).update(buffers)
        with torch.no_grad():
            for tensor, content in contents:
                tensor.copy_(content)


def _tables_with_a_bound(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            yield module.weight


# --- recording ------------------------------------------------------------------------------------


class Recorder(TorchDispatchMode):
    """A dispatch mode that records every operation of a forward pass as a step."""

    def __init__(self, parameters: Mapping[str, Tensor], inputs: object):
        super().__init__()
        self.steps: list[Step] = []
        self.uses: dict[str, dict[Use, None]] = {name: {} for name in parameters}
        self.used_at: dict[str, list[int]] = {name: [] for name in parameters}
        self.running: Counter[str] = Counter()  # parameters of the modules that run
        self.outside: set[tuple[str, str]] = set()  # uses by code outside of these modules
        self.scaled_parameters: list[Constant] = []
        self.summed: list[int] = []  # sizes that products of activations are summed over
        # factors of those that are made by a multiplication, by the id of the product
        self.factors: dict[int, float | None] = {}
        self.paused = False
        self.layers: list[str] = []  # layers with one matrix whose calls have not ended
        self.called: Counter[str] = Counter()  # how often each of them was called
        self.values: dict[int, Value] = {}  # by the id of the tensor
        self.sharing: dict[int, list[Value]] = {}  # by the memory the tensor is in
        for name, parameter in parameters.items():
            axes = tuple((axis,) for axis in range(parameter.ndim))
            level = Level.PARAMETER
            if parameter.numel() == 1 and not parameter.requires_grad:
                level = Level.CONSTANT  # a number that is kept as a parameter, such as a scale
            self._remember(Value(parameter, level, weights={name: axes}))
        for tensor in tensors_in(inputs):
            self._remember(self._made(Step("stop", fed=True), [], tensor))

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        schema = operator_schema(func)
        arguments = _arguments(schema, args, kwargs)
        written = _written(schema, arguments)
        name = schema.name.removeprefix("aten::")
        if written:
            name = name.removesuffix("_")
        if name in OVERWRITES:
            arguments.pop("self", None)
        operands: list[Value] = []
        if name not in READ_NO_ENTRY:
            operands = [self._value(x) for x in tensors_in(arguments)]
        out = func(*args, **kwargs)

        def repeat(replaced: Callable[[Tensor], Tensor]) -> object:
            return func(*_with_tensors(replaced, args), **_with_tensors(replaced, kwargs))

        self.record(Operation(name, arguments, operands, tensors_in(out), repeat), written)
        return out

    # --- tensors

    def _remember(self, value: Value) -> None:
        self.values[id(value.tensor)] = value
        neighbours = self.sharing.setdefault(memory(value.tensor), [])
        neighbours[:] = [v for v in neighbours if v.tensor is not value.tensor] + [value]

    def _value(self, tensor: Tensor) -> Value:
        if id(tensor) not in self.values:
            # a parameter's .data is created without a dispatched operation
            owner = self._owner(tensor)
            value = Value(tensor)
            if owner is not None:
                weights = weights_of_view(tensor, owner)
                value = Value(tensor, Level.PARAMETER, weights=weights, owner=owner)
            self._remember(value)
        return self.values[id(tensor)]

    def values_of(self, outputs: object, least: int = 2) -> list[Value]:
        """Return the tensors with at least two entries in the result of the pass, so not a loss."""
        values: list[Value] = []
        for tensor in tensors_in(outputs):
            if tensor.numel() >= least and id(tensor) in self.values:
                values.append(self.values[id(tensor)])
        return values

    def enter(self, name: str) -> Callable[[nn.Module, object], None]:
        """Return a hook that notes the call of a layer."""

        def hook(layer: nn.Module, args: object) -> None:
            self.layers.append(name)
            self.called[name] += 1

        return hook

    def leave(self, layer: nn.Module, args: object, output: object) -> None:
        """Note the end of a layer's call."""
        self.layers.pop()

    def note_input(self, layer: nn.Module, args: tuple[object, ...]) -> None:
        """Record that the entries of a parameter become activations: a layer reads it as its input.

        Learned queries are such an input. A product of parameters without a layer, as in W + B A,
        makes a weight.
        """
        tensor = args[0] if args else None
        if not isinstance(tensor, Tensor) or not self._value(tensor).is_weight:
            return
        uses = [(name, Use("table")) for name in self._value(tensor).weights]
        made = self._made(Step("pass", [], uses), [], tensor)
        self._remember(replace(made, tensor=tensor, level=Level.ACTIVATION))

    def _owner(self, tensor: Tensor) -> Value | None:
        """Return the parameter, or copy of one, that owns the memory of `tensor`."""
        for value in self.sharing.get(memory(tensor), ()):
            if value.is_weight:
                return value.owner or value
        return None

    def record(self, operation: Operation, written: Sequence[Tensor] = ()) -> None:
        """Record an operation; `written` are the tensors that it writes to."""
        written_ids = {id(tensor) for tensor in written}
        new = [tensor for tensor in operation.results if id(tensor) not in written_ids]
        outputs = [*written, *new]
        if not outputs or not (operation.live or written):
            return
        if operation.live:
            step = self._step(operation)
            made = self._made(step, operation.live, outputs[0])
        else:
            step = Step("stop")
            made = Value(written[0])  # overwritten by a constant
        for tensor in outputs:
            value = replace(made, tensor=tensor)
            if made.is_weight:
                value.owner = self._owner(tensor)
                value.weights = step.weights or derived(operation, tensor, value.owner)
                value.spread = is_spread(operation, tensor)
            if id(tensor) in written_ids:
                self._rewrite_around(value)
            self._remember(value)

    def _rewrite_around(self, new: Value) -> None:
        """Update the values that share memory with a tensor that was written to.

        Larger tensors in the same memory change with a view, the views next to it do not.
        """
        for value in self.sharing.get(memory(new.tensor), ()):
            if value.is_weight or new.step is None or value.tensor is new.tensor:
                continue
            if place_of(value.tensor) == place_of(new.tensor):
                value.level = new.level
                value.step = new.step
            elif value.tensor.numel() > new.tensor.numel():
                both = _inputs(value, new)
                merged = self._made(Step("pass", both), both, value.tensor)
                value.level = merged.level
                value.step = merged.step

    # --- steps

    @property
    def _layer(self) -> str:
        return self.layers[-1] if self.layers else ""

    def _made(self, step: Step, operands: Iterable[Value], tensor: Tensor) -> Value:
        """Add a step and return the value that it makes out of `operands`."""
        operands = [*operands, *step.flow]
        parents = [self.steps[v.step] for v in operands if v.step is not None]
        level = Level.DATA
        if step.kind == "weights":
            level = Level.PARAMETER
        elif step.uses or any(value.level >= Level.PARAMETER for value in operands):
            level = Level.ACTIVATION
        if step.kind == "weights" and not parents:
            return Value(tensor, level)
        for parent in parents:
            step.ancestors |= parent.ancestors
            step.fed |= parent.fed
        step.ancestors |= 1 << len(self.steps)
        step.layer = self._layer
        # an operation in place gives its value another step later
        step.flow = [replace(value) for value in step.flow]
        step.parents = tuple(v.step for v in step.flow if v.step is not None)
        for name, use in step.uses:
            self.uses[name][use] = None
            self.used_at[name].append(len(self.steps))
            if not self.running[name]:
                self.outside.add((name, use.kind))
        self.steps.append(step)
        return Value(tensor, level, len(self.steps) - 1)

    def _step(self, operation: Operation) -> Step:
        name = operation.name
        if name in CONTRACTIONS:
            return self._contraction(operation)
        if name.endswith("convolution"):
            return self._convolution(operation)
        if name.endswith(("layer_norm", "rms_norm", "group_norm")) or "batch_norm" in name:
            return self._norm(operation)
        if name in LOOKUPS and self._table(operation).is_weight:
            return self._lookup(operation)
        if name in ("mul", "div") and operation.arguments.get("rounding_mode") is None:
            return self._scaling(operation)
        if name in ("add", "sub"):
            return self._sum(operation)
        if "scaled_dot_product" in name:
            return self._attention(operation)
        if name in ("sum", "mean"):
            self._note_summed_products(operation)
        if name == "sum":
            return self._dot_product(operation) or self._other(operation)
        return self._other(operation)

    def _note_summed_products(self, operation: Operation) -> None:
        """Note the sizes over which an operation sums products of activations."""
        value = self._value(operation.arguments["self"])
        if value.step is None or self.steps[value.step].kind != "product":
            return
        dims = operation.arguments.get("dim") or range(value.tensor.ndim)
        self.summed += [value.tensor.shape[dim] for dim in dims]

    def _optional(self, operation: Operation, name: str | None) -> Value | None:
        if name is None:
            return None
        tensor = operation.arguments.get(name)
        if isinstance(tensor, Tensor):
            return self._value(tensor)
        return None

    def _optional_uses(
        self, operation: Operation, argument: str, kind: str
    ) -> list[tuple[str, Use]]:
        value = self._optional(operation, argument)
        if value is None:
            return []
        return value.used(kind)

    def _contraction(self, operation: Operation) -> Step:
        """Return the last of the steps that make up alpha left.right + beta bias."""
        bias_name, left, right, left_dim, right_dim = CONTRACTIONS[operation.name]
        left = self._value(operation.arguments[left])
        right = self._value(operation.arguments[right])
        bias = self._optional(operation, bias_name)
        alpha = operation.arguments.get("alpha", 1)
        beta = operation.arguments.get("beta", 1)
        if right.tensor.ndim <= 1:
            right_dim = -1
        step = multiplied(left, right, left_dim, right_dim)
        if step.kind == "contraction":
            self.summed.append(left.tensor.shape[left_dim])
        if step.kind == "matrix" and operation.results[0].ndim:
            step.features = operation.results[0].shape[-1]
        if alpha == 1 and (bias is None or step.kind == "weights"):
            return step
        if alpha == 1 and bias is not None and bias.is_weight and step.kind == "matrix":
            step.uses += bias.used("shift")
            return step
        product = self._times(self._made(step, [left, right], operation.results[0]), alpha)
        if bias is None or beta == 0 or bias.level == Level.CONSTANT:
            return Step("pass", [product])
        if bias.is_weight:
            return Step("shift", [product], bias.used("shift"))
        return Step("add", [self._times(bias, beta), product])

    def _times(self, value: Value, factor: int | float) -> Value:
        if factor == 1 or not value.is_input:
            return value
        return self._made(Step("constant", [value], factor=float(factor)), [value], value.tensor)

    def _convolution(self, operation: Operation) -> Step:
        weight = self._value(operation.arguments["weight"])
        if not weight.is_weight:
            return self._other(operation)
        if operation.arguments.get("transposed"):
            channels = 0
        else:
            channels = 1
        dims = [channels, *range(2, weight.tensor.ndim)]
        uses = weight.summed("convolution", dims)
        uses += self._optional_uses(operation, "bias", "shift")
        return Step("convolution", operation.inputs, uses)

    def _norm(self, operation: Operation) -> Step:
        uses = self._optional_uses(operation, "weight", "gain")
        uses += self._optional_uses(operation, "bias", "shift")
        return Step("norm" if uses else "normalized", operation.inputs, uses)

    def _table(self, operation: Operation) -> Value:
        if "embedding" in operation.name:
            argument = "weight"
        else:
            argument = "self"
        return self._value(operation.arguments[argument])

    def _lookup(self, operation: Operation) -> Step:
        """Return the step of a lookup by integers.

        Selecting whole matrices (the experts of each token) is no lookup: a later product uses
        them.
        """
        table = self._table(operation)
        if operation.name != "index":
            return Step("lookup", uses=table.used("lookup"))
        indices = operation.arguments["indices"]
        indexed: list[int] = []
        has_mask = False
        for dim, index in enumerate(indices):
            if index is not None:
                indexed.append(dim)
                has_mask |= index.dtype in (torch.bool, torch.uint8)
        whole = [d for d, size in enumerate(table.tensor.shape) if d not in indexed and size > 1]
        if len(whole) < 2 and not has_mask:
            return Step("lookup", uses=table.used("lookup"))
        weights = {
            name: dims_after_index(dims, indexed, indices) for name, dims in table.weights.items()
        }
        return Step("weights", weights=weights)

    def _scaling(self, operation: Operation) -> Step:
        left = operation.arguments["self"]
        right = operation.arguments["other"]
        if self._is_number(right):
            value = self._value(left)
            number = read_number(right)
        elif self._is_number(left) and operation.name == "mul":
            value = self._value(right)
            number = read_number(left)
        else:
            return self._elementwise_product(operation, self._value(left), self._value(right))
        if not value.is_float:
            return self._other(operation)
        factor = number
        if operation.name == "div" and number:
            factor = 1 / number
        if value.is_weight:
            names = tuple(value.weights)
            is_own = len(names) == 1 and is_of(names[0], self._layer)
            inner = is_own and self.called[self._layer] == 1  # later calls repeat it
            self.scaled_parameters.append(Constant(factor, names, (), inner=inner))
            self.factors[id(operation.results[0])] = factor
            return Step("weights")
        return Step("constant", [value], factor=factor, size=self._normalized_size(value))

    def _normalized_size(self, value: Value) -> float:
        """Return the RMS of the output of a normalization or softmax, and 1 for other values.

        A gain may follow a division by the length: `g * normalize(x)` starts like n^-1/2, too.
        """
        if value.tensor.is_meta or value.step is None:
            return 1.0
        step = self.steps[value.step]
        while step.kind in ("pass", "shift") and len(step.parents) == 1:
            step = self.steps[step.parents[0]]
        has_gain = step.kind == "norm" and step.gain is not None
        if step.kind not in ("normalized", "softmax") and not has_gain:
            return 1.0
        return float(value.tensor.detach().square().mean().sqrt()) or 1.0

    def _is_number(self, x: object) -> bool:
        if not isinstance(x, Tensor):
            return isinstance(x, int | float)
        return x.numel() == 1 and self._value(x).level == Level.CONSTANT and not x.is_complex()

    def _elementwise_product(self, operation: Operation, left: Value, right: Value) -> Step:
        inputs = _inputs(left, right)
        if not inputs:
            return Step("weights")
        if operation.name == "div" and not left.is_input:
            return self._other(operation)
        for value in (left, right):
            if value.is_weight:
                if self._is_normalized(inputs[0]):
                    kind = "norm"
                else:
                    kind = "gain"
                step = Step(kind, inputs, value.used("gain"), gain=value)
                step.scaled_gain = id(value.tensor) in self.factors
                step.factor = self.factors.get(id(value.tensor), 1.0)
                return step
        others = [value for value in inputs if not self._is_statistic(value)]
        if len(inputs) == 2 and len(others) < 2:
            return Step("normalized", others)
        learned = _activations(inputs)
        if len(learned) < 2:
            return Step("weighting", learned or inputs)
        if operation.name == "div":
            learned = learned[:1]
        return Step("product", learned)

    def _is_statistic(self, value: Value) -> bool:
        return value.step is not None and self.steps[value.step].statistic

    def _is_normalized(self, value: Value) -> bool:
        if value.step is None:
            return False
        step = self.steps[value.step]
        while step.kind in ("pass", "constant") and len(step.parents) == 1:
            step = self.steps[step.parents[0]]
        return step.kind == "normalized"

    def _sum(self, operation: Operation) -> Step:
        left = self._optional(operation, "self")
        right = self._optional(operation, "other")
        if left is None or right is None:
            return self._other(operation)
        inputs = _inputs(left, right)
        if not inputs or not all(value.is_float for value in inputs):
            return self._other(operation)
        uses = left.used("shift") + right.used("shift")
        right = self._times(right, operation.arguments.get("alpha", 1))
        inputs = _inputs(left, right)
        kind = "pass"
        if uses:
            kind = "shift"
        elif len(inputs) == 2:
            kind = "add"
        return Step(kind, inputs, uses)

    def _dot_product(self, operation: Operation) -> Step | None:
        """Return the step of `(x * weight).sum(-1)`: a product that sums over axes of the weight.

        None if the sum is over other axes, or of something else.
        """
        value = self._value(operation.arguments["self"])
        if value.step is None or self.steps[value.step].gain is None:
            return None
        before = self.steps[value.step]
        weight = before.gain
        assert weight is not None
        ndim = value.tensor.ndim
        dims = operation.arguments.get("dim")
        dims = [dim % ndim for dim in dims] if dims else range(ndim)
        first = ndim - weight.tensor.ndim  # the dimensions in front are broadcast
        of_weight = [d - first for d in dims if d >= first and weight.tensor.shape[d - first] > 1]
        uses = weight.summed("matrix", of_weight)
        if not of_weight or any(use.fan_in is None for _, use in uses):
            return None
        self._replace_uses(before)
        result = operation.results[0]
        return Step("matrix", [], uses, features=result.shape[-1] if result.ndim else 1)

    def _replace_uses(self, step: Step) -> None:
        """Take back the uses of a step: another step turns out to be the use."""
        taken = step.uses
        step.uses = []
        for name, use in taken:
            if not any((name, use) in other.uses for other in self.steps):
                self.uses[name].pop(use, None)

    def _attention(self, operation: Operation) -> Step:
        query = self._value(operation.arguments["query"])
        key = self._value(operation.arguments["key"])
        value = self._value(operation.arguments["value"])
        head_size = query.tensor.shape[-1]
        scale = operation.arguments.get("scale")
        step = Step("attention", _inputs(value), operation.other_uses)
        step.factor = head_size**-0.5 if scale is None else float(scale)
        if query.step is not None and key.step is not None:
            step.product = (query.step, key.step, head_size)
        return step

    def _other(self, operation: Operation) -> Step:
        name = operation.name
        live = operation.live
        inputs = operation.inputs
        if all(value.is_weight for value in live):
            return Step("weights")
        if "rnn" in name or name in ("lstm", "gru"):
            return Step("stop", inputs, _recurrent_uses(live))
        memories = {memory(value.tensor) for value in live}
        is_view = any(memory(result) in memories for result in operation.results)
        kind = "stop"
        if name in SOFTMAXES:
            kind = "softmax"
        elif name == "tanh":
            kind = "softcap"
        elif name in LINEAR or name in ("add", "sub") or is_view:
            kind = "pass"
        uses = operation.other_uses
        if kind == "pass" and name in JOINS:
            # tokens that are learned: a class token, registers, latents
            uses = [(name, Use("table")) for name, _ in uses]
        rooted = name in ROOTS or (
            name == "pow" and operation.arguments.get("exponent") in (0.5, -0.5)
        )
        preserves = kind == "pass" or name in ("reciprocal", "clamp", "clamp_min", "maximum")
        statistic = rooted or (preserves and len(inputs) == 1 and self._is_statistic(inputs[0]))
        if is_view or name in MOVES:
            move = operation.repeat
        else:
            move = None
        bends = name in BENDS or (name in ADDITIONS and _adds_a_number(operation))
        squares = name == "pow" and operation.arguments.get("exponent") == 2
        return Step(
            kind, inputs, uses, bends=bends, statistic=statistic, squares=squares, move=move
        )


def _arguments(
    schema: torch.FunctionSchema, args: Iterable[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """Return the arguments of a call by name: defaults, then those that were passed."""
    arguments: dict[str, object] = {}
    for argument in schema.arguments:
        if argument.has_default_value():
            arguments[argument.name] = argument.default_value
    for argument, value in zip(schema.arguments, args, strict=False):
        arguments[argument.name] = value
    arguments.update(kwargs)
    return arguments


def _adds_a_number(operation: Operation) -> bool:
    """Return whether the other operand of a sum has no parameter or input, and is not zero."""
    if len(operation.live) != 1:
        return False
    other = operation.arguments.get("other")
    if isinstance(other, Tensor):
        return len(operation.operands) > 1
    return bool(other)


def _with_tensors(replaced: Callable[[Tensor], Tensor], nested: Any) -> Any:
    """Return nested arguments of a call with other tensors."""
    return tree_map(lambda x: replaced(x) if isinstance(x, Tensor) else x, nested)


def _written(schema: torch.FunctionSchema, arguments: Mapping[str, object]) -> list[Tensor]:
    """Return the tensors that a call writes to."""
    written: list[object] = []
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(arguments.get(argument.name))
    return tensors_in(written)


def _inputs(*values: Value) -> list[Value]:
    return [value for value in values if value.is_input]


def _activations(values: Iterable[Value]) -> list[Value]:
    return [value for value in values if value.level == Level.ACTIVATION]


def _recurrent_uses(live: Iterable[Value]) -> list[tuple[str, Use]]:
    """Return the uses of the parameters of a recurrent layer: matrices and biases."""
    uses: list[tuple[str, Use]] = []
    for value in live:
        if not value.is_weight:
            continue
        if value.tensor.ndim > 1:
            uses += value.summed("matrix", [1])
        else:
            uses += value.used("shift")
    return uses


class WholeAttention(TorchFunctionMode):
    """A mode that records fused attention as one operation, and derivatives not at all.

    The operations inside it differ between devices. Those of a backward pass use tensors in other
    ways than the network does.
    """

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is torch.autograd.grad:
            return self._alone(func, args, kwargs)
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask")
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        operands = [self.recorder._value(x) for x in tensors_in(arguments)]
        out = self._alone(func, args, kwargs)
        name = "scaled_dot_product_attention"
        self.recorder.record(Operation(name, arguments, operands, tensors_in(out)))
        return out

    def _alone(
        self,
        func: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> object:
        """Call a function whose operations are not recorded."""
        self.recorder.paused = True
        try:
            return func(*args, **kwargs)
        finally:
            self.recorder.paused = False


def multiplied(left: Value, right: Value, left_dim: int, right_dim: int) -> Step:
    """Return the step of a product that sums `left_dim` of left and `right_dim` of right."""
    sides = [(left, left_dim, right), (right, right_dim, left)]
    weights: list[tuple[Value, int]] = []
    for value, dim, other in sides:
        if value.is_weight and (not other.is_weight or other.spread > value.spread):
            weights.append((value, dim))
    if left.is_weight and right.is_weight and not weights:  # a product of parameters, as in W + B A
        return Step("weights", weights=dict.fromkeys((*left.weights, *right.weights)))
    inputs = _inputs(left, right)
    if weights:
        [(weight, dim)] = weights
        uses = weight.summed("matrix", [dim])
        for value in (left, right):
            if value is not weight:
                uses += value.used("other")
        return Step("matrix", inputs, uses)
    if left.level == right.level == Level.ACTIVATION:
        step = Step("contraction", inputs)
        if left.step is not None and right.step is not None:
            step.product = (left.step, right.step, left.tensor.shape[left_dim])
        for value, dim in ((left, left_dim), (right, right_dim)):
            if value.step is not None and value.tensor.ndim > 1:
                other = -3 - dim  # -1 and -2 are the dimensions of the matrix
                step.sides += ((value.step, value.tensor.shape[dim], value.tensor.shape[other]),)
        return step
    return Step("weighting", _activations(inputs) or inputs)
