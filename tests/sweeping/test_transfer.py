"""Transfer studies on bowls with a known optimum: no false verdicts, intervals with the stated
coverage, and no verdict without data."""

import math

import numpy as np
import pandas as pd
import pytest
from support.bowls import BOWLS, sweep
from support.errors import refuses
from torch import nn

import orderone as o1
from orderone.core.errors import code_of
from orderone.sweeping.drift import MOVES, TRANSFERS, UNKNOWN, predicted_drift
from orderone.sweeping.optimum import ABOVE, BELOW, INSIDE, NOWHERE, Curve, draws, optimum
from orderone.sweeping.transfer import Transfer

EVERY = pytest.mark.parametrize("bowl", BOWLS)
study = Transfer.from_frame


def studies(drift: float, bowl: str, number: int, **settings) -> list[Transfer]:
    """Return studies of grids at random offsets from the optimum."""
    rng = np.random.default_rng(int(1000 * abs(drift)) + list(BOWLS).index(bowl))
    made = []
    for _ in range(number):
        x = np.arange(-14.0, -2.0, settings.get("step", 1.0)) + rng.uniform(0, 1)
        made.append(
            study(sweep(drift, BOWLS[bowl], rates=x, rng=rng, noise=settings.get("noise", 0.01)))
        )
    return made


def share(made: list[Transfer], verdict: str) -> float:
    return float(np.mean([t.verdict == verdict for t in made]))


# --- calibration ----------------------------------------------------------------------------------


@EVERY
def test_without_drift_the_verdict_is_never_does_not_transfer(bowl):
    assert share(studies(0.0, bowl, 16), MOVES) <= 0.05


@EVERY
def test_with_a_drift_of_one_the_verdict_is_never_transfers(bowl):
    made = studies(-1.0, bowl, 16)
    assert share(made, TRANSFERS) == 0
    assert share(made, MOVES) >= 0.9


def test_without_drift_the_verdict_is_transfers():
    assert share(studies(0.0, "parabola", 24), TRANSFERS) >= 0.9


def test_at_the_tolerance_neither_verdict_is_common():
    assert (
        share(studies(0.25, "parabola", 24), UNKNOWN) >= 0.8
    )  # 0.95 is nominal; the slow test counts more


def test_noise_makes_the_verdict_inconclusive_rather_than_wrong():
    made = studies(0.0, "parabola", 24, noise=0.1)
    assert share(made, MOVES) <= 0.05
    assert share(made, UNKNOWN) >= 0.8


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("drift", [0.0, -0.25, -1.0])
def test_false_verdicts_and_the_coverage_of_the_drift(bowl, drift):
    made = studies(drift, bowl, 400)
    within = np.mean([t.drift["mup"].low <= drift <= t.drift["mup"].high for t in made])
    assert within >= 0.93
    assert share(made, TRANSFERS if drift == -1 else MOVES) <= 0.05


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_the_interval_of_an_optimum_has_its_nominal_coverage(noise):
    rng, x, inside = np.random.default_rng(3), np.arange(-5.0, 6.0), []
    for _ in range(300):
        at = rng.uniform(-0.5, 0.5)
        o = optimum(
            Curve(64, x, 0.05 * (x - at) ** 2 + noise * rng.standard_normal((4, len(x)))),
            confidence=0.9,
        )
        inside.append(o.low <= at <= o.high)
    assert 0.84 <= np.mean(inside) <= 0.99


# --- one optimum ----------------------------------------------------------------------------------


def test_a_parabola_is_found_exactly():
    x = np.arange(-10.0, 0.0)
    o = optimum(Curve(64, x, np.tile(1.5 + 0.07 * (x + 4.3) ** 2, (3, 1))))
    assert (o.x, o.loss, o.bend) == pytest.approx((-4.3, 1.5, 0.07))
    assert o.noise == pytest.approx(0, abs=1e-9)
    assert o.low < o.x < o.high  # a grid is never exact


