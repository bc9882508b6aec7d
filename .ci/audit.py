"""Report known vulnerabilities of the locked dependencies: `python .ci/audit.py PIP_AUDIT`.

Skipped with a message where pip-audit is not installed, or its service does not answer or knows
none of the packages. Packages that it does not know are named, and do not count as audited.
"""

import json
import subprocess
import sys
from typing import Any


def main(program: str) -> int:
    command = [program, "--requirement", "requirements.lock", "--no-deps", "--disable-pip"]
    try:
        result = subprocess.run(
            [*command, "--format", "json", "--progress-spinner", "off"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        packages = json.loads(result.stdout)["dependencies"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        print("audit: skipped, since the service of pip-audit does not answer")
        return 0
    return report(packages)


def report(packages: list[dict[str, Any]]) -> int:
    """Print what the service says of the packages; return 1 if it knows a vulnerability."""
    found = 0
    unknown: list[str] = []
    for package in packages:
        if "skip_reason" in package:
            unknown.append(package["name"])
        for vulnerability in package.get("vulns", ()):
            found += 1
            print(f"audit: {package['name']} {package['version']}: {vulnerability['id']}")
    audited = len(packages) - len(unknown)
    if audited == 0:
        print(f"audit: skipped, since the service knows none of the {len(packages)} packages")
        return 0
    print(f"audit: {audited} packages, {found} known vulnerabilities")
    if unknown:
        print(f"audit: not looked up, since the service does not know them: {', '.join(unknown)}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
