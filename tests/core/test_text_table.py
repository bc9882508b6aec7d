"""Text that fits a terminal."""

import io
import sys

import pytest

from orderone.core.text_table import printable, text_table


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("ascii", "gr\\xf6\\xdfe.weight"), ("utf-8", "größe.weight"), ("latin-1", "größe.weight")],
)
def test_characters_that_a_terminal_does_not_know_become_escapes(monkeypatch, encoding, expected):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    print(printable("größe.weight"))
    stream.flush()
    assert stream.buffer.getvalue().decode(encoding).strip() == expected


ROWS = [
    ("module", "verdict", "exponent of n", "allowed"),
    ("{2..4}", "FAIL", "+0.71 to +1.07 [+0.48, +1.37]", "<= +0.00"),
    ("(the model)", "PASS", "+0.00", "<= +0.00"),
]


@pytest.mark.parametrize("columns", [44, 50, 60, 80])
def test_a_table_fits_a_narrow_terminal_and_keeps_every_word(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = text_table(ROWS, named=True)
    assert any("[+0.48, +1.37]" in line for line in lines)
    assert max(len(line) for line in lines) <= columns
    words = sorted(" ".join(" ".join(row) for row in ROWS).split())
    assert sorted(" ".join(lines).split()) == words


def test_a_table_that_cannot_fit_keeps_its_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    name = "transformer.layers.11.attention.output_projection.weight"
    assert any(name in line for line in text_table([("a", "b"), (name, "x y")]))
