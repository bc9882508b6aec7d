"""What every verb owes its user: help that reads, errors in one line before the work, and nothing
cut or swallowed."""

import importlib.util
import io
import os
import subprocess
import sys

import pytest

from orderone.cli import files, show
from orderone.cli.main import main
from orderone.cli.verbs import app

VERBS = ("plan", "check", "sweep", "reproduce", "report", "explore", "cite", "demo")
PREDICTIONS = ("exponents", "meanfield", "phase", "limits", "strategies", "transformer")


def status(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    "words", [*[(verb,) for verb in VERBS], *[("predict", each) for each in PREDICTIONS]]
)
def test_help_speaks_of_no_none(words, capsys):
    assert status(*words, "--help") == 0
    out = capsys.readouterr().out
    assert "usage: orderone" in out
    assert "None" not in out
    assert "(default: False)" not in out


def test_every_verb_is_here():
    assert set(app._subcommands) == {"predict", *VERBS}


DRAWING = [
    ("predict", "phase"),
    ("predict", "limits"),
    ("predict", "transformer"),
    ("reproduce", "s0-table1"),
    ("report",),
]


@pytest.mark.parametrize("words", DRAWING)
def test_a_missing_package_is_told_before_the_work(words, capsys, monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(files, "find_spec", lambda name: None if name == "plotly" else found(name))
    assert status(*words, "--html", str(tmp_path / "page.html")) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "orderone: html: this needs plotly; pip install 'orderone[report]'\n")


@pytest.mark.parametrize("words", DRAWING)
def test_a_folder_that_is_not_there_is_told_before_the_work(words, capsys):
    assert status(*words, "--html", "nowhere/page.html") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        "orderone: html: cannot write 'nowhere/page.html'; expected a file in a folder"
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "orderone", "cite"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr == "orderone: [Errno 28] No space left on device\n"


def test_brackets_are_printed_as_they_are():
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
