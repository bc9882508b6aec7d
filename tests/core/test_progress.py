"""Progress where standard error is a pipe: a line now and then, without carriage returns."""

from orderone.core import progress
from orderone.core.colours import OTHERS, RULE_COLOURS, rule_colours
from orderone.core.notebook import MOST_ROWS, notebook_html
from orderone.rules import names


def test_short_work_prints_nothing(capsys):
    with progress.bar("work") as report:
        report(1, 3, "first")
    assert capsys.readouterr().err == ""


def test_long_work_prints_lines(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.bar("work") as report:
        report(1, 3, "width 64, seed 0")
        report(2, 3, "größer")
    err = capsys.readouterr().err
    assert err.splitlines()[0] == "1 of 3: width 64, seed 0 (0 s)"
    assert len(err.splitlines()) == 2
    assert "\r" not in err
    assert err.isascii()


def test_quiet_work_prints_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.bar("work", quiet=True) as report:
        report(1, 3, "first")
    assert capsys.readouterr().err == ""


def test_every_rule_has_a_colour_of_its_own():
    assert set(RULE_COLOURS) == set(names())
    assert len(set(RULE_COLOURS.values()) | set(OTHERS)) == len(RULE_COLOURS) + len(OTHERS)
    assert rule_colours(["mine", "mup"]) == {"mine": OTHERS[0], "mup": RULE_COLOURS["mup"]}
    assert rule_colours(["mup"])["mup"] == rule_colours(["standard", "mup"])["mup"]


def test_a_long_table_in_a_notebook_is_cut_and_says_so():
    html = notebook_html("head & foot", [[["name"], *([str(k)] for k in range(MOST_ROWS + 3))]])
    assert "head &amp; foot" in html
    assert "... and 3 more rows" in html
