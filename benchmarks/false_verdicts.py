"""The number of wrong verdicts of coordinate checks on every healthy and faulty subject of the
tests, with new seeds each time.

    python benchmarks/false_verdicts.py [repetitions] [name ...]

A healthy subject must PASS; a faulty one must FAIL, and the check must name its fault.
"""

import logging
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.check_subjects import FAULTY, HEALTHY, Subject

from orderone.core.errors import code_of

SEEDS = 3


def is_right(subject: Subject, repetition: int) -> tuple[bool, str]:
    first = 1000 + SEEDS * repetition
    check = subject.check(seeds=range(first, first + SEEDS))
    outcome = f"{check.verdict} {check.causes}"
    if not subject.code:
        return check.passed, outcome
    named = [
        cause for cause in check.causes if code_of(cause) == subject.code and subject.words in cause
    ]
    return check.verdict == "FAIL" and bool(named), outcome


def main(repetitions: int, names: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(f"| subject | expected | wrong in {repetitions} |\n| --- | --- | --- |", flush=True)
    total = 0
    for must, subjects in (("PASS", HEALTHY), ("FAIL", FAULTY)):
        for name, subject in subjects.items():
            if names and name not in names:
                continue
            outcomes = [is_right(subject, repetition) for repetition in range(repetitions)]
            wrong = [outcome for right, outcome in outcomes if not right]
            total += len(wrong)
            print(f"| {name} | {must} | {len(wrong)} | {' '.join(wrong[:2])}", flush=True)
    print(f"{total} wrong verdicts", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2:])