def test_the_bootstrap_spread_of_a_mean_is_its_standard_error():
    """The spread of means of S draws from S numbers is sqrt((S - 1) / S) of their standard
    error."""
    values = np.random.default_rng(0).standard_normal(4)
    spread = values[draws(4)].mean(1).std() * (4 / 3) ** 0.5
    assert spread == pytest.approx(values.std(ddof=1) / 2)


@pytest.mark.parametrize(("at", "where"), [(-12.0, BELOW), (2.0, ABOVE), (-5.0, INSIDE)])
def test_an_optimum_at_the_end_of_the_grid_has_no_number(at, where):
    x = np.arange(-10.0, 0.0)
    o = optimum(Curve(64, x, np.tile(0.05 * (x - at) ** 2, (2, 1))))
    assert o.beyond == where
    assert math.isnan(o.x) == (where != INSIDE)
    assert o.low <= at <= o.high


def test_there_is_no_optimum_if_all_rates_diverged():
    assert optimum(Curve(64, np.arange(6.0), np.full((2, 6), np.inf))).beyond == NOWHERE


def test_a_best_rate_just_below_divergence_is_inside_the_grid():
    x = np.arange(-10.0, 0.0)
    losses = np.where(x > -4, np.inf, 1 - 0.1 * x)[None].repeat(3, 0)  # falls until it diverges
    o = optimum(Curve(64, x, losses))
    assert o.beyond == INSIDE
    assert o.low <= -4 <= o.high
    assert o.high - o.low > 1  # of a grid whose next point diverged


def test_seeds_that_disagree_about_the_end_of_the_grid():
    x = np.arange(-10.0, 0.0)
    losses = np.stack([0.05 * (x - at) ** 2 for at in (-12, -12, -6)])
    assert optimum(Curve(64, x, losses)).beyond == BELOW


# --- what theory predicts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "optimizer", "expected"),
    [
        ("mup", "adamw", (0, 0)),
        ("mup", "sgd", (0, 0)),
        ("standard", "adamw", (-1, -1.5)),
        ("standard", "lion", (-1, -1.5)),
        (
            "sp",
            "adamw",
            (0, -0.5),
        ),  # its rates fall with the width already; the worst alignment asks for more
    ],
)
def test_predicted_drift(rule, optimizer, expected):
    assert predicted_drift(rule, optimizer, "width") == expected


def test_the_predicted_drift_is_nan_without_a_theory():
    assert all(math.isnan(x) for x in predicted_drift("my own", "adamw", "width"))
    assert all(math.isnan(x) for x in predicted_drift("mup", "adamw", "depth"))
    assert predicted_drift("mup", "adamw", "depth", "completep") == (0, 0)


# --- inconclusive ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "code", "why", "remedy"),
    [
        (sweep(widths=(64, 128)), "needs-more-sizes", "2 widths", "add widths"),
        (sweep(rates=np.arange(-10.0, -6.0)), "needs-more-rates", "4 learning rates", "rates"),
        (sweep(seeds=1), "needs-more-seeds", "1 seed", "2 seeds"),
        (sweep(best=-14.5), "optimum-outside-grid", "64, 128, 256, 512: ", "smaller"),
        (sweep(best=-2.0), "optimum-outside-grid", "above", "larger"),
        (sweep(-0.2, best=-12.9), "optimum-outside-grid", "width 512: ", "smaller"),
        (sweep(noise=0.2), "drift-too-uncertain", "+-0.25", "seeds"),
        (sweep(0.2, BOWLS["cliff"], noise=1e-4), "drift-too-uncertain", "+-0.25", "finer grid"),
        (
            sweep(bowl=lambda d: np.full_like(d, np.inf)),
            "optimum-outside-grid",
            "diverged",
            "smaller",
        ),
    ],
)
def test_without_enough_data_the_study_says_what_is_missing(frame, code, why, remedy):
    t = study(frame)
    assert t.verdict == UNKNOWN
    assert code_of(t.drift["mup"].remedy) == code
    assert why in t.drift["mup"].why
    assert remedy in t.drift["mup"].remedy
    text = " ".join(str(t).split())
    assert text.startswith("mup: inconclusive (needs ")
    assert f"{t.drift['mup'].why}; {t.drift['mup'].remedy}" in text


