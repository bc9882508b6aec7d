"""S0 on real networks, widths 64 to 1024: the predictions hold within narrow intervals, and what must fail does."""

from fractions import Fraction as F

import pytest
import torch

from orderone import rules
from orderone.gallery import EXPERIMENTS
from orderone.gallery.bigram import Setting, fits, simulate, update
from orderone.gallery.bigram import rms as size_of
from orderone.measure import fit_exponent
from orderone.theory.exponents import max_lr, rms


def test_table_1_is_derived():
    frame = EXPERIMENTS["s0-table1"].run(0)
    assert len(frame) == 12
    assert (frame.verdict == "holds").all()


def test_table_2_holds_and_row_2_of_the_paper_does_not():
    frame = EXPERIMENTS["s0-table2"].run(12)
    assert len(frame) == 90
    assert (frame.verdict == "holds").all(), frame[frame.verdict == "FAILS"]
    assert (frame.high - frame.low).max() < 0.1  # narrow enough to tell 0 from 1/2 five times over
    wrong = frame.query("paper_holds == 'FAILS'").groupby("row").quantity.agg(set).to_dict()
    assert set(wrong) == {"1/d, 1/d", "1/d, 1/d norm"}
    assert wrong["1/d, 1/d"] == {"h'5"}  # erratum S0.10
    assert {"h1", "h5", "W'4", "W'1", "W'0"} <= wrong["1/d, 1/d norm"]  # erratum S0.9


def test_table_3_holds_except_for_the_assumption_that_training_breaks():
    frame = EXPERIMENTS["s0-table3"].run(12)
    failed = frame[frame.verdict == "FAILS"]
    assert list(zip(failed.row, failed.quantity, strict=True)) == [("SP (A.2)", "Δh5")]  # erratum S0.5
    assert (frame.verdict == frame.paper_holds).all()
    assert (frame[frame.quantity != "Δh5"].eval("high - low")).max() < 0.2
    logits = frame[frame.quantity == "Δh5"].set_index("row")
    assert logits.measured["SP (31)"] == pytest.approx(0.5, abs=0.15)
    assert logits.measured["muP"] == pytest.approx(0.0, abs=0.15)


def test_equation_5_as_printed_is_refuted():
    """Erratum S0.1, at exponents that no paper chose."""
    p = rules.custom("odd", a=("1/10", "1/5", "3/10"), b=("1/5", "9/20", "2/5"), c=(0, 0, 0))
    fit = fits(
        simulate(Setting(p, tokens=tuple(range(10)), targets=tuple(range(10)))), confidence=0.9999, correction=False
    )
    for name, predicted in rms(p).items():
        assert fit.low[name] <= predicted <= fit.high[name], name
    printed = rms(p)["W'1"] + 1  # the indicator's sign: variance d^2 larger
    assert not fit.low["W'1"] <= printed <= fit.high["W'1"]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adafactor", "muon"])
def test_every_optimizer_moves_activations_by_order_one_at_its_largest_rates(optimizer, norm):
    start = rules.get("mup")
    p = start.with_c(max_lr(start, optimizer, "worst"))
    scale = {"sgd": 0.02, "adafactor": 0.005, "muon": 0.02}[optimizer]
    tokens, targets = (0, 0, 1, 1, 2, 2, 3, 3), (1, 2, 3, 4, 5, 6, 7, 8)  # two answers each: no gradient can vanish
    setting = Setting(p, optimizer, steps=1, scale=scale, norm=norm, tokens=tokens, targets=targets)
    frame = simulate(setting, widths=(32, 64, 128, 256, 512), seeds=16)
    fit, straight = fits(frame, confidence=0.9999), fits(frame, correction=False)
    for name in ("Δh1", "Δh2", "Δh3", "Δh4", "Δh5"):
        assert fit.low[name] <= 0 <= fit.high[name], (name, fit.loc[name])
        assert straight.exponent[name] == pytest.approx(0, abs=0.12)


def test_behind_norms_a_rate_too_large_moves_activations_by_their_size_and_no_more():
    p = rules.get("mup").with_c({"embedding": 0})  # n^{1/2} too fast
    setting = Setting(p, steps=1, scale=1.0, norm=True, tokens=(0, 0), targets=(1, 2))
    fit = fits(simulate(setting, seeds=4), correction=False)
    predicted = rms(p, norm=True, training=True, alignment="worst")
    for name in ("Δh1", "Δh2", "Δh3", "Δh4", "W'0", "h'1"):
        assert fit.exponent[name] == pytest.approx(float(predicted[name]), abs=0.15), name


