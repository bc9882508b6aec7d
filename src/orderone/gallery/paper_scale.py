"""Claims about trainings at a larger scale than that of the records.

Which of two settings is ahead may change with the length of a training, the width and the batch: in
S2, neural-tangent is ahead of standard after 15,000 updates and behind after 200,000. So smaller
trainings decide nothing about a claim of a paper, whatever they show; what they show is written
beside the numbers.
"""

from collections.abc import Iterable
from dataclasses import replace

from orderone.gallery.experiment import Finding


def at_scale(
    findings: Iterable[Finding], measured: float, claimed: int, unit: str
) -> list[Finding]:
    """Return the findings, unclear if the trainings are shorter than those of the paper."""
    if measured >= claimed:
        return list(findings)
    return undecided(findings, f"after {measured:,.4g} of the paper's {claimed:,} {unit}")


def undecided(findings: Iterable[Finding], setting: str) -> list[Finding]:
    """Return the findings, with claims of the paper unclear: `setting` is not that of the paper."""
    judged = []
    for finding in findings:
        if finding.of == "paper" and finding.holds is not None:
            if finding.holds:
                word = "holds here"
            else:
                word = "does not hold here"
            numbers = f"{finding.numbers}; {word}, {setting}"
            finding = replace(finding, holds=None, numbers=numbers)
        judged.append(finding)
    return judged
