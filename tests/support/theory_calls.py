"""Random calls of the theory API, with valid, extreme and invalid arguments.

Each call answers within ten seconds, or raises ValueError or TypeError with a message. The same
seed makes the same calls.

`python tests/support/theory_calls.py 0 300` prints the calls that do neither. It is a program of
its own because the test suite checks types at run time, and would refuse some calls itself.
"""

import inspect
import math
import sys
import time
import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from orderone import rules, theory
from orderone.theory import (
    activations,
    exponents,
    finite_width,
    first_pass,
    gaussian,
    kernels,
    limits,
    meanfield,
)
from orderone.theory import transformer as tf

LONGEST = 10.0  # seconds
WRONG: list[Any] = [
    None,
    "x",
    "",
    math.nan,
    math.inf,
    -math.inf,
    -1,
    0,
    True,
    1e308,
    1e-308,
    10**400,
    1 + 2j,
    [],
    {},
    (),
    [1, [2, 3]],
    {"Q": "x"},
    object(),
    Decimal("0.3"),
    Decimal("NaN"),
    Fraction(1, 3),
    np.array([]),
    np.array([math.nan]),
    np.array(["a"]),
    np.array([1, None], dtype=object),
    np.ones((2, 2, 2, 2, 2)),
    torch.ones(3),
    torch.tensor(0.5),
    lambda x: x,
    len,
    b"bytes",
    range(3),
]
FUNCTIONS: list[Any] = [
    np.tanh,
    np.sin,
    np.exp,
    math.tanh,
    torch.tanh,
    np.sign,
    np.abs,
    lambda x: 1 / x,
    lambda x: 0 * x,
    lambda x: x**3,
    lambda x: np.sin(30 * x),
    lambda x: np.sqrt(np.abs(x)),
    lambda x: np.log(np.abs(x)),
    lambda x: np.where(x > 1, 1e9, x),
    lambda x: np.exp(x * x),
    lambda x: x + np.nan,
    np.cumsum,
    np.sum,
]
NAMES: list[Any] = ["tanh", "relu", "gelu", "linear", "erf", "sin", "hard-tanh", "step", "elu"]
NUMBERS: list[Any] = [0.5, 1.0, 0, 2, 1e-9, 1e9, 0.9999999, 3.7, [0.5, 1.5], np.float32(0.3)]
KERNELS: list[Any] = [
    np.eye(2),
    np.eye(4),
    [[1.0, 0.5], [0.5, 1.0]],
    np.ones((3, 3)),
    np.zeros((2, 2)),
    1e-12 * np.eye(3),
    1e12 * np.eye(2),
    torch.eye(3),
    np.array([[1.0, 1.0 - 1e-12], [1.0 - 1e-12, 1.0]]),
    np.array([[1.0, 2.0], [2.0, 1.0]]),
    np.eye(4).reshape(2, 2, 2, 2),
]
MODELS = (  # classes that users make; the others are results
    "MeanField",
    "Transformer",
    "CovarianceSDE",
    "UnshapedCorrelationSDE",
    "Dense",
    "Dropout",
    "LayerNorm",
    "RMSNorm",
    "AveragePool",
    "ShapedReLU",
    "AddPositions",
    "FirstTokens",
    "Token",
    "HeadsAttention",
)
LAYERS: list[Any] = [kernels.Dense(1.5, 0.1), kernels.Activation("relu"), kernels.RMSNorm()]
RULES: list[Any] = ["mup", "sp", "ntk", "mf"]
ROLES: list[Any] = [{"hidden": Fraction(1, 2)}, {"hidden": 1}, {"nothing": 1}, {}, {"hidden": 0.1}]
POOLS: dict[str, list[Any]] = {
    "activation": [*NAMES, *FUNCTIONS],
    "f": FUNCTIONS,
    "g": FUNCTIONS,
    "derivative": [None, *FUNCTIONS],
    "phi": [*NAMES, *FUNCTIONS],
    "weight_var": NUMBERS,
    "bias_var": NUMBERS,
    "keep": [0.9, 1.0, 0.5, 1e-9, [0.5, 0.9]],
    "depth": [1, 3, 40],
    "width": [1, 64, 500],
    "G0": KERNELS,
    "V0": KERNELS,
    "V": KERNELS,
    "K": KERNELS,
    "blocks": ["A", "M", "AM", "", "AMAM"],
    "optimizer": ["sgd", "adam", "adamw", "muon", "adafactor", "sign", "soap", "shampoo-1/2"],
    "alignment": ["full", "no", {"omega": 1}, {"hidden": {"alpha": 1}}],
    "strategy": ["standard", "neural-tangent", "hybrid", "maximal-update", "s=1/4"],
    "C": [None, {"Q": 2.0, "K": 0.5}, {"QKVU": 1e3}, {"PE": 0}, {"nothing": 1}],
    "rates": [None, {"Q": 2.0}],
    "stem": ["vision", "language"],
    "head": ["linear", "tied"],
    "pool": ["none", "mean", "class"],
    "norm": ["layer", "rms", False, True],
    "paths": [2, 64],
    "samples": [4, 8],
    "instances": [2],
    "T": [0.5, 1.0],
    "t": [0.5, 1.0, [0.1, 0.2]],
    "dt": [0.1, 0.05],
    "p": RULES,
    "q": [*RULES, 0.5, 1.0, [0.1, 2.0]],
    "rule": RULES,
    "a": [*ROLES, 1.0],
    "b": [*ROLES, 1.0],
    "c": [*ROLES, 0.5, [-0.5, 0.5]],
    "theta": ROLES,
    "by": ROLES,
    "n": [64, 768],
    "heads": [None, 4],
    "causal": [False, True],
    "gap": [0.0, 1e-12, 0.5, 1.0, 2.0],
    "q1": NUMBERS,
    "q2": NUMBERS,
    "variance": [*NUMBERS, (1.0, 2.0)],
    "kinks": [(), (0.5,), 1.0],
    "x": [np.ones(3), np.linspace(-1, 1, 8), [0.1, 0.2]],
    "y": [np.ones(3), np.linspace(-1, 1, 8)],
    "ids": [[1, 2, 3], [[1, 2], [2, 2]]],
    "X": [np.ones((3, 4)), np.random.default_rng(0).standard_normal((2, 3, 5))],
    "seed": [0, 3],
    "accuracy": [5e-3, 1e-2],
    "rho": [-1.0, 0.0, 0.3, 1.0, [0.1, 0.9]],
    "rho0": [-0.5, 0.3, 1.0],
    "mask": [None, np.array([True, True]), np.array([[True, False], [True, True]])],
    "network": [theory.MeanField("tanh", 1.4, 0.1, 0.9), theory.MeanField("linear", 0.5, 0.1)],
    "r": [0.0, 1.0, -40.0, 40.0],
    "F": KERNELS,
    "widths": [[8, 16], [4], (3, 5, 7)],
    "vocab": [2, 10, 1000],
    "logit_var": [0.0, 1e-6, 1.0, 900.0],
    "init": ["fan-in", "fan-out", "glorot"],
    "u": [np.ones(3), np.linspace(-1, 1, 8)],
    "gradient": [np.ones(3), np.linspace(-1, 1, 8)],
    "attention": [None, np.tanh, [0.5, 0.5], lambda scores: scores, "softmax", "shaped"],
    "rope": [None, 1.0, 2.0, 1e4],
    "temperature": [1.0, 0.1, 30.0],
    "covariance": KERNELS,
    "position": [0, 1, 7],
    "queries": LAYERS,
    "keys": LAYERS,
    "values": LAYERS,
    "pairs": [[(0, 1), (0, 1)], [(0, 0)] * 4, [(1, 1)]],
    "head_size": [None, 4],
    "correlations": [np.eye(4), np.full((4, 4), 0.4) + 0.6 * np.eye(4)],
    "plus": [1.0, 0.5],
    "minus": [0.0, -0.5],
    "weights": ["gaussian", "orthogonal"],
    "placement": ["pre", "post"],
    "points": [64, 128],
    "step": [lambda x: np.ones((5, len(x))), np.sin],
}


