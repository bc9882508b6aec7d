"""Every study runs at a tiny size on a CPU, resumes, and prints its tables."""

import pytest

from studies.architectures import run as architectures
from studies.pieces import Records


def start(study, folder, *options):
    return study.main(["--tiny", "--device", "cpu", "--records", str(folder), *options])


def test_architectures(tmp_path, capsys):
    assert start(architectures, tmp_path, "--list", "--only", "llama") == 1
    assert start(architectures, tmp_path, "--only", "llama") == 0
    frame = Records(tmp_path).read()
    assert set(frame["piece"]) == {"llama-mup-32", "llama-mup-64", "llama-standard-64"}
    assert start(architectures, tmp_path, "--list", "--only", "llama") == 0
    capsys.readouterr()
    assert start(architectures, tmp_path, "--report") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == ["mup", "standard"]


@pytest.mark.slow
def test_all_architectures(tmp_path):
    assert start(architectures, tmp_path) == 0
    assert len(set(Records(tmp_path).read()["architecture"])) == 7
