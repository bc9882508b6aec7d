"""A PyTorch model with infinitely many channels: its kernels, depth scales, suggested variances."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from orderone.core.arrays import as_numpy
from orderone.core.errors import InputError
from orderone.explore.architectures import model_of
from orderone.explore.query import Query

if TYPE_CHECKING:
    from orderone.measure.kernels import ModuleKernel
    from orderone.theory import kernels

MOST_EXAMPLES = 12
MOST_POINTS = 2500  # examples times pixels or tokens: a kernel has the square of it


def infinite_width(query: Query) -> dict[str, object]:
    """Return kernels of random inputs, layer by layer, and the scales of each pair of layers."""
    from orderone.core.exact import count
    from orderone.core.reals import real
    from orderone.measure.kernels import kernel_from_module, kernels_by_layer

    name = query.word("architecture")
    examples = count(query.whole("examples"), "examples", least=2, most=MOST_EXAMPLES)
    c0 = real(query.number("input_correlation"), "input_correlation", least=0, most=1)
    query.done()
    limit = kernel_from_module(*model_of(name))
    start = limit.inputs(_inputs(limit, examples, c0))
    path, last = kernels_by_layer(limit.net.layers, start)
    scales = limit.depth_scales()
    plain = [each.trainable_depth for each in scales if not each.in_branch]
    return {
        "layers": [str(layer) for layer in limit.net.layers],
        "path": [asdict(row) for row in path],
        "nngp": _matrix(last.nngp, last),
        "ntk": _matrix(last.ntk, last),
        "scales": [asdict(each) for each in scales],
        "trainable_depth": min(plain) if plain else None,
    }


def _inputs(limit: "ModuleKernel", examples: int, c0: float) -> np.ndarray:
    """Return examples of which any two have about this correlation.

    Indices are equal with this probability.
    """
    shape = limit.shape
    pixels = int(np.prod(shape)) // (shape[0] if limit.channels_first else shape[-1])
    points = examples * (int(np.prod(shape)) if limit.table else pixels)
    if points > MOST_POINTS:
        raise InputError(
            f"examples: expected at most {MOST_POINTS} points, examples times pixels or tokens;"
            f" got {points}; choose fewer examples, or a model of smaller inputs",
            argument="examples",
        )
    rng = np.random.default_rng(0)
    if limit.table is not None:
        common = rng.integers(0, limit.table, shape)
        separate = rng.integers(0, limit.table, (examples, *shape))
        return np.where(rng.random((examples, *shape)) < c0**0.5, common, separate)
    shared = rng.standard_normal(shape)
    alone = rng.standard_normal((examples, *shape))
    return c0**0.5 * shared + (1 - c0) ** 0.5 * alone


def _matrix(values: object, kernel: "kernels.Kernel") -> np.ndarray:
    """Return (inputs, inputs), the mean over tokens at the same position."""
    matrix = as_numpy(values).astype(float)
    if kernel.tokens is None:
        return matrix
    return np.einsum("itjt->ij", matrix) / kernel.tokens
