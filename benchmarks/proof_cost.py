"""Cost of the proof that a stack equals stand-alone runs.

    python benchmarks/proof_cost.py         share of a study of 500 steps on a CPU
    python benchmarks/proof_cost.py cuda    seconds per stack on a GPU

On a CPU, it prints for each model and number of members the CPU time that the proof adds to a
training, and its share of 500 steps. The proof is timed as the difference of trainings of 4 steps
with and without it; a low quartile of repetitions ignores other work of the machine.

On a GPU, it prints the seconds that the proof adds to a training of 60 steps, which is captured as
a CUDA graph (and compiled, in the last line of a model), and how the stack was proved.
"""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from orderone.sweeping.engine import Engine
from orderone.sweeping.job import Job
from orderone.sweeping.trial import Trial
from orderone.training.source import Source

STEPS = 500
TIMED_STEPS = 50  # of the trainings that the time of a study is computed from
REPEATS = 12
VOCABULARY = 64
GPU_STEPS = 60  # from 50 on, steps are captured
GPU_REPEATS = 3


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


class Transformer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.readout = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.readout(self.layers(self.embed(ids)))


def numbers(step: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(1000 * seed + step))
    return x, x[:, :10].argmax(1)


def tokens(step: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * seed + step)
    ids = torch.randint(0, VOCABULARY, (16, 32), generator=generator)
    return ids, ids.roll(-1, 1)


def trials_of(job: Job, width: int, members: int) -> list[Trial]:
    common = {"width": width, "optimizer": "adamw", "rule": "mup", "lr": 1e-3}
    return [job.trial({**common, "seed": seed}) for seed in range(members)]


def seconds(
    build: Callable[[int], nn.Module], data: Source, members: int, steps: int, verify: bool
) -> float:
    """Return the CPU time of one training."""
    job = Job(build, data, steps, base_sizes={"width": 16}, name="cost", verify=verify)
    trials = trials_of(job, 32, members)
    started = time.process_time()
    for outcome in Engine(job).run(trials):
        assert outcome.facts["engine"] == "stacked"
    return time.process_time() - started


def low_quartile(values: list[float]) -> float:
    return sorted(values)[len(values) // 4]


def on_gpu(name: str, build: Callable[[int], nn.Module], data: Source) -> None:
    """Print the seconds that the proof adds to the training of 32 members."""
    options: list[dict[str, Any]] = [
        {"precision": "float32"},
        {"precision": "bfloat16"},
        {"precision": "bfloat16", "compile": True},
    ]
    for chosen in options:
        times: dict[bool, list[float]] = {False: [], True: []}
        facts: Mapping[str, Any] = {}
        for repetition in range(GPU_REPEATS + 1):
            for verify in (False, True):
                job = Job(
                    build,
                    data,
                    GPU_STEPS,
                    base_sizes={"width": 32},
                    name="cost",
                    verify=verify,
                    device="cuda",
                    **chosen,
                )
                trials = trials_of(job, 128, 32)
                torch.cuda.synchronize()
                started = time.perf_counter()
                outcomes = list(Engine(job).run(trials))
                torch.cuda.synchronize()
                if repetition:  # the first one loads kernels and compiles
                    times[verify].append(time.perf_counter() - started)
                facts = outcomes[0].facts
        added = min(times[True]) - min(times[False])
        shown = {key: facts.get(key) for key in ("engine", "graph", "compiled", "not compiled")}
        print(f"{name}, {chosen}: {added:.2f} s of {min(times[True]):.2f} s; {shown}")
        print(f"    {facts.get('not stacked') or facts['verified']}")


def on_cpu(name: str, build: Callable[[int], nn.Module], data: Source) -> None:
    """Print the share of a study of 500 steps."""
    for members in (2, 8, 32):
        times: dict[tuple[int, bool], list[float]] = {}
        for _ in range(REPEATS):
            for steps, verify in ((4, False), (4, True), (TIMED_STEPS, False)):
                spent = seconds(build, data, members, steps, verify)
                times.setdefault((steps, verify), []).append(spent)
        start = low_quartile(times[4, False])
        proof = low_quartile(times[4, True]) - start
        step = (low_quartile(times[TIMED_STEPS, False]) - start) / (TIMED_STEPS - 4)
        study = start + (STEPS - 4) * step
        print(
            f"{name}, {members} members: {1e3 * proof:.0f} ms,"
            f" {100 * proof / study:.2f} % of {study:.1f} s"
        )


def main() -> None:
    torch.set_num_threads(1)
    measure = on_gpu if sys.argv[1:] == ["cuda"] else on_cpu
    measure("MLP", mlp, Source("numbers", numbers, lambda: [numbers(99, 9)]))
    measure("Transformer", Transformer, Source("tokens", tokens, lambda: [tokens(99, 9)]))


if __name__ == "__main__":
    main()
