"""Pictures drawn with matplotlib: their content, and that pyplot is not changed."""

# pyright: reportArgumentType=false
# The tests draw stand-ins of results, which have only the attributes that a page reads.

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from support.errors import refuses
from support.synthetic_check import check, gpt
from support.warm import WARM
from test_html import HOSTILE

from orderone.report import png, small_panel, write_png
from orderone.report.cube import cube, drawable, line

figure = pytest.importorskip("matplotlib.figure")
agg = pytest.importorskip("matplotlib.backends.backend_agg")
image = pytest.importorskip("matplotlib.image")


def drawn(r, quantity=None):
    result = figure.Figure()
    agg.FigureCanvasAgg(result)
    png._draw(result, r, cube(r), quantity, "Coordinate check")
    return result


def words(result) -> list[str]:
    return [text.get_text() for text in result.findobj(lambda artist: hasattr(artist, "get_text"))]


def test_at_most_24_panels_worst_first_and_the_rest_counted(tmp_path):
    verdicts = {name: "FAIL" if name == "lm_head" else "PASS" for name in gpt(5)}
    result = drawn(check(verdicts))
    assert len(result.axes) == 24
    assert result.axes[0].texts[0].get_text() == "lm_head"
    assert f"{len(verdicts) - 24} more modules are not drawn ({len(verdicts) - 24} PASS)" in words(
        result
    )


def test_writes_a_picture(tmp_path):
    path = write_png(check({"a": "PASS", "b": "FAIL"}), tmp_path / "r.png")
    assert image.imread(path).std() > 0.01


def test_lines_have_the_fitted_and_predicted_slopes():
    r = check({"a": "FAIL"}, quantities=("change",))
    fitted, _, predicted, *_ = drawn(r).axes[0].lines
    slopes = [
        np.polyfit(np.log(x.get_xdata()), np.log(x.get_ydata()), 1)[0] for x in (fitted, predicted)
    ]
    assert slopes == pytest.approx([0.52, 0.0])


def test_lines_pass_through_the_centre():
    sizes, rms = np.array([1.0, 10.0, 100.0]), np.array([[1.0], [10.0], [1000.0]])
    assert line(sizes, rms, 2.0)[1] == pytest.approx(np.exp(np.log(rms).mean()))
    assert np.isnan(line(sizes, drawable(0 * rms), 2.0)).all()


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_values_that_cannot_be_drawn_are_counted(value):
    r = check({"a": "PASS", "b": "PASS"}, quantities=("output",))
    r.frame.loc[(r.frame["module"] == "a"), "rms"] = value
    r.frame.loc[(r.frame["module"] == "b") & (r.frame["seed"] == 0), "rms"] = value
    kind = "zero" if value == 0 else "missing or not finite"
    assert {f"15 {kind} of 15 points", f"5 {kind} of 15 points"} <= set(words(drawn(r)))


def test_a_single_width_and_modules_without_a_verdict(tmp_path):
    r = check({"a": "PASS"})
    r.frame, r.exponents = r.frame[r.frame["width"] == 64], r.exponents[:0]
    write_png(r, tmp_path / "r.png")
    assert "not judged" in words(drawn(r))


def test_names_with_characters_that_the_font_lacks(tmp_path):
    write_png(check(dict.fromkeys(HOSTILE, "FAIL"), axis="depth"), tmp_path / "r.png")


def test_an_unknown_quantity_is_an_error():
    with refuses("unknown-name", argument="quantity") as caught:
        drawn(check({"a": "PASS"}), "chang")
    assert "'change'?" in str(caught.value)


def test_pyplot_is_not_touched(tmp_path):
    code = f"""import sys
from orderone.report import write_png
from support.synthetic_check import check
write_png(check({{"a": "PASS"}}), {str(tmp_path / "r.png")!r})
print("matplotlib.pyplot" in sys.modules)"""
    ended = WARM.code(code, cwd=Path(__file__).parents[1])
    assert ended.stdout == "False\n", ended.stderr


def test_the_error_about_missing_matplotlib_names_the_extra(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"^matplotlib .*pip install 'orderone\[png\]'"):
        write_png(check({"a": "PASS"}), tmp_path / "r.png")


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.15, 0.55), (0.2, 0.29), (0.11, 0.19), (3e-7, 8e2), (0.9, 1.1), (4e-6, 7e-6)],
)
def test_labels_are_exact_and_unique(low, high):
    """Wrong labels would be 0.3 at 0.25, or the same label twice."""
    values = small_panel._round(low, high)
    labels = [small_panel._tick(value) for value in values]
    assert 2 <= len(values) <= 5
    assert all(low <= value <= high for value in values)
    assert len(set(labels)) == len(labels)
    read = [
        float(re.sub(r"[${}]", "", label).replace("\\cdot10^", "e").replace("10^", "1e"))
        for label in labels
    ]
    assert read == pytest.approx(values)