def test_an_optimum_beyond_the_grid_does_not_hide_a_drift():
    t = study(sweep(-1.0, best=-9.0, widths=(64, 128, 256, 512, 1024, 2048)))
    assert t.optima["mup"][-1].beyond == BELOW
    assert t.verdict == MOVES


# --- the study as a whole -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_rules() -> Transfer:
    return study(pd.concat([sweep(0.02), sweep(-0.95, rule="standard")]).assign(weight_decay=0.1))


def test_the_rule_that_transfers_is_chosen(two_rules):
    assert two_rules.drift["mup"].verdict == TRANSFERS
    assert two_rules.drift["standard"].verdict == MOVES
    assert two_rules.chosen == "mup"
    assert two_rules.verdict == TRANSFERS


def test_a_rule_that_may_transfer_comes_before_one_that_does_not():
    better = sweep(-1.0, rule="standard").assign(loss=lambda frame: frame["loss"] - 1)
    t = study(pd.concat([sweep(noise=0.1), better]))
    assert (t.drift["mup"].verdict, t.drift["standard"].verdict) == (UNKNOWN, MOVES)
    assert t.chosen == "mup"


def test_a_loss_near_zero_stays_above_it():
    t = study(sweep().assign(loss=lambda frame: (frame["loss"] - 1.6) ** 8))
    assert t.frame["loss"].to_numpy(float).min() > 0


def test_the_table_marks_rates_that_diverge_at_another_size():
    t = study(sweep(-1.0, BOWLS["diverges above"], seeds=4))
    assert "diverges" in str(t)
    assert math.isinf(t.frame["regret"].iloc[-1])


def test_tables(two_rules):
    assert list(two_rules.frame.columns[:3]) == ["rule", "width", "lr"]
    assert len(two_rules.frame) == 8
    assert two_rules.drifts.set_index("rule").loc["standard", "predicted"] == -1
    text = str(two_rules)
    assert text.startswith("mup transfers; standard does not transfer")
    assert "-1 to -1.5" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_regret_is_that_of_the_bowl(two_rules):
    """Three doublings at -0.95 octaves each, in a bowl of 0.05 per octave squared."""
    frame = two_rules.frame.set_index(["rule", "width"])
    assert frame.loc[("standard", 512), "regret"] == pytest.approx(0.05 * (3 * 0.95) ** 2, rel=0.25)
    assert frame.loc[("mup", 512), "regret"] < 0.01


def test_settings_of_the_target(two_rules):
    ours, theirs = two_rules.target(width=2048), two_rules.target(width=2048, rule="standard")
    assert (ours.source, theirs.source) == ("pooled", "extrapolated")
    assert np.log2(ours.lr) == pytest.approx(-8, abs=0.2)
    assert np.log2(theirs.lr) == pytest.approx(-8 - 5 * 0.95, abs=0.5)
    assert ours.low < ours.lr < ours.high
    assert ours.regret < 0.05
    assert "lr=" in str(ours)


def test_models_with_two_sizes_are_built_with_both(tmp_path):
    def build(width, depth):
        return nn.Sequential(
            nn.Linear(4, width),
            *(nn.Linear(width, width) for _ in range(depth)),
            nn.Linear(width, 2),
        )

    t = study(sweep().assign(depth=3))
    assert (
        "o1.plan(build(depth=3, width=128), base=build(depth=3, width=64)"
        in t.target(width=128).snippet
    )
    assert len(t.save_plan(tmp_path / "plan.json", build, width=128).rows) == 10


def test_the_snippet_runs_and_its_plan_is_the_saved_one(two_rules, tmp_path):
    space = {"o1": o1, "build": network}
    exec(two_rules.target(width=256).snippet, space)
    saved = two_rules.save_plan(tmp_path / "plan.json", network, width=256)
    rates = [row.lr for row in o1.Plan.load(tmp_path / "plan.json").rows]
    assert rates == [row.lr for row in saved.rows]
    assert rates == pytest.approx([row.lr for row in space["plan"].rows], rel=1e-3)
    assert space["plan"].settings.weight_decay == 0.1


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )


