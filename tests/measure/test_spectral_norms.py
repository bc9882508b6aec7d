"""Spectral norms of weights and updates, against singular values of torch and against theory."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import orderone as o1
from orderone import rules
from orderone.measure.largest_singular import RESIDUAL, is_exact, largest_singular
from orderone.theory import exponents

WIDTHS = (64, 128, 256, 512, 1024)  # the last one is estimated
INPUTS, CLASSES = 16, 10


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.detach().double(), ord=2))


def _with_spectrum(values: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    size = len(values)
    left = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    right = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    return left @ (values[:, None] * right)


def _matrix(kind: str, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)

    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator)

    match kind:
        case "gaussian":
            return normal(size, size)
        case "wide":
            return normal(size, 2 * size)
        case "tall":
            return normal(2 * size, size)
        case "sign of rank one":
            return (normal(size, 1) @ normal(1, size)).sign()
        case "sign of rank eight":
            return (normal(size, 8) @ normal(8, size)).sign()
        case "weak spike":
            noise = normal(size, size) / size**0.5
            return noise + 1.2 * normal(size, 1) @ normal(1, size) / size
        case "one slightly larger":
            return _with_spectrum(1 + 0.001 * (torch.arange(size) == 0))
        case "dense at the edge":
            return _with_spectrum(torch.linspace(1, 0.9, size))
        case "huge":
            return normal(size, size) * 1e37
        case "tiny":
            return normal(size, size) * 1e-37
        case "half precision":
            return normal(size, size).bfloat16()
    raise ValueError(kind)


@pytest.mark.parametrize("size", [40, 700])
@pytest.mark.parametrize(
    "kind",
    [
        "gaussian",
        "wide",
        "tall",
        "sign of rank one",
        "sign of rank eight",
        "weak spike",
        "one slightly larger",
        "dense at the edge",
        "huge",
        "tiny",
        "half precision",
    ],
)
def test_largest_singular_value(kind, size):
    matrix = _matrix(kind, size)
    tolerance = 1e-4
    if is_exact(*matrix.shape):
        tolerance = 1e-6  # that of the entries
    assert largest_singular(matrix) == pytest.approx(_norm(matrix), rel=tolerance)


def test_estimate_is_a_lower_bound_where_the_residual_stops_it():
    """The first singular value is hidden below the residual in the first step."""
    values = torch.ones(1024)
    values[0] = 1 + RESIDUAL
    matrix = _with_spectrum(values)
    estimate = largest_singular(matrix)
    assert _norm(matrix) * (1 - 1e-4) < estimate < _norm(matrix) * (1 + 1e-6)


def test_zeros_and_infinite_entries():
    assert largest_singular(torch.zeros(600, 600)) == 0
    matrix = torch.ones(3, 4)
    matrix[1, 1] = math.inf
    assert math.isnan(largest_singular(matrix))


# --- the probe ------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Three experts whose outputs are averaged; the type is registered by `_registered`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 12))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,eio->bo", x, self.weight) / 3


class Plain(Experts):
    """The same experts in a type that is not registered."""


class Odd(nn.Module):
    """Convolutions with and without groups, a transposed one, experts, and a tied readout."""

    def __init__(self, experts: type[Experts] = Experts) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1, groups=2)
        self.channels = nn.Conv1d(8, 8, 3, padding=1, groups=8)
        self.back = nn.ConvTranspose1d(8, 6, 3, padding=1, groups=2)
        self.mix = nn.Linear(6, 8)
        self.experts = experts()
        self.down = nn.Linear(12, 8)
        self.readout = nn.Linear(8, 20, bias=False)
        self.readout.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens).mT
        x = self.mix(self.back(self.channels(self.conv(x))).mT).mean(1)
        return self.readout(self.down(self.experts(x)))


@pytest.fixture
def _registered(monkeypatch):
    from orderone.observe import inventory

    monkeypatch.setattr(inventory, "_REGISTRY", dict(inventory._REGISTRY))
    o1.register(Experts, weight=inventory.matrix(into=1, out=2))


def _matrices(model: Odd) -> dict[tuple[str, int], Tensor]:
    """Return matrices (fan_out, fan_in), written out by hand."""
    matrices = {
        ("mix.weight", 0): model.mix.weight,
        ("down.weight", 0): model.down.weight,
        ("tokens.weight", 0): model.tokens.weight,
    }
    for group in range(2):
        rows = slice(4 * group, 4 * group + 4)
        matrices["conv.weight", group] = model.conv.weight[rows].reshape(4, 12)
        back = model.back.weight[rows]
        matrices["back.weight", group] = back.permute(1, 0, 2).reshape(3, 12)
    for expert in range(3):
        matrices["experts.weight", expert] = model.experts.weight[expert].T
    return {key: matrix.detach().clone() for key, matrix in matrices.items()}


@pytest.mark.usefixtures("_registered")
def test_weights_and_updates_of_every_matrix():
    torch.manual_seed(0)
    model = Odd()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    states = [_matrices(model)]
    with o1.probe(model, optimizer, quantities=(), spectral=True) as p:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randint(20, (4, 7))).square().sum().backward()
            optimizer.step()
            states.append(_matrices(model))
    expected = {}
    for step, (before, after) in enumerate(pairwise(states)):
        for (name, number), weight in before.items():
            update = after[name, number] - weight
            for quantity, matrix in (("weight", weight), ("update", update)):
                relative = _norm(matrix) / math.sqrt(matrix.shape[0] / matrix.shape[1])
                expected[step, name, number, quantity] = (_norm(matrix), relative)
    frame = p.spectral_norms
    recorded = {}
    for row in frame.to_dict("records"):
        key = (row["step"], row["module"], row["matrix"], row["quantity"])
        recorded[key] = (row["norm"], row["relative"])
    assert recorded.keys() == expected.keys()
    for key, numbers in expected.items():
        assert recorded[key] == pytest.approx(numbers, rel=1e-5), key
    assert set(frame.method) == {"exact"}
    assert frame.attrs["units"]["norm"] == "largest singular value, in units of the tensor"


def test_a_matrix_of_an_unknown_type_has_no_relative_norm():
    model = Odd(Plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with o1.probe(model, optimizer, modules="experts*", spectral=True, every=2) as p:
        for _ in range(3):
            model(torch.randint(20, (4, 7))).sum().backward()
            optimizer.step()
    frame = p.spectral_norms
    assert set(frame.module) == {"experts.weight"}
    assert set(frame.matrix) == {0, 1, 2}
    assert set(frame.step) == {0, 2}
    assert frame.relative.isna().all()
    assert (frame.norm > 0).all()


def test_a_probe_of_spectral_norms_changes_no_training():
    weights = []
    for spectral in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 600), nn.Dropout(0.5), nn.Linear(600, 600))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with o1.probe(model, optimizer, spectral=spectral):
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(4, 8)).square().mean().backward()
                optimizer.step()
        weights.append(model[0].weight)
    assert torch.equal(*weights)


def test_bad_input():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="optimizer: spectral"), o1.probe(model, spectral=True):
        pass
    with (
        pytest.raises(ValueError, match="spectral: expected a bool"),
        o1.probe(model, optimizer, spectral=2),  # pyright: ignore[reportArgumentType]
    ):
        pass
    with (
        pytest.raises(ValueError, match="spectral: expected a matrix"),
        o1.probe(model, optimizer, modules="bias", spectral=True),
    ):
        pass
    with (
        o1.probe(model, optimizer) as p,
        pytest.raises(ValueError, match=r"pass probe\(..., spectral=True\)"),
    ):
        _ = p.spectral_norms


# --- theory ---------------------------------------------------------------------------------------


def _network(width: int) -> nn.Module:
    layers = [nn.Linear(INPUTS, width), nn.Linear(width, width), nn.Linear(width, CLASSES)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def _measured(rule: str | None) -> dict[str, float]:
    """Return exponents of norms by width: of the start, and of Adam's first update.

    Without a rule, all widths have the standard initialization and one learning rate.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, INPUTS, generator=generator)
    y = x[:, :CLASSES].argmax(1)
    logs: dict[str, list[float]] = {"W1": [], "W2": [], "ΔW1": [], "ΔW2": []}
    for width in WIDTHS:
        torch.manual_seed(0)
        model = _network(width)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        if rule is not None:
            plan = o1.plan(model, base=_network(WIDTHS[0]), rule=rule, optimizer="adam", lr=1e-3)
            plan.apply()
            optimizer = plan.optimizer()
        with o1.probe(model, optimizer, quantities=(), spectral=True) as p:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        norms = p.spectral_norms.set_index(["module", "quantity"]).norm
        for layer, name in ((1, "2.weight"), (2, "4.weight")):
            logs[f"W{layer}"].append(math.log(norms[name, "weight"]))
            logs[f"ΔW{layer}"].append(math.log(norms[name, "update"]))
    return {name: float(np.polyfit(np.log(WIDTHS), y, 1)[0]) for name, y in logs.items()}


def test_exponents_of_mup_are_those_of_theory():
    predicted = exponents.spectral_norms(rules.get("mup"), depth=1)
    measured = _measured("mup")
    assert predicted["ΔW1"] == 0
    for name, exponent in predicted.items():
        assert measured[name] == pytest.approx(float(exponent), abs=0.1), name


def test_one_rate_for_all_widths_breaks_the_condition():
    standard = rules.get("sp").with_c({"embedding": 0, "hidden": 0, "readout": 0})
    predicted = exponents.spectral_norms(standard, depth=1)
    measured = _measured(None)
    assert not exponents.keeps_spectral_norms(standard)
    assert measured["ΔW1"] > 0.9
    for name, exponent in predicted.items():
        assert measured[name] == pytest.approx(float(exponent), abs=0.1), name
