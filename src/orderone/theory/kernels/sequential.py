"""Layers one after the other. Neighbours that treat pairs one by one share a pass over them
(`pairs`)."""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from orderone.core.errors import instance
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.theory.kernels.kernel import Kernel
from orderone.theory.kernels.layer import Layer, read_layers, run


@dataclass(frozen=True, init=False)
class Sequential(Layer):
    """`Sequential(a, b)(kernel)` is `b(a(kernel))`, and faster. One inside another is the same as
    its layers."""

    layers: tuple[Layer, ...]

    def __init__(self, *layers: Any):
        read = read_layers(layers, "Sequential")
        object.__setattr__(
            self, "layers", tuple(inner for layer in read for inner in unpacked(layer))
        )

    def apply(self, kernel: Kernel) -> Kernel:
        for pointwise, layers in groupby(self.layers, key=lambda layer: layer.pointwise):
            if pointwise:
                kernel = run(layers, kernel)
            else:
                for layer in layers:
                    kernel = layer(kernel)
        return kernel

    def __len__(self) -> int:
        return len(self.layers)


def repeat(layer: Any, times: Count) -> Sequential:
    """`layer`, `times` times, with fresh weights each time."""
    layer = instance(layer, Layer, "layer", "give a layer such as kernels.Sequential(...)")
    return Sequential(*[layer] * count(times, "times", least=0))


def unpacked(layer: Layer) -> tuple[Layer, ...]:
    if isinstance(layer, Sequential):
        return layer.layers
    return (layer,)
