"""Private names of torch: what needs each of them, and which versions of torch have it.

No other file of the library uses a private name of torch (`tests/test_torch_compat.py`). Supported
versions are 2.11 to 2.15. A name has the versions in its comment; "all" means all supported ones.
When a new version of torch drops a name, this is the only file to change.
"""

import copy
import sys
from collections import OrderedDict
from collections.abc import Callable, MutableMapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from orderone.core.torch_version import check_version, missing_name

check_version(torch.__version__)
try:
    from torch._C import (
        DisableTorchFunction,  # recording hooks: hide what they read from modes; all
        _functorch,  # type: ignore[attr-defined]
    )
    from torch._functorch.pyfunctorch import (
        temporarily_clear_interpreter_stack as outside_vmap,  # stacked training: leave vmap; all
    )
    from torch._ops import OpOverload  # stacked autocast: one overload of an operation; all
    from torch._utils import (
        _flatten_dense_tensors as flatten_dense_tensors,  # updates: one copy of many tensors; all
    )
    from torch._utils import (
        _unflatten_dense_tensors as unflatten_dense_tensors,  # the way back; all
    )
    from torch.fx.experimental.proxy_tensor import (
        disable_proxy_modes_tracing as untraced,  # traced stacks: read a value; all
    )
    from torch.fx.experimental.proxy_tensor import (
        make_fx,  # traced stacks: list the operations of a pass; all
    )
    from torch.nn.utils.parametrizations import (
        _WeightNorm as WeightNormParametrization,  # planning: recognise weight norm; all
    )
    from torch.utils._python_dispatch import TorchDispatchMode  # trace: every operation; all
    from torch.utils._pytree import (  # nested batches and outputs; all
        tree_flatten,
        tree_leaves,
        tree_map,
        tree_unflatten,
    )
except ImportError as _error:
    raise missing_name(str(_error), torch.__version__) from _error

__all__ = [
    "CAST_OPERATION",
    "CHECKPOINT_GENERATORS",
    "CHILD_MODULES",
    "CHILD_SCHEDULERS",
    "COMPILED_CALL",
    "COMPILED_FORWARD",
    "COMPILER_LOGGER",
    "COMPILER_MODULES",
    "MODULE_HOOKS",
    "NATIVE_MODULE",
    "RESET_PARAMETERS",
    "RNN_WEIGHT_LISTS",
    "SEQUENTIAL_MILESTONES",
    "TENSOR_METHODS_MODULE",
    "TENSOR_VERSION",
    "DisableTorchFunction",
    "OpOverload",
    "TooManyGraphsError",
    "TorchDispatchMode",
    "WeightNormParametrization",
    "add_batch_dim",
    "backward_hook_registry",
    "backward_pre_hook_registry",
    "buffer_registry",
    "compilation_errors",
    "compilation_reason",
    "compile_graph",
    "compiled_wrapper",
    "compiler_context",
    "compiler_options",
    "current_graph_task",
    "current_raw_cuda_stream",
    "current_vmap_level",
    "exclusive_storage",
    "first_local_row",
    "flatten_dense_tensors",
    "foreach_add_",
    "foreach_sub",
    "forward_hook_registry",
    "forward_pre_hook_registry",
    "forward_pre_hooks_with_kwargs",
    "fused_adam_",
    "fused_adamw_",
    "get_unwrapped",
    "grouped_mm_operation",
    "has_backend",
    "has_gradient",
    "has_gradient_hooks",
    "is_batchedtensor",
    "is_dynamo_imported",
    "is_functorch_wrapped_tensor",
    "is_inside_compiled_call",
    "local_tensor",
    "make_fx",
    "maybe_get_bdim",
    "maybe_get_level",
    "module_registry",
    "number_of_graphs",
    "operator_schema",
    "outside_vmap",
    "parameter_registry",
    "peek_interpreter_stack",
    "recording_compiler",
    "rnn_flat_weights",
    "set_rnn_flat_weights",
    "set_vmap_fallback_warning",
    "sparse_values",
    "standard_gamma",
    "step_is_hooked",
    "step_post_hook_registry",
    "step_pre_hook_registry",
    "storage_id",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
    "unflatten_dense_tensors",
    "untraced",
    "version_counter",
]


