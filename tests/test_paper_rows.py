"""The page that has the name of each formula of the papers: names and tests exist."""

import importlib
import re

import pytest
from test_docs import DOCS, ROOT

from orderone.gallery import EXPERIMENTS

PAGE = DOCS / "paper-rows.md"
CODE = re.compile(r"`([^`]+)`")


def rows() -> list[list[str]]:
    """Return the cells of all rows: place, what, call, tests, oracles."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("place", "---")]


def found(name: str) -> object:
    """Return what a name stands for: of `orderone`, or of `orderone.theory`."""
    path = name if name.startswith("orderone.") else f"orderone.theory.{name}"
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            value = getattr(value, part)
        return value
    raise AttributeError(name)


def names(cell: str) -> list[str]:
    """Return the names to call; words in parentheses are their arguments."""
    return CODE.findall(re.sub(r"\(.*?\)", "", cell))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[1]}, {row[0]}")
def test_names_can_be_called_and_are_tested(row):
    assert len(row) == 5
    called = names(row[2])
    texts = [(ROOT / path).read_text() for path in CODE.findall(row[3])]
    assert called
    assert texts
    for name in called:
        if row[2].startswith("gallery"):
            assert name in EXPERIMENTS
        else:
            found(name)
    short = [re.split(r"[.]", name)[-1] for name in called]
    if row[2].startswith("gallery"):
        short = [name.partition("-")[2] for name in called]
    assert any(re.search(rf"\b{word}\b", text) for word in short for text in texts)


def test_a_name_that_does_not_exist_is_noticed():
    with pytest.raises(AttributeError):
        found("limits.no_such_formula")
    assert found("orderone.plan")
    assert names("`Transformer` (`skip_gain`), `n_rescale`") == ["Transformer", "n_rescale"]


@pytest.mark.parametrize("paper", ["S0", "S1", "S2", "S3"])
def test_equations_that_the_theory_cites_have_a_row(paper):
    """Every equation number in the docstrings of the theory is in the range of a row."""
    text = PAGE.read_text().partition(f"## {paper}")[2].partition("\n## ")[0]
    listed = []
    for first, last in re.findall(r"\(([\dABS.]+)\)(?:-\(([\dABS.]+)\))?", text):
        listed.append((_key(first), _key(last or first)))
    missing = []
    for path in sorted((ROOT / "src" / "orderone" / "theory").rglob("*.py")):
        for number in re.findall(rf"\b{paper} \(([\dABS][\d.]*)\)", path.read_text()):
            key = _key(number)
            if not any(low <= key <= high for low, high in listed):
                missing.append(f"{path.name}: ({number})")
    assert not missing


def _key(number: str) -> tuple[str, list[int]]:
    letter = number[0] if number[0].isalpha() else ""
    return letter, [int(part) for part in re.findall(r"\d+", number)]
