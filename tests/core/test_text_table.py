"""Text that fits a terminal."""

import io
import sys

import pytest

from orderone.core.text_table import printable


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
