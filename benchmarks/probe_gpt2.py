"""The cost of a probe at every tenth step: GPT-2 small, bfloat16, eager and compiled.

    python benchmarks/probe_gpt2.py [small] [json=FILE]

A Hugging Face GPT-2 (12 layers of width 768, no dropout) on 16 x 1024 tokens with fused AdamW. Ten
steps with and without the probe take turns; one of the ten is recorded. Printed are medians of
milliseconds per step, the ratio of neighbouring turns with its range, and the peak memory of a turn
above what was allocated before it. `small` runs on a CPU, to test the script.
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

SMALL = "small" in sys.argv
DEVICE = "cpu" if SMALL else "cuda"
ROWS, LENGTH, LAYERS, WIDTH, VOCAB = (2, 8, 1, 24, 64) if SMALL else (16, 1024, 12, 768, 50257)
STEPS, TURNS, WARM_UP = 10, 2 if SMALL else 7, 3  # a survey, the compilation, one more
JSON = next((word.removeprefix("json=") for word in sys.argv if word.startswith("json=")), None)


def trained(compiled: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS}
    sizes |= {"n_positions": LENGTH, "use_cache": False}
    dropout: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model: Any = GPT2LMHeadModel(GPT2Config(**sizes, **dropout))
    model.to(DEVICE)
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
    runs = {name: trained(compiled) for name in seconds}
    for number in range(WARM_UP + TURNS):
        for name, run in runs.items():
            # while a probe waits for the step to record, other compiled models run eagerly
            context = o1.probe(*run, every=STEPS) if name == "probe" else nullcontext()
            with context:
                found, peak = turn(lambda run=run: ten_steps(*run, tokens))
            if number >= WARM_UP:
                seconds[name].append(found)
                peaks[name].append(peak)
    state = 16 * sum(p.numel() for p in runs["probe"][0].parameters()) / 2**30
    for name, samples in seconds.items():
        records.add(f"probe of GPT-2, {label}: {name}", samples)
    pairs = zip(seconds["probe"], seconds["without"], strict=True)
    ratios = sorted(one / other for one, other in pairs)
    memory = (median(peaks["probe"]) + state) / (median(peaks["without"]) + state)
    print(
        f"{label}: {1e3 * median(seconds['without']):.1f} ms without,"
        f" {1e3 * median(seconds['probe']):.1f} ms with; ratio {median(ratios):.3f}"
        f" ({ratios[0]:.3f} to {ratios[-1]:.3f}); memory {memory:.3f}",
        flush=True,
    )


def main() -> None:
    print(f"torch {torch.__version__}, {ROWS} x {LENGTH} tokens, recorded every {STEPS} steps")
    records = Records(JSON)
    compare(False, records)
    compare(True, records)


if __name__ == "__main__":
    main()
