"""The explorer in a real browser: sliders change the numbers, which equal the library's, and error
messages appear beside their controls."""

import re

import pytest
from support.explorer import running

from orderone import rules
from orderone.explore.workers import Workers
from orderone.theory import MeanField, critical_weight_var, depth_report

playwright = pytest.importorskip("playwright.sync_api", reason="no browser: no playwright")
TIMEOUT_MS = 30_000
FIGURES = {
    "phase": ("map", "length-map", "correlation-map", "length-path", "correlation-path"),
    "rule": ("growth",),
    "depth": ("norms", "correlations"),
    "model": ("nngp", "ntk", "model-correlations", "model-variances"),
}


@pytest.fixture(scope="module")
def window(browser):
    """One explorer and one page for all tests, which reload it: the browser reads plotly once."""
    complaints = []
    with running(workers=Workers(number=2)) as explorer:
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        # the browser reports every answer with status 400; tests that type wrong values expect them
        page.on(
            "console",
            lambda m: (
                "400 (Bad Request)" in m.text or complaints.append(f"console {m.type}: {m.text}")
            ),
        )
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on(
            "request",
            lambda r: r.url.startswith(explorer.url) or complaints.append(f"request: {r.url}"),
        )
        yield page, explorer.url, complaints


@pytest.fixture
def open_page(window):
    """Open the page; afterwards, assert that it logged no error and made no foreign request."""
    page, url, complaints = window

    def open_page(query="", width=1300, scheme="light"):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.goto(url + query)
        page.wait_for_selector("[role=tabpanel]:not([hidden]) select")
        return page

    yield open_page
    logged, complaints[:] = complaints[:], []
    assert not logged


def value(page, name: str) -> float:
    """Return the number with all its digits."""
    return float(page.locator(f"#{name}").get_attribute("data-value").replace("Infinity", "inf"))


def wait_for(page, name: str, expected: float) -> None:
    """Wait until the page shows this number, with all its digits."""
    known = "Infinity" if expected == float("inf") else repr(float(expected))
    page.wait_for_function(
        "([id, x]) => Number(document.getElementById(id)?.dataset.value) === Number(x)",
        arg=[name, known],
    )


def slide(page, name: str, key: str, times: int = 1) -> None:
    page.locator(f"#slide-{name}").focus()
    for _ in range(times):
        page.keyboard.press(key)


# --- phases ---------------------------------------------------------------------------------------


def test_numbers_equal_the_librarys(open_page):
    page = open_page()
    network = MeanField("tanh", 1.4, 0.1)
    wait_for(page, "q_star", network.q_star)
    for name in ("c_star", "chi1", "chi2", "xi1", "xi2"):
        assert value(page, name) == getattr(network, name)
    assert value(page, "trainable_depth") == network.trainable_depth()
    assert page.locator("#trainable_depth").text_content() == "72"
    assert page.locator("#phase-word").text_content() == "ordered"
    assert page.locator("#q_star").text_content() == f"{network.q_star:.5g}"


def test_a_slider_changes_the_numbers_by_keyboard(open_page):
    page = open_page()
    slide(page, "weight_var", "ArrowRight", 5)
    wait_for(page, "chi1", MeanField("tanh", 1.45, 0.1).chi1)
    slide(page, "keep", "ArrowLeft", 4)
    wait_for(page, "c_star", MeanField("tanh", 1.45, 0.1, 0.98).c_star)
    slide(page, "bias_var", "End")
    wait_for(page, "xi2", MeanField("tanh", 1.45, 0.3, 0.98).xi2)
    page.wait_for_url(re.compile("weight_var=1.45.*bias_var=0.3.*keep=0.98"))


def test_a_number_moves_the_slider(open_page):
    page = open_page()
    page.fill("#set-bias_var", "0.2")
    wait_for(page, "q_star", MeanField("tanh", 1.4, 0.2).q_star)
    assert page.input_value("#slide-bias_var") == "0.2"


def test_a_listed_activation_and_a_typed_one(open_page):
    page = open_page()
    page.select_option("#set-activation", "relu")
    wait_for(page, "chi1", MeanField("relu", 1.4, 0.1).chi1)
    page.select_option("#set-activation", "another …")
    wait_for(page, "chi1", MeanField("leaky-relu(0.2)", 1.4, 0.1).chi1)
    page.fill("#set-activation + input", "leaky-relu(0.5)")
    wait_for(page, "chi1", MeanField("leaky-relu(0.5)", 1.4, 0.1).chi1)


