"""The cost of a probe at every tenth step: GPT-2 small, bfloat16, eager and compiled.

    python benchmarks/probe_gpt2.py [compiled] [eager] [small] [seconds=180] [json=FILE]

A Hugging Face GPT-2 (12 layers of width 768, no dropout) on 16 x 1024 tokens with fused AdamW. Ten
steps with and without the probe take turns on one model; one of the ten is recorded. Every turn is
printed: milliseconds per step, and the peak memory above what was allocated before the turn. The
first turns compile. At the end: medians, the ratio of neighbouring turns with its range, and the
ratio of the peaks, weights and optimizer included. After `seconds`, no further turn is begun.
`small` runs on a CPU, to test the script.
"""

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from records import Records
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import orderone as o1

STARTED = time.perf_counter()
SMALL = "small" in sys.argv
DEVICE = "cpu" if SMALL else "cuda"
ROWS, LENGTH, LAYERS, WIDTH, VOCAB = (2, 8, 1, 24, 64) if SMALL else (16, 1024, 12, 768, 50257)
STEPS, TURNS, WARM_UP = 10, 2 if SMALL else 7, 3  # a survey, the compilation, one more
LIMITS = [float(word.removeprefix("seconds=")) for word in sys.argv if word.startswith("seconds=")]
LIMIT = LIMITS[0] if LIMITS else 180.0
JSON = next((word.removeprefix("json=") for word in sys.argv if word.startswith("json=")), None)
STATE = 16  # bytes per weight: the weight, its gradient and two momenta, in single precision


def trained(compiled: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS}
    sizes |= {"n_positions": LENGTH, "use_cache": False}
    dropout: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    with torch.device(DEVICE):
        model: Any = GPT2LMHeadModel(GPT2Config(**sizes, **dropout))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if compiled:
        model = torch.compile(model)
    return model, optimizer


def ten_steps(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()


def turn(action: Callable[[], None]) -> tuple[float, float]:
    """Return seconds per step and the peak memory above what was allocated, in GB."""
    before = 0
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    started = time.perf_counter()
    action()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / STEPS
    peak = torch.cuda.max_memory_allocated() - before if DEVICE == "cuda" else 0
    return seconds, peak / 2**30


def compare(compiled: bool, records: Records) -> None:
    label = "compiled" if compiled else "eager"
    tokens = torch.randint(VOCAB, (ROWS, LENGTH), device=DEVICE)
    seconds: dict[str, list[float]] = {"without": [], "probe": []}
    peaks: dict[str, list[float]] = {"without": [], "probe": []}
    run = trained(compiled)
    for number in range(WARM_UP + TURNS):
        if time.perf_counter() - STARTED > LIMIT:
            print(f"{label}: no turn after {LIMIT:g} s", flush=True)
            break
        cells: list[str] = []
        for name in seconds:
            context = o1.probe(*run, every=STEPS) if name == "probe" else nullcontext()
            with context:
                spent, peak = turn(lambda: ten_steps(*run, tokens))
            cells.append(f"{name} {1e3 * spent:.1f} ms, {peak:.2f} GB")
            if number >= WARM_UP:
                seconds[name].append(spent)
                peaks[name].append(peak)
        warm_up = " (warm-up)" if number < WARM_UP else ""
        elapsed = time.perf_counter() - STARTED
        print(f"{label}, turn {number}{warm_up}: {'; '.join(cells)}; {elapsed:.0f} s", flush=True)
    if not seconds["probe"]:
        return
    weights = sum(p.numel() for p in run[0].parameters())
    for name, samples in seconds.items():
        records.add(f"probe of GPT-2, {label}: {name}", samples, peak_gb=median(peaks[name]))
    pairs = zip(seconds["probe"], seconds["without"], strict=True)
    ratios = sorted(one / other for one, other in pairs)
    # gradients are freed between turns, so that they are a part of the peaks
    state = (STATE - 4) * weights / 2**30
    memory = (median(peaks["probe"]) + state) / (median(peaks["without"]) + state)
    print(
        f"{label}: {1e3 * median(seconds['without']):.1f} ms without,"
        f" {1e3 * median(seconds['probe']):.1f} ms with; ratio {median(ratios):.3f}"
        f" ({ratios[0]:.3f} to {ratios[-1]:.3f}); memory {memory:.3f}",
        flush=True,
    )


def main() -> None:
    print(f"torch {torch.__version__}, {ROWS} x {LENGTH} tokens, recorded every {STEPS} steps")
    chosen = [word for word in ("eager", "compiled") if word in sys.argv]
    records = Records(JSON)
    for label in chosen or ("eager", "compiled"):
        compare(label == "compiled", records)


if __name__ == "__main__":
    main()
