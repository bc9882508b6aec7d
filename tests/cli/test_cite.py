"""Citations: everything a user can name has some, and CITATION.cff agrees with them."""

import json
import pkgutil
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.command_line import assert_refused, orderone

from orderone import rules, theory
from orderone.cli.main import main
from orderone.core.citations import PAPERS, Citation, cite, known
from orderone.core.version import VERSION

ROOT = Path(__file__).parents[2]


def keys(*names: str) -> list[str]:
    return [paper.key for paper in cite(names)]


def test_each_paper_once_and_orderone_first():
    assert keys("mup", "sp")[:3] == ["orderone", "yang2020feature", "yang2022tensor"]
    assert keys("mup", "sp", "MUP") == keys("mup")  # mup cites everything that sp cites
    assert keys() == list(PAPERS)
    assert cite("muon") == cite(["muon"]) == cite(iter(["muon"]))


@pytest.mark.parametrize(
    ("name", "paper"),
    [
        ("s0", "stratos"),
        ("s1-figure7", "huang2020mean"),
        ("S2-tables", "dinan"),
        ("s3-figure1", "li2023"),
        ("s=1/4", "dinan"),
    ],
)
def test_tables_figures_and_strategies_cite_their_paper(name, paper):
    cited = keys(name)
    assert len(cited) == 2
    assert cited[1].startswith(paper)


def test_everything_that_can_be_used_can_be_cited():
    """Fail for a new rule, optimizer, theory or experiment until it has citations."""
    from orderone.gallery import EXPERIMENTS
    from orderone.optimizers.table import ALGORITHMS

    helpers = {"activations", "gaussian", "linear_program", "scaling"}
    theories = {module.name for module in pkgutil.iter_modules(theory.__path__)} - helpers
    for name in (
        *rules.names(),
        *theory.exponents.OPTIMIZERS,
        *ALGORITHMS,
        *theories,
        *EXPERIMENTS,
    ):
        assert "orderone" in keys(name)


def test_every_paper_is_cited_for_something():
    assert {key for name in known() for key in keys(name)} == set(PAPERS)


@pytest.mark.parametrize("name", ["mupp", "s4-table1", "s1figure7", "", "figure7", 3, None])
def test_an_unknown_name_is_refused_with_a_list_of_names(name):
    with pytest.raises(ValueError, match="orderone, sp, ") as caught:
        cite([name])
    assert repr(name) in str(caught.value)


def test_bibtex_is_ascii_and_balanced():
    for paper in PAPERS.values():
        entry = paper.bibtex()
        assert entry.isascii()
        assert entry.count("{") == entry.count("}")
        assert re.match(r"@(misc|software)\{\w+,\n  title = \{\{\w", entry)
    assert "Cl{\\'{e}}ment" in PAPERS["jacot2018neural"].bibtex()
    assert "Search \\& Generation" in PAPERS["shuster2022language"].bibtex()
    assert "and Mihai Nica}" in PAPERS["li2023differential"].bibtex()


def test_the_number_of_a_preprint_gives_year_and_address():
    paper = Citation("k", "T", ("A B",), arxiv="2304.02034")
    assert (paper.year, paper.url) == (2023, "https://arxiv.org/abs/2304.02034")
    assert Citation("k", "T", ("A B",)).to_dict() == {"key": "k", "title": "T", "authors": ("A B",)}
    assert all(
        re.fullmatch(r"\d{4}\.\d{4,5}", paper.arxiv) for paper in PAPERS.values() if paper.arxiv
    )


@pytest.mark.skipif(shutil.which("bibtex") is None, reason="no bibtex on this machine")
def test_bibtex_reads_it(tmp_path):
    (tmp_path / "all.bib").write_text("\n\n".join(paper.bibtex() for paper in PAPERS.values()))
    (tmp_path / "x.aux").write_text("\\relax\n\\citation{*}\n\\bibstyle{plain}\n\\bibdata{all}\n")
    result = subprocess.run(["bibtex", "x"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_on_the_command_line(capsys):
    main(["cite", "meanfield", "muon"])
    assert re.findall(r"^@\w+\{(\w+),$", capsys.readouterr().out, flags=re.M) == keys(
        "meanfield", "muon"
    )
    main(["cite", "--json", "limits"])
    papers = json.loads(capsys.readouterr().out)
    assert [paper["key"] for paper in papers] == keys("limits")
    assert papers[1]["authors"] == ["Mufan Bill Li", "Mihai Nica"]
    main(["cite"])
    assert capsys.readouterr().out.count("@") == len(PAPERS)


def test_the_command_line_refuses_unknown_names():
    assert_refused(orderone("cite", "mupp"), "unknown-name", "'mup'?")


@pytest.mark.parametrize("name", ["s1-figure99", "S2-tables", "s0-"])
def test_the_command_line_refuses_figures_that_are_not_in_the_gallery(name):
    known = {"s0-": "s0-table1, ", "s1-": "s1-figure1, ", "s2-": "s2-figure1, "}[name[:3].lower()]
    ended = orderone("cite", "mup", name)
    assert_refused(ended, "unknown-name", "table or figure", known, repr(name))
    assert name != "s1-figure99" or re.search(r"'s1-figure\d'[?]", ended.err)


def test_the_command_line_cites_figures_of_the_gallery(capsys):
    main(["cite", "S1-figure7"])
    assert "@misc{huang2020mean," in capsys.readouterr().out


def test_the_citation_file_agrees():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert (citation["cff-version"], citation["version"], citation["title"]) == (
        "1.2.0",
        VERSION,
        PAPERS["orderone"].title,
    )
    for entry, paper in zip(
        citation["references"], cite(["s0", "s1", "s2", "s3"])[1:], strict=True
    ):
        names = tuple(f"{who['given-names']} {who['family-names']}" for who in entry["authors"])
        assert (entry["title"], names, entry.get("year"), entry.get("url")) == (
            paper.title,
            paper.authors,
            paper.year,
            paper.url,
        )
