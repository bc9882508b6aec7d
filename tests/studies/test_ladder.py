"""The ladder: order of its pieces, forecast of known laws, comparison and collapse."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from orderone.sweeping.collapse import COLLAPSES, PARTS
from studies.ladder import forecast as forecasts
from studies.ladder import results
from studies.ladder import run as ladder
from studies.ladder.sizes import FULL, TINY
from studies.pieces import Records

LARGE = (FULL.compared, FULL.largest)
RATES = {"2.7M": range(-11, -4), "5.5M": range(-10, -5), "9.8M": range(-9, -5)}
SEEDS = {"2.7M": 3, "5.5M": 2, "9.8M": 2}


def start(folder, *options):
    return ladder.main(["--tiny", "--device", "cpu", "--records", str(folder), *options])


def law(parameters, limit=0.3, power=0.4):
    return limit + (0.82 - limit) * (parameters / FULL.base.parameters()) ** -power


def trainings(size, rates, seeds, *, best=-7.2, noise=0.005, method="full", rng=None):
    """Return made-up records of one size: the loss is a parabola around the best rate."""
    rng = rng or np.random.default_rng(0)
    rows = []
    for power, seed in itertools.product(rates, range(seeds)):
        loss = law(size.parameters()) + 0.012 * (power - best) ** 2
        rows.append((2.0**power, seed, loss + noise * rng.standard_normal()))
    frame = pandas.DataFrame(rows, columns=pandas.Index(["lr", "seed", "loss"]))
    return frame.assign(
        piece=f"tune-{method}-{size.name}",
        method=method,
        size=size.name,
        width=size.width,
        parameters=size.parameters(),
        rule="mup" if method in ("full", "width") else "standard",
        diverged=False,
        flops=FULL.flops(size),
    )


def tuned(rng=None, **options):
    parts = [
        trainings(size, RATES[size.name], SEEDS[size.name], rng=rng, **options)
        for size in FULL.tuned
    ]
    return pandas.concat(parts)


def write(frame, folder):
    frame.to_csv(Records(folder).table, index=False)


def names(folder):
    setting = ladder.Setting(FULL, "cuda", folder)
    return [piece.name for piece in ladder.all_pieces(setting, folder)]


def test_sizes_are_those_of_the_models():
    setting = ladder.Setting(FULL, "meta", Path("data"))
    for size in FULL.all:
        with torch.device("meta"):
            model = setting.build(size.width, size.layers)
        assert size.parameters() == sum(tensor.numel() for tensor in model.parameters())
        assert FULL.held_out % size.batch == 0
        assert FULL.tokens(size) <= 4 * 214_845_356  # no text is used more than four times


def test_a_best_rate_at_an_end_gets_the_next_rate_and_no_other(tmp_path):
    below = trainings(FULL.tuned[1], range(-9, -6), 2, best=-9.5)
    above = trainings(FULL.tuned[2], range(-9, -6), 2, best=-6.5)
    write(pandas.concat([tuned()[lambda rows: rows["size"] == "2.7M"], below, above]), tmp_path)
    beyond = [name for name in names(tmp_path) if "-at-" in name]
    assert beyond == ["tune-full-5.5M-at-2^-10", "tune-full-9.8M-at-2^-6"]
    assert forecasts.forecast(Records(tmp_path).read(), FULL) == {}  # no forecast from an end


def test_the_forecast_needs_no_other_piece_once_all_are_inside(tmp_path):
    write(tuned(), tmp_path)
    assert not [name for name in names(tmp_path) if "-at-" in name or name.startswith("run-")]
    assert "full" in forecasts.forecast(Records(tmp_path).read(), FULL)


@pytest.mark.parametrize("noise", [0.004, 0.02])
def test_the_intervals_of_the_forecast_contain_known_laws(noise):
    """95 % intervals: with 24 laws, four or more outside have a probability of 0.03."""
    rng = np.random.default_rng(0)
    outside = 0
    number = 0
    while number < 24:
        forecast = forecasts.forecast(tuned(rng, noise=noise), FULL)
        if "full" not in forecast:  # noise moved a best rate to an end; the study adds a rate then
            continue
        number += 1
        expected = forecast["full"]["losses"]
        for size in LARGE:
            value, low, high = expected[size.name]
            assert low <= value <= high
            assert high - low < 0.4
            outside += not low <= law(size.parameters()) <= high
    assert outside <= 2 * 3


def test_rates_of_the_larger_sizes():
    base, middle, _ = FULL.tuned
    standard = [trainings(base, range(-12, -5), 2, best=-9, noise=0.001, method="standard")]
    quiet = {"noise": 0.001}
    standard.append(trainings(middle, range(-10, -7), 2, best=-9.3, method="standard", **quiet))
    # the base of `standard-fan-in` is that of `full`
    other = trainings(middle, range(-9, -6), 2, best=-7.6, method="standard-fan-in", **quiet)
    frame = pandas.concat([tuned(noise=0.001), *standard, other])
    rates = forecasts.forecast(frame, FULL)
    assert np.log2(rates["full"]["rates"]["37.6M"]) == pytest.approx(-7.2, abs=0.1)
    octaves = np.log2(FULL.compared.width / middle.width)
    found = np.log2(rates["standard"]["rates"]["20.7M"])
    assert found == pytest.approx(-9.3 - octaves, abs=0.3)
    found = np.log2(rates["standard-fan-in"]["rates"]["20.7M"])
    assert found == pytest.approx(-7.6 - octaves, abs=0.3)


def test_no_large_model_is_trained_before_the_forecast(tmp_path):
    write(tuned(), tmp_path)
    assert all(name.startswith("tune-") for name in names(tmp_path))
    written = forecasts.forecast(Records(tmp_path).read(), FULL)
    (tmp_path / forecasts.NAME).write_text(json.dumps(written))
    offered = [name for name in names(tmp_path) if not name.startswith("tune-")]
    assert offered[:2] == ["run-full-37.6M-seed-0", "run-full-20.7M-seed-0"]
    assert offered[-3:] == ["run-width-9.8M", "curves-full-2.7M", "curves-full-5.5M"]


def test_a_long_training_starts_in_a_command_that_is_shorter(tmp_path):
    write(tuned(), tmp_path)
    written = forecasts.forecast(Records(tmp_path).read(), FULL)
    (tmp_path / forecasts.NAME).write_text(json.dumps(written))
    pieces = ladder.all_pieces(ladder.Setting(FULL, "cuda", tmp_path), tmp_path)
    (large,) = [piece for piece in pieces if piece.name == "run-full-37.6M-seed-0"]
    assert large.seconds > 10 * 60 > large.least_seconds
    assert large.options["stacked"] is True  # alone, it would not be compiled


def test_the_comparison_has_an_interval():
    parts = [tuned()]
    for method, losses in (("full", (0.5, 0.51)), ("standard", (0.55, 0.57))):
        rows = trainings(FULL.compared, [-7], 2, method=method).assign(loss=losses)
        parts.append(rows.assign(piece=f"run-{method}"))
    (sentence,) = results.compared(pandas.concat(parts), FULL)
    # sd^2 = (0.005^2 * 2 + 0.01^2 * 2) / 2, t(2) = 4.303
    reach = 4.3027 * (0.000125) ** 0.5
    assert sentence.endswith(f"minus full: +0.0550 [{0.055 - reach:+.4f}, {0.055 + reach:+.4f}]")


def write_curves(folder, bend, rng):
    """Write made-up loss curves; that of the largest size has another shape, unless `bend` is 0."""
    share = np.linspace(0, 1, 160)
    rows = []
    for size, seeds in ((FULL.tuned[0], 3), (FULL.tuned[1], 3), (FULL.compared, 2)):
        is_large = size is FULL.compared
        shape = 1 + 2 * (1 - share) ** (1 + bend * is_large)
        for seed in range(seeds):
            name = f"run-full-{size.name}-seed-{seed}" if is_large else f"curves-full-{size.name}"
            curve = law(size.parameters()) * shape * (1 + 0.003 * rng.standard_normal(160))
            rows.append({"piece": name, **{f"w{k}": value for k, value in enumerate(curve)}})
    pandas.DataFrame(rows).to_csv(Records(folder).curves, index=False)


def test_collapse_of_the_curves(tmp_path):
    """At a level of 95 %, four of ten equal ones that part have a probability of 0.001."""
    rng = np.random.default_rng(0)
    equal = 0
    for _ in range(10):
        write_curves(tmp_path, 0.0, rng)
        equal += results.collapse_of_curves(Records(tmp_path), FULL).verdict == COLLAPSES
    assert equal > 6
    write_curves(tmp_path, 0.4, rng)
    made = results.collapse_of_curves(Records(tmp_path), FULL)
    assert made.verdict == PARTS
    assert made.sentence in results.curves_sentence(Records(tmp_path), FULL)


def test_tiny(tmp_path, capsys):
    assert start(tmp_path, "--only", "tune-full") == 0
    assert start(tmp_path, "--only", "tune-full-next") == 0  # its rates follow the base
    frame = Records(tmp_path).read()
    assert set(frame["size"]) == {"base", "next"}
    written = {"full": {"rates": {"compared": 1e-3, "largest": 1e-3}}}
    (tmp_path / forecasts.NAME).write_text(json.dumps(written))
    assert start(tmp_path, "--only", "run-full-largest,curves-full-base") == 0
    capsys.readouterr()
    figure = tmp_path / "ladder.png"
    assert start(tmp_path, "--report", "--figure", str(figure)) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [tuple(line.split(" | ")[:2]) for line in lines if line.startswith("| full")]
    assert found == [("| full", name) for name in ("base", "next", "largest")]
    assert figure.stat().st_size > 5000
    curves = pandas.read_csv(Records(tmp_path).curves)
    assert len(curves) == 1 + TINY.seeds
    assert sum(name.startswith("w") for name in curves.columns) == TINY.most_steps
