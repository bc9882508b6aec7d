"""Kernels of finite networks, measured on many random draws, to compare with theory.

    nngp_ab = 1/k sum_i f_i(a) f_i(b)                       over k outputs f_i
    ntk_ab  = 1/k sum_i sum_w df_i(a)/dw df_i(b)/dw

Both come from one forward pass, so that the diagonal uses one dropout mask per input. They are
averaged over networks. Besides the standard error, a bias of order 1/n remains at finite width n.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from orderone.core.exact import count
from orderone.core.inputs import ArrayLike, Count
from orderone.nn.from_layers import from_layers
from orderone.nn.inputs import Device, Layer
from orderone.theory.kernels.validation import floating


@dataclass(frozen=True, eq=False)
class SimulatedKernels:
    """Means over networks and their standard errors.

    Shapes are (inputs, inputs), or (inputs, tokens, inputs, tokens).
    """

    nngp: np.ndarray
    nngp_error: np.ndarray
    ntk: np.ndarray
    ntk_error: np.ndarray


def simulate_kernels(
    net: Layer,
    X: ArrayLike,
    *,
    width: Count = 256,
    networks: Count = 64,
    outputs: Count = 16,
    seed: Count = 0,
    device: Device = None,
) -> SimulatedKernels:
    """Measure the mean kernels of `networks` random networks `net` of this `width`.

    `net` consists of layers of `theory.kernels`; `X` is as for `kernels.inputs(X)`. A last Dense
    layer has `outputs` neurons; both kernels are means over them.
    """
    x = torch.as_tensor(floating(X, "X")[1], dtype=torch.float32, device=device)
    nngp: list[Tensor] = []
    ntk: list[Tensor] = []
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(count(seed, "seed", least=0))
        for _ in range(count(networks, "networks", least=2)):
            network = from_layers(net, x.shape[-1], width, outputs).to(x.device)
            nngp_draw, ntk_draw = _kernels(network, x)
            nngp.append(nngp_draw)
            ntk.append(ntk_draw)
    return SimulatedKernels(*_summary(nngp), *_summary(ntk))


def _kernels(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return NNGP and NTK of one network, in double precision."""
    parameters = {name: parameter.detach() for name, parameter in network.named_parameters()}

    def outputs(parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        f = functional_call(network, parameters, (x,))
        return f, f

    jacobian, f = jacrev(outputs, has_aux=True)(parameters)
    *points, k = f.shape
    values = f.reshape(-1, k).double()
    nngp = torch.einsum("ai,bi->ab", values, values)
    ntk = torch.zeros_like(nngp)
    for gradient in jacobian.values():
        weights = gradient[(0,) * f.dim()].numel()
        flat = gradient.reshape(-1, k, weights)
        ntk += torch.einsum("aiw,biw->ab", flat, flat).double()
    return (nngp / k).reshape(*points, *points), (ntk / k).reshape(*points, *points)


def _summary(draws: list[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard error over the draws."""
    stacked = torch.stack(draws)
    error = stacked.std(0) / len(draws) ** 0.5
    return stacked.mean(0).cpu().numpy(), error.cpu().numpy()
