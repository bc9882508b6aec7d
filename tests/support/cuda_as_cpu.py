"""Run a script that takes a GPU for granted on a CPU: `python -m support.cuda_as_cpu script.py`.

Megatron-LM and torchtitan name the device "cuda" in their code. Here tensors of this device are
made on the CPU, and functions of torch.cuda that these trainers call do nothing or act on the CPU.
"""

import os
import runpy
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch is imported

import torch
from torch import _utils
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention import flex_attention
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def on_cpu(value: Any) -> Any:
    if isinstance(value, (str, torch.device)) and str(value).startswith("cuda"):
        return CPU
    return value


class CudaAsCpu(TorchFunctionMode):
    """Replace the device "cuda" in every call of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: on_cpu(value) for name, value in (kwargs or {}).items()}
        if type(kwargs.get("device")) is int:  # the number of a GPU
            kwargs["device"] = CPU
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.device:
            made = func(*args, **kwargs)
            return CPU if made.type == "cuda" else made
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")  # Megatron compares it
        return func(*map(on_cpu, args), **kwargs)


class Stream:
    """Work of a CPU is done when the call returns."""

    def __init__(self, *args: Any, **options: Any): ...
    def wait_stream(self, other: Any) -> None: ...
    def wait_event(self, other: Any) -> None: ...
    def synchronize(self) -> None: ...


set_factor = FSDPModule.set_gradient_divide_factor


def sum_of_gradients(module: FSDPModule, factor: float) -> None:
    """Set the factor; gloo cannot multiply while it adds, so that torch divides afterwards."""
    set_factor(module, factor)
    module.set_force_sum_reduction_for_comms(True)


def pretend() -> None:
    """Replace what the trainers call in torch.cuda."""
    changes: dict[str, Any] = {
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda device=None: None,
        "max_memory_allocated": lambda device=None: 0,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "manual_seed": torch.manual_seed,
        "default_generators": [torch.default_generator],
        "_lazy_call": lambda function, **options: function(),
        "current_stream": lambda device=None: Stream(),
        "stream": lambda stream: nullcontext(),
        "Stream": Stream,
    }
    for name, value in changes.items():
        setattr(torch.cuda, name, value)
    torch.cuda.random.get_rng_state = changes["get_rng_state"]
    setattr(_utils, "_get_available_device_type", lambda: "cpu")  # noqa: B010, torchtitan asks
    flex_attention._validate_device = lambda *tensors: None  # it refuses gradients on a CPU
    setattr(FSDPModule, "set_gradient_divide_factor", sum_of_gradients)  # noqa: B010
    barrier = torch.distributed.barrier
    torch.distributed.barrier = lambda group=None, **options: barrier(group)  # without device_ids
    if not hasattr(torch.distributed, "set_timeout"):  # torch 2.13
        setattr(torch.distributed, "set_timeout", lambda timeout, group: None)  # noqa: B010
    memory = {
        "get_device_name": lambda device=None: "CPU",
        "get_device_properties": lambda device=None: SimpleNamespace(total_memory=1),
        "memory_stats": lambda device=None: {},
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
    }
    for name, value in memory.items():
        setattr(torch.cpu, name, value)


if __name__ == "__main__":
    pretend()
    sys.argv = sys.argv[1:]
    with CudaAsCpu():
        runpy.run_path(sys.argv[0], run_name="__main__")
