"""How long kernels of Transformers take, and how accurate they are: prints a table in Markdown.

The first line is what other libraries compute: attention whose scores are divided by the number of channels and not by its
root. Its scores do not fluctuate, so no average is left to find. Times are medians, interleaved in one run; deviations are
the largest in the last kernel, in units of its largest entry, from one that is eight times as accurate.

    python benchmarks/transformer.py
"""

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np

from orderone import theory
from orderone.theory.transformer import patches

ROUNDS = 7


def inputs(sequences: int, tokens: int, features: int = 64) -> np.ndarray:
    """Token kernels of random sequences that have something in common."""
    rng = np.random.default_rng(0)
    common = rng.standard_normal(features) + rng.standard_normal((sequences, 1, features))
    return patches(0.5 * common + rng.standard_normal((sequences, tokens, features)))


def certain_scores(G0: np.ndarray) -> np.ndarray:
    """Two blocks, AM, with scores over the number of channels and keys tied to queries: softmax(F) is not random."""
    S, T = G0.shape[:2]
    G = G0.reshape(S * T, S * T) + 0.25 * np.kron(np.ones((S, S)), np.eye(T))
    F = normalized(G).reshape(S, T, S, T)
    weights = np.exp(np.einsum("atau->atu", F))
    weights /= weights.sum(axis=2, keepdims=True)
    mixed = np.einsum("atu,bvw,aubw->atbv", weights, weights, F, optimize=True)
    G = G + mixed.reshape(S * T, S * T)
    K, phi = normalized(G), theory.activations.get("gelu")
    return G + phi.pair(1.0, 1.0, np.clip(1 - K, 0, 2))


def normalized(G: np.ndarray) -> np.ndarray:
    size = np.sqrt(G.diagonal() + 1e-5)
    return G / size[:, None] / size


def medians(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds; each work once in every round, after one round to warm up."""
    times = {name: [] for name in works}
    for round_ in range(ROUNDS + 1):
        for name, work in works.items():
            start = perf_counter()
            work()
            if round_:
                times[name].append(perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def deviation(model: theory.Transformer, G0: np.ndarray) -> float:
    settings = {"C": {"PE": model.C["PE"]}, "eps": model.eps, "causal": model.causal}
    sharper = theory.Transformer(model.blocks, accuracy=model.accuracy / 8, seed=100, **settings)
    found, reference = (each.kernels(G0)[-1] for each in (model, sharper))
    return float(np.abs(found - reference).max() / np.abs(reference).max())


def main() -> None:
    many, pair, few = inputs(16, 32), inputs(2, 196), inputs(1, 32)
    quick, vision = theory.Transformer("AM", accuracy=1e-3), theory.Transformer("AM", C={"PE": 0.02**2}, eps=1e-6)
    causal = theory.Transformer("AM", causal=True, accuracy=1e-3)
    works: dict[str, Callable[[], object]] = {
        "scores over channels, 16 x 32 tokens": partial(certain_scores, many),
        "AM, 16 x 32 tokens, accuracy 1e-3": partial(quick.kernels, many),
        "AM, 2 x 196 tokens, accuracy 5e-4": partial(vision.kernels, pair),
        "the same, with tangent kernels of all groups": partial(vision.predict, pair),
        "AM, 1 x 32 tokens, causal, accuracy 1e-3": partial(causal.kernels, few),
    }
    times = medians(works)
    deviations = [None, deviation(quick, many), deviation(vision, pair), None, deviation(causal, few)]
    first = next(iter(times.values()))
    print("| work | time, ms | ratio | deviation |\n| --- | --- | --- | --- |")
    for (name, time), off in zip(times.items(), deviations, strict=True):
        print(f"| {name} | {1e3 * time:.0f} | {time / first:.1f} | {'' if off is None else f'{off:.1e}'} |")


if __name__ == "__main__":
    main()
