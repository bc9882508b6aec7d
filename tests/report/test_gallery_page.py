"""The page of the gallery: its content, that no string can become markup, and its behaviour in a
real browser."""

# pyright: reportArgumentType=false
# The tests draw stand-ins of results, which have only the attributes that a page reads.

import json
import math
import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from support.errors import refuses
from support.pages import wait_until
from test_html import HOSTILE

from orderone.report import write_gallery
from orderone.report.gallery_view import EMPTY
from orderone.report.plain import is_empty, plain, plain_figure

X = np.linspace(1, 4, 30)
LINES = {
    "data": [
        {"type": "scatter", "mode": "lines", "name": f"depth {d}", "x": X, "y": X**-d}
        for d in range(1, 7)
    ],
    "layout": {
        "xaxis": {"type": "log", "title": {"text": "width"}},
        "yaxis": {"title": {"text": "RMS"}},
    },
}
HEAT = {
    "data": [{"type": "heatmap", "z": np.outer(X, X), "colorbar": {"title": {"text": "accuracy"}}}]
}
PANELS = {
    "data": [
        trace | {"xaxis": f"x{k}", "yaxis": f"y{k}"} for k in ("", "2") for trace in LINES["data"]
    ],
    "layout": {
        "xaxis": {"domain": [0, 0.45]},
        "xaxis2": {"domain": [0.55, 1]},
        "yaxis2": {"anchor": "x2"},
    },
}
PART = {
    "seconds": 4.2,
    "measured": "2026-01-02",
    "device": "CPU",
    "versions": {"torch": "2.6"},
    "settings": {"seeds": 8},
}


def finding(holds, of="paper", claim="It grows", numbers="+0.50 [+0.48, +0.52]", erratum=""):
    return SimpleNamespace(claim=claim, holds=holds, numbers=numbers, of=of, erratum=erratum)


def picture(figure=LINES, title="Decay", alt="Six falling lines.", caption=""):
    return SimpleNamespace(title=title, figure=figure, alt=alt, caption=caption)


def grid(rows=3, cell="holds"):
    return SimpleNamespace(
        title="A table",
        head=("row", "holds?"),
        rows=[(str(k), cell) for k in range(rows)],
        caption="",
    )


@dataclass
class Entry:
    """A stand-in for a result of `orderone.gallery.reproduce`."""

    name: str = "s0-table1"
    paper: str = "S0"
    title: str = "Four parameterizations"
    place: str = "Table 1"
    claim: str = "Rates are so and so."
    method: str = "Networks are trained."
    errata: tuple = ("S0.5",)
    scale: str = "small"
    verdict: str = "holds"
    corrected: str | None = None
    findings: tuple = (finding(True), finding(None))
    drawn: tuple = (picture(), picture(HEAT, "Heat"), picture(PANELS, "Panels"), grid())
    provenance: dict = field(
        default_factory=lambda: {
            "command": "orderone reproduce it",
            "parts": {"one": PART, "two": PART},
        }
    )

    @property
    def experiment(self):
        return self

    @property
    def pictures(self):
        if not self.drawn:
            raise KeyError("no such column")
        return self.drawn


def several():
    both = (finding(False), finding(True, "corrected", "It shrinks", erratum="S1.4"))
    return [
        Entry(),
        Entry(
            "s1-figure7",
            "S1",
            "Trainable depth",
            verdict="does not hold",
            corrected="holds",
            findings=both,
        ),
        Entry("s1-figure8", "S1", "Speed", verdict="holds in part", scale="gpu"),
        Entry("s9-other", "S9", "An unknown paper", verdict="unclear"),
    ]


def embedded(text: str) -> list:
    return [
        json.loads(script)
        for script in re.findall(r'<script type="application/json".*?>(.*?)</script>', text)
    ]


# --- content of the page --------------------------------------------------------------------------


