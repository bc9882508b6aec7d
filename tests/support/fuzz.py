"""Calls of every public function with odd arguments: `python -m support.fuzz CALLS [NAME [SEED]]`.

A call may return or raise an InputError. Anything else is an error of the library: a raw TypeError
from within says neither which argument is wrong nor what was expected. It prints one line of JSON
with the number of calls and the wrong ones.

Calls are the same each time; a seed gives others (NAME "" stands for all functions).

The type checker of the test suite would answer first; so this is a program of its own.
"""

import importlib
import inspect
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import nn

import orderone as o1
from orderone.core.errors import InputError

MODULES = (
    "orderone",
    "orderone.data",
    "orderone.measure",
    "orderone.optimizers",
    "orderone.planning",
    "orderone.rules",
    "orderone.sweeping",
    "orderone.theory",
    "orderone.theory.activations",
    "orderone.theory.exponents",
    "orderone.theory.gaussian",
    "orderone.theory.kernels",
    "orderone.theory.limits",
    "orderone.theory.meanfield",
    "orderone.theory.transformer",
)
# Results, which users receive and do not make.
RECEIVED = {
    "Plan",
    "Row",
    "Sweep",
    "Transfer",
    "Check",
    "Probe",
    "Alignment",
    "Settings",
    "Trained",
}
RECEIVED |= {"MeasuredAlignment", "Denoising", "Images"}
# Called by the library, which validates what they get.
INTERNAL = {"Stack", "average"}


class Odd:
    """An object that nothing expects."""

    def __repr__(self) -> str:
        return "<odd>"


ODD: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: True,
    lambda: -1,
    lambda: 0,
    lambda: 3,
    lambda: 0.5,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: 1j,
    lambda: "",
    lambda: "text",
    lambda: b"bytes",
    list,
    lambda: [None],
    lambda: ["a", 1],
    dict,
    lambda: {"a": None},
    lambda: {1: 2},
    lambda: (1, 2),
    lambda: {1, 2},
    lambda: np.array([1.0, np.nan]),
    lambda: np.zeros((2, 3)),
    lambda: np.array(["a"]),
    lambda: torch.ones(2),
    lambda: Fraction(1, 3),
    lambda: Decimal("NaN"),
    lambda: range(3),
    lambda: nn.Linear(2, 2),
    lambda: nn.Linear,
    lambda: print,
    lambda: lambda: None,
    Odd,
    lambda: Odd,
)


def mlp(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


def batch(step: int = 0, seed: int = 0) -> Any:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed + step))
    return x, x[:, 0].long() % 2


@lru_cache
def a_plan() -> o1.Plan:
    return o1.plan(mlp(16), base=mlp(8), lr=1e-2)


