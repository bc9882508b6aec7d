"""Layer covariances of finite networks at initialization, sampled exactly and without weights.

    kind            phi_s(x)                                   options
    relu            max(x, 0)
    shaped-relu     S3 (2.5)                                   c_plus, c_minus, p
    shaped-smooth   S3 (2.6), any smooth phi                   phi, a, p
    linear          x
    resnet          z' = z + W relu(z) / sqrt(d n), S3 (2.12)

V_l = (c/n) <phi_l, phi_l> over inputs, with c = 1 / E phi_s(g)^2; for resnet V_l = <z_l, z_l> / n
(erratum S3.10). `sampled_layers` has one layer of each kind. A layer of a network takes m n normal
numbers, or m^2 in linear networks.
"""

from collections.abc import Callable
from math import ceil
from typing import Annotated, TypeAlias

import numpy as np
import torch
from torch import Tensor

from orderone.core.covariances import covariance
from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Array, Count, Function, Name, Number, UserInput
from orderone.measure.sampled_layers import Draw, Homogeneous, Layers, Linear, Residual, Smooth
from orderone.theory.activations import Activation
from orderone.theory.limits.shaped import ShapedReLU, ShapedSmooth
from orderone.theory.limits.triangular import cholesky

# "shaped" is short for "shaped-smooth"
KINDS = ("relu", "shaped-relu", "shaped-smooth", "shaped", "linear", "resnet")
# bytes of one chunk: to fit into the cache of a core, and to fill a GPU
MEMORY = {"cpu": 2**21, "other": 2**30}
COPIES = 3  # arrays of a chunk's size in memory at once

ActivationInput: TypeAlias = Annotated[str | Activation | Function, UserInput]
DeviceInput: TypeAlias = Annotated[str | int | torch.device, UserInput]
ProgressInput: TypeAlias = Annotated[Callable[[int, int, str], None], UserInput]


@torch.no_grad()
def sample_network(
    kind: Name = "relu",
    V0: Array = ((1.0, 0.3), (0.3, 1.0)),
    width: Count = 150,
    depth: Count = 150,
    samples: Count = 8192,
    seed: Count = 0,
    *,
    c_plus: Number = 0.0,
    c_minus: Number = -1.0,
    phi: ActivationInput = "tanh",
    a: Number = 1.0,
    p: Number = 0.5,
    layers: bool = False,
    dtype: Name = "float32",
    device: DeviceInput | None = None,
    memory: Count | None = None,
    progress: ProgressInput | None = None,
) -> Array:
    """Sample covariances over inputs, (samples, m, m), of the last of `depth` hidden layers.

    `kind` is relu, shaped-relu, shaped-smooth, linear or resnet. `V0` is the covariance of the
    inputs, X @ X.T / features. With `layers`, return all layers: (samples, depth, m, m). If V0 is a
    torch tensor, the result is a tensor on its device, otherwise a numpy array. Covariances are in
    double precision, normal numbers in `dtype`; with float32, 1 - rho is precise down to 1e-13.
    Where activations overflow, as growing smooth ones may, V is infinite.

    `memory` is the number of bytes to draw at once. Equal seeds give equal numbers if dtype, device
    and memory are equal. `progress` is a function that is called with the number of finished
    networks, the number of all networks, and a word.
    """
    start, _ = covariance(V0)
    width = count(width, "width")
    depth = count(depth, "depth")
    samples = count(samples, "samples")
    kind = one_of(kind, KINDS, "kind of network")
    seed = count(seed, "seed", least=0)
    numbers = getattr(torch, one_of(dtype, ("float32", "float64"), "dtype"))
    V = _on(start, device)
    if progress is not None and not callable(progress):
        message = f"progress: expected a function of (done, total, what), got {progress!r}"
        raise InputError(message, "wrong-type", argument="progress")
    begin = _networks(kind, width, depth, p, ShapedReLU(c_plus, c_minus), phi, a)
    chunk = _chunk(V, width, samples, kind, numbers, memory)
    shape = (samples, *V.shape)
    if layers:
        shape = (samples, depth, *V.shape)
    out = V.new_empty(shape)
    L = cholesky(V[..., None])[0]
    for i, first in enumerate(range(0, samples, chunk)):
        last = min(first + chunk, samples)
        draw = Draw(width, numbers, _seed(seed, i), V.device)
        _run(begin(L.expand(-1, -1, last - first), draw), depth, out[first:last], layers)
        if progress is not None:
            progress(last, samples, f"networks of width {width} and depth {depth}")
    if isinstance(start, Tensor):
        return out.to(start.dtype)
    return out.cpu().numpy()


def _on(start: Array, device: DeviceInput | None) -> Tensor:
    try:
        return torch.as_tensor(start, device=device).to(torch.float64)
    except (RuntimeError, AssertionError, TypeError) as error:  # torch raises any of the three
        message = f"device: expected one that torch can use here, such as 'cpu'; got {device!r}"
        raise InputError(message, argument="device") from error


def _networks(
    kind: str,
    width: int,
    depth: int,
    p: Number,
    relu: ShapedReLU,
    phi: ActivationInput,
    a: Number,
) -> Callable[[Tensor, Draw], Layers]:
    """Return a function that starts a chunk of networks from the factor of V0."""
    if kind == "linear":
        return lambda L, draw: Linear(L, width, draw)
    if kind == "resnet":
        return lambda L, draw: Residual(L, width, depth, draw)
    if kind in ("shaped-smooth", "shaped"):
        shaped = ShapedSmooth(phi, a)
        shaped.check_start()
        c = shaped.normalizer(width, p)
        return lambda L, draw: Smooth(L, shaped.at(width, p), c, width, draw)
    if kind == "shaped-relu":
        relu.normalizer(width, p)  # raises an error if both slopes are zero
        return lambda L, draw: Homogeneous(L, relu.slopes(width, p), width, draw)
    return lambda L, draw: Homogeneous(L, (1.0, 0.0), width, draw)


def _run(networks: Layers, depth: int, out: Tensor, layers: bool) -> None:
    for layer in range(depth):
        networks.step()
        if layers:
            out[:, layer] = _product(networks.factor())
    if not layers:
        out[:] = _product(networks.factor())


def _product(L: Tensor) -> Tensor:
    """Return L L^T, (samples, m, m); infinite for a network whose activations overflowed."""
    L = L.permute(2, 0, 1)
    V = L @ L.mT
    return torch.where(V.isfinite().all(-1).all(-1)[:, None, None], V, torch.inf)


def _chunk(
    V: Tensor, width: int, samples: int, kind: str, numbers: torch.dtype, memory: Count | None
) -> int:
    """Return the number of networks in a chunk: chunks are equal, and none is over the limit."""
    if memory is not None:
        limit = count(memory, "memory") // COPIES
    elif V.device.type == "cpu":
        limit = MEMORY["cpu"]
    else:
        limit = MEMORY["other"]
    columns = width
    if kind == "linear":
        columns = len(V)
    each = len(V) * columns * numbers.itemsize
    shares = ceil(samples / max(1, limit // each))
    return ceil(samples / shares)


def _seed(seed: int, chunk: int) -> int:
    state = np.random.SeedSequence(seed, spawn_key=(chunk,)).generate_state(1, np.uint64)[0]
    return int(state >> np.uint64(1))  # torch's seeds are signed
