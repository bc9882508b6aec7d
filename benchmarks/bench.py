"""Times of what users wait for, ours and those of peers in the same run, as JSON:

    python benchmarks/bench.py [FILE.json] [part of a name ...]

`make bench` writes bench.json. Each case is run once unmeasured; then all ways of a case take
turns. Printed are medians and ranges of CPU seconds of this process (wall-clock seconds for cases
with several processes). Peers that are not installed are left out: mup, torchsde, Optuna.
`benchmarks/compare.py OLD NEW` compares two files; GPU figures come from `stacked.py`, `probe.py`
and `large_model.py`.
"""

import copy
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import count
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy

import numpy as np
import torch
from records import Records
from torch import Tensor, nn

import orderone as o1
from orderone import theory
from orderone.nn import GPT
from orderone.sweeping.stacked import Stack

Way = Callable[[], object]
ROUNDS = 5


def main(words: list[str]) -> None:
    path = next((word for word in words if word.endswith(".json")), None)
    chosen = [word for word in words if word != path]
    records = Records(path)
    print("| case | way | median | range |\n| --- | --- | --- | --- |", flush=True)
    for name, (ways, clock) in CASES.items():
        if chosen and not any(word in name for word in chosen):
            continue
        for way, seconds in measured(ways(), clock).items():
            records.add(f"{name}: {way}", seconds)
            spread = f"{min(seconds):.3g} to {max(seconds):.3g} s"
            print(f"| {name} | {way} | {median(seconds):.3g} s | {spread} |", flush=True)


def measured(ways: dict[str, Way], clock: Callable[[], float]) -> dict[str, list[float]]:
    """Return seconds of each way; the ways take turns."""
    for way in ways.values():
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            started = clock()
            way()
            seconds[name].append(clock() - started)
    return seconds


# --- theory ---------------------------------------------------------------------------------------


def phases() -> dict[str, Way]:
    biases = np.linspace(0.005, 0.3, 20)
    calls = count()

    def diagram() -> object:
        weights = np.linspace(0.5, 4 + 1e-3 * next(calls), 20)  # others each time: no cached result
        made = theory.phase_diagram("tanh", weight_var=weights, bias_var=biases)
        return made["q_star"]  # computed when it is read

    def by_scipy() -> object:
        weights = np.linspace(0.5, 4, 20)
        return [[scipy_point(weight, bias) for bias in biases] for weight in weights]

    return {"orderone": diagram, "scipy (quad and brentq)": by_scipy}


def scipy_point(weight_var: float, bias_var: float) -> float:
    """Return q* of tanh at one point, by quadrature and a root."""
    from scipy import integrate, optimize

    def squared(z: float, q: float) -> float:
        return float(np.tanh(np.sqrt(q) * z) ** 2 * np.exp(-z * z / 2) / np.sqrt(2 * np.pi))

    def length(q: float) -> float:
        mean, _ = integrate.quad(squared, -10, 10, args=(q,))
        return weight_var * mean + bias_var - q

    root = optimize.brentq(length, 1e-9, 10)
    assert isinstance(root, float)
    return root


def causal_kernel() -> dict[str, Way]:
    network = theory.Transformer(blocks="AMAMAMAM", activation="gelu", causal=True)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 64))
    start = x @ x.T / 64
    return {"orderone": lambda: network.ntk(start, optimizer="sgd")}


def covariances() -> dict[str, Way]:
    start = np.array([[1.0, 0.3], [0.3, 1.0]])
    sde = theory.CovarianceSDE(activation="shaped-relu", c_plus=0.0, c_minus=-1.0)
    ways: dict[str, Way] = {"orderone": lambda: sde.sample(start, T=1.0, paths=2048, seed=0)}
    if find_spec("torchsde"):
        ways["torchsde (a scalar equation of as many paths)"] = torchsde_paths
    return ways