def _method(make: Callable[[], object], name: str) -> tuple[str, Callable[..., object]]:
    function = getattr(make(), name)
    return f"{type(make()).__name__}.{name}", function


def _mean_field(
    activation: object, weight_var: object, bias_var: object, keep: object, q: object, c: object
) -> object:
    network: Any = theory.MeanField
    network = network(activation, weight_var, bias_var, keep)
    names = ("q_star", "c_star", "chi1", "chi2", "xi1", "xi2", "status", "phase")
    values = [getattr(network, name) for name in names]
    return values, network.length_map(q), network.correlation_map(c)


def _transformer(
    blocks: object,
    activation: object,
    C: object,
    causal: object,
    G0: object,
    mask: object,
    rope: object = None,
    attention: object = "softmax",
    temperature: object = 1.0,
) -> object:
    model: Any = theory.Transformer
    made = model(
        blocks,
        activation,
        C,
        causal=causal,
        accuracy=1e-2,
        rope=rope,
        attention=attention,
        temperature=temperature,
    )
    return made.ntk(G0, mask=mask)


def _tokens(queries: object, keys: object, values: object, X: object, covariance: object) -> object:
    layers: Any = kernels
    attention: Any = tf.HeadsAttention
    start = layers.AddPositions(covariance)(layers.inputs(X))
    return layers.Token(0)(attention(queries, keys, values, accuracy=1e-2)(start)).ntk