def _needed(owner: object, name: str) -> Any:
    """Return an attribute of torch, or say which versions have it."""
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise missing_name(name, torch.__version__) from error


# --- vmap ----------------------------------------------------------------------------------------

# stacked training; all
current_vmap_level: Callable[[], int] = _needed(_functorch, "current_level")
add_batch_dim: Callable[[Tensor, int, int], Tensor] = _needed(_functorch, "_add_batch_dim")
is_batchedtensor: Callable[[Tensor], bool] = _needed(_functorch, "is_batchedtensor")
maybe_get_level: Callable[[Tensor], int] = _needed(_functorch, "maybe_get_level")
maybe_get_bdim: Callable[[Tensor], int] = _needed(_functorch, "maybe_get_bdim")
# stacked training, no reports of slow operations; all
set_vmap_fallback_warning: Callable[[bool], None] = _needed(
    _functorch, "_set_vmap_fallback_warning_enabled"
)
# stacked training and moments; all
get_unwrapped: Callable[[Tensor], Tensor] = _needed(_functorch, "get_unwrapped")
is_functorch_wrapped_tensor: Callable[[Tensor], bool] = _needed(
    _functorch, "is_functorch_wrapped_tensor"
)
# moments: None outside vmap and grad; all
peek_interpreter_stack: Callable[[], object | None] = _needed(_functorch, "peek_interpreter_stack")

# --- operations ----------------------------------------------------------------------------------

# updates and reference outputs: many tensors in one call; all
foreach_add_: Callable[..., None] = _needed(torch, "_foreach_add_")
foreach_sub: Callable[..., tuple[Tensor, ...]] = _needed(torch, "_foreach_sub")
# sampled layers: the public torch.distributions.Chi2 takes no generator; all
standard_gamma: Callable[..., Tensor] = _needed(torch, "_standard_gamma")
# stacked Adam and AdamW on a CPU; all
fused_adam_: Callable[..., None] = _needed(torch.ops.aten, "_fused_adam_")
fused_adamw_: Callable[..., None] = _needed(torch.ops.aten, "_fused_adamw_")
# stacked experts: what torch.nn.functional.grouped_mm calls, which no mode sees itself; all
grouped_mm_operation: Callable[..., Tensor] = _needed(torch, "_grouped_mm")


