"""Check the files in dist/ and print a release checklist: `make dist` calls this.

The wheel must contain every file of src/orderone, the sdist must contain what `make test` needs,
and all files that state a version must state the same one. Needs Python only.
"""

import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "orderone"
# If one of these is missing, the package installs but does not work.
IMPORTANT = {
    "type hints are visible to type checkers": "orderone/py.typed",
    "shipped records of the papers": "orderone/gallery/results/*/small/provenance.json",
    "templates of reports": "orderone/report/page/page.html",
    "page of the explorer": "orderone/explore/page/index.html",
    "license": "orderone-*.dist-info/licenses/LICENSE",
}
SDIST = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "constraints.txt",
    "mkdocs.yml",
    "pyproject.toml",
    "src/orderone/py.typed",
    "tests/conftest.py",
)
MANUAL = (
    "CHANGELOG.md: the date of the release stands beside the version; nothing is left out",
    "`make lint` and `make test-all` pass on a quiet machine; GPU tests pass on a GPU",
    "`make docs` builds; read the pages that changed",
    "git tag -a v{version} -m 'orderone {version}', and push the tag",
    "twine upload --repository testpypi dist/*, then install from there and run `orderone demo`",
    "twine upload dist/*",
    "raise the version in pyproject.toml, core/version.py and CITATION.cff",
)


def main() -> int:
    """Print what was checked; return 1 if a check failed."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    wheels = list((ROOT / "dist").glob("*.whl"))
    archives = list((ROOT / "dist").glob("*.tar.gz"))
    if len(wheels) != 1 or len(archives) != 1:
        print("dist/: expected one wheel and one .tar.gz; run `make dist`")
        return 1
    checks = [*versions(version), *wheel_checks(wheels[0]), *archive_checks(archives[0])]
    print(f"\nRelease checklist of orderone {version}")
    for passed, text in checks:
        print(f"  [{'x' if passed else 'FAILED'}] {text}")
    for text in MANUAL:
        print(f"  [ ] {text.format(version=version)}")
    return int(not all(passed for passed, _ in checks))


def versions(version: str) -> list[tuple[bool, str]]:
    """Compare the version of pyproject.toml with the other files that state it."""
    patterns = {
        "src/orderone/core/version.py": r'^VERSION = "(.*)"$',
        "CITATION.cff": r"^version: \"?([^\"\n]*)\"?$",
        "CHANGELOG.md": r"^## (\S+)",
    }
    checks = []
    for name, pattern in patterns.items():
        match = re.search(pattern, (ROOT / name).read_text(), flags=re.M)
        stated = match[1] if match else "none"
        checks.append((stated == version, f"{name} states version {stated}"))
    return checks


def wheel_checks(path: Path) -> list[tuple[bool, str]]:
    """Compare the wheel with the sources, and look for the files that are easily forgotten."""
    packed = {Path(name) for name in zipfile.ZipFile(path).namelist()}
    sources = set()
    for file in PACKAGE.rglob("*"):
        if file.is_file() and file.suffix != ".pyc":
            sources.add(file.relative_to(PACKAGE.parent))
    missing = sorted(str(file) for file in sources - packed)
    size = path.stat().st_size / 1e6
    checks = [
        (
            not missing,
            f"{path.name} ({size:.1f} MB) has all {len(sources)} files of src/orderone"
            + "".join(f"\n      missing: {name}" for name in missing[:10]),
        )
    ]
    for meaning, pattern in IMPORTANT.items():
        number = sum(file.match(pattern) for file in packed)
        checks.append((number > 0, f"{meaning}: {pattern} ({number} in the wheel)"))
    return checks


def archive_checks(path: Path) -> list[tuple[bool, str]]:
    """Look for the files that a user of the sdist needs to build and test."""
    with tarfile.open(path) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in SDIST if name not in packed]
    text = f"{path.name} ({path.stat().st_size / 1e6:.1f} MB) can be built and tested"
    if missing:
        text += f"; missing: {', '.join(missing)}"
    return [(not missing, text)]


if __name__ == "__main__":
    sys.exit(main())
