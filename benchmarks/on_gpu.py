"""Checks on a GPU: the plan, the losses (compiled or not) and the coordinate check are as on the
CPU; the cost of parameter groups in a fused step, and the cost of a probe.

python benchmarks/on_gpu.py
"""

import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.zoo import ZOO

import orderone as o1

NAMES = ("mlp", "cnn-batchnorm", "nano-gpt", "nn-transformer", "custom-parameters")
ROUNDS, STEPS = 30, 20


def planned(name: str, device: str, width: int = 256, **options):
    torch.manual_seed(0)
    entry = ZOO[name]
    model, base = entry.build(width, **options).to(device), entry.build(64, **options).to(device)
    batch = {key: value.to(device) for key, value in entry.batch(0).items()}
    return entry, model, batch, o1.plan(model, base=base, lr=1e-3, weight_decay=0.1, inputs=batch)


def check(name: str) -> None:
    runs = {}
    for kind, device in (("cpu", "cpu"), ("cuda", "cuda"), ("compiled", "cuda")):
        entry, model, batch, plan = planned(name, device)
        plan.apply()
        optimizer = plan.optimizer(fused=True)
        plan.check(optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100))
        runner = torch.compile(model) if kind == "compiled" else model
        runs[kind] = entry.train(runner, optimizer, batch, steps=5), plan.rows
    rates = [row.lr for row in runs["cpu"][1]] == [row.lr for row in runs["cuda"][1]]
    gaps = {
        kind: max(abs(a - b) for a, b in zip(runs[kind][0], runs["cpu"][0], strict=True))
        for kind in runs
    }
    print(f"{name:18} same rates {rates}, largest loss gap to the CPU: {gaps}", flush=True)


def step_time(optimizer: torch.optim.Optimizer) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(STEPS):
        optimizer.step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / STEPS


def cost() -> None:
    """Time optimizers with different groups, interleaved in one run."""
    entry, model, batch, plan = planned("nano-gpt", "cuda", width=1024, layers=8)
    plan.apply()
    entry.loss(model(**batch), batch).backward()
    parameters = list(model.parameters())
    kinds = {
        "plain": torch.optim.AdamW(parameters, fused=True),
        "plan": plan.optimizer(fused=True),
        "a group each": torch.optim.AdamW([{"params": [p]} for p in parameters], fused=True),
    }
    times = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind, optimizer in kinds.items():
            times[kind].append(step_time(optimizer))
    medians = {kind: statistics.median(values[3:]) for kind, values in times.items()}
    ratios = {kind: round(value / medians["plain"], 3) for kind, value in medians.items()}
    print(
        f"fused AdamW step, {len(parameters)} tensors: {medians['plain']:.3f} ms plain; ratios"
        f" {ratios}",
        flush=True,
    )


def same_check(name: str) -> None:
    """Compare exponents on both devices; they agree within noise, because seeds give other numbers
    on a GPU."""
    entry, exponents = ZOO[name], {}
    for device in ("cpu", "cuda"):
        check = o1.coord_check(
            lambda width, device=device: entry.build(width).to(device),
            (64, 128, 256, 512),
            lr=1e-2,
            batches=entry.batch(0),
            loss=entry.loss,
        )
        exponents[device] = check.exponents.set_index(["module", "quantity", "step"]).exponent
        print(
            f"{name:18} {device}: {check.verdict}, {check.count('PASS')} PASS of"
            f" {len(check.exponents)}",
            flush=True,
        )
    gap = (exponents["cpu"] - exponents["cuda"]).abs()
    print(
        f"{name:18} exponents differ by {gap.median():.3f} in the median, {gap.max():.2f} at most",
        flush=True,
    )


def probe_cost() -> None:
    """Time a step of a 12-layer GPT of width 256, with and without a probe, interleaved."""
    entry, model, batch, plan = planned("nano-gpt", "cuda", width=256, layers=12)
    plan.apply()
    optimizer = plan.optimizer(fused=True)
    times: dict[str, list[float]] = {"plain": [], "probe": []}
    for _ in range(ROUNDS):
        for kind in times:
            context = o1.probe(model, optimizer=optimizer) if kind == "probe" else nullcontext()
            with context:
                torch.cuda.synchronize()
                start = time.perf_counter()
                entry.train(model, optimizer, batch, steps=4)
                torch.cuda.synchronize()
                times[kind].append(time.perf_counter() - start)
    medians = {kind: statistics.median(values[3:]) / 4 for kind, values in times.items()}
    print(
        f"probe: {medians['plain'] * 1e3:.2f} ms per step without it,"
        f" {medians['probe'] / medians['plain']:.2f} times as long with it"
    )


if __name__ == "__main__":
    print(torch.__version__, torch.cuda.get_device_name())
    for name in NAMES:
        check(name)
    cost()
    for name in ("mlp", "nano-gpt"):
        same_check(name)
    probe_cost()
