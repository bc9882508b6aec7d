"""The page as text: its content and order, and that no name can become markup."""

# pyright: reportArgumentType=false
# The tests draw stand-ins of results, which have only the attributes that a page reads.

import base64
import gzip
import json
import re
import sys

import numpy as np
import pandas as pd
import pytest
from support.errors import refuses
from support.synthetic_check import WIDTHS, check, gpt

from orderone.report import html, write_figures, write_html
from orderone.report.payload import STEPS, numbers, payload
from orderone.report.plotly_js import TRACES, plotly_js
from orderone.report.verdicts import COLOURS, INK_ON, first_quantity, ranked

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "<!--<script>",
    "\"'`${alert(3)}{{ 7 * 7 }}&lt;%{x}",
    "层\u2028中.ß$x^2$\u202e",
]


def embedded(text: str) -> dict:
    """Return the data that the browser reads."""
    return json.loads(
        re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.S)[0]
    )


def test_worst_first_then_in_the_order_of_the_model():
    r = check(
        {"a": "PASS", "b": "SHRINKS", "c": "FAIL", "d": "UNCLEAR", "e": "FAIL"},
        quantities=("change",),
    )
    table = ranked(r).drop_duplicates("module")
    assert list(table["module"]) == ["c", "e", "d", "b", "a"]
    assert set(table["step"]) == {3}  # the worst step, the latest one if several are equal


def test_an_unknown_verdict_comes_last():
    r = check({"a": "PASS", "b": "FAIL"}, quantities=("change",))
    r.exponents["verdict"] = r.exponents["verdict"].replace("PASS", "SKIPPED")
    assert ranked(r)["verdict"].iloc[[0, -1]].tolist() == ["FAIL", "SKIPPED"]


@pytest.mark.parametrize(
    ("verdicts", "first"),
    [
        ({"a": "PASS"}, "change"),
        ({"a": {"update": "FAIL"}, "b": {"change": "UNCLEAR"}}, "update"),
        ({"a": {"update": "FAIL", "output": "FAIL"}, "b": {"update": "FAIL"}}, "update"),
        ({"a": {"update": "SHRINKS", "change": "SHRINKS"}}, "change"),
    ],
)
def test_the_page_starts_with_the_worst_quantity(verdicts, first):
    assert first_quantity(check(verdicts, quantities=("output", "change", "update"))) == first


def test_numbers_that_json_does_not_know_become_null():
    assert numbers([1.0, np.nan, np.inf, -np.inf, 0.0, 1.23456e-9]) == [
        1,
        None,
        None,
        None,
        0,
        1.235e-9,
    ]


def sizes_of(differences: list[int | str | None], per_decade: int = STEPS) -> list[float | None]:
    """Decode sizes as the page does."""
    total = 0
    decoded: list[float | None] = []
    for x in differences:
        if isinstance(x, int):
            total += x
            decoded.append(10 ** (total / per_decade))
        else:
            decoded.append(None if x is None else 0)
    return decoded


def test_the_page_of_a_deep_network_stays_small():
    quantities = ("output", "change", "output gradient", "gradient", "update")
    r = check(dict.fromkeys(gpt(96), "PASS"), quantities=quantities, steps=(0, 1, 2, 3, 4))
    assert len(html(r)) < 1_500_000


def test_the_records_of_a_very_deep_network_are_rounded(monkeypatch):
    r = check(dict.fromkeys(gpt(1), "PASS"))
    exact = embedded(html(r))
    assert exact["per_decade"] == STEPS
    monkeypatch.setattr(sys.modules["orderone.report.html"], "LARGEST", 0)
    coarse = embedded(html(r))
    assert coarse["per_decade"] == 50
    output = exact["quantities"].index("output")
    rounding = 10 ** (0.5 / 50 + 0.5 / STEPS)
    for rounded, values in zip(coarse["rms"], exact["rms"], strict=True):
        wanted = np.array(sizes_of(values[output]), float)
        ratio = np.array(sizes_of(rounded[output], 50), float) / wanted
        assert np.all((ratio < rounding) & (ratio > 1 / rounding))


