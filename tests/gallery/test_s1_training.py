"""S1 Figures 6 and 7: judges that say yes and no, and networks that are what they should be."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import torch

from orderone.gallery import EXPERIMENTS, reproduce
from orderone.gallery.s1 import boundary, collapse
from orderone.gallery.s1 import figure6 as s1_figure6
from orderone.gallery.s1 import figure7 as s1_figure7
from orderone.gallery.s1.boundary import boundaries, distances
from orderone.gallery.s1.deep_network import Drawing, draw_networks
from orderone.gallery.s1.deep_training import Members, Run, Training, read_images, train
from orderone.gallery.s1.trainable_depth_findings import scored

SIX, SEVEN = EXPERIMENTS["s1-figure6"], EXPERIMENTS["s1-figure7"]


def told(findings):
    return {finding.claim: finding.holds for finding in findings}


def drawn(experiment, records) -> Any:
    pictures = experiment.draw(records)
    for picture in pictures:
        if hasattr(picture, "figure"):
            go.Figure(picture.figure)
            assert picture.alt
        else:
            assert all(len(row) == len(picture.head) for row in picture.rows)
    return pictures


# --- Figure 7 -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lines():
    return s1_figure7.curves(SEVEN.scales["gpu"])


def panel(lines, law, keep=1.0, seed=0, best=0.95, steps=3000):
    """A map whose boundary is law(xi1, xi2), with some noise."""
    own = lines[np.isclose(lines.keep, keep)].set_index("weight_var")
    noise = np.random.default_rng(seed)
    rows = []
    for weight_var in s1_figure7.WEIGHT_VARS:
        edge = law(own.xi1[weight_var], own.xi2[weight_var]) * np.exp(
            0.05 * noise.standard_normal()
        )
        for depth in s1_figure7.DEPTHS:
            accuracy = 0.1 + (best - 0.1) / (1 + (depth / edge) ** 8)
            rows.append((weight_var, 0, depth, accuracy))
    frame = pd.DataFrame(rows, columns=["weight_var", "seed", "depth", "accuracy"])
    early = frame.assign(step=10, accuracy=0.1)  # what comes before the end does not count
    return pd.concat([early, frame.assign(step=steps)]).assign(keep=keep)


def theory_of(lines):
    return {
        "theory": lines,
        "captions": pd.DataFrame({"letter": list("afe"), "caption": "made up"}),
    }


CLAIMED = lambda one, two: 12 * min(one, two)  # noqa: E731


def test_the_claim_of_figure_7_can_hold(lines):
    records = {
        "panel a": panel(lines, CLAIMED),
        "panel f": panel(lines, CLAIMED, 0.95),
    } | theory_of(lines)
    found = told(SEVEN.judge(records))
    assert len(found) == 10
    assert set(found.values()) == {True}
    pictures = drawn(SEVEN, records)
    assert len(pictures) == 4
    assert "at 11.78 [" in pictures[0].alt


@pytest.mark.parametrize(
    ("law", "keep", "claim", "holds"),
    [
        (lambda one, two: 6 * two, 1.0, "no curve is nearer", False),
        (lambda one, two: 12 * two, 0.99, "no curve is nearer", False),
        (lambda one, two: 12 * one, 0.95, "no curve is nearer", False),
        (lambda one, two: 4 * two, 1.0, "6 ξ₂ underestimates", False),
        (lambda one, two: 20 * two, 1.0, "on the right 12 ξ₂ overestimates", False),
        (lambda one, two: 7 * min(one, two), 1.0, "the constant is 12", False),
        (lambda one, two: 20 * min(one, two), 0.95, "the constant is 12", False),
        (lambda one, two: 12 * one, 0.95, "on the left 12 ξ₂ limits", False),
        (lambda one, two: 12 * two, 0.95, "on the right 12 ξ₁ limits", False),
        (lambda one, two: 1.0, 0.95, "no curve is nearer", None),  # nothing can be trained
        (lambda one, two: 1e9, 0.95, "the constant is 12", None),  # everything can
    ],
)
def test_each_claim_of_figure_7_can_fail(lines, law, keep, claim, holds):
    records = {"panel e": panel(lines, law, keep)} | theory_of(lines)
    (found,) = [value for name, value in told(SEVEN.judge(records)).items() if claim in name]
    assert found is holds
    drawn(SEVEN, records)


def test_panels_with_fewer_updates_than_in_the_paper_decide_nothing(lines):
    records = {"panel e": panel(lines, CLAIMED, 0.95, steps=2999)} | theory_of(lines)
    found = SEVEN.judge(records)
    assert {f.holds for f in found} == {None}
    assert all("holds here, after 2,999 of the paper's 3,000 updates" in f.numbers for f in found)


def test_a_boundary_is_between_the_depths_where_accuracy_falls():
    frame = pd.DataFrame(
        {"weight_var": 1.0, "seed": 0, "depth": [10, 20, 40], "accuracy": [0.9, 0.7, 0.1]}
    )
    found = boundaries(frame)
    assert 20 < found.low[0] == found.high[0] < 40
    assert found.low[0] == pytest.approx(20 * 2 ** (0.2 / 0.6))


@pytest.mark.parametrize(
    ("accuracy", "low", "high"), [([0.9, 0.9], 20, np.inf), ([0.2, 0.1], 0, 10)]
)
def test_bounds_where_the_grid_ends(accuracy, low, high):
    other = pd.DataFrame({"weight_var": 2.0, "seed": 0, "depth": [10, 20], "accuracy": [0.9, 0.1]})
    frame = pd.concat(
        [
            pd.DataFrame({"weight_var": 1.0, "seed": 0, "depth": [10, 20], "accuracy": accuracy}),
            other,
        ]
    )
    found = boundaries(frame)
    assert (found.low[0], found.high[0]) == (low, high)
    inside, outside = (np.array([depth, 15.0]) for depth in ((30.0, 10.0) if low else (5.0, 20.0)))
    assert distances(found, inside)[0] == 0
    assert abs(distances(found, outside)[0]) == pytest.approx(np.log(2))


def test_divergence_counts_as_not_trained():
    frame = pd.DataFrame(
        {"weight_var": 1.0, "seed": 0, "depth": [10, 20, 40], "accuracy": [0.9, np.nan, 0.1]}
    )
    assert 10 < boundaries(frame).low[0] < 20


def test_a_wide_interval_does_not_tell_the_constant():
    assert boundary.Estimate(11.0, 9.0, 14.0).has(12.0, 2.0) is True
    assert boundary.Estimate(11.0, 7.0, 14.0).has(12.0, 2.0) is None
    assert boundary.Estimate(5.0, 2.0, 9.0).has(12.0, 2.0) is False


@pytest.mark.parametrize("spoiled", [{"accuracy": np.nan}, {"accuracy": np.inf}, {"accuracy": 0.1}])
def test_nothing_is_said_of_maps_where_nothing_was_learned(lines, spoiled):
    records = {"panel e": panel(lines, CLAIMED, 0.95).assign(**spoiled)} | theory_of(lines)
    assert {f.holds for f in SEVEN.judge(records)} == {None}
    assert "nan" not in drawn(SEVEN, records)[1].alt


def test_the_constant_is_found(lines):
    frame = panel(lines, lambda one, two: 9 * min(one, two), 0.98)
    k = scored(frame, lines).factor
    assert k.low < 9 < k.high
    assert k.high - k.low < 1.5
    few = boundaries(frame)[:2].assign(xi1=1.0)
    assert not np.isfinite(boundary.factor(few, few.xi1.to_numpy()).value)


def test_learning_rates_by_depth():
    a, _, _, d, *_ = s1_figure7.PANELS
    assert [a.rate_at(depth) for depth in (10, 200, 250)] == pytest.approx([1e-3, 1e-3, 1e-4])
    assert d.rate_at(50) * 50 == pytest.approx(d.rate)


# --- Figure 6 -------------------------------------------------------------------------------------


def steps_to(panel, beta, slower=1.0, gamma=0.0, seed=0, slope=0.35):
    noise = np.random.default_rng(seed)
    rows = []
    for depth in (*panel.depths, *([panel.longer] if panel.longer else [])):
        for rate in s1_figure6.GPU_RATES:
            x = np.log(rate * depth**beta)
            tau = (
                np.exp(3 + slope * (x - np.log(0.5)) ** 2 / 2 + 0.05 * noise.standard_normal())
                * (depth / panel.depths[0]) ** gamma
            )
            tau *= slower if depth == panel.longer else 1
            rows.append((rate, 0, depth, depth == panel.longer, tau if tau < 1000 else np.nan, 0.3))
    frame = pd.DataFrame(rows, columns=["rate", "seed", "depth", "longer", "tau", "best"])
    return frame.assign(keep=panel.keep, claimed=panel.claimed, width=400, batch=1000)


def six(beta_a=1.0, beta_b=0.0, slower=3.0, gamma=0.0, gamma_b=0.0, lost=False):
    a, b, c = s1_figure6.PANELS
    records = {
        "theory": s1_figure6.scales(SIX.scales["gpu"]),
        "panel a": steps_to(a, beta_a, gamma=gamma),
        "panel b": steps_to(b, beta_b, slower, gamma_b),
        "panel c": steps_to(c, beta_b, slower),
    }
    if lost:
        records["panel b"].loc[records["panel b"].depth >= 120, "tau"] = np.nan
    return records


def test_the_claims_of_figure_6_can_hold():
    records = six()
    findings = SIX.judge(records)
    assert {f.holds for f in findings if "trainable depth" not in f.claim} == {True}
    corrected = [f for f in findings if f.erratum == "S1.10"]
    assert [f.holds for f in corrected] == [True]
    assert corrected[0].claim.startswith("120 and 55 layers are neither")
    assert [f.holds for f in findings if "law of trainable depth" in f.claim] == [False]
    assert len(drawn(SIX, records)) == 4


@pytest.mark.parametrize(
    ("options", "claim"),
    [
        ({"beta_a": 0.0}, "(a) ρ = 1: curves"),
        ({"beta_a": 0.5}, "(a) ρ = 1: curves"),
        ({"beta_b": 1.0}, "(b) ρ = 0.99: curves"),
        ({"beta_b": 1.0}, "(c) ρ = 0.98: curves"),
        ({"gamma": 0.5}, "(a) τ is then the same"),
        ({"gamma": 1.5}, "(a) τ is then the same"),
        ({"gamma_b": 1.5}, "(b) τ is then the same"),
        ({"lost": True}, "(b) 120 layers can still be trained"),
        ({"slower": 1.0}, "(b) 300 layers are too many"),
    ],
)
def test_each_claim_of_figure_6_can_fail(options, claim):
    records = six(**options)
    assert [f.holds for f in SIX.judge(records) if f.claim.startswith(claim)] == [False]
    drawn(SIX, records)


@pytest.mark.parametrize("smaller", [{"width": 399}, {"batch": 999}])
def test_smaller_networks_or_batches_decide_nothing_about_figure_6(smaller):
    for beta_a, word in ((1.0, "holds here"), (0.0, "does not hold here")):
        records = six(beta_a=beta_a)
        records["panel a"] = records["panel a"].assign(**smaller)
        found = [f for f in SIX.judge(records) if f.claim.startswith("(a)")]
        assert {f.holds for f in found} == {None}
        assert word in found[0].numbers


def test_depths_that_do_not_learn_are_named():
    captions = [picture.caption for picture in drawn(SIX, six(lost=True))[:3]]
    assert captions == ["", "L = 120, 300: no learning rate reached 0.25.", ""]


def test_the_first_step_that_is_good_enough_counts():
    times = s1_figure6.Times((2, 1), 6)
    for step, pair in enumerate(
        zip((0.1, 0.3, 0.2, 0.3, 0.4, 0.1), (0.1, 0.1, 0.1, 0.1, 0.1, 0.25), strict=True), 1
    ):
        times.record(step, np.array(pair)[:, None])
    assert times.first[0, 0] == 2
    assert np.isnan(times.first[1, 0])
    assert times.best.tolist() == [[0.4], [0.25]]


def test_one_learning_rate_does_not_decide_whether_a_depth_can_be_trained():
    records = six(lost=True)
    frame = records["panel b"]
    deep = frame.index[frame.depth == 120][5]
    frame.loc[deep, "tau"] = 900.0
    assert [f.holds for f in SIX.judge(records) if f.claim.startswith("(b) 120 layers")] == [None]


def test_limits_that_follow_a_law_are_detected():
    records = six()
    records["theory"] = records["theory"].assign(xi2=[np.inf, 20.0, 55 / 6])
    found = {f.of: f.holds for f in SIX.judge(records) if "6 ξ₂" in f.claim or f.erratum}
    assert found == {"ours": True, "corrected": False}


def test_verdicts_are_unclear_if_nothing_learns():
    records = {
        name: frame.assign(tau=np.nan) if "panel" in name else frame
        for name, frame in six().items()
    }
    about_panels = [f for f in SIX.judge(records) if f.claim.startswith("(")]
    assert {f.holds for f in about_panels} == {None}
    drawn(SIX, records)


def test_the_intervals_of_powers_have_their_coverage():
    a = s1_figure6.PANELS[0]
    found = [
        each
        for seed in range(20)
        if (each := collapse.powers(steps_to(a, 0.7, gamma=0.2, seed=seed)))
    ]
    assert len(found) == 20
    assert sum(each.beta.low <= 0.7 <= each.beta.high for each in found) >= 17
    assert sum(each.gamma.low <= 0.2 <= each.gamma.high for each in found) >= 17
    assert all(each.beta.high - each.beta.low < 0.2 for each in found)


def test_curves_that_rise_with_depth_do_not_bias_the_power_of_the_rates():
    """A common curve without L^gamma would give the power 1.5 here, at the end of the
    candidates."""
    fitted = collapse.powers(steps_to(s1_figure6.PANELS[0], 1.0, gamma=1.5))
    assert fitted is not None
    assert fitted.beta.near(1.0) is True
    assert fitted.gamma.near(1.5) is True
    found = told(SIX.judge(six(gamma=1.5)))
    assert [holds for claim, holds in found.items() if claim.startswith("(a) ρ")] == [True]


@pytest.mark.parametrize(
    ("low", "high", "holds"),
    [
        (0.8, 1.3, True),
        (0.4, 1.1, None),
        (0.9, 1.6, None),
        (1.3, 2.0, False),
        (-np.inf, 0.7, False),
        (-np.inf, 1.0, None),
    ],
)
def test_a_power_is_near_the_claimed_one_if_no_other_is(low, high, holds):
    assert collapse.Power(1.0, low, high).near(1.0) is holds


@pytest.mark.parametrize("spoiled", [{"tau": np.inf}, {"rate": np.nan}, {"tau": np.nan}])
def test_verdicts_on_damaged_records_are_unclear(spoiled):
    records = {
        name: frame.assign(**spoiled) if "panel" in name else frame for name, frame in six().items()
    }
    assert {f.holds for f in SIX.judge(records) if f.claim.startswith("(")} == {None}
    drawn(SIX, records)
    unknown = SIX.judge(records | {"theory": records["theory"].assign(xi2=np.nan)})
    assert {f.holds for f in unknown} == {None}


# --- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("orthogonal", [False, True])
def test_initial_weights(orthogonal):
    generator = torch.Generator().manual_seed(0)
    drawing = Drawing(inputs=40, width=50, depth=6, bias_var=0.05, orthogonal=orthogonal)
    small, large = draw_networks(drawing, [1.0, 4.0], generator)
    for network, weight_var in ((small, 1.0), (large, 4.0)):
        assert network.hidden.shape == (5, 50, 50)
        assert network.hidden.var().item() * 50 == pytest.approx(weight_var, rel=0.05)
        assert network.first.var().item() * 40 == pytest.approx(weight_var, rel=0.1)
        assert network.last.var().item() * 50 == pytest.approx(weight_var, rel=0.2)
        assert network.biases.var().item() == pytest.approx(0.05, rel=0.25)
        gram = network.hidden @ network.hidden.mT / weight_var
        assert torch.allclose(gram, torch.eye(50).expand(5, 50, 50), atol=1e-5) is orthogonal
    assert (
        abs(torch.corrcoef(torch.stack([small.hidden.flatten(), large.hidden.flatten()]))[0, 1])
        < 0.05
    )


def test_masks_drop_units_of_hidden_layers():
    network = draw_networks(
        Drawing(8, 16, 3, 0.05, False), [1.5], torch.Generator().manual_seed(0)
    )[0]
    x = torch.randn(5, 8)
    assert torch.equal(network(x, torch.ones(3, 5, 16)), network(x))
    nothing = torch.ones(3, 5, 16)
    nothing[-1] = 0
    assert torch.allclose(network(x, nothing), network.end.expand(5, 10))


def test_masks_are_kept_at_the_rate_and_scaled():
    images = read_images("digits", "cpu")
    run = Run(Training(32, 16, 0.05, keep=0.8), Members(4, [1.0, 1.0], [0.1, 0.1]), images)
    (_, masks), _ = run._batch()
    assert masks.shape == (2, 4, 16, 32)
    assert set(masks.unique().tolist()) == {0.0, 1.25}
    assert masks.mean().item() == pytest.approx(1, abs=0.05)
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks, run._batch()[0][1])


def test_training_learns_what_can_be_trained():
    images = read_images("digits", "cpu")
    run = Run(
        Training(48, 32, 0.05, optimizer="rmsprop"), Members(6, [1.76, 1.76], [3e-4, 1e-9]), images
    )
    train([run], 60, "test")
    learned, not_learned = run.accuracy(*images.train)
    assert learned > 0.6 > 0.4 > not_learned


def test_runs_depend_on_the_seed_only():
    images = read_images("digits", "cpu")

    def trained(seed):
        run = Run(
            Training(16, 8, 0.05, keep=0.9, orthogonal=True, seed=seed),
            Members(3, [1.5], [0.05]),
            images,
        )
        train([run], 3, "test")
        return run.stack.parameters["hidden"]

    assert torch.equal(trained(0), trained(0))
    assert not torch.equal(trained(0), trained(1))


# --- end to end -----------------------------------------------------------------------------------


def test_figure_7_end_to_end(tmp_path):
    small = SEVEN.scales["small"]
    panels = tuple(replace(each, steps=3) for each in small.panels)
    tiny = replace(
        small,
        panels=panels,
        width=16,
        batch=8,
        depths=(3, 5, 9),
        weight_vars=(1.0, 2.0, 4.0),
        images=50,
    )
    experiment = replace(SEVEN, scales={"small": tiny})
    first = reproduce(experiment, "small", tmp_path)
    assert set(first.records) == {
        "theory",
        "captions",
        *(f"panel {each.letter}" for each in panels),
    }
    assert len(first.records["panel a"]) == 9 * 3  # steps 1, 2 and 3
    assert first.findings
    drawn(experiment, first.records)
    again = reproduce(experiment, "small", tmp_path, tell=lambda *_: pytest.fail("measured again"))
    assert again.findings == first.findings


def test_figure_6_end_to_end(tmp_path):
    small = SIX.scales["small"]
    panels = tuple(replace(each, depths=(3, 5), longer=each.longer and 9) for each in small.panels)
    tiny = replace(small, panels=panels, width=16, batch=8, steps=12, rates=(0.01, 0.1, 0.5))
    experiment = replace(SIX, scales={"small": tiny})
    found = reproduce(experiment, "small", tmp_path)
    assert len(found.records["panel c"]) == 9
    assert found.records["panel a"].best.between(0, 1).all()
    assert found.findings
    drawn(experiment, found.records)


@pytest.mark.parametrize("experiment", [SIX, SEVEN])
def test_scales(experiment):
    assert set(experiment.scales) == {"small", "gpu", "paper"}
    assert len(experiment.scales["gpu"].panels) == (3 if experiment is SIX else 8)


def test_one_rounding_grows_in_chaotic_networks_only():
    """In the chaotic phase, programs that round differently cannot be compared after many steps."""
    images = read_images("digits", "cpu")
    training = Training(width=32, batch=16, bias_var=0.05, keep=0.9, orthogonal=True)
    pair = [Run(training, Members(20, [1.0, 2.0], [0.1, 0.1]), images) for _ in range(2)]
    with torch.no_grad():
        for p in pair[1].stack.parameters.values():
            p.mul_(1 + torch.finfo(p.dtype).eps)
    train(pair, 25, "nudged")
    gaps = []
    for name, p in pair[0].stack.parameters.items():
        gaps.append((p - pair[1].stack.parameters[name]).detach().abs().flatten(1).amax(1))
    ordered, chaotic = torch.stack(gaps).amax(0).tolist()
    assert ordered < 1e-6
    assert chaotic > 1e-4
