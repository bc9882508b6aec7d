"""The bigram model: its passes against the paper's formulas written out, and its gauge freedom step
by step."""

from fractions import Fraction as F

import pytest
import torch
from support.errors import refuses

from orderone import rules
from orderone.gallery.s0.bigram import Setting, observe, simulate, step
from orderone.nn import Bigram, learning_rates
from orderone.theory.exponents import shift

WIDTH = 48
TOKENS, TARGETS = torch.tensor([0, 1, 1, 2]), torch.tensor([3, 4, 5, 3])


def build(p, seed=0, **options) -> Bigram:
    return Bigram(
        p, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, **options
    )


def test_passes_are_equation_1():
    model = build(rules.get("mup"))
    state = observe(model, TOKENS[:1], TARGETS[:1])
    m, W = model.multipliers, model.matrices()
    x = torch.nn.functional.one_hot(TOKENS[:1], 10).double()
    h = [x]
    for multiplier, weight in zip(m, W, strict=True):
        h.append(multiplier * h[-1] @ weight.T)
    back = [h[-1].softmax(-1) - torch.nn.functional.one_hot(TARGETS[:1], 10)]
    for multiplier, weight in zip(m[::-1], W[::-1], strict=True):
        back.insert(0, multiplier * back[0] @ weight)
    torch.testing.assert_close(state.h, h[1:])
    torch.testing.assert_close(state.dh, back[1:])
    for i, gradient in enumerate(state.dW):
        torch.testing.assert_close(gradient, m[i] * back[i + 1].T @ h[i])


def test_rms_norm_backward_is_lemma_d2():
    """Reference values for u = (1, -2, 1/2, 3) and an incoming gradient (.3, .1, -.4, .2)."""
    u = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    model = build(rules.get("sp"), norm=True)
    model._finish(u).backward(torch.tensor([0.3, 0.1, -0.4, 0.2], dtype=torch.float64))
    expected = [0.1403539550293485, 0.09016114991951528, -0.2212201410396354, 0.05019280510983325]
    assert u.grad is not None
    assert u.grad.tolist() == pytest.approx(expected, abs=1e-12)


def trajectory(p, optimizer: str, **options) -> torch.Tensor:
    model = build(p, **options)
    rates = learning_rates(model, p, WIDTH, 0.3)
    for _ in range(4):
        step(model, observe(model, TOKENS, TARGETS), rates, optimizer)
    return model(TOKENS).detach()


THETA = {"embedding": F(1, 2), "hidden": F(-1, 3), "readout": F(3, 4)}


@pytest.mark.parametrize(
    "options", [{}, {"norm": True}, {"activation": "relu"}, {"activation": "tanh"}]
)
@pytest.mark.parametrize("optimizer", ["sgd", "sign", "adafactor", "muon"])
def test_a_gauge_shift_leaves_the_trajectory_alone(optimizer, options):
    p = rules.get("mup", optimizer)
    before = trajectory(p, optimizer, **options)
    assert not torch.allclose(before, build(p, **options)(TOKENS))  # it trains
    torch.testing.assert_close(
        trajectory(shift(p, THETA, optimizer), optimizer, **options), before, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    ("optimizer", "wrong"),
    [("sgd", "adam"), ("sign", "sgd"), ("adafactor", "adam"), ("muon", "sgd")],
)
def test_the_shift_of_another_optimizer_changes_the_trajectory(optimizer, wrong):
    """Erratum S0.3."""
    p = rules.get("mup", optimizer)
    difference = trajectory(shift(p, THETA, wrong), optimizer) - trajectory(p, optimizer)
    assert difference.abs().max() > 0.01


def torch_trajectory(p, make) -> torch.Tensor:
    model = build(p)
    groups = [
        {"params": [w], "lr": rate}
        for w, rate in zip(model.weights, learning_rates(model, p, WIDTH, 0.01), strict=True)
    ]
    optimizer = make(groups)
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(TOKENS), TARGETS).backward()
        optimizer.step()
    return model(TOKENS).detach()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("adam", lambda groups: torch.optim.Adam(groups, eps=1e-60)),
        ("sgd", lambda groups: torch.optim.SGD(groups, momentum=0.9)),
        ("adafactor", lambda groups: torch.optim.Adafactor(groups, eps=(1e-60, 1e-60), d=1e9)),
    ],
)
def test_the_shifts_are_those_of_real_optimizers_too(name, make):
    """Momentum and second moments are linear or scale-free, so torch's own optimizers obey the same
    gauge."""
    p = rules.get("mup", name)
    expected = torch_trajectory(p, make)
    torch.testing.assert_close(
        torch_trajectory(shift(p, THETA, name), make), expected, rtol=1e-7, atol=1e-9
    )
    other = "sgd" if name != "sgd" else "adam"
    assert (torch_trajectory(shift(p, THETA, other), make) - expected).abs().max() > 1e-3


def test_tied_weights_are_one_tensor_used_twice():
    model = build(rules.get("mup"), tied=True)
    assert len(list(model.parameters())) == 4
    assert model.matrices()[-1].data_ptr() == model.matrices()[0].data_ptr()
    with refuses("tied-sizes-differ", argument="tied"):
        build(rules.get("sp"), tied=True)


@pytest.mark.parametrize(
    ("options", "code", "argument", "words"),
    [
        ({"activation": "gelu"}, "unknown-name", "activation", ""),
        ({"vocab": 1}, "invalid-argument", "vocab", ""),
        ({"depth": 0}, "invalid-argument", "depth", ""),
    ],
)
def test_bad_models(options, code, argument, words):
    with refuses(code, argument=argument) as caught:
        build(rules.get("sp"), **options)
    assert words in str(caught.value)


def test_simulation_is_reproducible_and_refuses_unknown_optimizers():
    setting = Setting(rules.get("sp"), steps=1)
    first, second = (simulate(setting, widths=(16, 32), seeds=2) for _ in range(2))
    assert first.equals(second)
    assert set(first.columns) == {"width", "seed", "step", "tokens", "quantity", "value"}
    with refuses("unknown-name", argument="optimizer"):
        simulate(Setting(rules.get("sp"), optimizer="adamax"))