def test_figures_become_json():
    frame = pd.DataFrame(
        {"x": [1.0, math.nan, math.inf], "day": pd.date_range("2026-01-01", periods=3)}
    )
    odd = {
        "a": frame.x,
        "b": np.float32(0.1),
        "c": np.array([True]),
        "d": Fraction(1, 4),
        "e": pd.NA,
        "f": frame.day,
    }
    converted = plain(
        odd | {"g": range(2), "h": (x for x in "ab"), "i": np.array(3), "j": 1 / 3, "k": pd.NaT}
    )
    assert converted["a"] == [1, None, None]
    assert (converted["b"], converted["c"], converted["d"], converted["e"]) == (
        0.1,
        [True],
        0.25,
        None,
    )
    assert converted["f"][0].startswith("2026-01-01")
    assert (converted["g"], converted["h"], converted["i"], converted["j"], converted["k"]) == (
        [0, 1],
        ["a", "b"],
        3,
        0.333333,
        None,
    )
    json.dumps(converted, allow_nan=False)


def test_figures_lose_their_template_and_webgl():
    figure = plain_figure(
        {
            "data": [{"type": "scattergl", "y": [1]}],
            "layout": {"template": {"layout": {}}, "height": 9},
        }
    )
    assert figure == {"data": [{"type": "scatter", "y": [1]}], "layout": {"height": 9}}


@pytest.mark.parametrize(
    ("data", "empty"),
    [
        ([], True),
        ([{"y": []}], True),
        ([{"x": [1], "y": [math.nan]}], True),
        ([{"y": [0]}], False),
        ([{"link": {}}], False),
        ([{"z": [[None]]}], True),
        ([{}], True),
    ],
)
def test_a_figure_without_data_is_empty(data, empty):
    assert is_empty(plain_figure({"data": data})) is empty


def test_strings_of_users_never_become_markup(tmp_path):
    everywhere = replace(
        Entry(),
        name=HOSTILE[0],
        title=HOSTILE[1],
        place=HOSTILE[3],
        claim=HOSTILE[2],
        method=HOSTILE[3],
        paper=HOSTILE[0],
        scale=HOSTILE[1],
        errata=tuple(HOSTILE),
        verdict=HOSTILE[1],
        corrected=HOSTILE[0],
        findings=tuple(finding(False, "corrected", h, h, h) for h in HOSTILE),
        drawn=(
            *(picture({"data": [{"y": [1], "name": h}]}, h, h, h) for h in HOSTILE),
            grid(cell=HOSTILE[0]),
        ),
        provenance={"command": HOSTILE[0], "parts": {h: {"settings": {h: h}} for h in HOSTILE}},
    )
    text = write_gallery(tmp_path / "a.html", [everywhere, Entry()], title=HOSTILE[0]).read_text(
        encoding="utf-8"
    )
    outside = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert text.count("<script>") - outside.count("<script>") == 1  # ours
    assert outside.count("<script") == len(embedded(text)) + 1  # plotly.js, compressed
    assert len(embedded(text)) == len(HOSTILE) + 3
    assert "<img" not in outside
    assert "<!--" not in outside
    assert [figure["data"][0]["name"] for figure in embedded(text)[: len(HOSTILE)]] == HOSTILE
    policy = re.findall(r'Content-Security-Policy" content="(.*?)"', text)[0]
    assert "default-src 'none'" in policy
    assert policy.count("sha256-") == 2
    assert not re.search(r"""(src|href)=["'](?!#|data:,)""", outside)


def test_the_page_shows_errors_in_their_place(tmp_path):
    class Unjudged:
        def __getattr__(self, name):
            if name == "verdict":
                raise ValueError("expected a column")
            return getattr(Entry(), name)

    odd = (picture({"data": [{"y": [math.nan]}]}, "Empty"), picture(None, "Broken"), picture())
    entries = [
        Entry(drawn=()),
        Entry(drawn=odd),
        Unjudged(),
        Entry(provenance={}),
        Entry("s0-table1", scale="gpu"),
    ]
    text = write_gallery(tmp_path / "a.html", entries).read_text(encoding="utf-8")
    assert "could not be drawn: KeyError" in text
    assert EMPTY in text
    assert ">This could not be drawn: " in text
    assert "could not be judged: ValueError: expected a column" in text
    ids = re.findall(r'<article id="(.*?)"', text)
    assert ids[:2] == ["s0-table1", "s0-table1-small"]
    assert len(set(ids)) == 5


