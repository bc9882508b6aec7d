"""Promises to newcomers: light imports, optional dependencies that are optional, and documents
that are true."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.warm import LIBRARY, WARM

ROOT = Path(__file__).parents[1]


def python(code: str, **variables: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env=os.environ | variables,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


HEAVY = {  # slow to import, and not needed to plan, train or sweep
    "array_api_compat",
    "orderone.theory.limits",
    "orderone.theory.meanfield",
    "pandas",
    "rich",
    "scipy.integrate",
    "sympy",
    "torch.distributed.tensor",
    "transformers",
    "tyro",
}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import orderone", {"torch", "numpy", "scipy", "pandas", "rich", "tyro"}),
        (
            "from orderone import theory, rules; rules.get('mup')",
            {"torch", "numpy", "scipy", "pandas", "rich", "tyro"},
        ),
        ("import orderone.cli.verbs", {"torch", "numpy", "scipy", "pandas"}),
        ("import orderone.explore.views", {"torch", "pandas"}),
        (
            "import orderone.planning, orderone.training.train, orderone.sweeping",
            HEAVY | {"scipy", "orderone.measure"},
        ),
        (
            "from orderone import coord_check, probe, alignment",
            HEAVY - {"array_api_compat", "pandas"},
        ),
    ],
)
def test_heavy_packages_load_only_when_needed(statement, absent):
    loaded = set(python(f"import sys; {statement}; print(*sys.modules)").split())
    assert not loaded & absent


def test_sweeps_load_hardly_more_slowly_than_torch():
    """User time of a process, so that a busy machine matters little."""
    code = """
from resource import RUSAGE_SELF, getrusage
import torch
print(getrusage(RUSAGE_SELF).ru_utime)
import orderone.sweeping
print(getrusage(RUSAGE_SELF).ru_utime)
"""
    cached = {"PYTHONDONTWRITEBYTECODE": ""}  # as in an installed package
    python("import orderone.sweeping", **cached)

    def measured() -> float:
        torch_alone, both = map(float, python(code, **cached).split())
        return both / torch_alone

    ratio = measured()
    if ratio >= 1.4:
        ratio = measured()
    assert ratio < 1.4


def test_the_library_works_without_its_test_dependencies():
    blocked = "import sys; sys.modules.update(dict.fromkeys(['beartype', 'sympy', 'hypothesis']))"
    code = (
        f"{blocked}; import orderone as o1; print(o1.measure.fit_exponent([1, 2, 4, 8], [1, 2, 4,"
        " 8]).exponent)"
    )
    # torch imports sympy by itself; the point is that orderone does not
    assert float(python(code)) == pytest.approx(1)


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(
        f"docs/{path.name}"
        for path in sorted((ROOT / "docs").glob("*.md"))
        if "```python\n" in path.read_text()
    ),
]


@pytest.mark.parametrize("page", PAGES)
def test_documents_run_as_printed(page):
    """Every Python block runs, and prints what its comments and the text block after it say."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, flags=re.S)
    assert blocks
    for code, output in blocks:
        promised = re.findall(r"^ *print.*  # (.*)", code, flags=re.M) + output.splitlines()
        result = WARM.code(code, LIBRARY, cwd=ROOT)
        assert result.returncode == 0, result.stderr
        printed = [line.rstrip() for line in result.stdout.splitlines()]
        assert printed == [line.rstrip() for line in promised]


def test_the_table_of_rules_is_what_the_solver_says():
    from orderone import rules

    text = (ROOT / "docs/exponents.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", text, flags=re.M)
    assert [name for name, _ in rows] == [
        name for name in rules.names() if rules.get(name).rates_for
    ]
    for name, cells in rows:
        p = rules.get(name)
        expected = [
            f"{p.a[role]}, {p.b[role]}, {p.c[role]}" for role in ("embedding", "hidden", "readout")
        ]
        assert [cell.strip() for cell in cells.split("|")][:3] == expected


def test_the_map_for_contributors_names_every_package():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    source = ROOT / "src/orderone"
    packages = [path.parent.name for path in source.glob("*/__init__.py")]
    modules = [path.name for path in source.glob("[a-z]*.py")]
    for name in (*(f"{package}/" for package in packages), *modules):
        assert f"| `{name}` |" in text, name


def test_version_is_the_same_everywhere():
    import orderone

    assert f'version = "{orderone.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"## {orderone.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_project_names_no_machine():
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split("\0")
    paths = [ROOT / name for name in files if name and (ROOT / name).is_file()] or list(
        (ROOT / "src").rglob("*.py")
    )
    pattern = re.compile("/" + r"(home|root|Users|tmp|mnt)/\w")
    for path in paths:
        assert not pattern.search(path.read_text(errors="ignore")), path


@pytest.mark.slow
def test_the_measurements_of_the_rules_are_what_the_demo_prints():
    from orderone.cli.demo import _derived, _measured

    text = (ROOT / "docs/exponents.md").read_text()
    promised = re.findall(r"^\| `([a-z-]+)` \|.*\| (\S+) \| (n\^.*) \|$", text, flags=re.M)
    measured = [(name, law, cell) for name, law, cell, _ in _measured(_derived())[1]]
    assert [row[:2] for row in promised] == [row[:2] for row in measured]
    numbers = [
        [float(x) for x in re.findall(r"[+-]\d\.\d+", " ".join(cell for *_, cell in rows))]
        for rows in (promised, measured)
    ]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.02)


def test_the_lock_has_a_hash_for_every_core_dependency():
    import tomllib

    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = {}
    for line in lines:
        if not line.startswith("#"):
            match = re.fullmatch(r"([a-z0-9-]+)==([\w.]+) --hash=sha256:[0-9a-f]{64}", line)
            assert match, line
            locked[match[1]] = match[2]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {re.split("[<>=]", name)[0] for name in project["dependencies"]} <= locked.keys()
    pins = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    for name, version in locked.items():
        if name != "setuptools":
            assert f"{name}=={version}" in pins
