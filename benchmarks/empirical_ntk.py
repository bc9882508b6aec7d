"""Empirical NTK of a small ResNet and a GPT-2, compared with `torch.func` written by hand, and with
neural-tangents.

    python benchmarks/empirical_ntk.py [the Python that has neural-tangents]

By hand means vmap over examples of jacrev, and one product of Jacobians per parameter. Each
measurement has a process of its own, on one core; times are CPU seconds, the best of three calls
after a first one. neural-tangents runs its Jacobian contraction under jit, the fastest of its three
implementations here.

Memory is counted in three ways, in MiB: the highest memory of the first call, beyond that of the
process after all imports, with model and inputs (imports that a program delays to its first call
count, and so does compilation); the same for later calls; and the highest memory of the whole
process, imports included.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from peers.memory import Mark
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import orderone as o1

PEERS = Path(__file__).parent / "peers"


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm_a = nn.BatchNorm2d(outputs)
        self.b = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_b = nn.BatchNorm2d(outputs)
        self.skip = nn.Identity()
        if stride > 1:
            self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm_a(self.a(x)))
        return torch.relu(self.norm_b(self.b(h)) + self.skip(x))


def resnet() -> nn.Module:
    stem = (nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=256,
        n_layer=6,
        n_head=4,
        vocab_size=5000,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def four_logits(output) -> Tensor:
    return output.logits[:, -1, :4]


def subject(name: str) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Return both computations: ours and by hand."""
    torch.manual_seed(0)
    ntk = o1.empirical_ntk  # imports its modules; those of the peers are imported as well
    if name == "resnet":
        model = resnet().eval()
        x = torch.randn(64, 3, 32, 32)

        def one(p: dict[str, Tensor], row: Tensor) -> Tensor:
            return functional_call(model, p, (row[None],))[0]

        def ours() -> Tensor:
            return ntk(model, x)
    else:
        model = gpt2().eval()
        x = torch.randint(0, 5000, (8, 32))

        def one(p: dict[str, Tensor], row: Tensor) -> Tensor:
            kwargs = {"input_ids": row[None], "use_cache": False}
            return four_logits(functional_call(model, p, (), kwargs))[0]

        def ours() -> Tensor:
            return ntk(model, {"input_ids": x, "use_cache": False}, select=four_logits)

    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def by_hand() -> Tensor:
        total = torch.zeros(len(x), len(x))
        for jacobian in vmap(jacrev(one), (None, 0))(parameters, x).values():
            flat = jacobian.flatten(1)
            total += flat @ flat.T
        return total

    return ours, by_hand


def measure(name: str, who: str) -> None:
    ours, by_hand = subject(name)
    work = ours if who == "orderone" else by_hand
    mark = Mark()
    work()
    first = mark.growth()
    mark.forget()
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    memory = f"{first:.0f} | {mark.growth():.0f} | {mark.peak():.0f}"
    print(f"| {name} | {who} | {min(times):.2f} | {memory} |", flush=True)


def peer(python: str, name: str) -> None:
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [python, "-W", "ignore", str(PEERS / "neural_tangents_empirical.py"), name, "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, check=True)
    print(f"| {name} | neural-tangents | {done.stdout.strip()} |", flush=True)


def main(python: str | None) -> None:
    print("| model | program | seconds | MiB, first call | MiB, later calls | MiB, process |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for name in ("resnet", "gpt2"):
        for who in ("orderone", "torch.func"):
            subprocess.run([sys.executable, "-W", "ignore", __file__, name, who], check=True)
        if python is not None:
            peer(python, name)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], sys.argv[2])
    else:
        main(sys.argv[1] if len(sys.argv) == 2 else None)