def test_over_depth():
    t = study(sweep(axis="depth", widths=(2, 4, 8, 16)), options={"depth": "completep"})
    assert t.axis == "depth"
    assert t.drift["mup"].predicted == (0, 0)
    assert t.target(depth=48).size == 48
    assert "depths 2, 4, 8, 16" in str(t)


def test_a_small_drift_is_carried_from_the_nearest_size():
    t = study(sweep(0.12, noise=1e-3, seeds=5))
    assert t.verdict == TRANSFERS
    assert t.target(width=2048).source == "largest"


def test_a_target_without_a_second_seed_is_bounded_by_nothing():
    settings = study(sweep(seeds=1)).target(width=2048)
    assert settings.source == "largest"
    assert math.isinf(settings.regret)
    assert settings.outlook in " ".join(str(settings).split())


def test_one_seed_is_said_in_the_code_to_paste():
    settings = study(sweep(seeds=1)).target(width=2048)
    assert "from one seed" in settings.cautions[0]
    assert settings.snippet.startswith("# caution: from one seed")
    assert not study(sweep(seeds=3)).target(width=2048).cautions


def test_a_rule_that_should_drift_is_extrapolated_and_chosen_last():
    better = sweep(-1.0, rule="standard", seeds=1).assign(loss=lambda frame: frame["loss"] - 1)
    t = study(pd.concat([sweep(seeds=1), better]))
    assert t.chosen == "mup"
    settings = t.target(width=2048, rule="standard")
    assert settings.source == "extrapolated"
    assert settings.lr == pytest.approx(t.optima["standard"][-1].lr / 4)  # two doublings at -1
    assert "extrapolated" in settings.snippet
    assert "predicted" in settings.why


def test_the_interval_of_an_extrapolation_contains_theory_and_data():
    t = study(sweep(-0.9, widths=(64, 128), rule="standard", noise=0.02, seeds=2))
    assert t.drift["standard"].verdict == UNKNOWN
    settings = t.target(width=512)
    largest = t.optima["standard"][-1].lr
    assert settings.low < largest / 2 ** (2 * 1.5) < largest / 2 ** (2 * 0.9) < settings.high


def test_intervals_end_at_the_grid():
    frame = sweep(seeds=2, noise=0.25, widths=(64, 128))
    t = study(frame)
    assert min(t.frame["low"]) >= min(frame["lr"]) * 0.999
    assert max(t.frame["high"]) <= max(frame["lr"]) * 1.001
    wide = t.frame[t.frame["outside"] == "both"]
    assert len(wide) == 1
    assert "[<6.1e-05, >0.125]" in str(t)
    assert "reaches outside the grid" in str(t)
    settings = t.target(width=512)
    assert (settings.low, settings.high) == settings.grid
    assert "the end of the grid" in settings.outlook


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (
            sweep(-3.0, widths=(64, 128, 256), rates=np.arange(-12.0, -2)),
            ["move by -2", "width 256: ", "smaller"],
        ),
        (sweep(-3.0, widths=(64, 128)), ["move by -3", "add widths"]),
        (sweep(-0.2, best=-12.9), ["0.000101", "width 512", "below 6.1e-05", "smaller"]),
        (sweep(3.0, widths=(64, 128, 256), rates=np.arange(-12.0, -3)), ["larger"]),
    ],
)
def test_no_rate_is_named_against_the_evidence(frame, words):
    with refuses("no-learning-rate", argument="width") as caught:
        study(frame).target(width=1024)
    for word in ["width 1024", *words]:
        assert word in str(caught.value)


def test_one_seed_and_a_narrow_grid_are_both_named():
    """More seeds alone would not lead to a verdict."""
    frame = sweep(-3.0, widths=(64, 128, 256), rates=np.arange(-12.0, -2))
    t = study(frame.query("seed == 0"))
    drift = t.drift["mup"]
    assert code_of(drift.remedy) == "needs-more-seeds"
    for word in ("2 seeds", "smaller"):
        assert word in drift.remedy
    assert "width 256: " in drift.why
    with refuses("no-learning-rate", argument="width") as caught:
        t.target(width=1024)
    assert str(caught.value).count("smaller") == 1


