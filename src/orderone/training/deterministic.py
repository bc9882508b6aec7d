"""Restrict torch to kernels that give the same bits every time.

Some kernels add numbers in an order that changes from run to run: on a GPU the gradients of
embeddings, of indexing and of some forms of attention. torch has a switch that avoids them where it
can, and raises where it cannot. cuBLAS also needs an environment variable, which it reads only once
per process, when CUDA starts.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from orderone.core.errors import InputError

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
ACCEPTED = (":4096:8", ":16:8")  # the values that make cuBLAS repeatable


@contextmanager
def deterministic_kernels(enabled: bool, device: torch.device) -> Iterator[None]:
    """Use only deterministic kernels within this context; if not `enabled`, change nothing."""
    if not enabled:
        yield
        return
    if device.type == "cuda":
        _make_cublas_repeatable()
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns_only)
        cudnn.benchmark = benchmark


def _make_cublas_repeatable() -> None:
    """Set the variable of cuBLAS; raise an InputError if it is too late for that."""
    if os.environ.get(VARIABLE) in ACCEPTED:
        return
    if torch.cuda.is_initialized():
        raise InputError(
            f"deterministic: {VARIABLE} is {os.environ.get(VARIABLE)!r}, and CUDA has started; set"
            f" it to {ACCEPTED[0]} before Python starts, or call this before anything uses the GPU",
            "deterministic-too-late",
            argument="deterministic",
        )
    os.environ[VARIABLE] = ACCEPTED[0]
