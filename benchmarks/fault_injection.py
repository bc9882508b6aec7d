"""How many single faults does a coordinate check find, and does it name the right tensor?

    python benchmarks/fault_injection.py RESULTS.jsonl [faults=400] [healthy=100] [seed=0]

Takes a healthy planned network of `architectures.py` and one optimizer, multiplies one number of
one tensor by (n / smallest n)^p, and checks the result as a model that is scaled already: `build`
returns the module and its optimizer. Kinds of faults: the tensor's learning rate, its initial
values, its weight decay, and the output of its module (a forward multiplier); p is -1, -1/2, 1/2 or
1. The sample is random with a fixed seed; finished checks are read from RESULTS.jsonl, so that an
interrupted run goes on where it was. `python benchmarks/fault_injection.py RESULTS.jsonl table`
prints the tables.

Healthy networks are checked in both forms (planned by the check, and scaled already), with new
seeds each time, and must not FAIL.

Which faults count was fixed before the first run. A fault is left out, and counted as harmless, if

    1  it scales a number that is zero: a tensor that starts at zero, a weight decay of zero
    2  it makes the initial size of a readout smaller (p < 0), or that of a bias or an added table
    3  the output of the tensor's module enters a norm alone, so that its size has no effect:
       initial values of either sign and forward multipliers, if neither rate nor weights see it
    4  it multiplies the output of a module that is a bias, a gain or a table of its own (no module)
    5  it scales initial values under weight decay that the optimizer normalizes: the same as 3

Rule 3 is decided by measurement, not by the judge: the loss of the smallest and the largest model
after the steps of the check, with and without the fault, differs by less than 1e-3 at both sizes.
"""

import json
import logging
import random
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from architectures import ARCHITECTURES, Architecture
from torch import Tensor, nn
from torch.optim import Optimizer

import orderone as o1
from orderone.optimizers.combined import CombinedOptimizer

LR = {"sgd": 0.1, "sgd+momentum": 0.03, "muon": 0.02, "lion": 2e-3}
OPTIMIZERS = ("sgd", "sgd+momentum", "adam", "adamw", "lion", "adafactor", "muon")
KINDS = ("lr", "init", "decay", "multiplier")
POWERS = (-1.0, -0.5, 0.5, 1.0)
WEIGHT_DECAY = 0.1
SEEDS = 2
SEEDS_PER_SAMPLE = 1000  # more than a sample of healthy networks needs
SAME_LOSS = 1e-3
FROZEN = {"lora": ("hid.*",)}


@dataclass(frozen=True)
class Fault:
    """One number of one tensor, multiplied by a power of the width; no kind: a healthy network."""

    architecture: str
    optimizer: str
    kind: str = ""
    tensor: str = ""
    power: float = 0.0
    seed: int = 0
    planned: bool = False  # healthy: the check itself plans the network

    @property
    def key(self) -> str:
        parts = (self.architecture, self.optimizer, self.kind, self.tensor, self.power, self.seed)
        return json.dumps([*parts, self.planned])


# --- networks with a fault ------------------------------------------------------------------------


def make_plan(network: Architecture, optimizer: str, width: int) -> o1.Plan:
    """Plan a network; the base is the smallest one."""
    model = network.build(width)
    with torch.random.fork_rng():
        torch.manual_seed(12345)
        base = network.build(network.widths[0])
    algorithm: Any = optimizer
    if optimizer == "sgd+momentum":
        algorithm = "sgd"
    plan = o1.plan(
        model,
        base=base,
        rule="mup",
        optimizer=algorithm,
        lr=LR.get(optimizer, 1e-2),
        weight_decay=WEIGHT_DECAY,
        inputs=network.batch[0],
    )
    plan.apply()
    return plan


def make_optimizer(plan: o1.Plan, optimizer: str) -> Optimizer:
    if optimizer == "sgd+momentum":
        return plan.optimizer(momentum=0.9)
    return plan.optimizer()


def scale_setting(optimizer: Optimizer, tensor: Tensor, setting: str, factor: float) -> Optimizer:
    """Give a tensor a group of its own, with one setting multiplied."""
    parts = {"": optimizer}
    if isinstance(optimizer, CombinedOptimizer):
        parts = optimizer.parts
    for part in parts.values():
        for group in list(part.param_groups):
            if not any(other is tensor for other in group["params"]):
                continue
            others = [other for other in group["params"] if other is not tensor]
            alone = {**group, "params": [tensor], setting: group[setting] * factor}
            if others:
                group["params"] = others
                part.add_param_group(alone)
            else:
                group[setting] *= factor
            break
    if isinstance(optimizer, CombinedOptimizer):
        return CombinedOptimizer(parts)
    return optimizer


