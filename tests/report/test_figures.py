"""Figures as one file that needs no network, runs no other script, and escapes all names."""

import json
import re

import numpy as np
import pytest
from support.pages import wait_until

from orderone.report import write_figures
from orderone.report.limits import density

FIGURE = {
    "data": [{"type": "scatter", "y": np.array([1.0, np.nan, 3.0])}],
    "layout": {"title": {"text": "</script>"}},
}


def test_a_page_contains_its_figures_and_no_foreign_markup(tmp_path):
    path = write_figures(tmp_path / "a.html", "Title <b>", [FIGURE, FIGURE], ["one & two"])
    text = path.read_text()
    assert "<title>Title &lt;b&gt;</title>" in text
    assert "one &amp; two" in text
    assert text.count('class="figure"') == 2
    assert text.count("'sha256-") == 2
    assert not re.search(r"<script[^>]+src=", text)
    data = re.search(r'id="data">(.*?)</script>', text, flags=re.S)
    assert data is not None
    figures = json.loads(data.group(1))
    assert figures[0]["layout"]["title"]["text"] == "</script>"
    assert figures[0]["data"][0]["y"] == [1.0, None, 3.0] or "bdata" in figures[0]["data"][0]["y"]


def test_densities_have_mass_one():
    rng, grid = np.random.default_rng(0), np.linspace(-1, 1, 2001)
    for samples in (rng.uniform(-1, 1, 4000), np.tanh(3 * rng.normal(size=4000))):
        assert np.trapezoid(density(samples, grid, (-1.0, 1.0)), grid) == pytest.approx(1, abs=0.02)
    wide = np.linspace(-9, 9, 2001)
    assert np.trapezoid(density(rng.normal(size=2000), wide), wide) == pytest.approx(1, abs=0.01)
    assert not density(np.ones(5), grid).any()


def test_a_page_of_figures_on_a_phone_in_the_dark(open_file, tmp_path):
    lines = [
        {"type": "scatter", "x": [1, 10, 100], "y": [k, 2, 3], "name": f"a rather long name {k}"}
        for k in range(6)
    ]
    named = {
        "data": lines,
        "layout": {"title": {"text": "Loss &lt;1&gt;<br><sup>crosses: diverged</sup>"}},
    }
    path = write_figures(
        tmp_path / "a.html",
        "Many " * 20,
        [named, FIGURE],
        ["note"],
        [[["head"] * 9, ["cell"] * 9]],
        "x" * 90,
    )
    page = open_file(path, viewport={"width": 390, "height": 844}, color_scheme="dark")
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
    wait_until(page, "!document.querySelector('.plot:not([data-drawn=yes])')")
    assert page.locator("h2").all_text_contents() == ["Loss <1>", "</script>"]
    assert page.locator(".plot").first.get_attribute("aria-label") == "Loss <1>. crosses: diverged"
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 20, 24)"
