"""Compiled form of traced operations, made within a time limit and reused for equal operations.

Programs are compiled for static shapes: with symbolic ones (torch's choice for a second width) the
kernels of a stack are about half as fast. Equal operations on inputs of equal shapes are compiled
once per process. torch stores kernels on disk, so that the next process compiles them faster; the
folder is `TORCHINDUCTOR_CACHE_DIR`.
"""

import copy
import hashlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeAlias

import torch
from torch import Tensor
from torch.fx import GraphModule

from orderone.core.time_limit import TimeLimitReached, time_limit
from orderone.torch_compat import compile_graph, compiler_options
from orderone.training.stacked.errors import NotCompiled

Operations: TypeAlias = Callable[..., Sequence[Tensor]]

LIMIT = 90.0  # seconds
MOST_PROGRAMS = 16  # that are kept for reuse

_programs: OrderedDict[str, Operations] = OrderedDict()


@torch.no_grad()
def compiled(operations: GraphModule, inputs: Sequence[Tensor]) -> Operations:
    """Return the compiled operations, after one run of them with these inputs.

    The inputs must be detached. Raise NotCompiled if the compiler fails or needs more than `LIMIT`
    seconds.
    """
    key = _key(operations, inputs)
    if key is not None and key in _programs:
        _programs.move_to_end(key)
        return _programs[key]
    try:
        with time_limit(LIMIT), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user cannot change what the compiler does
            # a copy, since the compiler rewrites the graph
            program = compile_graph(copy.deepcopy(operations), list(inputs), compiler_options())
            program(*inputs)
    except TimeLimitReached:
        raise NotCompiled(f"it needs more than {LIMIT:g} seconds") from None
    except Exception as error:  # the compiler may raise anything
        first_line = str(error).strip().partition("\n")[0]
        raise NotCompiled(f"{type(error).__name__}: {first_line}") from error
    if key is not None:
        _programs[key] = program
        while len(_programs) > MOST_PROGRAMS:
            _programs.popitem(last=False)
    return program


def forget_programs() -> None:
    """Forget the programs of this process; those on disk remain."""
    _programs.clear()


def lift_constants(operations: GraphModule) -> list[Tensor]:
    """Turn the tensors that the operations hold into further inputs, and return these tensors.

    Tracing takes tensors of closures for constants. As inputs they may be written to, and the
    program can serve other stacks.
    """
    graph = operations.graph
    nodes = list(graph.nodes)
    last = [node for node in nodes if node.op == "placeholder"][-1]
    lifted: dict[str, Tensor] = {}
    inputs: dict[str, torch.fx.Node] = {}
    for node in nodes:
        if node.op != "get_attr":
            continue
        value = attrgetter(node.target)(operations)
        if not isinstance(value, Tensor):
            continue
        if node.target not in lifted:
            with graph.inserting_after(last):
                last = graph.placeholder(f"lifted_{len(lifted)}")
            last.meta = dict(node.meta)
            lifted[node.target] = value
            inputs[node.target] = last
        node.replace_all_uses_with(inputs[node.target])
        graph.erase_node(node)
    for name in lifted:
        delattr(operations, name)  # traced constants are attributes of the root
    operations.recompile()
    return list(lifted.values())


def _key(operations: GraphModule, inputs: Sequence[Tensor]) -> str | None:
    """Return a text that is equal for equal programs; None if it cannot be written."""
    parts: list[str] = []
    for module in operations.modules():
        if not isinstance(module, GraphModule):
            return None
        parts.append(module.code)
    for name, x in (*operations.named_parameters(), *operations.named_buffers()):
        if x.numel():
            return None  # the code does not show the values
        parts.append(name)
    for x in inputs:
        alignment = x.storage_offset()
        parts.append(f"{tuple(x.shape)} {x.stride()} {alignment} {x.dtype} {x.device}")
    parts.append(torch.get_float32_matmul_precision())
    parts.append(str(torch.are_deterministic_algorithms_enabled()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
