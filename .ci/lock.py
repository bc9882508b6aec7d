"""Write requirements.lock: the core dependencies with the SHA-256 of their wheels.

    python .ci/lock.py REPORT > requirements.lock

REPORT is what `pip install --dry-run --report` wrote (`make lock`). Hashes are those of the wheels
for this platform and Python. Editable installs refuse hashes; so this is beside constraints.txt.
"""

import json
import sys
from pathlib import Path

HEAD = """# Core dependencies with hashes (Linux x86_64, Python 3.11, CPU). Written by `make lock`.
# pip install --require-hashes --only-binary :all: -r requirements.lock
"""


def main(report: str) -> None:
    lines: list[str] = []
    for package in json.loads(Path(report).read_text())["install"]:
        name = package["metadata"]["name"].lower().replace("_", "-")
        version = package["metadata"]["version"].partition("+")[0]  # +cpu is chosen by the registry
        digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    print(HEAD + "\n".join(sorted(lines)))


if __name__ == "__main__":
    main(sys.argv[1])
