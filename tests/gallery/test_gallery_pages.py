"""The pages of the gallery are up to date with the shipped results."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_gallery", DOCS / "make_gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
