"""What the forward code does with every parameter: one forward pass, watched operation by
operation.

`trace` runs the model once (eval mode, no gradients; buffers, modes and random state are left as
they were) under a dispatch mode that sees every aten operation, whatever Python wrote it. Each
operation becomes a step of a graph, and every tensor stands at one of four levels:

    CONSTANT     made from numbers and buffers alone
    DATA         made from the inputs, no parameter yet
    PARAMETER    a parameter, a view or a copy of one, or what is computed from parameters alone (1
                 + weight)
    ACTIVATION   what came out of a parameter's use

A use is where a PARAMETER meets DATA or an ACTIVATION. Which of its axes are summed over is told by
strides: a view moves through the memory of its owner, and the stride of the contracted dimension
says along which of the owner's dimensions. Constants, attention scores and residual branches are
then read off the graph by walking along the steps in which a value is linear. On the meta device a
constant held in a tensor cannot be read: its value is None.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from orderone.observe.trace.facts import Branch, Constant, Scores, Trace, Use
from orderone.observe.trace.graph import Graph
from orderone.observe.trace.recorder import Recorder, WholeAttention
from orderone.seeding import seeded
from orderone.torch_compat import buffer_registry

__all__ = ["Branch", "Constant", "Scores", "Trace", "Use", "call_with", "trace", "undisturbed"]


def trace(model: nn.Module, inputs: Mapping[str, Any] | Sequence[Any] | Tensor) -> Trace:
    """What one forward pass of `model` on `inputs` (keywords, positions, or one tensor) does with
    the parameters."""
    args, kwargs = call_with(inputs)
    recorder = Recorder(dict(model.named_parameters()), (args, kwargs))
    with undisturbed(model), torch.no_grad(), recorder, WholeAttention(recorder):
        model(*args, **kwargs)
    graph = Graph(recorder.steps)
    scores, score_sums = graph.scores()
    return Trace(
        uses={name: tuple(uses) for name, uses in recorder.uses.items()},
        constants=(*recorder.scaled_parameters, *graph.constants()),
        scores=scores,
        branches=graph.branches(score_sums),
        carriers=graph.carriers(),
    )


def call_with(
    inputs: Mapping[str, Any] | Sequence[Any] | Tensor,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return ((), dict(inputs))
    return (tuple(inputs), {})


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Eval mode, and the attention fast path off (it hides its operations); afterwards everything
    is as it was."""
    before = [
        (module, module.training, dict(buffer_registry(module))) for module in model.modules()
    ]
    contents = [(buffer, buffer.clone()) for buffer in model.buffers()]
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
            for buffer, content in contents:
                buffer.copy_(content)