# A value that fits, by the name of the parameter: one odd argument among others that fit goes far.
FITTING: dict[str, Callable[[], Any]] = {
    "activation": lambda: "tanh",
    "alignment": lambda: "full",
    "base": lambda: mlp(8),
    "batch": lambda: 2,
    "batches": lambda: [batch()],
    "bias_var": lambda: 0.1,
    "build": lambda: mlp,
    "c": lambda: 0.5,
    "data": lambda: batch,
    "depth": lambda: 2,
    "depths": lambda: [1, 2],
    "dt": lambda: 0.1,
    "G0": lambda: np.eye(2),
    "high": lambda: 1.0,
    "inputs": lambda: batch()[0],
    "kind": lambda: "relu",
    "keep": lambda: 0.9,
    "low": lambda: 0.1,
    "lr": lambda: 1e-2,
    "mean": lambda: 0.0,
    "model": lambda: mlp(16),
    "module": lambda: mlp(16),
    "n": lambda: 16,
    "n_in": lambda: 8,
    "n_out": lambda: 4,
    "name": lambda: "mup",
    "number": lambda: 3,
    "optimizer": lambda: "adam",
    "p": lambda: o1.rules.get("mup"),
    "paths": lambda: 4,
    "plan": a_plan,
    "q": lambda: 1.0,
    "rho0": lambda: 0.3,
    "rule": lambda: "mup",
    "samples": lambda: 8,
    "schedule": lambda: "constant",
    "seed": lambda: 0,
    "seeds": lambda: 1,
    "space": lambda: {"lr": [1e-3, 1e-2]},
    "steps": lambda: 1,
    "t": lambda: 0.5,
    "T": lambda: 0.2,
    "V0": lambda: np.eye(2),
    "weight_var": lambda: 1.4,
    "width": lambda: 16,
    "widths": lambda: [8, 16],
}
# Always these: other values are slow, use the network or stop the process.
FIXED: dict[str, Callable[[], Any]] = {"progress": lambda: False, "executor": lambda: "here"}


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every public function and class that users call, by its name."""
    for place in MODULES:
        module = importlib.import_module(place)
        for name in module.__all__:
            thing = getattr(module, name)
            if not callable(thing) or name in RECEIVED | INTERNAL or inspect.ismodule(thing):
                continue
            if isinstance(thing, type) and issubclass(thing, BaseException):
                continue
            if getattr(thing, "_is_protocol", False) or inspect.isabstract(thing):
                continue
            yield f"{place}.{name}", thing


def calls(name: str, function: Callable[..., Any]) -> st.SearchStrategy[Any]:
    """Return a strategy of arguments: most fit, one to three are odd."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:
        parameters = []
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = {p.name for p in named if p.default is p.empty}
    strategies: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    odd = st.sampled_from(ODD)
    for p in named:
        fitting = FITTING.get(p.name)
        one = odd if fitting is None else st.one_of(st.just(fitting), st.just(fitting), odd)
        if p.name in FIXED:
            strategies[p.name] = st.just(FIXED[p.name])
        elif p.name in required:
            strategies[p.name] = one
        else:
            optional[p.name] = one
    kinds = {p.name: p.kind is p.POSITIONAL_ONLY for p in named}
    arguments = st.fixed_dictionaries(strategies, optional=optional)
    return st.tuples(st.just(name), st.just(function), st.just(kinds), arguments)


def problem(function: Callable[..., Any], positional: dict[str, bool], made: dict[str, Any]) -> Any:
    """Call the function; return the error that it should not have raised, None if all is well."""
    first = [made[name] for name, only in positional.items() if only and name in made]
    rest = {name: value for name, value in made.items() if not positional[name]}
    try:
        function(*first, **rest)
    except (InputError, ImportError, NotImplementedError):
        return None
    except Exception as error:
        return error
    return None


def main(number: int, only: str = "", chosen: str = "") -> None:
    warnings.simplefilter("ignore")
    os.chdir(tempfile.mkdtemp())
    sys.stdout, out = open(os.devnull, "w"), sys.stdout  # noqa: SIM115
    functions = [(name, thing) for name, thing in public() if only in name]
    done = 0
    wrong: dict[str, str] = {}

    @settings(
        max_examples=number,
        derandomize=not chosen,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=cast(list[HealthCheck], list(HealthCheck)),
    )
    @given(st.one_of([calls(name, thing) for name, thing in functions]))
    def run(call: Any) -> None:
        nonlocal done
        name, function, positional, makers = call
        made = {key: make() for key, make in makers.items()}
        done += 1
        error = problem(function, positional, made)
        if error is not None:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(place.filename)}:{place.lineno}"
            key = f"{name} {type(error).__name__} {where}"
            shown = ", ".join(f"{key}={value!r:.40}" for key, value in made.items())
            wrong.setdefault(key, f"({shown}): {str(error)[:100]}")

    if chosen:
        run = seed(int(chosen))(run)
    partial(run)()
    print(json.dumps({"functions": len(functions), "calls": done, "wrong": wrong}), file=out)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