def test_the_button_goes_to_the_critical_line(open_page):
    page = open_page()
    page.get_by_role("button", name="go there").click()
    best = round(critical_weight_var("tanh", 0.1), 6)
    wait_for(page, "chi1", MeanField("tanh", best, 0.1).chi1)
    assert value(page, "chi1") == pytest.approx(1, abs=1e-5)


def test_a_critical_line_beyond_the_map_widens_the_map(open_page):
    page = open_page("?activation=sigmoid&bias_var=0.05")
    page.get_by_role("button", name="go there").click()
    best = critical_weight_var("sigmoid", 0.05)
    assert best > 4
    wait_for(page, "chi1", MeanField("sigmoid", round(best, 6), 0.05).chi1)
    page.wait_for_function("() => document.querySelector('#map').layout?.xaxis.range[1] > 15")


def test_signals_that_grow_without_bound(open_page):
    page = open_page("?activation=relu&weight_var=2.5")
    wait_for(page, "q_star", float("inf"))
    assert page.locator("#q_star").text_content() == "∞"
    assert page.locator("#phase-status").text_content() == "diverges"
    assert page.locator("#phase-word").text_content() == "chaotic"


def test_a_click_on_the_map_selects_a_network(open_page):
    page = open_page()
    page.wait_for_function("() => document.querySelector('#map').data?.[0].x.length === 72")
    box = page.locator("#map .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] * 0.5)
    page.mouse.click(box["x"] + box["width"] * 0.75, box["y"] + box["height"] * 0.5)
    page.wait_for_function(
        "() => Math.abs(Number(document.getElementById('set-weight_var').value) - 3) < .1"
    )
    assert float(page.input_value("#set-bias_var")) == pytest.approx(0.15, abs=0.01)
    assert page.locator("#phase-word").text_content() in ("ordered", "chaotic")


# --- wrong input ----------------------------------------------------------------------------------


WRONG = [
    ("#set-bias_var", "-1", "bias_var: ", "0.2"),
    ("#set-bias_var", "abc", "bias_var: expected a number, got 'abc'", "0.2"),
    ("#set-bias_var", "", "bias_var: expected a number, got ''", "0.2"),
    ("#set-bias_var", "1e999", "bias_var: ", "0.2"),
    ("#set-keep", "0", "keep: ", "0.9"),
    ("#set-activation + input", "<img src=x>", "unknown activation: ", "tanh"),
]


def test_error_messages_appear_beside_the_control(open_page):
    page = open_page("?activation=leaky-relu(0.2)")
    wait_for(page, "chi1", MeanField("leaky-relu(0.2)", 1.4, 0.1).chi1)
    for control, wrong, message, right in WRONG:
        page.fill(control, wrong)
        error = page.locator(f"#{page.get_attribute(control, 'aria-describedby')}")
        playwright.expect(error).to_contain_text(message)
        assert page.get_attribute(control, "aria-invalid") == "true"
        assert page.locator(".stale").count() > 0  # old numbers fade
        page.fill(control, right)
        playwright.expect(error).to_be_empty()
        assert page.get_attribute(control, "aria-invalid") is None
    wait_for(page, "chi1", MeanField("tanh", 1.4, 0.2, 0.9).chi1)
    assert page.locator("img").count() == 0


def test_wrong_values_in_the_address(open_page):
    page = open_page("?tab=rule&rule=nothing&optimizer=x&layers=many&norm=7")
    playwright.expect(
        page.locator("#wrong-rule, #wrong-optimizer, #wrong-layers").filter(has_text="expected")
    ).to_have_count(1)


# --- tabs, state, looks ---------------------------------------------------------------------------


def test_tabs_by_keyboard(open_page):
    page = open_page()
    page.get_by_role("tab", name="Phases").focus()
    for key, tab in (
        ("ArrowRight", "rule"),
        ("ArrowRight", "depth"),
        ("ArrowRight", "model"),
        ("ArrowRight", "phase"),
        ("End", "model"),
        ("ArrowLeft", "depth"),
        ("Home", "phase"),
    ):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.id") == f"tab-{tab}"
        assert page.locator(f"#{tab}").is_visible()
        assert page.locator("[role=tabpanel]:visible").count() == 1
        assert page.locator(f"#tab-{tab}").get_attribute("aria-selected") == "true"
    page.wait_for_url(re.compile("tab=phase"))


def test_the_address_contains_the_state(open_page):
    page = open_page("?tab=depth&depth=20&width=300&skips=scaled&rho0=0.5")
    report = depth_report(300, 20, "relu", True, 0.5)
    wait_for(page, "norm_spread", report.norm_spread)
    page.fill("#set-depth", "40")
    page.wait_for_url(re.compile("depth=40"))
    page = open_page("?" + page.url.partition("?")[2])
    wait_for(page, "norm_spread", depth_report(300, 40, "relu", True, 0.5).norm_spread)


@pytest.mark.parametrize("tab", FIGURES)
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1300, "dark")])
def test_narrow_and_dark_screens(open_page, tab, width, scheme):
    page = open_page(f"?tab={tab}", width=width, scheme=scheme)
    for figure in FIGURES[tab]:
        place = page.locator(f"#{figure}")
        page.wait_for_selector(f"#{figure} .main-svg")
        assert len(place.get_attribute("aria-label")) > 30
        assert place.bounding_box()["width"] > 150
    assert page.evaluate("document.documentElement.scrollWidth") == width
    unnamed = (
        "[...document.querySelectorAll('input, select')].filter((each) => !each.labels?.length &&"
        " !each.ariaLabel)"
    )
    assert page.evaluate(f"{unnamed}.length") == 0
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))


