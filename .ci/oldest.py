"""Print constraints that pin every run-time dependency to its lower bound in pyproject.toml.

`make test-oldest` installs from it. The tools of tests, lint and docs are not pinned: they do not
come with the library.
"""

import re
import sys
import tomllib
from pathlib import Path

TOOLS = {"test", "lint", "docs", "build", "dev"}
LOWER_BOUND = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9][0-9.]*)")


def lower_bounds(project: dict) -> dict[str, str]:
    """Return the lower bound of each dependency and of each optional one."""
    requirements = list(project["dependencies"])
    for extra, optional in project["optional-dependencies"].items():
        if extra not in TOOLS:
            requirements += optional
    bounds: dict[str, str] = {}
    for requirement in requirements:
        found = LOWER_BOUND.match(requirement)
        if found is None:
            sys.exit(f"pyproject.toml: {requirement!r} has no lower bound")
        name, version = found.groups()
        bounds[name] = version
    return bounds


if __name__ == "__main__":
    settings = tomllib.loads(Path("pyproject.toml").read_text())
    for name, version in sorted(lower_bounds(settings["project"]).items()):
        print(f"{name}=={version}")
