"""The scripts of the pages on trainers, in two processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = r"```{}\n(.*?)```(?:\n\n```text\n(.*?)```)?"
PACKAGES = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "huggingface": "accelerate",
    "lightning": "lightning",
    "megatron": "megatron.core",
    "nemo": "nemo_automodel",
    "olmo-core": "olmo_core",
    "torchtitan": "torchtitan",
}
# marked "py": other tests run the blocks marked "python", and do not have the package
ONLY_HERE = [
    f"trainer-{name}" for name in ("deepspeed", "megatron", "nemo", "olmo-core", "torchtitan")
]
NEED_A_GPU = ["trainer-megatron", "trainer-nemo", "trainer-torchtitan"]


def scripts():
    """Yield the name of a page, the number of a script, its code and what it prints."""
    for page in sorted(DOCS.glob("trainer-*.md")):
        language = "py" if page.stem in ONLY_HERE else "python"
        blocks = re.findall(BLOCK.format(language), page.read_text(), flags=re.S)
        for number, (code, output) in enumerate(blocks):
            if not output:
                lines = re.findall(r"print\(.*\)  # (.*)\n", code)
                output = "".join(f"{line}\n" for line in lines)
            yield pytest.param(page.stem, code, output, id=f"{page.stem}, {number}")


@pytest.mark.slow
@pytest.mark.parametrize(("page", "code", "output"), list(scripts()))
def test_the_page_in_two_processes(page, code, output, tmp_path):
    """It prints what one process prints, and both processes end without an error."""
    package = PACKAGES.get(page.removeprefix("trainer-"))
    if package is not None:
        pytest.importorskip(package)
    script = tmp_path / "train.py"
    script.write_text(code)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc-per-node", "2"]
    tests = str(DOCS.parent / "tests")  # has `support`
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    if page in NEED_A_GPU:
        launch += ["-m", "support.cuda_as_cpu"]
    result = subprocess.run(
        [*launch, str(script)],
        env=os.environ | {"CHECKPOINTS": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert output
    assert result.returncode == 0, result.stderr
    printed = result.stdout.splitlines()
    expected = output.splitlines()
    if page in ONLY_HERE:  # these packages write their logs to stdout, too
        assert [line for line in printed if line in ("True", "False", *expected)] == expected
        return
    # DeepSpeed, where it is installed, writes its log to stdout: "[2026-01-01 ...] [WARNING] ..."
    log = re.compile(r"\[\d{4}-|DeepSpeed .* built successfully")
    assert [line for line in printed if not log.match(line)] == expected
