"""Claims about trainings that are longer than those of the records.

Which strategy is ahead may change during training: in the paper, neural-tangent is ahead of
standard after 15,000 updates and behind after 200,000. So shorter trainings decide nothing about a
claim of the paper, whatever they show; what they show is written beside the numbers.
"""

from collections.abc import Iterable
from dataclasses import replace

from orderone.gallery.experiment import Finding


def at_scale(
    findings: Iterable[Finding], measured: float, claimed: int, unit: str
) -> list[Finding]:
    """Return the findings, unclear if the trainings are shorter than those of the paper."""
    judged = []
    for finding in findings:
        if finding.of == "paper" and finding.holds is not None and not measured >= claimed:
            if finding.holds:
                word = "holds here"
            else:
                word = "does not hold here"
            numbers = (
                f"{finding.numbers}; {word}, after {measured:,.4g} of the paper's {claimed:,}"
                f" {unit}"
            )
            finding = replace(finding, holds=None, numbers=numbers)
        judged.append(finding)
    return judged
