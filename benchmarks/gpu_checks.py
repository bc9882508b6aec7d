"""Open questions that need a GPU, each with a time limit, in one command:

    python benchmarks/gpu_checks.py [--minutes 9] [--only NAME,...] [--out FOLDER] [--list]

A check is a script of this folder. Its output is written to FOLDER/NAME.txt as it comes, and
printed when it ends. A check that takes longer than its limit is ended, and the next one begins.
Finished checks (FOLDER/NAME.txt ends with "exit status 0") are not run again.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DONE = "exit status 0"
SHORTEST = 20.0  # seconds that are worth starting a check for
LONGEST_METHOD = 20.0  # seconds of a method of stacked.py other than the compiled one


@dataclass(frozen=True)
class Check:
    """A script, its arguments, its limit, and the question that it answers."""

    name: str
    words: tuple[str, ...]
    seconds: float
    question: str


def _speed(model: str, width: int, seconds: float) -> Check:
    begun_within = f"seconds={seconds - LONGEST_METHOD:g}"
    words = ("benchmarks/stacked.py", "cuda", model, "64", str(width), "proof", begun_within)
    question = f"64 members of {model} at width {width}: times as fast as one after another?"
    return Check(f"speed-{model}-{width}", words, seconds, question)


CHECKS = (
    Check(
        "t5-rounding",
        ("benchmarks/t5_rounding.py", "cuda"),
        40,
        "are gradients of a stacked T5 in bfloat16 apart by rounding, or by a fault?",
    ),
    Check(
        "probe-compiled",
        ("benchmarks/probe_gpt2.py", "seconds=180"),
        200,
        "what does a probe at every tenth step cost, eager and compiled?",
    ),
    Check(
        "resume-check",
        ("benchmarks/resume_check.py", "cuda"),
        90,
        "does the check of resumed trainings refuse healthy ones?",
    ),
    Check(
        "compiled-alone",
        ("benchmarks/compiled_alone.py", "cuda"),
        120,
        "are compiled passes faster where models can neither be stacked nor captured?",
    ),
    Check("proof-cost", ("benchmarks/proof_cost.py", "cuda"), 150, "what does a proof cost?"),
    _speed("llama", 256, 140),
    _speed("qwen3", 128, 110),
    _speed("gpt2", 128, 110),
    _speed("vit", 128, 110),
    _speed("t5", 128, 110),
    Check(
        "plans",
        ("benchmarks/on_gpu.py",),
        150,
        "are plans, losses and coordinate checks as on a CPU?",
    ),
)


def run(check: Check, out: Path, seconds: float) -> str:
    """Run one check; return how it ended."""
    path = out / f"{check.name}.txt"
    with path.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-u", *check.words],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            ended = f"exit status {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = f"ended after {seconds:.0f} s, its limit"
        file.write(f"\n{ended}\n")
    print(path.read_text(), flush=True)
    return ended


def is_done(check: Check, out: Path) -> bool:
    path = out / f"{check.name}.txt"
    return path.exists() and path.read_text().rstrip().endswith(DONE)


def run_all(checks: Sequence[Check], out: Path, minutes: float) -> int:
    """Run checks in their order while there is time; return how many did not succeed."""
    end = time.monotonic() + 60 * minutes
    out.mkdir(parents=True, exist_ok=True)
    failures = 0
    for check in checks:
        if is_done(check, out):
            continue
        left = end - time.monotonic()
        if left < SHORTEST:
            print(f"{check.name}: no time left", flush=True)
            failures += 1
            continue
        print(f"== {check.name}: {check.question}", flush=True)
        begin = time.monotonic()
        ended = run(check, out, min(check.seconds, left))
        failures += ended != DONE
        print(f"== {check.name}: {ended}, {time.monotonic() - begin:.0f} s", flush=True)
    return failures


def main(arguments: list[str] | None = None, checks: Sequence[Check] = CHECKS) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--only", default="", help="names of checks, with commas")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/gpu-checks")
    parser.add_argument("--list", action="store_true", help="print the checks and their limits")
    options = parser.parse_args(arguments)
    names = [name.strip() for name in options.only.split(",") if name.strip()]
    unknown = set(names) - {check.name for check in checks}
    if unknown:
        known = ", ".join(check.name for check in checks)
        raise SystemExit(f"--only: expected names of {known}; got {', '.join(sorted(unknown))}")
    chosen = [check for check in checks if not names or check.name in names]
    if options.list:
        for check in chosen:
            print(f"{check.name:18} at most {check.seconds:4.0f} s: {check.question}")
        print(f"all: at most {sum(check.seconds for check in chosen) / 60:.1f} minutes")
        return 0
    return 1 if run_all(chosen, options.out, options.minutes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
