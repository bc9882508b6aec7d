"""Time and accuracy of kernels of Transformers; prints a table in Markdown.

    python benchmarks/transformer.py [the Python that has neural-tangents]

The first lines are the peer, neural-tangents: attention with queries tied to keys, and scores
divided by the number of channels and not by its root. These scores do not fluctuate, so that the
peer computes no averages. `make bench-peers` installs the peer; it runs in a separate process,
compiled before, in single (its default) and double precision. Times are medians of CPU seconds on
one core, interleaved in one run; ratios are to the peer in double precision. Deviations are the
largest in the last kernel, relative to its largest entry, from a kernel that is eight times as
accurate.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy

import numpy as np

from orderone import theory
from orderone.theory.transformer import patches

PEER = Path(__file__).parent / "peers" / "neural_tangents_attention.py"
SIZES = (16, 32, 64)  # sequences, tokens, features
ROUNDS = 7


def inputs(sequences: int, tokens: int, features: int = 64) -> np.ndarray:
    """Return token kernels of random sequences that are correlated."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal(features) + rng.standard_normal((sequences, 1, features))
    return patches(0.5 * common + rng.standard_normal((sequences, tokens, features)))


class Peer:
    """neural-tangents in a separate process."""

    def __init__(self, python: str, dtype: str):
        self.process = subprocess.Popen(
            [python, str(PEER), dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def seconds(self, blocks: str) -> float:
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps([blocks, *SIZES]), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(
                f"the peer stopped; run it alone: echo '[\"AM\", 16, 32, 64]' | python {PEER}"
                " float64"
            )
        return json.loads(answer)[0]

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def timed(work: Callable[[], object]) -> Callable[[], float]:
    def seconds() -> float:
        start = process_time()
        work()
        return process_time() - start

    return seconds


def medians(works: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the seconds of each task; each runs once per round, after one warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for round_ in range(ROUNDS + 1):
        for name, work in works.items():
            took = work()
            if round_:
                times[name].append(took)
    return {name: median(values) for name, values in times.items()}


def deviation(model: theory.Transformer, G0: np.ndarray) -> float:
    settings = {"C": {"PE": model.C["PE"]}, "eps": model.eps, "causal": model.causal}
    sharper = theory.Transformer(model.blocks, accuracy=model.accuracy / 8, seed=100, **settings)
    found, reference = (each.kernels(G0)[-1] for each in (model, sharper))
    return float(np.abs(found - reference).max() / np.abs(reference).max())


def main() -> None:
    sequences, tokens, features = SIZES
    many, pair, few = inputs(sequences, tokens, features), inputs(2, 196), inputs(1, 64)
    quick, deep = theory.Transformer("AM", accuracy=1e-3), theory.Transformer("AMAM", accuracy=1e-3)
    vision = theory.Transformer("AM", C={"PE": 0.02**2}, eps=1e-6)
    causal = theory.Transformer("AM", causal=True, accuracy=1e-3)
    peers = (
        {dtype: Peer(sys.argv[1], dtype) for dtype in ("float32", "float64")}
        if len(sys.argv) > 1
        else {}
    )
    works: dict[str, Callable[[], float]] = {
        f"neural-tangents, 1/d tied attention, {blocks}, 16 x 32 tokens, {dtype}": partial(
            peer.seconds, blocks
        )
        for blocks in ("AM", "AMAM")
        for dtype, peer in peers.items()
    }
    ours = {
        "AM, 16 x 32 tokens, accuracy 1e-3": (
            partial(quick.kernels, many),
            partial(deviation, quick, many),
        ),
        "AMAM, 16 x 32 tokens, accuracy 1e-3": (
            partial(deep.kernels, many),
            partial(deviation, deep, many),
        ),
        "AM, 2 x 196 tokens, accuracy 5e-4": (
            partial(vision.kernels, pair),
            partial(deviation, vision, pair),
        ),
        "the same, with tangent kernels of all groups": (partial(vision.predict, pair), None),
        "AM, 1 x 64 tokens, causal, accuracy 1e-3": (
            partial(causal.kernels, few),
            partial(deviation, causal, few),
        ),
        "the same, with its tangent kernel": (partial(causal.ntk, few), None),
    }
    times = medians(works | {name: timed(work) for name, (work, _) in ours.items()})
    for peer in peers.values():
        peer.close()
    print("| task | CPU time, ms | ratio to the peer | deviation |\n| --- | --- | --- | --- |")
    for name, time in times.items():
        blocks = name.split(", ")[0]
        unit = times.get(f"neural-tangents, 1/d tied attention, {blocks}, 16 x 32 tokens, float64")
        ratio = f"{time / unit:.1f}" if unit and "16 x 32" in name else ""
        off = ours[name][1] if name in ours else None
        print(f"| {name} | {1e3 * time:.0f} | {ratio} | {'' if off is None else f'{off():.1e}'} |")


if __name__ == "__main__":
    main()