def compile_graph(
    operations: torch.fx.GraphModule,
    inputs: list[Tensor],
    options: dict[str, str | int | bool | Callable[..., object]],
) -> Callable[..., Sequence[Tensor]]:
    """Return the compiled operations, for these shapes.

    torch.compile would trace the operations once more, and `torch.compiler.reset`, which `apply`
    calls, would discard its result. Without a context of shapes, which torch.compile makes, the
    compiler would not look for the program on disk. Traced stacks. All.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile as compile_by_inductor
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    compile_inputs: Any = inputs
    shapes = ShapeEnv(assume_static_by_default=True)
    with tracing(TracingContext(FakeTensorMode(shape_env=shapes))):
        program: Any = compile_by_inductor(operations, compile_inputs, options)
    return program


def number_of_graphs() -> int:
    """Return how many graphs torch.compile has compiled in this process.

    Compiled passes of single models. All versions.
    """
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def compiler_options() -> dict[str, str | int | bool | Callable[..., object]]:
    """Return options of torch.compile: no choice of kernels by time, so that losses are repeatable.

    Traced stacks. All versions that have the option "deterministic".
    """
    from torch._inductor import list_options

    return {name: True for name in list_options() if name == "deterministic"}


# probe: -1 outside a backward pass; all
current_graph_task: Callable[[], int] = _needed(torch._C, "_current_graph_task_id")


def current_raw_cuda_stream(device: int) -> int:
    """Return the address of the current stream, for Triton kernels. All versions with CUDA."""
    return torch._C._cuda_getCurrentRawStream(device)


# trace and autocast: names and types of an operation's arguments; all
operator_schema: Callable[[OpOverload], torch.FunctionSchema] = attrgetter("_schema")

# --- attributes of tensors ------------------------------------------------------------------------

# device queue, apply, stacked training: how often a tensor was written to; all. A tensor of
# inference mode has no counter and raises a RuntimeError.
version_counter: Callable[[Tensor], int] = attrgetter("_version")
# trace: a number that all views of one piece of memory share, also on the meta device; all
storage_id: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")


def exclusive_storage(x: Tensor) -> bool:
    """Return whether no other tensor uses the memory of `x`: stacked training. All versions."""
    count: Callable[[int], int] = torch._C._storage_Use_Count
    alone = torch.zeros(1)
    return count(storage_id(x.untyped_storage())) == count(storage_id(alone.untyped_storage()))


# --- attributes of modules ------------------------------------------------------------------------

Hook: TypeAlias = Callable[..., object]

# parameters of the module itself, without children and with None entries; all
parameter_registry: Callable[[nn.Module], MutableMapping[str, nn.Parameter | None]] = attrgetter(
    "_parameters"
)
# buffers of the module itself, to restore them after a trial pass; all
buffer_registry: Callable[[nn.Module], MutableMapping[str, Tensor | None]] = attrgetter("_buffers")
# children, to replace one by a plain function: shaping; all
module_registry: Callable[[nn.Module], MutableMapping[str, nn.Module | None]] = attrgetter(
    "_modules"
)
# forward hooks: multipliers of a plan, comparison of stacked models; all
forward_hook_registry: Callable[[nn.Module], MutableMapping[int, Hook]] = attrgetter(
    "_forward_hooks"
)
# forward pre-hooks: multipliers of a plan, weight norm, stacked models; all
forward_pre_hook_registry: Callable[[nn.Module], MutableMapping[int, Hook]] = attrgetter(
    "_forward_pre_hooks"
)
# which pre-hooks take keyword arguments, to remove a plan's multiplier; all
forward_pre_hooks_with_kwargs: Callable[[nn.Module], MutableMapping[int, bool]] = attrgetter(
    "_forward_pre_hooks_with_kwargs"
)

# hooks on gradients: stacked models; all
backward_hook_registry: Callable[[nn.Module], MutableMapping[int, Hook]] = attrgetter(
    "_backward_hooks"
)
backward_pre_hook_registry: Callable[[nn.Module], MutableMapping[int, Hook]] = attrgetter(
    "_backward_pre_hooks"
)


def has_gradient_hooks(p: Tensor) -> bool:
    """Return whether a tensor has hooks on its gradient: stacked models. All."""
    return bool(p._backward_hooks) or bool(p._post_accumulate_grad_hooks)


def gradient_hooks(p: Tensor) -> list[Callable[..., Any]]:
    """Return the hooks on the gradient of a tensor: state of models. All."""
    return [*(p._backward_hooks or {}).values(), *(p._post_accumulate_grad_hooks or {}).values()]


def share_gradient_hooks(p: Tensor, copied: Tensor) -> None:
    """Give a copy of a tensor the hooks on its gradient, which a deep copy leaves out. All."""
    for hook in (p._backward_hooks or {}).values():
        copied.register_hook(hook)
    for hook in (p._post_accumulate_grad_hooks or {}).values():
        copied.register_post_accumulate_grad_hook(hook)


def share_step_hooks(optimizer: Optimizer, copied: Optimizer) -> None:
    """Give a copy of an optimizer the hooks of its steps, which a deep copy leaves out. All."""
    copied._optimizer_step_pre_hooks.update(optimizer._optimizer_step_pre_hooks)
    copied._optimizer_step_post_hooks.update(optimizer._optimizer_step_post_hooks)


def step_hooks(optimizer: Optimizer) -> list[Callable[..., object]]:
    """Return the hooks of an optimizer that run before and after its steps. All."""
    before = optimizer._optimizer_step_pre_hooks.values()
    return [*before, *optimizer._optimizer_step_post_hooks.values()]


# Name of the compiler's logger: compiled passes of single models; all.
COMPILER_LOGGER = "torch._dynamo"

# Packages whose code writes files while it compiles: files that a pass writes; all.
COMPILER_MODULES = ("torch._dynamo", "torch._inductor", "triton")

# Operation that casts a tensor to another type: the precision inside a model; all.
CAST_OPERATION = torch.ops.aten._to_copy.default

# Attributes of nn.RNNBase that hold its parameters a second time: stacked training; all.
RNN_WEIGHT_LISTS = ("_flat_weights", "_flat_weight_refs")


def rnn_flat_weights(rnn: nn.RNNBase) -> list[Tensor]:
    """Return the weights that an LSTM, GRU or RNN computes with: stacked training. All."""
    return rnn._flat_weights  # type: ignore[return-value]


def set_rnn_flat_weights(rnn: nn.RNNBase, weights: list[Tensor]) -> None:
    """Let an LSTM, GRU or RNN compute with these weights: stacked training. All."""
    rnn._flat_weights = weights  # type: ignore[assignment]


# --- optimizers and sharded tensors ---------------------------------------------------------------

# hooks of one optimizer, to order them: learning rates of rows; all
step_pre_hook_registry: Callable[[Optimizer], OrderedDict[int, Hook]] = attrgetter(
    "_optimizer_step_pre_hooks"
)
step_post_hook_registry: Callable[[Optimizer], OrderedDict[int, Hook]] = attrgetter(
    "_optimizer_step_post_hooks"
)


def step_is_hooked(optimizer: Optimizer) -> bool:
    """Return whether the step of an optimizer calls hooks; the constructor arranges it. All."""
    return bool(getattr(type(optimizer).step, "hooked", False))


def local_tensor(x: Tensor) -> Tensor:
    """Return the part of a sharded tensor that this process has; another tensor as it is. All."""
    return getattr(x, "_local_tensor", x)


def has_gradient(x: Tensor) -> bool:
    """Return whether autograd records `x`, also inside vmap: the loss among outputs. All."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x.requires_grad