def test_colours_follow_the_scheme(open_page):
    page = open_page()
    page.wait_for_function("() => document.querySelector('#map').data?.[0].x.length === 72")
    shade = "document.querySelector('#map').data[0].colorscale[0][1]"
    light = page.evaluate(shade)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"() => {shade} !== '{light}'")


# --- parameterizations and depth ------------------------------------------------------------------


def test_exponents_equal_the_librarys(open_page):
    page = open_page("?tab=rule")
    for name, optimizer in (("mup", "adam"), ("sp", "adam"), ("mf", "sgd")):
        page.select_option("#set-rule", name)
        page.select_option("#set-optimizer", optimizer)
        p = rules.get(name, optimizer)
        for role in p.roles:
            expected = [str(x[role]).replace("-", "−") for x in (p.a, p.b, p.c)]
            playwright.expect(page.locator(f"#role-{role} .number")).to_have_text(expected)


def test_the_verdict_changes_with_the_learning_rates(open_page):
    page = open_page("?tab=rule&rule=sp")
    playwright.expect(page.locator("#stable")).to_have_text("UNSTABLE")
    assert "readout: W Δh into the logits" in page.locator("#failed").text_content()
    page.select_option("#set-rates", "worst")
    playwright.expect(page.locator("#stable")).to_have_text("STABLE")
    assert "lazy" in page.locator("#rule-notes").text_content()


def test_a_depth_report(open_page):
    page = open_page("?tab=depth")
    plain, shaped = depth_report(512, 64), depth_report(512, 64, "shaped-relu")
    wait_for(page, "norm_spread", plain.norm_spread)
    assert page.locator("#regime").text_content() == "degenerate"
    assert page.locator("#remedies li").all_text_contents() == list(plain.remedies)
    page.check("#set-shaped")
    wait_for(page, "norm_spread", shaped.norm_spread)
    assert value(page, "rho_median") == shaped.correlation[0.5]
    assert page.locator("#regime").text_content() == "lognormal"


def test_the_newest_question_wins(open_page):
    """A long calculation is cancelled when the slider moves on."""
    page = open_page("?tab=depth&function=gelu&depth=1000&width=1000&skips=scaled")
    page.wait_for_selector("#status:has-text('computing')")
    page.fill("#set-depth", "3")
    page.fill("#set-width", "20")
    wait_for(page, "ratio", 3 / 20)
    assert value(page, "norm_spread") == depth_report(20, 3, "gelu", True).norm_spread
    page.wait_for_selector(".busy", state="detached")
    assert page.locator("#status").text_content() == ""


def test_a_server_that_has_ended(browser):
    with running(workers=Workers(number=1)) as explorer:
        page = browser.new_page()
        page.goto(explorer.url)
        page.wait_for_selector("#map.js-plotly-plot")
    page.fill("#set-bias_var", "0.25")
    playwright.expect(page.locator("#lost")).to_contain_text("orderone explore")
    page.close()


def test_a_model_with_infinitely_many_channels(open_page):
    page = open_page("?tab=model")
    page.wait_for_function("() => document.querySelectorAll('#scales tbody tr').length === 6")
    network = MeanField("relu", 2.0, 0.0)
    assert page.locator("#scales tbody tr").first.locator("td").nth(1).text_content() == "2"
    assert network.chi1 == 1
    page.select_option("#set-architecture", "ViT")
    page.wait_for_function("() => document.querySelectorAll('#scales tbody tr').length === 2")
    assert "residual branch" in page.locator("#scales tbody").text_content()
    page.select_option("#set-architecture", "…")
    page.fill("#model-controls input[type=text] >> nth=0", "no.such.module:build")
    page.wait_for_function(
        "() => document.getElementById('wrong-architecture').textContent.includes('no.such.module')"
    )
