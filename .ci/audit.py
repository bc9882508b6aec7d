"""Report known vulnerabilities of the locked dependencies: `python .ci/audit.py PIP_AUDIT`.

Skipped with a message where pip-audit is not installed or its service does not answer.
"""

import json
import subprocess
import sys


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
    found = 0
    for package in packages:
        for vulnerability in package.get("vulns", ()):
            found += 1
            print(f"audit: {package['name']} {package['version']}: {vulnerability['id']}")
    print(f"audit: {len(packages)} packages, {found} known vulnerabilities")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