def module_of(model: nn.Module, tensor: str) -> nn.Module | None:
    """Return the module without children that holds a weight; None for other tensors."""
    name, _, attribute = tensor.rpartition(".")
    module = dict(model.named_modules()).get(name)
    if module is None or attribute != "weight" or list(module.children()):
        return None
    return module


def faulty(fault: Fault) -> Callable[[int], Any]:
    """Return `build` for the network with its fault."""
    network = ARCHITECTURES[fault.architecture]

    def build(width: int) -> Any:
        plan = make_plan(network, fault.optimizer, width)
        model = plan.bound()
        optimizer = make_optimizer(plan, fault.optimizer)
        factor = (width / network.widths[0]) ** fault.power
        if not fault.kind or factor == 1:
            return model, optimizer
        tensor = plan.tensors()[fault.tensor]
        if fault.kind == "lr":
            optimizer = scale_setting(optimizer, tensor, "lr", factor)
        elif fault.kind == "decay":
            optimizer = scale_setting(optimizer, tensor, "weight_decay", factor)
        elif fault.kind == "init":
            with torch.no_grad():
                tensor.mul_(factor)
        else:
            module = module_of(model, fault.tensor)
            assert module is not None
            constant = torch.tensor(factor)

            def multiplied(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
                return output * constant

            module.register_forward_hook(multiplied)
        return model, optimizer

    return build


# --- which faults count ---------------------------------------------------------------------------


def is_harmless(fault: Fault, row: Any) -> bool:
    """Apply the rules at the top of this file, the cheap ones first."""
    if fault.kind == "init" and row.init_std == 0:
        return True
    if fault.kind == "decay" and row.weight_decay == 0:
        return True
    is_added = row.role in ("readout", "vector", "fixed") and row.constant is None
    if fault.kind == "init" and fault.power < 0 and is_added:
        return True
    if fault.kind == "multiplier" and row.role in ("vector", "fixed"):
        return True
    return fault.kind in ("init", "multiplier") and has_no_effect(fault)


def has_no_effect(fault: Fault) -> bool:
    """Return whether short trainings with and without the fault have the same losses."""
    network = ARCHITECTURES[fault.architecture]
    healthy = Fault(fault.architecture, fault.optimizer)
    for width in (network.widths[1], network.widths[-1]):
        losses = [short_training(network, faulty(f), width) for f in (healthy, fault)]
        if abs(losses[0] - losses[1]) > SAME_LOSS * max(1.0, abs(losses[0])):
            return False
    return True


def short_training(network: Architecture, build: Callable[[int], Any], width: int) -> float:
    torch.manual_seed(0)
    model, optimizer = build(width)
    inputs, targets = network.batch
    loss_function = network.loss or o1_loss
    loss = torch.tensor(0.0)
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_function(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return float(loss)


def o1_loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())


# --- running --------------------------------------------------------------------------------------


def run(fault: Fault) -> dict[str, Any]:
    network = ARCHITECTURES[fault.architecture]
    result: dict[str, Any] = {"key": fault.key, **fault.__dict__}
    if fault.kind:
        torch.manual_seed(0)
        plan = make_plan(network, fault.optimizer, network.widths[-1])
        result["role"] = str(plan[fault.tensor].role)
        if is_harmless(fault, plan[fault.tensor]):
            return {**result, "verdict": "harmless"}
    law = "sgd" if fault.optimizer == "sgd+momentum" else fault.optimizer
    first = 100 + SEEDS * fault.seed
    decay: dict[str, Any] = {"weight_decay": WEIGHT_DECAY} if fault.planned else {}
    start = time.perf_counter()
    check = o1.coord_check(
        network.build if fault.planned else faulty(fault),
        widths=network.widths,
        optimizer=law,
        lr=LR.get(fault.optimizer, 1e-2),
        batches=network.batch,
        loss=network.loss,
        seeds=range(first, first + SEEDS),
        frozen=FROZEN.get(fault.architecture, ()),
        **decay,
    )
    module = fault.tensor.rpartition(".")[0]
    cause = check.causes[0] if check.causes else ""
    words = cause.replace(",", " ").replace(";", " ").replace("'", " ").split()
    named = fault.tensor in words or (bool(module) and module in words)
    return {
        **result,
        "verdict": str(check.verdict),
        "cause": cause,
        "named": named,
        "seconds": round(time.perf_counter() - start, 1),
    }


def sample(count: int, seed: int) -> list[Fault]:
    """Return random faults, all kinds and optimizers equally often."""
    choose = random.Random(seed)
    faults = []
    for number in range(count):
        architecture = choose.choice(list(ARCHITECTURES))
        optimizer = OPTIMIZERS[number % len(OPTIMIZERS)]
        kind = KINDS[(number // len(OPTIMIZERS)) % len(KINDS)]
        model = ARCHITECTURES[architecture].build(ARCHITECTURES[architecture].widths[0])
        tensors = []
        for name, tensor in model.named_parameters():
            if tensor.requires_grad and (kind != "multiplier" or module_of(model, name)):
                tensors.append(name)
        faults.append(
            Fault(architecture, optimizer, kind, choose.choice(tensors), choose.choice(POWERS))
        )
    return faults


def healthy(count: int, seed: int = 0) -> list[Fault]:
    """Return healthy networks, each in turn with every optimizer, in both forms and new seeds.

    Another `seed` gives another order and other initial weights.
    """
    cases = []
    pairs = [(name, optimizer) for name in ARCHITECTURES for optimizer in OPTIMIZERS]
    random.Random(seed).shuffle(pairs)
    for number in range(count):
        architecture, optimizer = pairs[number % len(pairs)]
        planned = number % 2 == 0 and optimizer != "sgd+momentum"
        weights = SEEDS_PER_SAMPLE * seed + number // len(pairs)
        cases.append(Fault(architecture, optimizer, seed=weights, planned=planned))
    return cases


# --- tables ---------------------------------------------------------------------------------------


def tables(results: list[dict[str, Any]]) -> str:
    counted = [r for r in results if r["kind"] and r["verdict"] != "harmless"]
    healthy_results = [r for r in results if not r["kind"]]
    lines = ["| optimizer | kind | whole powers caught | half powers caught | tensor named |"]
    lines.append("| --- | --- | --- | --- | --- |")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for result in counted:
        groups[result["optimizer"], result["kind"]].append(result)
        groups[result["optimizer"], "all"].append(result)
        groups["all", result["kind"]].append(result)
        groups["all", "all"].append(result)
    for (optimizer, kind), group in sorted(groups.items()):
        whole = [r for r in group if abs(r["power"]) == 1]
        half = [r for r in group if abs(r["power"]) != 1]
        caught = [r for r in group if r["verdict"] == "FAIL"]
        named = [r for r in caught if r.get("named")]
        cells = (_share(whole), _share(half), f"{len(named)} / {len(caught)}")
        lines.append(f"| {optimizer} | {kind} | {' | '.join(cells)} |")
    harmless = sum(r["verdict"] == "harmless" for r in results)
    false = [r for r in healthy_results if r["verdict"] == "FAIL"]
    lines.append(f"\n{harmless} harmless faults left out.")
    lines.append(f"{len(false)} of {len(healthy_results)} healthy networks FAIL.")
    lines += [f"\nfalse FAIL: {r['key']} {r['cause']}" for r in false]
    for result in counted:
        if result["verdict"] != "FAIL":
            lines.append(f"escaped: {result['key']} {result['verdict']} {result.get('cause', '')}")
    return "\n".join(lines)


def _share(group: list[dict[str, Any]]) -> str:
    return f"{sum(r['verdict'] == 'FAIL' for r in group)} / {len(group)}"


def main(path: Path, arguments: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    results = []
    if path.exists():
        results = [json.loads(line) for line in path.read_text().splitlines()]
    if arguments != ["table"]:
        options = dict(argument.split("=") for argument in arguments)
        seed = int(options.get("seed", 0))
        cases = sample(int(options.get("faults", 400)), seed)
        cases += healthy(int(options.get("healthy", 100)), seed)
        done = {result["key"] for result in results}
        for case in cases:
            if case.key in done:
                continue
            done.add(case.key)
            try:
                result = run(case)
            except Exception as error:
                result = {"key": case.key, **case.__dict__, "verdict": "raises"}
                result["cause"] = f"{type(error).__name__}: {error}"
            results.append(result)
            with path.open("a") as file:
                file.write(json.dumps(result) + "\n")
    print(tables(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