def torchsde_paths() -> object:
    import torchsde  # pyright: ignore[reportMissingImports]

    class Scalar(nn.Module):
        noise_type = "diagonal"
        sde_type = "ito"

        def f(self, t: Tensor, y: Tensor) -> Tensor:
            return 0.5 * y

        def g(self, t: Tensor, y: Tensor) -> Tensor:
            return y

    return torchsde.sdeint(Scalar(), torch.ones(2048, 3), torch.tensor([0.0, 1.0]), dt=1e-2)


# --- plans ----------------------------------------------------------------------------------------


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def plans() -> dict[str, Way]:
    models = {width: network(width) for width in (64, 128, 256)}
    ways: dict[str, Way] = {
        "orderone": lambda: o1.plan(models[256], base=models[64], optimizer="adamw", lr=1e-2)
    }
    if find_spec("mup"):
        ways["mup"] = mup_plan
    return ways


def mup_plan() -> object:
    import mup  # pyright: ignore[reportMissingImports]

    def readout(width: int) -> nn.Module:
        layers = network(width)
        assert isinstance(layers, nn.Sequential)
        layers[-1] = mup.MuReadout(width, 10)
        return layers

    model = readout(256)
    mup.set_base_shapes(model, readout(64), delta=readout(128))
    return mup.MuAdamW(model.parameters(), lr=1e-2)


# --- training -------------------------------------------------------------------------------------

MEMBERS = 16


def stacks() -> dict[str, Way]:
    """Steps of 16 GPTs: the case of `stacked.py` on a CPU."""
    models: list[nn.Module] = []
    for seed in range(MEMBERS):
        torch.manual_seed(seed)
        models.append(GPT(vocab=256, length=32, width=64, heads=2, depth=4))
    tokens = torch.randint(256, (MEMBERS, 4, 33))
    batch = (tokens[:, :, :-1].contiguous(), tokens[:, :, 1:].contiguous())
    optimizers = [torch.optim.AdamW(model.parameters(), fused=True) for model in models]
    members = [copy.deepcopy(model) for model in models]
    stack = Stack(members, [torch.optim.AdamW(member.parameters()) for member in members])

    def one_after_another() -> None:
        for model, optimizer, inputs, targets in zip(models, optimizers, *batch, strict=True):
            loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return {
        "torch, one after another": one_after_another,
        "orderone, stacked": lambda: stack.step(batch),
    }


STEPS = 30
RATES = [1e-3 * 2**k for k in range(8)]


def sweeps() -> dict[str, Way]:
    """Eight trainings of a small network: a sweep, and Optuna with two processes."""
    ways: dict[str, Way] = {"orderone": sweep}
    if find_spec("optuna"):
        ways["Optuna, two processes"] = optuna_study
    return ways


def numbers(step: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * seed + step)
    return torch.randn(64, 32, generator=generator), torch.randint(10, (64,), generator=generator)


def sweep() -> object:
    return o1.sweep(
        network, space={"lr": RATES}, widths=[64], data=numbers, steps=STEPS, progress=False
    )


def optuna_study() -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = f"sqlite:///{folder}/study.db"
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        optuna.create_study(storage=storage, study_name="s")
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=optuna_worker, args=(storage,)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def optuna_worker(storage: str) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    torch.set_num_threads(1)
    study = optuna.load_study(storage=storage, study_name="s")
    study.optimize(optuna_trial, n_trials=len(RATES) // 2)


def optuna_trial(trial: object) -> float:
    lr = trial.suggest_float("lr", RATES[0], RATES[-1], log=True)  # type: ignore[attr-defined]
    model = network(64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    loss = torch.zeros(())
    for step in range(STEPS):
        inputs, targets = numbers(step, 0)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


CASES: dict[str, tuple[Callable[[], dict[str, Way]], Callable[[], float]]] = {
    "q* of a phase diagram of tanh, 20 x 20": (phases, time.process_time),
    "causal tangent kernel, 16 tokens, four blocks": (causal_kernel, time.process_time),
    "covariance SDE, 2048 paths": (covariances, time.process_time),
    "plan of an MLP": (plans, time.process_time),
    "step of 16 GPTs of width 64": (stacks, time.process_time),
    "eight trainings of an MLP": (sweeps, time.perf_counter),
}


if __name__ == "__main__":
    main(sys.argv[1:])
