"""Wall-clock time of whole studies on the cores of a CPU: `orderone.sweep` with its defaults.

    python benchmarks/cpu_study.py [rounds=5] [steps=200] [case ...]

Each way to train the same trials runs in a process of its own, and the ways take turns. The time is
that of the call of `sweep`, with everything that it starts. "one after another" has the better of
one thread and of all threads. A machine that is busy with other programs shows less than it can do;
`load` is the average number of running programs. `CPU` is the time of all processes together.

The last columns say how many times as fast as one after another the sweep is: the median over the
rounds, the lowest and the highest of them.
"""

import json
import os
import resource
import subprocess
import sys
import time
from statistics import median
from typing import Any

from records import Records

WAYS: dict[str, dict[str, Any]] = {
    "one after another, one thread": {"stacked": False, "executor": "here", "threads": 1},
    "one after another, all threads": {"stacked": False, "executor": "here"},
    "one process": {"executor": "here", "threads": 1},
    "default": {},
}
REFERENCES = tuple(name for name in WAYS if name.startswith("one after another"))
CASES: dict[str, dict[str, Any]] = {
    "16 GPTs of width 64": {"model": "gpt", "widths": [64], "members": 16},
    "12 GPTs of widths 32, 64 and 128": {"model": "gpt", "widths": [32, 64, 128], "members": 4},
    "16 MLPs of width 64": {"model": "mlp", "widths": [64], "members": 16, "longer": 10},
    "2 GPTs of width 64": {"model": "gpt", "widths": [64], "members": 2, "longer": 4},
    "3 CNNs of width 24": {"model": "cnn", "widths": [24], "members": 3},
}


def main(words: list[str]) -> None:
    options = dict(word.split("=") for word in words if "=" in word)
    path = next((word for word in words if word.endswith(".json")), None)
    names = [word for word in words if "=" not in word and word != path]
    records = Records(path)
    for name, case in CASES.items():
        if not names or any(part in name for part in names):
            steps = int(options.get("steps", 200)) * case.get("longer", 1)
            measure(name, {**case, "steps": steps}, int(options.get("rounds", 5)), records)


def measure(name: str, case: dict[str, Any], rounds: int, records: Records) -> None:
    """Print the table of one study."""
    print(f"\n{name}, {case['steps']} steps, load {os.getloadavg()[0]:.1f}\n", flush=True)
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, settings in WAYS.items():
            runs[way].append(run(case | settings))
    walls = {way: [one["wall"] for one in found] for way, found in runs.items()}
    for way, seconds in walls.items():
        records.add(f"{name}, {way}", seconds)
    reference = min(REFERENCES, key=lambda way: median(walls[way]))
    print("| way | wall s | CPU s | faster | lowest | highest |")
    print("| --- | --- | --- | --- | --- | --- |")
    for way, found in runs.items():
        ratios = [a / b for a, b in zip(walls[reference], walls[way], strict=True)]
        cpu = median(one["cpu"] for one in found)
        cells = [way, f"{median(walls[way]):.2f}", f"{cpu:.2f}"]
        cells += [f"{x:.2f}x" for x in (median(ratios), min(ratios), max(ratios))]
        print(f"| {' | '.join(cells)} |")
    for note in runs["default"][-1]["notes"]:
        print(f"\n{note}")


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Run a study in another process."""
    words = [sys.executable, __file__, "--study", json.dumps(case)]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def study(case: dict[str, Any]) -> None:
    """Run a study in this process, and print its times as JSON."""
    import torch

    import orderone as o1

    if "threads" in case:
        torch.set_num_threads(case["threads"])
    options = {key: case[key] for key in ("stacked", "executor") if key in case}
    data = {"gpt": tokens, "mlp": numbers, "cnn": images}[case["model"]]
    build = {"gpt": gpt, "mlp": mlp, "cnn": cnn}[case["model"]]
    rates = [1e-3 * 2 ** (k / 4) for k in range(case["members"])]
    used = cpu_seconds()
    begun = time.perf_counter()
    found = o1.sweep(
        build,
        {"lr": rates},
        widths=case["widths"],
        data=data,
        steps=case["steps"],
        device="cpu",
        progress=False,
        **options,
    )
    wall = time.perf_counter() - begun
    assert set(found.frame["status"]) <= {"done", "diverged"}, found.notes
    print(json.dumps({"wall": wall, "cpu": cpu_seconds() - used, "notes": found.notes}))


def cpu_seconds() -> float:
    """Return the seconds that this process and those that it has started have computed."""
    seconds = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        seconds += usage.ru_utime + usage.ru_stime
    return seconds


def gpt(width: int) -> Any:
    from orderone.nn import GPT

    return GPT(vocab=256, length=32, width=width, heads=2, depth=4)


def mlp(width: int) -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def cnn(width: int) -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


def tokens(step: int, seed: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1000 * seed + step)
    ids = torch.randint(256, (4, 33), generator=generator)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def numbers(step: int, seed: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1000 * seed + step)
    return torch.randn(64, 32, generator=generator), torch.randint(10, (64,), generator=generator)


def images(step: int, seed: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1000 * seed + step)
    x = torch.randn(32, 3, 32, 32, generator=generator)
    return x, torch.randint(10, (32,), generator=generator)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--study"]:
        study(json.loads(sys.argv[2]))
    else:
        main(sys.argv[1:])
