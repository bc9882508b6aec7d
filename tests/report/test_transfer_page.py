"""The pages of a transfer study: their content, for every kind of study."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from support.bowls import BOWLS, sweep

from orderone.core.colours import RULE_COLOURS
from orderone.report import write_transfer, write_transfer_png
from orderone.report.transfer import round_rates
from orderone.sweeping.transfer import Transfer

STUDIES = {
    "two rules": lambda: pd.concat([sweep(), sweep(-1.0, rule="standard")]),
    "a rule called </script><b>": lambda: sweep(rule="</script><b>"),
    "one seed": lambda: sweep(seeds=1),
    "beyond the grid": lambda: sweep(best=-20.0),
    "all diverged": lambda: sweep(bowl=lambda d: np.full_like(d, np.inf)),
    "diverges above": lambda: sweep(bowl=BOWLS["diverges above"]),
    "depth": lambda: sweep(axis="depth", widths=(2, 4, 8)),
}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_drawn(name, tmp_path):
    t = Transfer.from_frame(STUDIES[name]())
    page = write_transfer(t, tmp_path / "a.html").read_text()
    assert page.count("</script>") == 3  # the data and two scripts: no name ended one early
    figures = json.loads(re.findall(r'id="data">(.*?)</script>', page, flags=re.S)[0])
    without_law = ("one seed", "beyond the grid", "all diverged")
    assert len(figures) == (2 if name in without_law else 3)
    picture = write_transfer_png(t, tmp_path / "a.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_page_has_curves_optima_tables_and_settings(tmp_path):
    t = Transfer.from_frame(STUDIES["two rules"]())
    page = write_transfer(t, tmp_path / "a.html", t.target(width=4096)).read_text()
    losses, drift, forecast = json.loads(
        re.findall(r'id="data">(.*?)</script>', page, flags=re.S)[0]
    )
    assert len(losses["data"]) == 2 * 4 * 2  # rules, widths, curve and star
    assert any("predicted -1 to -1.5" in trace.get("name", "") for trace in drift["data"])
    assert "build(4096)" in page
    assert "mup transfers; standard does not transfer" in page
    assert len(forecast["data"]) == 2 * 3  # area, line and points
    assert page.count("<tr>") == 1 + 8 + 1 + 2 + 1 + 2


def rates_axis(t: Transfer, folder) -> tuple[float, float]:
    page = write_transfer(t, folder / "a.html").read_text()
    _, drift, *_ = json.loads(re.findall(r'id="data">(.*?)</script>', page, flags=re.S)[0])
    low, high = drift["layout"]["yaxis"]["range"]
    labels = drift["layout"]["yaxis"]["tickvals"]
    assert len(labels) >= 2
    assert all(10**low <= label <= 10**high for label in labels)
    return 10**low, 10**high


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_the_axis_of_best_rates_follows_the_data(seeds, tmp_path):
    """A noisy study has intervals up to the ends of its grid, which must not set the axis."""
    t = Transfer.from_frame(sweep(seeds=seeds, noise=0.3, rates=np.arange(-20.0, 4.0)))
    low, high = rates_axis(t, tmp_path)
    optima = [optimum.lr for optimum in t.optima["mup"]]
    assert min(optima) / 5 < low < min(optima)
    assert max(optima) < high < 5 * max(optima)


def test_the_axis_of_best_rates_contains_ordinary_intervals(tmp_path):
    t = Transfer.from_frame(STUDIES["two rules"]())
    low, high = rates_axis(t, tmp_path)
    for optima in t.optima.values():
        for optimum in optima:
            assert low < 2.0**optimum.low < 2.0**optimum.high < high


@pytest.mark.parametrize(("best", "symbol"), [(-20.0, "down"), (20.0, "up")])
def test_optima_outside_of_the_grid_are_triangles_at_its_end(best, symbol, tmp_path):
    """The figure was empty, and its axis went from 0.1 to 10,000."""
    t = Transfer.from_frame(sweep(best=best))
    low, high = rates_axis(t, tmp_path)
    page = (tmp_path / "a.html").read_text()
    _, drift, *_ = json.loads(re.findall(r'id="data">(.*?)</script>', page, flags=re.S)[0])
    (triangles,) = drift["data"]
    end = 2.0 ** t.curves["mup"][0].x[0 if symbol == "down" else -1]
    assert triangles["y"] == pytest.approx([end] * len(t.optima["mup"]))
    assert set(triangles["marker"]["symbol"]) == {f"triangle-{symbol}-open"}
    assert low < end < high < 5 * low


def test_rules_have_the_same_colours_with_and_without_others(tmp_path):
    def colours(frame: pd.DataFrame) -> dict[str, str]:
        page = write_transfer(Transfer.from_frame(frame), tmp_path / "a.html").read_text()
        _, drift, *_ = json.loads(re.findall(r'id="data">(.*?)</script>', page, flags=re.S)[0])
        return {
            trace["legendgroup"]: trace["marker"]["color"]
            for trace in drift["data"]
            if "marker" in trace
        }

    both = colours(pd.concat([sweep(rule="standard"), sweep(rule="mup")]))
    assert both == {"mup": RULE_COLOURS["mup"], "standard": RULE_COLOURS["standard"]}
    assert colours(sweep(rule="mup")) == {"mup": RULE_COLOURS["mup"]}


@pytest.mark.parametrize(
    ("low", "high"), [(1e-4, 1e-1), (0.024, 0.08), (0.041, 0.062), (0.99, 1.31)]
)
def test_an_axis_of_learning_rates_has_labels(low, high):
    """One label alone does not show the scale."""
    labels = round_rates(low, high)
    assert len(labels) > 1
    assert all(low <= label <= high for label in labels)
    assert labels == sorted(labels)
