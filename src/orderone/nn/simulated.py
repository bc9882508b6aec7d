"""The kernels of real networks, to hold theirs against: outputs and gradients of many random draws.

    nngp_ab = 1/k sum_i f_i(a) f_i(b),      ntk_ab = 1/k sum_i sum_w df_i(a)/dw df_i(b)/dw
                                            over k outputs f_i

Both from one forward pass, so that under dropout an input meets itself with one mask; then averaged
over networks. What is left at finite width n is a bias of order 1/n, besides the standard error
given here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from orderone.core.exact import count
from orderone.core.inputs import ArrayLike, Count
from orderone.nn.from_layers import from_layers
from orderone.theory.kernels.validation import floating


@dataclass(frozen=True, eq=False)
class SimulatedKernels:
    """Means over networks and their standard errors: (inputs, inputs), or (inputs, tokens, inputs,
    tokens)."""

    nngp: np.ndarray
    nngp_error: np.ndarray
    ntk: np.ndarray
    ntk_error: np.ndarray


def simulate_kernels(
    net: Any,
    X: ArrayLike,
    *,
    width: Count = 256,
    networks: Count = 64,
    outputs: Count = 16,
    seed: Count = 0,
    device: Any = None,
) -> SimulatedKernels:
    """Kernels of `networks` draws of `net` (layers of `theory.kernels`) at `width`, for the inputs
    of `kernels.inputs(X)`.

    A last Dense layer has `outputs` neurons; both kernels are means over them.
    """
    x = torch.as_tensor(floating(X, "X")[1], dtype=torch.float32, device=device)
    found: list[tuple[Tensor, Tensor]] = []
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(count(seed, "seed", least=0))
        for _ in range(count(networks, "networks", least=2)):
            found.append(_kernels(from_layers(net, x.shape[-1], width, outputs).to(x.device), x))
    means, errors = zip(
        *(_summary(torch.stack(draws)) for draws in zip(*found, strict=True)), strict=True
    )
    return SimulatedKernels(means[0], errors[0], means[1], errors[1])


def _kernels(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """NNGP and NTK of one network, in double precision."""
    parameters = {name: parameter.detach() for name, parameter in network.named_parameters()}

    def outputs(parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        f = functional_call(network, parameters, (x,))
        return f, f

    jacobian, f = jacrev(outputs, has_aux=True)(parameters)
    points = f.shape[:-1]
    gradients = [
        part.reshape(-1, f.shape[-1], part[(0,) * f.dim()].numel()) for part in jacobian.values()
    ]
    nngp = torch.einsum("ai,bi->ab", *[f.reshape(-1, f.shape[-1]).double()] * 2)
    ntk = sum(torch.einsum("aiw,biw->ab", part, part).double() for part in gradients)
    return tuple((kernel / f.shape[-1]).reshape(*points, *points) for kernel in (nngp, ntk))


def _summary(draws: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error over the first axis."""
    return draws.mean(0).cpu().numpy(), (draws.std(0) / len(draws) ** 0.5).cpu().numpy()