def sparse_values(x: Tensor) -> Tensor:
    """Return the values of a sparse tensor, to be changed in place: scale of the loss. All."""
    return x._values()  # `values` refuses tensors that are not coalesced


def sparse_parts(x: Tensor) -> dict[str, Tensor]:
    """Return the dense tensors that a sparse one consists of; they share its memory. All."""
    if x.layout == torch.sparse_coo:
        return {"indices": x._indices(), "values": x._values()}
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return {"rows": x.crow_indices(), "columns": x.col_indices(), "values": x.values()}
    if x.layout in (torch.sparse_csc, torch.sparse_bsc):
        return {"columns": x.ccol_indices(), "rows": x.row_indices(), "values": x.values()}
    return {"values": x.to_dense()}  # a copy, of a layout such as that of MKL-DNN


def first_local_row(x: Tensor, axis: int) -> int:
    """Return where the local part of a tensor begins along an axis: learning rates of rows. All."""
    if not hasattr(x, "device_mesh"):
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh: Any = getattr(x, "device_mesh")  # noqa: B009
    placements: Any = getattr(x, "placements")  # noqa: B009
    _, offsets = compute_local_shape_and_global_offset(x.shape, mesh, placements)
    return int(offsets[axis])


# --- names of attributes, modules and functions ---------------------------------------------------

CHILD_MODULES = "_modules"  # attribute of nn.Module, to copy one without children: planning; all
RESET_PARAMETERS = "_reset_parameters"  # method of nn.MultiheadAttention: reinitialize; all
CHILD_SCHEDULERS = "_schedulers"  # attribute of ChainedScheduler and SequentialLR: planning; all
SEQUENTIAL_MILESTONES = "_milestones"  # attribute of SequentialLR: planning; all

# Attributes of nn.Module that hold its hooks, to move them to another module: shaping; all.
MODULE_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)

# Getters of Tensor._version, the number of in-place writes: stacked training recognises reads; all.
# Every access makes another object, and all of them are equal.
TENSOR_VERSION = frozenset([attrgetter("_version")(Tensor).__get__])

