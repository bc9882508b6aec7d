"""Rules for every verb: help, errors in one line before the work, terminals and pipes."""

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path
from statistics import median

import pytest
import tyro
from support.command_line import accept, assert_refused, orderone

from orderone.cli import files, show
from orderone.cli.exit_codes import EXIT_CODES
from orderone.cli.help import OTHER, option_name, verb_page
from orderone.cli.options import readable
from orderone.cli.verbs import ALL, EXAMPLES, overview
from orderone.core.codes import EXPLANATIONS

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
HEAVY = {"torch", "numpy", "scipy", "pandas", "transformers", "plotly"}
every_verb = pytest.mark.parametrize("name", ALL)


def page(name: str) -> str:
    """Return what `orderone NAME --help` prints."""
    ended = orderone(*name.split(), "--help")
    assert (ended.status, ended.err) == (0, "")
    return ended.out


# --- options of other verbs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "right"),
    [
        ("plan --builder mine:build --width 64", "--size"),
        ("plan --hf_config x --learning_rate 1e-3", "--lr"),
        ("check --builder mine:build --size=64", "--widths"),
        ("sweep --task lm --width 64", "--widths"),
        ("sweep --task lm --rule mup", "--rules"),
    ],
)
def test_an_option_of_another_name_is_corrected(command, right):
    ended = orderone(*command.split())
    assert_refused(ended, "unknown-name")
    assert f" {right}?" in ended.err


def test_an_option_that_resembles_none_is_refused():
    assert orderone("plan", "--zzzzzz", "1").status == 2


# --- help -----------------------------------------------------------------------------------------


@every_verb
def test_help_has_usage_an_example_and_groups(name):
    text = page(name)
    assert text.startswith(f"Usage: orderone {name}")
    assert "\nExample:\n  orderone " in text
    assert "None" not in text
    assert "False" not in text


@every_verb
def test_every_option_is_in_one_group(name):
    verb, help = ALL[name].load()
    assert OTHER not in page(name)
    grouped = [parameter for group in help.groups.values() for parameter in group]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) <= set(signature(verb).parameters)


@every_verb
def test_help_lists_the_options_that_tyro_accepts(name, capsys):
    verb, help = ALL[name].load()
    with pytest.raises(SystemExit):
        tyro.cli(readable(verb), args=["--help"], config=(tyro.conf.FlagCreatePairsOff,))
    accepted = set(re.findall(r"^. (--[a-z0-9-]+)", capsys.readouterr().out, flags=re.M))
    printed = set(re.findall(r"^  (--[a-z0-9-]+)", verb_page(name, verb, help), flags=re.M))
    assert printed == accepted


@every_verb
def test_the_example_is_accepted(name):
    _, help = ALL[name].load()
    assert help.example.startswith(f"orderone {name}")
    accept(help.example.split()[1:])


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_overview_are_accepted(example):
    accept(example.split()[1:])


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_fits_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for text in (overview(), orderone("predict", "--help").out, *(page(name) for name in ALL)):
        long = [line for line in text.splitlines() if len(line) > columns]
        assert all(len(line.split()) == 1 for line in long), long  # a long word is not broken


