"""Layers in sequence; neighbouring pointwise layers share one pass over the pairs."""

from dataclasses import dataclass
from itertools import groupby

from orderone.core.errors import instance
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.theory.kernels.kernel import Kernel
from orderone.theory.kernels.layer import Layer, LayerInput, read_layers, run


@dataclass(frozen=True, init=False)
class Sequential(Layer):
    """Layers in sequence: `Sequential(a, b)(kernel)` is `b(a(kernel))`, and faster.

    A Sequential inside another is replaced by its layers.
    """

    layers: tuple[Layer, ...]

    def __init__(self, *layers: LayerInput) -> None:
        flat: list[Layer] = []
        for layer in read_layers(layers, "Sequential"):
            flat.extend(unpacked(layer))
        object.__setattr__(self, "layers", tuple(flat))

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


def repeat(layer: LayerInput, times: Count) -> Sequential:
    """Repeat `layer`, with new weights each time."""
    layer = instance(layer, Layer, "layer", "pass a layer such as kernels.Sequential(...)")
    copies = [layer] * count(times, "times", least=0)
    return Sequential(*copies)


def unpacked(layer: Layer) -> tuple[Layer, ...]:
    """Return the layers of a Sequential, or a tuple of the one layer."""
    if isinstance(layer, Sequential):
        return layer.layers
    return (layer,)
