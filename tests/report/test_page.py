"""The page in a real browser: it draws, shows tooltips, filters, logs no error, and needs no
network."""

# pyright: reportArgumentType=false
# The tests draw stand-ins of results, which have only the attributes that a page reads.

import pandas as pd
import pytest
from support.synthetic_check import check, gpt
from test_html import HOSTILE

from orderone.report import write_html

playwright = pytest.importorskip("playwright.sync_api", reason="no browser: no playwright")


@pytest.fixture
def open_page(open_file, tmp_path):
    """Open the page of a result."""

    def open_page(r, **options):
        page = open_file(write_html(r, tmp_path / "report.html"), **options)
        page.wait_for_selector(".panel .js-plotly-plot, #empty:not([hidden])")
        return page

    return open_page


def mixed():
    verdicts = dict.fromkeys(gpt(2), "PASS")
    return check(
        verdicts
        | {
            "lm_head": "FAIL",
            "transformer.wpe": "UNCLEAR",
            "transformer.h.1.mlp.c_fc": {"change": "SHRINKS"},
        }
    )


def names(page) -> list[str]:
    return page.locator(".panel h3").all_text_contents()


def hover(page, place: str, which: int = 0):
    """Move the pointer to the middle of a point: plotly listens on a layer above it."""
    page.wait_for_selector(f"{place} .points path")
    box = page.locator(f"{place} .points path").nth(which).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#tooltip:not([hidden])")
    return dict(
        zip(
            *(page.locator(f"#tooltip {tag}").all_text_contents() for tag in ("dt", "dd")),
            strict=True,
        )
    )


def test_every_module_has_a_panel_worst_first(open_page):
    page = open_page(mixed())
    assert page.locator("#verdict").text_content() == "FAIL"
    assert page.locator("#causes li").all_text_contents() == ["readout not scaled"]
    assert len(names(page)) == len(gpt(2))
    assert names(page)[:4] == [
        "lm_head",
        "transformer.wpe",
        "transformer.h.1.mlp.c_fc",
        "transformer.wte",
    ]
    assert page.locator(".panel .badge").all_text_contents()[:4] == [
        "FAIL",
        "UNCLEAR",
        "SHRINKS",
        "PASS",
    ]


def test_the_tooltip_of_a_point(open_page):
    page = open_page(mixed())
    label = hover(page, ".panel")
    assert (label["width"], label["step"]) == ("64", "3")
    assert label["seed"] in {"0", "1", "2"}
    assert float(label["RMS"]) > 0
    assert (label["exponent"], label["predicted"], label["verdict"]) == (
        "+0.52 [+0.48, +0.57]",
        "0",
        "FAIL",
    )
    assert label["cause"].startswith("readout not scaled")
    page.mouse.move(2, 2)
    page.wait_for_selector("#tooltip", state="hidden")


def test_losses_are_drawn_with_tooltips(open_page):
    page = open_page(mixed())
    page.locator("#loss-section").scroll_into_view_if_needed()
    label = hover(page, "#losses", which=-1)
    assert (label["width"], label["step"]) == ("1024", "3")
    assert page.locator("#losses .legendtext").all_text_contents() == [
        "64",
        "128",
        "256",
        "512",
        "1024",
    ]


def test_another_quantity(open_page):
    page = open_page(mixed())
    page.get_by_role("radio", name="output").click()
    page.wait_for_selector(".panel .js-plotly-plot")
    assert "SHRINKS" not in page.locator(".panel .badge").all_text_contents()
    assert "RMS of output" in page.locator("#axes").text_content()
    assert page.get_by_role("radio", name="output").get_attribute("aria-checked") == "true"


def test_another_step(open_page):
    page = open_page(mixed())
    page.select_option("#step", "1")
    assert set(page.locator(".panel .badge").all_text_contents()) == {"PASS"}
    page.select_option("#step", "0")  # which has no change, so nothing is judged or drawn
    assert set(page.locator(".panel .badge").all_text_contents()) == {"not judged"}
    assert page.locator(".panel .note").first.text_content() == "15 zero of 15 points"


def test_filters(open_page):
    page = open_page(mixed())
    page.get_by_role("button", name="PASS").click()
    assert names(page) == ["lm_head", "transformer.wpe", "transformer.h.1.mlp.c_fc"]
    page.get_by_label("module").fill("  WPE ")
    playwright.expect(page.locator(".panel")).to_have_count(1)
    assert (
        page.locator("#exponents tbody tr").count() == 2
    )  # two quantities, each at the step with the verdict UNCLEAR
    page.get_by_label("module").fill("no such module")
    page.wait_for_selector("#empty:not([hidden])")


