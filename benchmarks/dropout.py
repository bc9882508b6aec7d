"""Gradient metrics of random dropout networks: many at once, compared with a loop over networks.

    python benchmarks/dropout.py [instances] [device]

200 layers of width 500, tanh, keep 0.9, in single precision, on one thread. The loop builds one
network after the other from tensors, differentiates both losses by autograd, and computes Eq. (8)
of S1 ("Mean field theory for deep dropout networks") from the gradients; it is timed on a few
networks. "drawn" and "implied" are the methods of `orderone.dropout_metrics`; both have the same
distribution as the loop.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import orderone as o1

WEIGHT_VAR, BIAS_VAR, KEEP, WIDTH, DEPTH, FEW = 1.4, 0.1, 0.9, 500, 200, 3


def one_network(device: str) -> list[tuple[float, ...]]:
    weights = [
        torch.randn(WIDTH, WIDTH, device=device) * (WEIGHT_VAR / WIDTH) ** 0.5 for _ in range(DEPTH)
    ]
    biases = [torch.randn(WIDTH, device=device) * BIAS_VAR**0.5 for _ in range(DEPTH)]
    for weight in weights:
        weight.requires_grad_()
    gradients = [torch.autograd.grad(_loss(weights, biases, device), weights) for _ in range(2)]
    return [_metrics(a, b) for a, b in zip(*gradients, strict=True)]


def _loss(weights: list[Tensor], biases: list[Tensor], device: str) -> Tensor:
    y = torch.randn(WIDTH, device=device)
    for weight, bias in zip(weights, biases, strict=True):
        y = torch.tanh(functional.linear(functional.dropout(y, 1 - KEEP), weight, bias))
    return y.square().sum()


def _metrics(a: Tensor, b: Tensor) -> tuple[float, ...]:
    product = a * b
    return a.square().mean().item(), product.mean().item(), product.abs().mean().item()


def seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measured(instances: int, weights: str, device: str) -> float:
    return seconds(
        lambda: o1.dropout_metrics(
            "tanh",
            WEIGHT_VAR,
            BIAS_VAR,
            KEEP,
            width=WIDTH,
            depth=DEPTH,
            instances=instances,
            weights=weights,
            dtype=torch.float32,
            device=device,
        )
    )


def main(instances: int, device: str) -> None:
    torch.set_num_threads(1)
    one_network(device)
    measured(2, "implied", device)
    loop = seconds(lambda: [one_network(device) for _ in range(FEW)]) * instances / FEW
    print(f"| {instances} networks | s | times faster |\n| --- | --- | --- |")
    print(f"| a loop (from {FEW}) | {loop:.1f} | 1 |", flush=True)
    for weights in ("drawn", "implied"):
        took = measured(instances, weights, device)
        print(f"| {weights} | {took:.1f} | {loop / took:.1f} |", flush=True)


if __name__ == "__main__":
    given = dict(zip(("instances", "device"), sys.argv[1:], strict=False))
    main(int(given.get("instances", 100)), given.get("device", "cpu"))