def test_help_imports_no_heavy_package():
    code = (
        "import sys; from orderone.cli.verbs import ALL, run\n"
        "for name in ALL: run([*name.split(), '--help'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not HEAVY & set(result.stderr.split())


def test_help_is_quick():
    """Compare CPU seconds with those of an empty program, so that a busy machine matters little."""

    def seconds(*words: str) -> float:
        command = [sys.executable, *words]
        before = os.times()
        subprocess.run(command, capture_output=True, check=True)
        after = os.times()
        return (
            after.children_user
            - before.children_user
            + after.children_system
            - before.children_system
        )

    seconds("-m", "orderone", "sweep", "--help")  # writes the byte code
    empty = median(seconds("-c", "pass") for _ in range(3))
    for name in ("", "sweep", "report", "predict exponents"):
        words = ("-m", "orderone", *name.split(), "--help")
        assert median(seconds(*words) for _ in range(3)) < 25 * max(empty, 0.01), name


def test_headings_are_bold_on_a_terminal_unless_no_color_is_set(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033[1m" in overview()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in overview()


@pytest.mark.parametrize("value", ["", "1"])
def test_tables_are_plain_if_no_color_is_set(value, monkeypatch):
    monkeypatch.setenv("NO_COLOR", value)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = show.console()
    out.file = io.StringIO()
    out.print(show.table("title", ["verdict"], [["FAIL"]]))
    assert ("\033" in out.file.getvalue()) == (value == "")


# --- wrong usage ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [(("swep",), "'sweep'"), (("predict", "expnents"), "'exponents'"), (("chek", "-h"), "'check'")],
)
def test_a_wrong_verb_suggests_the_right_one(words, suggestion):
    assert_refused(orderone(*words), "unknown-name", f" {suggestion}?")


def test_a_wrong_option_suggests_one_of_the_same_verb():
    ended = orderone("sweep", "--widhts", "64")
    assert (ended.status, ended.out) == (2, "")
    assert "--widths" in ended.err
    assert "orderone sweep --help" in ended.err
    assert "predict" not in ended.err


@pytest.mark.parametrize("words", [(), ("predict",)])
def test_a_missing_verb_prints_the_list_and_exits_with_2(words):
    ended = orderone(*words)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err == orderone(*words, "--help").out


DRAWING = [
    ("predict", "phase"),
    ("predict", "limits"),
    ("predict", "transformer"),
    ("reproduce", "s0-table1"),
    ("report",),
]


@pytest.mark.parametrize("words", DRAWING)
def test_a_missing_package_is_named_before_the_work(words, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(files, "find_spec", lambda name: None if name == "jinja2" else find(name))
    ended = orderone(*words, "--html", tmp_path / "page.html")
    assert_refused(ended, "missing-package", "html: ", "jinja2", "pip install 'orderone[report]'")


@pytest.mark.parametrize("words", DRAWING)
def test_a_folder_that_does_not_exist_is_refused_before_the_work(words):
    ended = orderone(*words, "--html", "nowhere/page.html")
    assert_refused(ended, "cannot-write-file", "html: ", "'nowhere/page.html'")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_reported_in_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "orderone", "cite"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr == "orderone: [Errno 28] No space left on device\n"


# --- tables ---------------------------------------------------------------------------------------


def test_brackets_are_printed_unchanged():
    out = show.console()
    out.file = io.StringIO()
    out.print("pip install 'orderone[report]'")
    out.print(show.table("[title]", ["[head]"], [["[cell]"]]))
    assert all(word in out.file.getvalue() for word in ("[report]", "[title]", "[head]", "[cell]"))


def test_a_narrow_terminal_cuts_no_number(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    out = show.console()
    out.file = io.StringIO()
    out.print(show.table("t", ["a", "b"], [["1.23456789012345678901", "2.34567890123456789012"]]))
    assert "…" not in out.file.getvalue()
    assert sum(sign.isdigit() for sign in out.file.getvalue()) == 2 * 21


def test_words_of_a_table_are_whole_where_they_fit(monkeypatch):
    monkeypatch.setenv("COLUMNS", "46")
    out = show.console()
    out.file = io.StringIO()
    rows = [["equivalence", "equivalent parameterizations of a net", "holds in part"]] * 2
    out.print(show.table("t", ["name", "title", "verdict"], rows))
    lines = out.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 46
    assert out.file.getvalue().count("parameterizations") == 2
    assert all(line[-1] in "┓┃┩│┘" for line in lines[1:])  # the border is whole


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize(
    "words",
    [
        "predict exponents --rule sp --alignment worst",
        "predict meanfield",
        "predict strategies",
        "predict transformer --depth 1 --tokens 2",
        "predict limits --depth 10 --width 20 --samples 100",
        "explain",
        "explain unknown-name",
    ],
)
def test_printed_tables_fit_the_terminal(words, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    ended = orderone(*words.split())
    assert ended.status == 0, ended.err
    long = [line for line in ended.out.splitlines() if len(line) > columns]
    assert all(len(line.split()) == 1 for line in long), long


# --- explain --------------------------------------------------------------------------------------


def test_explain_prints_the_explanation_of_a_code():
    for word in ("cannot-import", "[cannot-import]", "Cannot-Import"):
        ended = orderone("explain", word)
        assert ended.status == 0
        text = " ".join(ended.out.split())
        assert text == f"cannot-import {EXPLANATIONS['cannot-import']}"


def test_explain_lists_all_codes_in_their_sections():
    listed = orderone("explain").out
    assert set(re.findall(r"^  ([a-z0-9]+(?:-[a-z0-9]+)+)\b", listed, flags=re.M)) == set(
        EXPLANATIONS
    )
    assert (
        listed.index("Any function") < listed.index("unknown-name") < listed.index("Command line")
    )
    sections = json.loads(orderone("explain", "--json").out)
    assert {code for codes in sections.values() for code in codes} == set(EXPLANATIONS)


def test_explain_suggests_the_nearest_code():
    ended = orderone("explain", "missing-pakage")
    assert_refused(ended, "unknown-name", "'missing-pakage'", " missing-package")


def test_explain_as_json():
    record = json.loads(orderone("explain", "wrong-type", "--json").out)
    assert record == {
        "code": "wrong-type",
        "section": "Any function",
        "text": EXPLANATIONS["wrong-type"],
    }


# --- documentation --------------------------------------------------------------------------------


def test_the_page_lists_the_exit_codes():
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", PAGE.read_text(), flags=re.M)
    assert {int(code): text for code, text in rows} == EXIT_CODES
    text = " ".join(overview().split())
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in text


def test_the_page_lists_the_verbs_and_their_summaries():
    rows = re.findall(r"^\| `orderone ([a-z ]+)` \| (.*) \|$", PAGE.read_text(), flags=re.M)
    assert dict(rows) == {name: verb.summary for name, verb in ALL.items()}


def test_names_of_options():
    parameters = signature(ALL["plan"].load()[0]).parameters
    assert option_name(parameters["hf_config"]) == "--hf-config"
    assert option_name(parameters["probe"]) == "--no-probe"
    parameters = signature(ALL["reproduce"].load()[0]).parameters
    assert option_name(parameters["every"]) == "--all"
