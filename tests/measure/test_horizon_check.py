"""Checks along batch size and tokens, and the gradient noise scale."""

import math
from typing import Any

import pytest
import torch
from support.errors import refuses
from torch import nn

import orderone as o1

TARGET = torch.randn(8, generator=torch.Generator().manual_seed(7))
SIZES = [32, 64, 128]


def build():
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )


def noisy(step, seed):
    """Return samples whose noise dominates the gradient."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(128, 8, generator=generator)
    y = (x @ TARGET).tanh() + 6 * torch.randn(128, generator=generator)
    return x, y[:, None]


def check(subject=build, **options):
    settings = {"batches": noisy, "steps": 16, "seeds": 2, "lr": 1e-3}
    return o1.coord_check(subject, **settings | options)


def exponents(found, quantity) -> Any:
    frame: Any = found.exponents
    return frame[frame["quantity"] == quantity].set_index("module")["exponent"]


@pytest.mark.parametrize(("optimizer", "power"), [("adamw", 0.5), ("sgd", 1.0)])
def test_networks_change_alike_over_the_same_samples(optimizer, power):
    found = check(batch_sizes=SIZES, optimizer=optimizer, lr=1e-3 if power < 1 else 3e-3)
    assert found.passed, str(found)
    assert exponents(found, "learning rate").to_numpy() == pytest.approx(power)
    assert exponents(found, "change")[""] == pytest.approx(0, abs=0.1)
    assert exponents(found, "gradient").median() == pytest.approx(-0.5, abs=0.1)
    frame: Any = found.exponents
    updates = frame[frame["quantity"] == "update"]
    assert (updates["exponent"] - updates["predicted"]).abs().max() < 0.1
    assert "batch sizes 32, 64, 128" in str(found)


def test_a_constant_rate_fails_as_predicted():
    def unscaled(size):
        model = build()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    found = check(unscaled, batch_sizes=SIZES)
    assert found.verdict == "FAIL"
    assert exponents(found, "change")[""] == pytest.approx(-0.5, abs=0.1)
    assert exponents(found, "learning rate").abs().max() == 0


def test_tokens_change_outputs_between_noise_and_drift():
    found = check(tokens=[1000, 2000, 4000], steps=8)
    assert found.passed, str(found)
    assert exponents(found, "learning rate").to_numpy() == pytest.approx(-0.5)
    assert -0.1 < exponents(found, "change")[""] < 0.6
    assert "token counts 1000, 2000, 4000" in str(found)


def test_tokens_where_the_signal_dominates():
    """Without noise, D steps with lr D^-1/2 move weights by D^1/2: the end of the allowed range."""

    def without_noise(step, seed):
        x = torch.randn(128, 8, generator=torch.Generator().manual_seed(step))
        return x, x[:, :1] + 5

    settings = {"steps": 10, "lr": 3e-3, "optimizer": "adam", "batches": without_noise}
    found = check(tokens=[1000, 2000, 4000], **settings)
    assert exponents(found, "change")[""] == pytest.approx(0.5, abs=0.1)
    assert found.verdict != "FAIL", str(found)


@pytest.mark.parametrize(
    ("axis", "power", "optimizer"),
    [
        ("tokens", 0.0, torch.optim.AdamW),  # right: -1/2
        ("tokens", -1.5, torch.optim.AdamW),
        ("batch_sizes", 1.0, torch.optim.AdamW),  # right: 1/2
        ("batch_sizes", 0.5, torch.optim.SGD),  # right: 1
    ],
)
def test_a_wrong_power_fails(axis, power, optimizer):
    sizes = {"tokens": [1000, 2000, 4000], "batch_sizes": SIZES}[axis]

    def faulty(size):
        model = build()
        return model, optimizer(model.parameters(), lr=1e-3 * (size / sizes[0]) ** power)

    assert check(faulty, steps=8, **{axis: sizes}).verdict == "FAIL"


def test_the_uncorrected_start_of_rmsprop_is_predicted():
    """Step t has the rate lr (1 - alpha^t)^-1/2; the prediction is between noise and drift."""
    found = check(batch_sizes=SIZES, optimizer="rmsprop", lr=3e-4, steps=8)
    frame: Any = found.exponents
    changes = frame[frame["quantity"] == "change"].set_index("module")
    noise, drift = {}, {}
    for size in (32, 128):
        fresh = 0.01 * size / 32
        steps = range(1, 8 * 128 // size + 1)
        noise[size] = size * sum(1 / (1 - (1 - fresh) ** t) for t in steps)
        drift[size] = size * sum((1 - (1 - fresh) ** t) ** -0.5 for t in steps)
    exponents = [math.log(x[128] / x[32], 4) for x in (noise, drift)]
    expected = (exponents[0] / 2 + exponents[1]) / 2
    assert expected < -0.1
    assert changes["predicted"].to_numpy() == pytest.approx(expected)
    assert changes["exponent"][""] == pytest.approx(expected, abs=0.1)
    assert found.verdict != "FAIL"


def test_a_fixed_momentum_needs_a_long_training():
    found = check(batch_sizes=SIZES, optimizer="lion", lr=1e-4, steps=4, seeds=1)
    assert found.verdict == "UNCLEAR"
    assert any("training-too-short" in note for note in found.notes)


def test_an_axis_that_model_or_rule_does_not_have_is_refused():
    with refuses("axis-without-rule", argument="horizon"):
        check(batch_sizes=SIZES, horizon=None)
    with refuses("horizon-without-law", argument="horizon"):
        check(batch_sizes=SIZES, optimizer="adagrad")
    with refuses("build-arguments", argument="build"):
        check(lambda width: nn.Linear(8, width), batch_sizes=SIZES)
    with refuses("noise-needs-passes", argument="batches"):
        check(batch_sizes=SIZES, batches=noisy(0, 0))
    for wrong in ({"batch_sizes": [48, 128]}, {"batch_sizes": [128]}, {"tokens": [2, 3]}):
        with refuses("invalid-argument", argument=next(iter(wrong))):
            check(**wrong)
    with refuses("invalid-argument", argument="batches"):
        check(batch_sizes=[64, 256])
    for other in ({"widths": [8, 16]}, {"experts": [4, 8]}, {"tokens": [1, 2]}):
        with refuses("several-axes", argument="batch_sizes"):
            check(batch_sizes=SIZES, **other)


def test_widths_take_tokens_as_an_option_of_the_plan():
    def wide(width):
        return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))

    options = {"widths": [16, 32, 64], "steps": 2, "batch": (64, 512), "tokens": (2e8, 5e9)}
    found = check(wide, **options, weight_decay=0.1, decay="inverse-width")
    decays = exponents(found, "decay")
    assert decays["0.weight"] == pytest.approx(-1)
    assert "FAIL" not in set(found.exponents["verdict"]), str(found)


# --- gradient noise scale ------------------------------------------------------------------------


def linear_samples(step, seed):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 8, generator=generator)
    return x, (x @ TARGET + 2 * torch.randn(16, generator=generator))[:, None]


def known_noise():
    """Return |G|^2 and tr(Sigma) of a linear model at zero, for gradients 2 x (x w + noise).

    The fourth moments of Gaussian x give E |x|^2 (x w)^2 = (d + 2) |w|^2.
    """
    size = float(TARGET @ TARGET)
    return 4 * size, 4 * (9 * size + 4 * 8)


def zero_model():
    model = nn.Linear(8, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def test_noise_of_a_linear_model():
    model = zero_model()
    found = o1.noise_scale(model, linear_samples, steps=1500)
    signal, noise = known_noise()
    assert found.signal == pytest.approx(signal, rel=0.05)
    assert found.noise == pytest.approx(noise, rel=0.05)
    assert found.critical_batch == pytest.approx(noise / signal, rel=0.07)
    assert found.samples == 1500 * 16
    assert model.weight.grad is None
    assert "critical batch size" in str(found)


def test_a_probe_measures_the_noise_of_accumulated_gradients():
    model = zero_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with o1.probe(model, optimizer, noise=16, quantities="gradient") as p:
        for step in range(300):
            optimizer.zero_grad()
            for part in range(2):
                x, y = linear_samples(2 * step + part, 0)
                (model(x) - y).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)  # the estimate ignores clipping
            optimizer.step()
    signal, noise = known_noise()
    assert p.noise_scale.critical_batch == pytest.approx(noise / signal, rel=0.15)


def test_noise_needs_different_passes():
    model = zero_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with o1.probe(model, optimizer, noise=16) as p:
        model(linear_samples(0, 0)[0]).sum().backward()
        optimizer.step()
    with refuses("noise-needs-passes", argument="noise"):
        _ = p.noise_scale
    with o1.probe(model, optimizer) as p:
        pass
    with refuses("noise-needs-passes", argument="noise"):
        _ = p.noise_scale
    with refuses("noise-needs-passes", argument="batches"):
        o1.noise_scale(model, linear_samples(0, 0))
    with refuses("invalid-argument", argument="optimizer"), o1.probe(model, noise=16):
        pass
    uneven = [linear_samples(0, 0), tuple(part[:4] for part in linear_samples(1, 0))]
    with refuses("invalid-argument", argument="batches"):
        o1.noise_scale(model, uneven, steps=2)