def test_a_page_without_entries_is_an_error(tmp_path):
    with refuses("nothing-to-draw", argument="entries"):
        write_gallery(tmp_path / "a.html", [])


# --- in the browser -------------------------------------------------------------------------------

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const linear = (c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "white";
  };
  const hasWords = (n) => [...n.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
  const isShown = (n) => !n.closest(".plot, script") && n.getClientRects().length;
  const nodes = [...document.querySelectorAll("body *")].filter((n) => isShown(n) && hasWords(n));
  return nodes.map((n) => {
    const [a, b] = [light(getComputedStyle(n).color), light(ground(n))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), n.className || n.tagName];
  }).sort((x, y) => x[0] - y[0])[0];
}"""


@pytest.fixture
def open_gallery(open_file, tmp_path):
    def open_gallery(entries=None, **options):
        entries = several() if entries is None else entries
        return open_file(
            write_gallery(tmp_path / "gallery.html", entries), reduced_motion="reduce", **options
        )

    return open_gallery


def drawn(page) -> int:
    return (
        page.locator('.plot[data-drawn="yes"] .main-svg').count()
        and page.locator('.plot[data-drawn="yes"]').count()
    )


def scroll_through(page) -> None:
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
    wait_until(page, "!document.querySelector('.plot:not([data-drawn])')")


def test_summary_links_and_figures(open_gallery):
    page = open_gallery()
    rows = page.locator(".summary tr[data-entry]")
    assert rows.locator(".badge").all_text_contents() == [
        "holds",
        "does not hold",
        "holds in part",
        "unclear",
    ]
    assert "corrected: holds" in rows.nth(1).text_content()
    assert page.evaluate(
        "[...document.links].every((a) => a.hash && document.getElementById(a.hash.slice(1)))"
    )
    assert drawn(page) < page.locator(".plot").count()
    scroll_through(page)
    assert drawn(page) == 12
    labels = [plot.get_attribute("aria-label") for plot in page.locator(".plot[role=img]").all()]
    assert labels == ["Six falling lines."] * 12
    assert page.locator("figcaption").count() == 12
    levels = page.evaluate(
        "[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(landmark).count() == 1
    check_texts_of_entries(page)


def check_texts_of_entries(page):
    assert page.locator("tr[data-entry=s0-table1] .number").inner_text().split("\n") == [
        "1 of 2",
        "1 unclear",
    ]
    article = page.locator("#s1-figure7")
    assert article.locator("h4").all_text_contents()[:2] == [
        "Claims of the paper",
        "Corrected claims",
    ]
    assert "does not hold: It grows" in article.locator(".findings li").first.text_content()
    assert "erratum S1.4" in article.locator(".findings li").last.text_content()
    article.locator("summary", has_text="Method").click()
    facts = dict(
        zip(*(article.locator(tag).all_text_contents() for tag in ("dt", "dd")), strict=True)
    )
    assert facts["parts"] == "one · two"
    assert (facts["seconds"], facts["seeds"], facts["device"], facts["versions"]) == (
        "8.4",
        "8",
        "CPU",
        "torch 2.6",
    )
    assert article.locator("pre").text_content() == "orderone reproduce it"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_have_enough_contrast(open_gallery, scheme):
    page = open_gallery(color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    page.locator(".plot").first.scroll_into_view_if_needed()
    page.wait_for_selector('.plot[data-drawn="yes"]')
    contrast, where = page.evaluate(CONTRAST)
    assert contrast >= 4.5, where
    before = page.evaluate(paper), page.evaluate(ink)
    other = {"light": "dark", "dark": "light"}[scheme]
    while page.locator("#theme").text_content() != f"Theme: {other}":
        page.locator("#theme").click()
    wait_until(page, f"{ink} !== {json.dumps(before[1])}")
    assert page.evaluate(paper) != before[0]
    contrast, where = page.evaluate(CONTRAST)
    assert contrast >= 4.5, where
    page.reload()
    assert page.locator("#theme").text_content() == f"Theme: {other}"


def test_a_phone_shows_all_of_it_without_scrolling_sideways(open_gallery):
    odd = Entry(title="A" * 90, drawn=(picture(), picture(PANELS), grid(), grid(30)))
    page = open_gallery([odd, *several()], **PHONE)
    scroll_through(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    ends = page.evaluate(
        "[...document.querySelectorAll('.main-svg')].map((svg) =>"
        " svg.getBoundingClientRect().right)"
    )
    assert max(ends) <= 390
    heights = page.evaluate(
        "[...document.querySelectorAll('.plot')].map((p) => p._fullLayout._size.h /"
        " p.dataset.height)"
    )
    assert min(heights) > 0.55  # legends leave enough room for the axes
    assert page.locator(".contents").is_hidden()


def test_a_narrow_legend_is_not_cut_off(open_gallery):
    names = [
        "width 512, neural-tangent: (lr, wd) = (11.6, 8.63e-07) [3.977]",
        "(2, 1) [36.0%]",
        "(1, 2) [40.8%]",
        "0 < 1",
    ]
    lines = [trace | {"name": name} for trace, name in zip(LINES["data"], names, strict=False)]
    legend = {"title": {"text": "times (lr*, wd*)"}, "font": {"size": 11}}
    page = open_gallery(
        [Entry(drawn=(picture({"data": lines, "layout": {"legend": legend}}),))], **PHONE
    )
    scroll_through(page)
    ends = page.evaluate(
        "[...document.querySelectorAll('.legendtext')].map((t) => t.getBoundingClientRect().right)"
    )
    assert len(ends) == len(names)
    assert max(ends) <= page.evaluate(
        "document.querySelector('.plot').getBoundingClientRect().right"
    )


def test_filters_by_keyboard_and_links_to_hidden_entries(open_gallery):
    page = open_gallery()
    shown = lambda: [a.get_attribute("id") for a in page.locator("article").all() if a.is_visible()]  # noqa: E731
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for key in ("Enter", "Tab", "Space"):  # to the content, to the first verdict, switch it off
        page.keyboard.press(key)
    assert shown() == ["s1-figure7", "s1-figure8", "s9-other"]
    assert page.locator("#count").text_content() == "3 of 4 entries shown"
    page.get_by_role("button", name="S1").click()
    assert shown() == ["s9-other"]
    assert not page.get_by_role("heading", name="Mean field theory").is_visible()
    page.evaluate("location.hash = 's1-figure7'")
    wait_until(page, "!document.getElementById('s1-figure7').hidden")
    assert len(shown()) == 4
    for button in page.locator("#filters .tile").all():
        button.click()
    assert page.locator("#none").is_visible()


def test_one_entry_has_no_summary_and_a_figure_that_fails_shows_its_description(
    open_gallery,
):
    page = open_gallery([Entry(drawn=(*[grid()] * 9, picture()))])
    assert page.locator("#summary, .contents, .back").count() == 0
    assert page.locator("article .badge").text_content() == "holds"
    page.evaluate("() => { Plotly.newPlot = () => { throw new Error('no canvas'); }; }")
    page.locator(".plot").scroll_into_view_if_needed()
    page.wait_for_selector('.plot[data-drawn="failed"]')
    words = page.locator(".plot").text_content()
    assert words == "This figure could not be drawn (no canvas). It shows: Six falling lines."


def test_hostile_strings_are_text_in_the_browser(open_gallery):
    names = HOSTILE[:-1]
    figures = tuple(picture({"data": [{"y": [1, 2], "name": h}]}, h, h, h) for h in names)
    page = open_gallery([Entry(title=h, claim=h, drawn=figures) for h in names])
    scroll_through(page)
    assert page.locator("h3").all_text_contents() == names
    assert page.locator("article").first.locator("figcaption").all_text_contents() == names
    assert page.locator("img").count() == 0


def test_print_has_all_figures_and_is_white(open_gallery):
    page = open_gallery(color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    wait_until(page, "!document.querySelector('.plot:not([data-drawn])')")
    assert drawn(page) == 12
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("#theme").is_hidden()
    assert page.evaluate("[...document.querySelectorAll('details')].every((d) => d.open)")