# Module of Tensor's methods that are written in Python: stacked training inspects them; all.
TENSOR_METHODS_MODULE = "torch._tensor"
NATIVE_MODULE = "torch._C"  # home of functions written in C++: stacked training; all

# Functions that torch.utils.checkpoint.checkpoint calls if it is not reentrant: stacked training
# replaces them. The first is in all versions; 2.15 calls the second and keeps the first for others.
CHECKPOINT_GENERATORS = (
    "_checkpoint_without_reentrant_generator",
    "_checkpoint_without_reentrant_generator_impl",
)


for _name in (*MODULE_HOOKS, "_parameters", "_buffers", CHILD_MODULES):
    _needed(nn.Module(), _name)


def is_inside_compiled_call() -> bool:
    """Return whether a function that torch.compile returned is running: probe. All versions.

    Also true if it runs uncompiled, because the stance says so.
    """
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch._dynamo.eval_frame":
            return True
        frame = frame.f_back
    return False


# --- compiled modules ----------------------------------------------------------------------------

# Attribute of the wrapper that torch.compile returns, and of a module after Module.compile: the
# function that runs the compiled program. Probe; all.
COMPILED_FORWARD = "forward"
COMPILED_CALL = "_compiled_call_impl"


def compiled_wrapper(module: nn.Module) -> bool:
    """Return whether a module is a wrapper that torch.compile returned: probe. All."""
    if not is_dynamo_imported():
        return False
    from torch._dynamo.eval_frame import OptimizedModule

    return isinstance(module, OptimizedModule)


def compiler_context(module: nn.Module) -> Any:
    """Return the context of a compiled module (its backend and options), or None: probe. All."""
    if compiled_wrapper(module):
        return getattr(module, "dynamo_ctx", None)
    call = getattr(module, COMPILED_CALL, None)
    if call is None:
        return None
    closure = dict(zip(call.__code__.co_freevars, call.__closure__ or (), strict=True))
    if "self" not in closure:
        return None
    return closure["self"].cell_contents


def has_backend(context: Any) -> bool:
    """Return whether a context compiles with a backend that can be used again: probe. All."""
    return context is not None and callable(getattr(context, "callback", None))


class TooManyGraphsError(RuntimeError):
    """A program consists of too many graphs."""


class _RecordingBackend:
    """The backend of a user as another object, so that its programs are kept apart."""

    def __init__(self, backend: Any, most_graphs: int):
        self.backend: Any = backend
        self.graphs_left: int = most_graphs
        # programs that are replayed from a CUDA graph would run no custom operations
        options = getattr(backend, "config", None)
        if isinstance(options, dict) and options.get("triton.cudagraphs"):
            self.backend = copy.copy(backend)
            self.backend.config = {**options, "triton.cudagraphs": False}

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        if not self.graphs_left:
            raise TooManyGraphsError("too many graph breaks or shapes")
        self.graphs_left -= 1
        return self.backend(graph, inputs, **options)


def recording_compiler(
    context: Any, most_graphs: int
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what compiles functions with the backend and the dynamic shapes of a context.

    Compiled code is looked up by the identity of the backend, which is another one. More graphs
    than `most_graphs` are refused by a compilation error. Probe; all.
    """
    from torch._dynamo.eval_frame import innermost_backend

    backend = _RecordingBackend(innermost_backend(context.callback), most_graphs)
    dynamic = getattr(context, "_dynamic", None)
    return lambda function: torch.compile(function, backend=backend, dynamic=dynamic)


def compilation_reason(error: Exception) -> str:
    """Return the first line of what went wrong in a compilation: probe. All."""
    cause: object = getattr(error, "inner_exception", None) or error
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return lines[0][:200]


def compilation_errors() -> tuple[type[Exception], ...]:
    """Return the errors of torch.compile: probe. All."""
    from torch._dynamo.exc import TorchDynamoException

    return (TorchDynamoException,)


def is_dynamo_imported() -> bool:
    """Return whether torch.compile was used in this process: apply resets it then. All."""
    return "torch._dynamo" in sys.modules