def test_a_width_where_everything_diverges_contradicts_the_rates_of_others():
    frame = sweep(widths=(64, 128, 256))
    frame.loc[frame["width"] == 256, "loss"] = np.inf
    with refuses("no-learning-rate", argument="width") as caught:
        study(frame).target(width=512)
    assert "at width 256, but its best lr is below" in str(caught.value)
    assert "smaller" in str(caught.value)


def test_an_extrapolation_that_agrees_with_a_bound_is_returned():
    t = study(sweep(-1.0, best=-9.0, widths=(64, 128, 256, 512, 1024, 2048)))
    settings = t.target(width=4096)
    assert settings.source == "extrapolated"
    assert np.log2(settings.lr) == pytest.approx(-15, abs=0.3)


def test_a_note_counts_missing_trainings():
    frame = sweep()
    gone = (frame["width"] == 128) & (frame["seed"] == 2) & (frame["lr"] > 0.1)
    t = study(frame[~gone])  # pyright: ignore[reportArgumentType]
    assert t.verdict == TRANSFERS
    assert code_of(t.notes[0]) == "incomplete-grid"
    assert "2 of 3 seeds" in t.notes[0]


def test_failed_and_pruned_trainings_are_left_out_and_nan_is_divergence():
    frame = sweep(seeds=4).assign(status="done")
    frame.loc[frame["seed"] == 3, ["loss", "status"]] = [0.0, "stopped"]
    frame.loc[frame["lr"] > 0.1, "loss"] = np.nan
    assert study(frame).optima["mup"][0].seeds == 3
    assert study(frame).verdict == TRANSFERS


def test_other_settings_must_be_chosen():
    frame = pd.concat([sweep().assign(weight_decay=w) for w in (0.0, 0.1)])
    with refuses("choose-with-where", argument="where") as caught:
        study(frame)
    assert "weight_decay" in str(caught.value)
    assert "0, 0.1" in str(caught.value)
    assert study(frame, where={"weight_decay": 0.1}).verdict == TRANSFERS


@pytest.mark.parametrize("form", [float, str, "Int64"])
def test_sizes_may_be_stored_as_floats_or_text(form):
    t = study(sweep(widths=(64, 128, 256)).astype({"width": form}))
    assert [o.size for o in t.optima["mup"]] == [64, 128, 256]
    assert (t.base, t.verdict) == (64, TRANSFERS)


def test_numbers_and_booleans_may_be_stored_as_text():
    plain = sweep().assign(diverged=False)
    words = plain.astype({"lr": str, "loss": str, "diverged": str})
    # sums in another order: last digits differ with some versions of numpy
    pd.testing.assert_frame_equal(study(words).frame, study(plain).frame, rtol=1e-12)


def test_empty_columns_are_ignored():
    t = study(sweep().assign(rule=None, data_seed=np.nan, depth=np.nan))
    assert t.rules == ("mup",)
    assert t.verdict == TRANSFERS


@pytest.mark.parametrize(
    "others", [lambda x: np.full_like(x, 2.0), lambda x: np.where(x > -6, np.inf, 2.0)]
)
def test_equal_losses_have_no_optimum(others):
    x = np.arange(-10.0, -2.0)
    rows = [
        (w, s, 2.0**a, loss)
        for w in (8, 16, 32)
        for s in range(2)
        for a, loss in zip(x, others(x), strict=True)
    ]
    t = study(pd.DataFrame(rows, columns=["width", "seed", "lr", "loss"]))
    assert t.drift["mup"].why.startswith("width 8, 16, 32: ")
    assert code_of(t.drift["mup"].remedy) == "equal-losses"
    assert t.drift["mup"].remedy.startswith("train longer")
    assert "equal" in str(t)
    with refuses("no-learning-rate", argument="width") as caught:
        t.target(width=64)
    assert "train longer" in str(caught.value)


def test_one_learning_rate_is_not_a_grid():
    t = study(sweep(rates=np.array([-8.0])))
    assert t.drift["mup"].why.startswith("1 learning rate was run, but 5 ")
    assert code_of(t.drift["mup"].remedy) == "needs-more-rates"
    assert "only one lr" in str(t)
    assert "below" not in str(t)


