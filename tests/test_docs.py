"""The site and its pages: all of them in the navigation, links that lead somewhere, commands that
exist, a strict build."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import accept
from support.site_links import dead_links

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.M | re.S)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    return BLOCK.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)$", prose(path), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken_links(path: Path) -> list[str]:
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        file, _, anchor = link.partition("#")
        if file.startswith(("http:", "https:")):
            continue
        target = path.parent / file if file else path
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_links_lead_somewhere(path):
    assert not broken_links(path)


def test_a_broken_link_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Some `code`, here\n[a](page.md) [b](page.md#some-code-here) [c](no.md)"
        " [d](#no)\n```text\n[e](no.md)\n```\n"
    )
    assert broken_links(page) == ["no.md", "#no"]


def test_every_page_is_in_the_navigation_once():
    config = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(
        r"^ +- (?:[^:#\n]+: )?(\S+\.md)$", config.partition("\nnav:")[2], flags=re.M
    )
    assert sorted(listed) == [path.relative_to(DOCS).as_posix() for path in PAGES]


def commands(path: Path) -> list[list[str]]:
    """Return the commands of the console blocks (the words after `$`)."""
    blocks = [code for language, code in BLOCK.findall(path.read_text()) if language == "console"]
    return [
        shlex.split(line, comments=True)
        for code in blocks
        for line in re.findall(r"^\$ (.*)$", code, flags=re.M)
    ]


@pytest.mark.parametrize("path", [path for path in TEXTS if commands(path)], ids=name)
def test_commands_exist_with_these_arguments(path):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    for program, *arguments in commands(path):
        assert program in ("orderone", "make", "python", "torchrun", "ray", "pip")
        if program == "orderone":
            accept(arguments)
        if program == "make":
            assert set(arguments) <= set(targets)


@pytest.mark.parametrize(
    "wrong", ["check --modle gpt2", "predict phases", "sweep --seeds many", "cyte"]
)
def test_a_wrong_command_is_noticed(wrong):
    with pytest.raises(SystemExit) as ended:
        accept(wrong.split())
    assert ended.value.code == 2


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_scripts_that_pages_name_exist(path):
    for script in re.findall(r"\bbenchmarks/\w+\.py\b", path.read_text()):
        assert (ROOT / script).is_file(), script


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does, in another folder. A log with more lines than start,
    verdict and end is an error."""
    pytest.importorskip("zensical")
    pytest.importorskip("mkdocstrings")
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(DOCS, root / "docs")  # a link to it would lead out of the project
    for file in ("CHANGELOG.md", "mkdocs.yml"):
        shutil.copy(ROOT / file, root)
    shutil.copytree(ROOT / "studies", root / "studies")  # pages show their protocols
    (root / "src").symlink_to(ROOT / "src")
    result = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": "docs"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    log = [line for line in (result.stdout + result.stderr).splitlines() if line.strip()]
    assert result.returncode == 0, "\n".join(log)
    assert len(log) == 3, log
    return root / "site"


def test_the_site_has_every_page_and_needs_no_network(site):
    built = {
        path.relative_to(site).with_suffix("").as_posix(): path.read_text()
        for path in site.rglob("*.html")
    }
    assert {path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES} <= set(built)
    for text in built.values():
        assert "arithmatex" not in text  # a formula that has not become MathML
        assert not re.search(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=.?https?:", text)
    assert "<math" in built["kernels"]


def test_the_site_has_no_dead_link(site):
    assert not dead_links(site)


def test_a_dead_link_is_noticed(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="here">A</h1><a href="b.html">no</a><a href="#here">yes</a>'
        '<a href="a.html#there">no</a><a href="https://example.org">not checked</a>'
    )
    assert dead_links(tmp_path) == ["a.html: b.html", "a.html: a.html#there"]


def test_the_site_has_a_search_box_and_an_index_of_every_page(site):
    assert 'data-md-component="search"' in (site / "index.html").read_text()
    index = (site / "search.js").read_text()
    for path in PAGES:
        assert path.relative_to(DOCS).with_suffix(".html").as_posix() in index


@pytest.mark.slow
def test_the_site_in_a_browser(site, browser):
    """Opened from its folder, on a phone: silent, not wider than the screen, formulas drawn; and
    the search answers."""
    complaints = []
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.on("console", lambda message: complaints.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
    page.on(
        "request",
        lambda it: it.url.startswith(("file:", "data:", "blob:")) or complaints.append(it.url),
    )
    left = "net::ERR_ABORTED"  # the browser left the page before it was loaded
    page.on(
        "requestfailed",
        lambda it: it.failure == left or complaints.append(f"{page.url}: lacks {it.url}"),
    )
    for file in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # that one is for servers
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), file
        flat = (
            "[...document.querySelectorAll('math')].filter(m => m.getBoundingClientRect().width <"
            " 2).length"
        )
        assert page.evaluate(flat) == 0, file
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.wait_for_timeout(500)
    page.keyboard.type("tied heads")
    page.get_by_text(re.compile(r"^[1-9]\d* results?$")).first.wait_for(timeout=10_000)
    page.close()
    assert not complaints


@pytest.mark.slow
def test_commands_are_copied_without_their_prompt(site, browser):
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto((site / "explore.html").as_uri())
    page.locator("button.md-code__button").first.click()
    page.wait_for_timeout(300)
    assert (
        page.evaluate("navigator.clipboard.readText()")
        == "pip install '.[report]'\norderone explore"
    )
    context.close()
