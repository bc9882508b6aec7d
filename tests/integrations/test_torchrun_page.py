"""The scripts of the page on torchrun, in two processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "trainer-torchrun.md"
SCRIPTS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), flags=re.S)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_the_page_in_two_processes(number, tmp_path):
    """It prints what one process prints."""
    code, output = SCRIPTS[number]
    script = tmp_path / "train.py"
    script.write_text(code)
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)],
        env=os.environ | {"CHECKPOINTS": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == output
