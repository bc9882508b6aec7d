"""Findings about S1 Figure 1 from the records of `signal_maps`."""

import numpy as np

from orderone.gallery.experiment import Finding, Records
from orderone.gallery.frames import Frame
from orderone.gallery.judge import where_known
from orderone.gallery.s1.signal_maps import PANELS

SIGMAS = 4.5  # a dot farther off is not on its line; chance of one among 100 dots: 1 in 1000
# c_ab of a finite network is a ratio of means: its bias is about 1/N, and 1/(N (1 - chi_2)) if deep
CURVATURE = 3
SAME = 1e-3  # 1 - c below this counts as c = 1: single precision, and incomplete convergence


def judge(records: Records) -> list[Finding]:
    maps = records["maps"]
    fixed = records["fixed points"]
    return [
        *(_on_the_line(maps[maps.panel == name], name) for name in PANELS),
        _longer(fixed[fixed.panel.isin(["a", "b"])]),
        _only_without_dropout(fixed[fixed.panel.isin(["c", "d"])]),
        _always_one(fixed[fixed.keep == 1]),
        _one_if_ordered(fixed[fixed.keep == 1]),
        _every_length_ends(fixed),
        _ends_unless_it_diverges(fixed),
    ]


def _on_the_line(lines: Frame, name: str) -> Finding:
    if PANELS[name].of == "q":
        allowed = 0
    else:
        allowed = CURVATURE / lines.width
    z = (lines["mean"] - lines.theory).abs() / (lines.se + 1e-6 + allowed / SIGMAS)
    if PANELS[name].of == "q":
        what = "lengths"
    else:
        what = "correlations"
    numbers = (
        f"{len(lines)} dots of {lines.width.iloc[0]} units; the farthest is {z.max():.1f} standard"
        " errors off its line"
    )
    holds = where_known(z.max() < SIGMAS, z)
    return Finding(f"({name}) one layer maps {what} as mean field theory predicts", holds, numbers)


def _longer(lines: Frame) -> Finding:
    """Judge whether lengths grow as the keep rate decreases, within each panel."""
    larger = True
    for name in ("a", "b"):
        panel = lines[lines.panel == name].sort_values("keep", ascending=False)
        noise = np.hypot(panel.q_se[1:], panel.q_se[:-1].to_numpy())
        larger = larger and bool((np.diff(panel.q) > SIGMAS * noise).all())
    near = (
        (lines.q - lines.q_star).abs()
        <= SIGMAS * lines.q_se + CURVATURE / lines.width * lines.q_star
    ).all()
    numbers = "; ".join(
        f"({e.panel}) ρ = {e.keep:g}: {e.q:.3f} ± {e.q_se:.3f}, q* {e.q_star:.4g}"
        for e in lines.itertuples()
    )
    holds = where_known(larger and near, lines.q, lines.q_se)
    return Finding("The fewer units are kept, the longer deep signals are", holds, numbers)


def _only_without_dropout(lines: Frame) -> Finding:
    """Judge panels (c) and (d), whose networks are in the ordered phase without dropout."""
    whole = lines[lines.keep == 1]
    dropped = lines[lines.keep < 1]
    all_one = (1 - whole.c < SAME).all()
    none_one = (1 - dropped.c > SAME + SIGMAS * dropped.c_se).all()
    holds = where_known(all_one and none_one, whole.c, dropped.c, dropped.c_se)
    claim = "(c), (d) correlations converge to 1 without dropout and only then"
    return Finding(claim, holds, _correlations(lines))


def _always_one(lines: Frame) -> Finding:
    near_one = 1 - lines.c < SAME + SIGMAS * lines.c_se
    holds = where_known(near_one.all(), lines.c, lines.c_se)
    claim = "Without dropout, correlations always converge to 1"
    return Finding(claim, holds, _correlations(lines))


def _one_if_ordered(lines: Frame) -> Finding:
    """Judge whether every measured correlation is c*, and c* is 1 in the ordered phase only."""
    finite = CURVATURE / lines.width / (1 - lines.chi2).clip(lower=1e-3)
    settled = lines.chi2**lines.depth  # remaining effect of the initial correlation
    near = (lines.c - lines.c_star).abs() <= SAME + SIGMAS * lines.c_se + finite + settled
    split = (1 - lines.c < SAME + SIGMAS * lines.c_se) == (lines.chi1 <= 1)
    numbers = "; ".join(
        f"{e.activation} χ₁ {e.chi1:.3f}: c {e.c:.4f} ± {e.c_se:.4f}, c* {e.c_star:.4f}"
        for e in lines.itertuples()
    )
    claim = "Without dropout, correlations converge to 1 if χ₁ ≤ 1, and to c* < 1 otherwise"
    holds = where_known((near & split).all(), lines.c, lines.c_se, lines.c_star)
    return Finding(claim, holds, numbers, "corrected", "S1.1")


def _every_length_ends(fixed: Frame) -> Finding:
    """Judge whether lengths stay constant in the second half of the layers."""
    grows = fixed.growth_low > SAME
    holds = where_known(not grows.any(), fixed.growth_low)
    claim = "All of these lengths have fixed points"
    return Finding(claim, holds, _growing(fixed[grows]), "ours")


def _ends_unless_it_diverges(fixed: Frame) -> Finding:
    lines = fixed[fixed.status == "diverges"]
    right = (lines.growth_low > SAME) & lines.growth_expected.between(
        lines.growth_low, lines.growth_high
    )
    claim = (
        "(c) at ρ = .4 lengths grow without bound, because σ_w² > 2ρ; only correlations have a"
        " limit"
    )
    holds = where_known(right.all(), lines.growth_low)
    return Finding(claim, holds, _growing(lines), "corrected", "S1.2")


def _growing(lines: Frame) -> str:
    sentences = []
    for line in lines.itertuples():
        interval = f"[{np.exp(line.growth_low):.2f}, {np.exp(line.growth_high):.2f}]"
        sentences.append(
            f"({line.panel}) {line.activation} ρ = {line.keep:g}: layers {line.depth // 2} to"
            f" {line.depth} lengthen signals by a factor {np.exp(line.growth):.2f} {interval},"
            f" predicted {np.exp(line.growth_expected):.2f}"
        )
    return "; ".join(sentences) or "none of them grows"


def _correlations(lines: Frame) -> str:
    return "; ".join(
        f"({e.panel}) {e.activation} ρ = {e.keep:g}: {e.c:.4f} ± {e.c_se:.4f}"
        for e in lines.itertuples()
    )
