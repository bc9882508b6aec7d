"""The pages of the gallery are up to date with the shipped results."""

from pathlib import Path

import pytest
from support.docs_scripts import load_script

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def maker():
    return load_script("make_gallery")


def test_pages_are_of_the_shipped_results(maker):
    found = maker.entries()
    for name, text in maker.pages(found).items():
        assert (DOCS / "gallery" / name).read_text(encoding="utf-8") == text, (
            "run: python docs/make_gallery.py --text"
        )
    drawn = {
        f"{name}.png" for those in found.values() for r in those for name, _ in maker.pictures(r)
    }
    assert drawn == {path.name for path in (DOCS / "gallery").glob("*.png")}