def test_muon_entries_are_those_of_a_spectral_update():
    """e = c + 1/2 for every shape when the gradient has full rank: the polar factor of n x n, n x V and V x n."""
    for shape in (lambda n: (n, n), lambda n: (n, 10), lambda n: (10, n)):
        widths, sizes = (32, 64, 128, 256), []
        for n in widths:
            gradient = torch.randn(shape(n), generator=torch.Generator().manual_seed(n), dtype=torch.float64)
            sizes.append(float(size_of(update(torch.zeros_like(gradient), gradient, 1.0, "muon"))))
        assert fit_exponent(widths, sizes, correction=False).exponent == pytest.approx(-0.5, abs=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "sign", "adafactor", "muon"])
def test_faster_than_the_largest_rate_grows(optimizer):
    """The same networks with hidden rates n^{1/2} too large: activations change by n^{1/2}."""
    start = rules.get("mup")
    c = max_lr(start, optimizer, "worst")
    p = start.with_c(c | {"hidden": c["hidden"] - F(1, 2)})
    setting = Setting(p, optimizer, steps=1, scale=0.001, tokens=(0, 0), targets=(1, 2))
    fit = fits(simulate(setting, widths=(32, 64, 128, 256, 512), seeds=6), correction=False)
    assert fit.low["Δh4"] > 0.2


def test_alignment_is_what_the_errata_say():
    """Errata S0.5, S0.6 on the linear network: omega 1/2 inside and 1 at the readout, alpha 1, from the first step."""
    frame = simulate(Setting(rules.get("sp"), steps=1, scale=0.05), seeds=12)
    fit = fits(frame, confidence=0.9999)
    for layer, omega in {1: 0.5, 2: 0.5, 3: 0.5, 4: 1.0}.items():
        assert fit.low[f"omega{layer}"] <= omega <= fit.high[f"omega{layer}"]
        assert fit.low[f"alpha{layer}"] <= 1 <= fit.high[f"alpha{layer}"]
        assert fit.high[f"omega{layer}"] - fit.low[f"omega{layer}"] < 0.4


def test_held_out_tokens_are_not_aligned():
    """Errata S0.5: tokens that were not trained on see alpha = 1/2 and, for SP, logits that stay put."""
    common = {"steps": 3, "scale": 0.05, "tokens": (0, 1, 2, 3), "targets": (1, 2, 3, 4), "held_out": (7, 8)}
    sp, mup = (fits(simulate(Setting(rules.get(name), **common)), correction=False) for name in ("sp", "mup"))
    assert sp.exponent[["alpha1", "alpha2", "alpha3"]].tolist() == pytest.approx([0.5] * 3, abs=0.12)
    assert sp.exponent["Δh5"] == pytest.approx(0.0, abs=0.15)
    assert mup.exponent["Δh5"] == pytest.approx(-0.5, abs=0.15)


def test_a_tied_network_behaves_as_its_untied_twin():
    """S0 A.1.2: the gradients add up and the exponents stay."""
    p = rules.get("mup")
    setting = Setting(p, steps=1, scale=0.005, tied=True, tokens=(0, 0), targets=(1, 2))
    fit = fits(simulate(setting, seeds=8), confidence=0.9999)
    predicted = rms(p, training=True, alignment="worst")
    for name in ("h1", "h4", "Δh1", "Δh4", "Δh5", "h'4", "W'1"):
        assert fit.low[name] <= predicted[name] <= fit.high[name], name


def test_u_is_not_aligned_at_the_first_step():
    """Erratum S0.6: with a batch of eight, dW dh adds up like independent terms at first; u = 1 is an upper bound."""
    tokens, targets = tuple(range(8)), (3, 1, 4, 1, 5, 9, 2, 6)
    frame = simulate(Setting(rules.get("mup"), steps=1, scale=0.005, tokens=tokens, targets=targets), seeds=8)
    fit = fits(frame, confidence=0.9999, correction=False)
    for layer in (1, 2, 3):
        assert fit.high[f"u{layer}"] < 0.9
        assert fit.low[f"alpha{layer}"] > 0.9
