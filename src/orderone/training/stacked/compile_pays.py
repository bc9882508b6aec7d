"""Estimate of what compiling the passes of a stack costs, and of what it saves.

    saved per step   bytes that elementwise operations, copies and reductions read and write,
                     divided by the bandwidth of the memory; a compiled pass fuses these operations
    cost             seconds per operation of the pass

Both are counted, not timed: the same study is compiled or not on every run, so that its losses are
the same. For the same reason a program on disk from an earlier run does not count. Measured on an
H200 with torch 2.11, 64 Llamas of 4 layers (`benchmarks/stacked.py cuda llama`): at width 128 the
count says 25 ms per step and compiling saved 31 ms, at width 256 it says 43 ms and compiling saved
61 ms; both took 25 ms per operation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Graph, Node

from orderone.torch_compat import OpOverload, tree_leaves
from orderone.training.stacked.compiling import LIMIT

SECONDS_PER_OPERATION = 0.025
MARGIN = 1.5  # what is saved must exceed the cost by this factor, since both are estimates
BANDWIDTH = 1e12  # bytes per second, where torch does not know that of the device

# operations that a compiler fuses beside the elementwise ones
FUSED = frozenset(
    {
        "aten._to_copy.default",
        "aten.cat.default",
        "aten.mean.dim",
        "aten.slice_backward.default",
        "aten.sum.dim_IntList",
    }
)


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds that compiling costs, and that it saves in a training."""

    cost: float
    saved: float
    steps: int

    @property
    def pays(self) -> bool:
        return self.saved > MARGIN * self.cost and self.cost <= LIMIT

    def __str__(self) -> str:
        return (
            f"estimated {self.cost:.0f} s to compile and {self.saved:.0f} s saved in"
            f" {self.steps} passes"
        )


def estimate(graph: Graph, steps: int, device: torch.device) -> Estimate:
    """Return the estimate for this pass in a training of so many steps; a CPU saves nothing."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    saved = 0.0
    if device.type == "cuda" and steps:
        saved = steps * sum(map(fused_bytes, calls)) / bandwidth(device)
    return Estimate(SECONDS_PER_OPERATION * len(calls), saved, steps)


def fused_bytes(node: Node) -> int:
    """Return the bytes that an operation reads and writes if a compiler fuses it, otherwise 0."""
    call = node.target
    if not isinstance(call, OpOverload) or not is_fused(call):
        return 0
    return sum(_bytes(one) for one in (node, *node.all_input_nodes))


def is_fused(call: OpOverload) -> bool:
    """Return whether a compiler fuses an operation with its neighbours."""
    return torch.Tag.pointwise in call.tags or str(call) in FUSED


def bandwidth(device: torch.device) -> float:
    """Return the bytes per second between the device and its memory."""
    properties = torch.cuda.get_device_properties(device)
    clock = getattr(properties, "memory_clock_rate", 0)  # kHz
    bits = getattr(properties, "memory_bus_width", 0)
    transfers_per_cycle = 2
    return transfers_per_cycle * clock * 1e3 * bits / 8 or BANDWIDTH


def _bytes(node: Node) -> int:
    values = [x for x in tree_leaves(node.meta.get("val")) if isinstance(x, Tensor)]
    return sum(x.numel() * x.dtype.itemsize for x in values)
