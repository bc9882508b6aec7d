"""Text of the README and the pages: length, openings, papers, errata, codes."""

import re
from pathlib import Path
from types import ModuleType

import pytest
from support.docs_scripts import load_script

from orderone.core.citations import cite
from orderone.core.codes import EXPLANATIONS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
INCLUDED = {DOCS / "changelog.md"}  # the page is CHANGELOG.md
PAGES = sorted({*DOCS.rglob("*.md")} - INCLUDED)


def test_the_readme_is_short_and_says_what_it_is_about():
    text = README.read_text()
    assert len(text.splitlines()) <= 120
    first_sentence = text.split("\n\n")[1].partition(".")[0]
    assert "muP" in first_sentence
    assert "hyperparameter transfer" in first_sentence


@pytest.mark.parametrize("page", [README, DOCS / "cite.md"], ids=lambda path: path.name)
def test_the_papers_are_named_with_their_authors(page):
    text = page.read_text()
    for paper in ("s0", "s1", "s2", "s3"):
        citation = cite(paper)[1]
        assert citation.title in text
        assert ", ".join(citation.authors) in text


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_opens_with_whom_it_is_for_and_what_they_can_do_after_it(path):
    opening = path.read_text().split("\n\n")[1].replace("\n", " ")
    assert re.match(r"For (those|anyone|users) .*\bAfter (this page|it)\b", opening)


def test_every_erratum_that_is_cited_is_explained():
    explained = set(re.findall(r"\bS[0-3]\.\d+\b", (DOCS / "errata.md").read_text()))
    for path in (*DOCS.rglob("*.md"), *(ROOT / "src").rglob("*.py")):
        text = path.read_text()
        cited = re.findall(r"\berrat(?:um|a) (S[0-3]\.\d+)\b", text)
        cited += re.findall(r"\bcorrected, (S[0-3]\.\d+)\b", text)
        assert set(cited) <= explained, path


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """Return the module that writes the page Troubleshooting."""
    return load_script("make_troubleshooting")


def test_the_page_troubleshooting_is_current(maker):
    text = (DOCS / "troubleshooting.md").read_text()
    assert text == maker.page(), "run: python docs/make_troubleshooting.py"
    headings = re.findall(r"^### (.*)$", text, flags=re.M)
    assert sorted(headings) == sorted(EXPLANATIONS)


def test_explanations_are_shown_as_written(maker):
    text = "Pass `a_b[0]` to f(*args), a_b or [c](d)."
    assert maker.as_markdown(text) == r"Pass `a_b[0]` to f(\*args), a\_b or \[c\](d)."