def test_the_table_sorts(open_page):
    page = open_page(mixed())
    for order in (1, -1):
        page.locator("th", has_text="exponent").click()
        cells = page.locator("#exponents tbody tr td:nth-child(5)").all_text_contents()
        values = [order * float(cell.replace("\N{MINUS SIGN}", "-")) for cell in cells]
        assert values == sorted(values)
    page.locator("#more").click()
    assert page.locator("#exponents tbody tr").count() == len(mixed().exponents)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_names_are_text(open_page, scheme):
    verdicts = dict.fromkeys(HOSTILE[:-1], "FAIL")  # not the last one, which browsers change
    r = check(verdicts, causes=HOSTILE[:-1], provenance={name: name for name in HOSTILE[:-1]})
    r.exponents["cause"], r.exponents["role"] = HOSTILE[0], HOSTILE[1]
    page = open_page(r, color_scheme=scheme)
    assert names(page) == HOSTILE[:-1]
    assert page.locator("#causes li").all_text_contents() == HOSTILE[:-1]
    assert page.locator("#provenance dd").all_text_contents() == HOSTILE[:-1]
    assert hover(page, ".panel")["cause"] == HOSTILE[0]
    assert page.locator("img").count() == 0


def test_the_content_security_policy_stops_an_unescaped_script(browser, tmp_path):
    """The policy works even if the escaping fails."""
    page = browser.new_page()
    file = write_html(mixed(), tmp_path / "report.html")
    file.write_text(
        file.read_text().replace("<header>", "<header><script>document.title = 'owned'</script>")
    )
    page.goto(file.as_uri())
    page.wait_for_selector(".panel .js-plotly-plot")
    assert page.title() == "Coordinate check: FAIL"
    page.close()


def test_only_visible_panels_of_a_large_model_are_drawn(open_page):
    page = open_page(
        check(
            dict.fromkeys(gpt(42), "PASS"), quantities=("output", "change", "update"), steps=(0, 1)
        )
    )
    assert page.locator(".panel").count() == len(gpt(42))
    assert page.locator(".panel .js-plotly-plot").count() < 60
    page.locator(".panel").last.scroll_into_view_if_needed()
    page.wait_for_selector(".panel:last-child .js-plotly-plot")


def test_depth_partial_and_odd_results(open_page):
    r = check({"": "PASS", "a": "FAIL"}, axis="depth", verdict="UNCLEAR")
    r.frame = r.frame[r.frame["depth"] == 64]
    r.frame.loc[r.frame["seed"] == 0, "rms"] = float("nan")
    r.exponents, r.losses = r.exponents[:0], r.losses[:0]
    page = open_page(r)
    assert names(page) == ["(the model)", "a"]
    assert page.locator("#loss-section").is_hidden()
    assert "depth" in hover(page, ".panel")


def test_rows_about_the_whole_model_have_a_name(open_page):
    page = open_page(check({"": "FAIL", "a": "PASS"}))
    cells = page.locator("tbody td:first-child").all_text_contents()
    assert set(cells) == {"(the model)", "a"}


def test_modules_with_the_same_records_share_a_panel(open_page):
    """An attention block returns the output of its projection: one panel has both names."""
    r = check({"attn.c_proj": "FAIL", "mlp": "PASS"})
    for table in ("frame", "exponents"):
        values = getattr(r, table)
        copies = values[values["module"] == "attn.c_proj"].assign(module="attn")
        setattr(r, table, pd.concat([values, copies], ignore_index=True))
    page = open_page(r)
    assert names(page) == ["attn.c_proj = attn", "mlp"]
    assert page.locator("#count").text_content() == "3 of 3 modules"
    page.get_by_label("module").fill("mlp")
    playwright.expect(page.locator(".panel")).to_have_count(1)
    assert names(page) == ["mlp"]


def test_words_are_whole_on_a_telephone(open_page):
    """No text is cut or hidden, and the page has no horizontal scroll bar."""
    name = "transformer.layers.11.attention.output_projection_of_a_rather_long_name"
    r = check({name: "FAIL", "mlp": "SHRINKS"})
    page = open_page(r, viewport={"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    cut = page.evaluate(
        """[...document.querySelectorAll(".panel h3, .panel .facts, .panel .cause")]
        .filter((e) => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1)
        .map((e) => e.textContent)"""
    )
    assert cut == []
    causes = page.locator(".panel .cause").all_text_contents()
    assert "under-trained at width: updates are less than fully aligned (alignment 0.61)" in causes
    broken = page.evaluate(
        """[...document.querySelectorAll("h1, li, dd, .cause")]
        .filter((e) => getComputedStyle(e).overflowWrap === "anywhere"
          || getComputedStyle(e).wordBreak === "break-all").length"""
    )
    assert broken == 0


def test_the_page_of_a_large_model_is_small(open_page, tmp_path):
    quantities = ("output", "change", "update", "weight", "gradient", "decay", "input")
    r = check(dict.fromkeys(gpt(60), "PASS") | {"lm_head": "FAIL"}, quantities=quantities)
    assert write_html(r, tmp_path / "size.html").stat().st_size < 1_500_000
    page = open_page(r)
    assert names(page)[0] == "lm_head"
    assert len(names(page)) == len(gpt(60))
