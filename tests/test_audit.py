"""`make audit` says which packages were looked up: none is called safe because it is unknown."""

import json
import subprocess
import sys
from pathlib import Path

AUDIT = Path(__file__).parents[1] / ".ci" / "audit.py"
UNKNOWN = {"name": "inner", "skip_reason": "Dependency not found on PyPI"}
SAFE = {"name": "safe", "version": "2.0", "vulns": []}
VULNERABLE = {"name": "old", "version": "1.0", "vulns": [{"id": "CVE-2019-1"}]}


def audit(tmp_path, *packages):
    """Return status and lines of an audit where pip-audit answers this about the packages."""
    program = tmp_path / "pip-audit"
    answer = json.dumps({"dependencies": packages, "fixes": []})
    program.write_text(f"#!{sys.executable}\nprint({answer!r})\n")
    program.chmod(0o755)
    command = [sys.executable, str(AUDIT), str(program)]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.returncode, result.stdout.splitlines()


def test_vulnerabilities_are_an_error(tmp_path):
    status, lines = audit(tmp_path, SAFE, VULNERABLE)
    assert status == 1
    assert lines == ["audit: old 1.0: CVE-2019-1", "audit: 2 packages, 1 known vulnerabilities"]


def test_unknown_packages_are_named_and_not_counted(tmp_path):
    status, lines = audit(tmp_path, SAFE, UNKNOWN)
    assert status == 0
    assert lines[0] == "audit: 1 packages, 0 known vulnerabilities"
    assert lines[1].endswith("does not know them: inner")


def test_an_audit_of_unknown_packages_is_no_audit(tmp_path):
    """Some mirrors of the registry have no data on vulnerabilities."""
    status, lines = audit(tmp_path, UNKNOWN, {**UNKNOWN, "name": "another"})
    assert status == 0
    assert lines == ["audit: skipped, since the service knows none of the 2 packages"]


def test_without_pip_audit_it_is_skipped(tmp_path):
    command = [sys.executable, str(AUDIT), str(tmp_path / "missing")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0
    assert "skipped" in result.stdout
