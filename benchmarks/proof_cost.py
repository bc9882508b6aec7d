"""Cost of the proof that a stack equals stand-alone runs, as a share of a study of 500 steps.

    python benchmarks/proof_cost.py

It prints, for each model and number of members, the CPU time that the proof adds to a training, and
its share of 500 steps. The proof is timed as the difference of trainings of 3 steps with and
without it; a low quartile of repetitions ignores other work of the machine.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from orderone.sweeping.engine import Engine
from orderone.sweeping.job import Job
from orderone.training.source import Source

STEPS = 500
TIMED_STEPS = 50  # of the trainings that the time of a study is computed from
REPEATS = 12
VOCABULARY = 64


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


def seconds(
    build: Callable[[int], nn.Module], data: Source, members: int, steps: int, verify: bool
) -> float:
    """Return the CPU time of one training."""
    job = Job(build, data, steps, base_sizes={"width": 16}, name="cost", verify=verify)
    trials = [
        job.trial({"width": 32, "optimizer": "adamw", "rule": "mup", "lr": 1e-3, "seed": seed})
        for seed in range(members)
    ]
    started = time.process_time()
    for outcome in Engine(job).run(trials):
        assert outcome.facts["engine"] == "stacked"
    return time.process_time() - started


def low_quartile(values: list[float]) -> float:
    return sorted(values)[len(values) // 4]


def main() -> None:
    torch.set_num_threads(1)
    models: dict[str, tuple[Callable[[int], nn.Module], Source]] = {
        "MLP": (mlp, Source("numbers", numbers, lambda: [numbers(99, 9)])),
        "Transformer": (Transformer, Source("tokens", tokens, lambda: [tokens(99, 9)])),
    }
    for name, (build, data) in models.items():
        for members in (2, 8, 32):
            times: dict[tuple[int, bool], list[float]] = {}
            for _ in range(REPEATS):
                for steps, verify in ((3, False), (3, True), (TIMED_STEPS, False)):
                    spent = seconds(build, data, members, steps, verify)
                    times.setdefault((steps, verify), []).append(spent)
            start = low_quartile(times[3, False])
            proof = low_quartile(times[3, True]) - start
            step = (low_quartile(times[TIMED_STEPS, False]) - start) / (TIMED_STEPS - 3)
            study = start + (STEPS - 3) * step
            print(
                f"{name}, {members} members: {1e3 * proof:.0f} ms,"
                f" {100 * proof / study:.2f} % of {study:.1f} s"
            )


if __name__ == "__main__":
    main()