def _network(weight_var: object, bias_var: object, activation: object, X: object) -> object:
    layers: Any = kernels
    network = layers.Sequential(
        layers.Dense(weight_var, bias_var), layers.Activation(activation), layers.Dense()
    )
    kernel = network(layers.inputs(X))
    return kernel.nngp, kernel.ntk


def _public(module: object) -> list[tuple[str, Callable[..., object]]]:
    """Return the functions of a package, and the classes that users make."""
    found = []
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.isfunction(value) or name in MODELS:
            found.append((name, value))
    return found


def _subjects() -> list[tuple[str, Callable[..., object]]]:
    subjects: list[tuple[str, Callable[..., object]]] = []
    modules = (theory, exponents, gaussian, kernels, limits, meanfield, tf, activations)
    for module in (*modules, first_pass, finite_width):
        subjects.extend(_public(module))
    subjects.extend([("mean field", _mean_field), ("transformer", _transformer)])
    subjects.extend([("network", _network), ("tokens", _tokens), ("rules.custom", rules.custom)])
    relu = activations.get("relu")
    tanh = activations.get("tanh")
    for name in ("pair", "second_moment", "output_gap", "derivative_pair", "mean"):
        subjects.append((f"relu.{name}", getattr(relu, name)))
        subjects.append((f"tanh.{name}", getattr(tanh, name)))
    for model, name in (
        (theory.CovarianceSDE(), "sample"),
        (theory.UnshapedCorrelationSDE(), "sample"),
        (theory.Transformer("AM", heads=2, accuracy=1e-2), "few_heads"),
        (theory.Transformer("AM", accuracy=1e-2), "predict"),
        (theory.MeanField("tanh", 1.4, 0.1), "trajectory"),
        (theory.MeanField("relu", 1.4, 0.1), "length_map"),
    ):
        subjects.append(_method(lambda model=model: model, name))
    unique: dict[str, Callable[..., object]] = {}
    for name, subject in subjects:
        unique.setdefault(name, subject)
    return list(unique.items())


SUBJECTS = _subjects()


def _parameters(function: Callable[..., object]) -> list[str]:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, each in signature.parameters.items() if each.kind not in kinds]


def _arguments(function: Callable[..., object], rng: np.random.Generator) -> dict[str, object]:
    """Draw arguments: mostly valid ones, some of them omitted."""
    wrong = rng.choice([0.0, 0.1, 0.5])
    signature = inspect.signature(function)
    arguments: dict[str, object] = {}
    for name in _parameters(function):
        has_default = signature.parameters[name].default is not inspect.Parameter.empty
        if has_default and rng.random() < 0.5:
            continue
        pool = POOLS.get(name, NUMBERS)
        if rng.random() < wrong:
            pool = WRONG
        arguments[name] = pool[int(rng.integers(len(pool)))]
    return arguments


def _call(seed: int) -> tuple[str, str | None]:
    """Make one call; return it as text, and what is wrong with the answer."""
    rng = np.random.default_rng(seed)
    name, function = SUBJECTS[seed % len(SUBJECTS)]
    arguments = _arguments(function, rng)
    text = f"seed {seed}: {name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
    start = time.process_time()
    problem = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            function(**arguments)
    except (ValueError, TypeError) as error:
        if not str(error):
            problem = f"{type(error).__name__} without a message"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    took = time.process_time() - start
    if took > LONGEST:
        problem = f"{took:.1f} s"
    return text, problem


def _failures(seeds: range) -> list[str]:
    failures = []
    for seed in seeds:
        text, problem = _call(seed)
        if problem is not None:
            failures.append(f"{text}: {problem}")
    return failures


if __name__ == "__main__":
    for failure in _failures(range(int(sys.argv[1]), int(sys.argv[2]))):
        print(failure)