def test_the_payload_contains_the_records():
    r = check({"a": "PASS", "b": "FAIL"})
    r.frame.loc[0, "rms"], r.frame.loc[1, "rms"], r.frame.loc[2, "rms"] = np.nan, np.inf, 0.0
    r.losses.loc[0, "loss"] = np.inf
    r.exponents.loc[0, ["exponent", "low", "high", "predicted"]] = np.nan
    data = json.loads(payload(r))
    assert (data["modules"], data["sizes"], data["steps"]) == (
        ["a", "b"],
        list(WIDTHS),
        [0, 1, 2, 3],
    )
    first = data["rms"][0][data["quantities"].index("output")]
    assert sizes_of(first)[:3] == [None, None, 0]
    record = r.frame[r.frame["module"] == "b"].query(
        "quantity == 'change' and step == 2 and width == 256 and seed == 1"
    )
    at = (2 * len(WIDTHS) + WIDTHS.index(256)) * 3 + 1
    change = sizes_of(data["rms"][1][data["quantities"].index("change")])
    assert change[at] == pytest.approx(record["rms"].item(), rel=6e-4)
    assert data["losses"][0][3][0] is None
    assert len(data["rows"]) == len(r.exponents)


def test_a_quantity_that_a_module_lacks_is_null():
    r = check({"a": "PASS", "b": "PASS"})
    r.frame = r.frame[(r.frame["module"] == "a") | (r.frame["quantity"] == "output")]
    data = json.loads(payload(r))
    assert data["rms"][1][data["quantities"].index("change")] is None


def test_strings_of_users_are_escaped():
    r = check(
        dict.fromkeys(HOSTILE, "FAIL"),
        causes=HOSTILE,
        provenance=dict(zip(HOSTILE, HOSTILE, strict=True)),
    )
    r.exponents["cause"], r.exponents["role"], r.verdict = HOSTILE[0], HOSTILE[1], HOSTILE[1]
    text = html(r, title=HOSTILE[0])
    outside = re.sub(r"<script>.*?</script>", "", text, flags=re.S)  # ours
    assert text.count("<script") - outside.count("<script") >= 1
    assert outside.count("<script") == 2  # the data, and plotly.js, compressed
    assert "<img" not in outside
    assert "<!--" not in outside
    assert embedded(text)["modules"] == HOSTILE


def test_a_lone_surrogate_is_written_as_an_escape_sequence(tmp_path):
    # only causes can contain one: arrow, which stores the tables, refuses such names
    r = check({"a": "PASS"}, causes=["lone \ud800"])
    assert "lone" in write_html(r, tmp_path / "r.html").read_text(encoding="utf-8")


def test_policy_allows_the_two_scripts_and_no_network():
    policy = re.findall(r'Content-Security-Policy" content="(.*?)"', html(check({"a": "PASS"})))[0]
    assert "default-src 'none'" in policy
    assert len(re.findall(r"sha256-", policy)) == 2
    assert "script-src 'unsafe-inline'" not in policy


def test_partial_results_are_drawn():
    r = check({"a": "PASS"})
    r.exponents, r.losses, r.causes, r.provenance = r.exponents[:0], r.losses[:0], [], {}
    data = embedded(html(r))
    assert (data["rows"], data["losses"], data["quantities"][data["first"]]) == ([], [], "change")
    r.exponents = pd.DataFrame(columns=r.exponents.columns)  # a frame made without rows
    assert embedded(html(r))["rows"] == []


def test_a_check_without_records_is_an_error():
    r = check({"a": "PASS"})
    r.frame, r.exponents = r.frame[:0], r.exponents[:0]
    with refuses("nothing-to-draw", argument="r"):
        html(r)


def hide(monkeypatch, package):
    """Make imports of a package fail."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)


def test_the_error_about_a_missing_package_names_the_extra(monkeypatch):
    hide(monkeypatch, "jinja2")
    with pytest.raises(ImportError, match=r"^jinja2 .*pip install 'orderone\[report\]'"):
        html(check({"a": "PASS"}))


def test_a_page_is_small_and_needs_no_plotly(monkeypatch, tmp_path):
    hide(monkeypatch, "plotly")
    r = check({f"blocks.{k}": "PASS" for k in range(12)})
    assert write_html(r, tmp_path / "r.html").stat().st_size < 1_000_000
    sankey = {"data": [{"type": "sankey", "node": {}, "link": {}}]}
    with pytest.raises(ImportError) as caught:
        write_figures(tmp_path / "f.html", "other traces", [sankey])
    assert caught.value.name == "plotly"


def test_other_traces_bring_the_full_plotly_js():
    assert plotly_js(TRACES) is plotly_js()
    full = plotly_js({"scatter", "sankey"})
    assert len(full.script) > 2 * len(plotly_js().script)
    assert gzip.decompress(base64.b64decode(full.packed)).decode() == full.script


def _linear(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]) ** 2.2


def test_verdicts_have_enough_contrast():
    for word, colour in COLOURS.items():
        dark, light = sorted(
            float(_linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (colour, INK_ON[word])
        )
        assert (light + 0.05) / (dark + 0.05) > 4.5  # WCAG AA