@pytest.mark.parametrize(
    ("call", "code", "argument", "words"),
    [
        (
            lambda: study(sweep().assign(width="wide")),
            "invalid-argument",
            "frame",
            "numbers in the column 'width', got 'wide'",
        ),
        (
            lambda: study(sweep().assign(width=lambda f: f["width"] + 0.5)),
            "invalid-argument",
            "frame",
            "whole numbers, 1 or more, in the column 'width', got 64.5",
        ),
        (lambda: study(gap(sweep(), "width")), "frame-has-gaps", "frame", "width"),
        (lambda: study(gap(sweep(), "width"), over="width"), "frame-has-gaps", "frame", "width"),
        (lambda: study(gap(sweep(), "rule")), "frame-has-gaps", "frame", "rule"),
        (lambda: study(gap(sweep(), "seed")), "frame-has-gaps", "frame", "seed"),
        (lambda: study(sweep().assign(loss="good")), "invalid-argument", "frame", "'loss'"),
        (lambda: study([1, 2]), "wrong-type", "frame", "got list"),  # pyright: ignore[reportArgumentType]
        (lambda: study(sweep().drop(columns="loss")), "frame-needs-column", "frame", "'loss'"),
        (lambda: study(sweep().iloc[:0]), "frame-without-rows", "frame", "no rows"),
        (
            lambda: study(sweep().assign(status="failed")),
            "frame-without-rows",
            "frame",
            "only failed",
        ),
        (
            lambda: study(sweep().drop(columns="width")),
            "frame-needs-column",
            "frame",
            "width or depth",
        ),
        (lambda: study(sweep().assign(lr=0.0)), "invalid-argument", "frame", "rates, got 0"),
        (
            lambda: study(pd.concat([sweep(), sweep()])),
            "choose-with-where",
            "frame",
            "2 trainings have the same settings (mup, width 64",
        ),
        (
            lambda: study(pd.concat([sweep().assign(heads=h) for h in (1, 2)])),
            "choose-with-where",
            "frame",
            "differ in heads",
        ),
        (
            lambda: study(sweep().assign(depth=np.arange(144) % 2)),
            "choose-with-where",
            "over",
            "width and depth",
        ),
        (lambda: study(sweep(), over="heigth"), "unknown-name", "axis", "'heigth'"),
        (lambda: study(sweep(), where={"rule": "sp"}), "unknown-name", "where", "(mup), got 'sp'"),
        (lambda: study(sweep(), where={"x": 1}), "unknown-name", "where", "'x'"),
        (lambda: study(sweep()).target(), "invalid-argument", "width", "pass width="),
        (lambda: study(sweep()).target(depth=3), "invalid-argument", "width", "pass width="),
        (lambda: study(sweep()).target(width=64, rule="sp"), "unknown-name", "rule", "mup"),
        (lambda: study(sweep(best=-20)).target(width=64), "no-learning-rate", "width", "widen"),
        (lambda: study(sweep()).save_plan("plan.json", width=64), "wrong-type", "build", "build="),
    ],
)
def test_wrong_input_is_named(call, code, argument, words):
    with refuses(code, argument=argument) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: study(sweep(), tolerance=0), "tolerance"),
        (lambda: study(sweep(), confidence=1.0), "confidence"),
        (lambda: study(sweep()).target(width=1.5), "width"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_wrong_numbers_are_named(call, argument):
    with refuses("invalid-argument", argument=argument):
        call()


def gap(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    return frame.assign(**{name: frame[name].where(frame.index > 0)})


# --- notebooks and short forms --------------------------------------------------------------------


def test_a_study_in_a_notebook_is_escaped_and_its_repr_is_short():
    t = study(sweep(rule="<b>mine</b>"))
    html = t._repr_html_()
    assert "&lt;b&gt;mine&lt;/b&gt;" in html
    assert "<b>mine" not in html
    assert html.count("<table>") == 3
    assert "color" not in html  # the theme of the notebook decides
    assert "\n" not in repr(t)
    assert len(repr(t)) < 300
