"""CPU time of a step of 16 GPTs of width 64 (4 x 32 tokens), with one thread.

    OMP_NUM_THREADS=1 python benchmarks/cpu_stack.py [compile]

The first table has the matrix products of the step alone: batched, as in a stack, and one by one.
They are a lower bound of any stack that uses these kernels. The second table has the whole step:
one after another, stacked, and written by hand with batched products (`gpt_by_hand.py`); with
`compile` also compiled. CPU time does not depend on other programs, apart from their use of caches;
the ways take turns, and the table has the median and the least of several rounds.
"""

import sys
import time
from collections.abc import Callable, Mapping
from statistics import median

import stacked
import torch
from gpt_by_hand import ByHand
from torch import Tensor

from orderone.training.stacked import compiling

MEMBERS, TOKENS, WIDTH, VOCAB, DEPTH = 16, 128, 64, 256, 4
ROUNDS, STEPS = 9, 3
# fan-in, fan-out and number of the matrices of a member
MATRICES = [
    (WIDTH, WIDTH, 4 * DEPTH),
    (WIDTH, 4 * WIDTH, DEPTH),
    (4 * WIDTH, WIDTH, DEPTH),
    (WIDTH, VOCAB, 1),
]


def main(compile: bool) -> None:
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}\n")
    products()
    whole_steps(compile)


def products() -> None:
    """Print the CPU time of all matrix products of a step: forward, and both gradients."""
    batched: list[Callable[[], object]] = []
    single: list[Callable[[], object]] = []
    operations = 0
    for fan_in, fan_out, number in MATRICES:
        x = torch.randn(MEMBERS, TOKENS, fan_in)
        weight = torch.randn(MEMBERS, fan_out, fan_in)
        grad = torch.randn(MEMBERS, TOKENS, fan_out)
        for left, right in ((x, weight.mT), (grad, weight), (grad.mT, x)):
            batched += [lambda a=left, b=right: torch.bmm(a, b)] * number
            single += [lambda a=left, b=right: one_by_one(a, b)] * number
            operations += 2 * number * MEMBERS * TOKENS * fan_in * fan_out
    ways = {"batched": lambda: run(batched), "one by one": lambda: run(single)}
    print(f"matrix products alone, {operations / 1e9:.2f} GFLOP\n")
    print("| way | ms | GFLOP/s |\n| --- | --- | --- |")
    for name, seconds in measured(ways).items():
        speed = operations / median(seconds) / 1e9
        print(f"| {name} | {1e3 * median(seconds):.1f} | {speed:.0f} |", flush=True)


def one_by_one(left: Tensor, right: Tensor) -> None:
    for a, b in zip(left, right, strict=True):
        torch.mm(a, b)


def run(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        call()


def whole_steps(compile: bool) -> None:
    models = [stacked.build("gpt", WIDTH, seed) for seed in range(MEMBERS)]
    batch = stacked.batch_of("gpt")
    rates = [stacked.rate(member) for member in range(MEMBERS)]
    ways: dict[str, Callable[[], object]] = {
        "one after another": stacked.one_by_one(models, batch),
        "stacked": stacked.stacked(models, batch),
        "by hand": ByHand(models, rates, batch, None, compile=False).step,
    }
    if compile:
        compiling.LIMIT = 900.0  # a loaded machine may need longer than a study would wait
        ways["stacked, compiled"] = stacked.stacked(models, batch, compile=True)
        ways["by hand, compiled"] = ByHand(models, rates, batch, None, compile=True).step
    print("\nwhole step\n\n| way | median ms | least ms | faster |\n| --- | --- | --- | --- |")
    seconds = measured(ways)
    reference = median(seconds["one after another"])
    for name, times in seconds.items():
        middle = median(times)
        cells = [name, f"{1e3 * middle:.1f}", f"{1e3 * min(times):.1f}"]
        print(f"| {' | '.join(cells)} | {reference / middle:.2f}x |", flush=True)


def measured(ways: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Return CPU seconds of each way in every round; the ways take turns."""
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            started = time.process_time()
            for _ in range(STEPS):
                way()
            seconds[name].append((time.process_time() - started) / STEPS)
    return seconds


if __name__ == "__main__":
    main("compile" in sys.argv[1:])
