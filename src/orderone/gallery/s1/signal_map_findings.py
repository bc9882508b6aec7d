"""What records of `signal_maps` say of the claims about S1 Figure 1."""

import numpy as np

from orderone.gallery.experiment import Finding, Records
from orderone.gallery.frames import Frame
from orderone.gallery.judge import known
from orderone.gallery.s1.signal_maps import PANELS

SIGMAS = (
    4.5  # beyond which a dot is off its line: a hundred dots would show one in a thousand times
)
# c_ab of a finite network is a ratio of means: off by about 1/N, amplified 1 / (1 - chi_2) by depth
CURVATURE = 3
SAME = 1e-3  # 1 - c below this counts as c = 1: single precision, and signals still on their way


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
    allowed = 0 if PANELS[name].of == "q" else CURVATURE / lines.width
    z = (lines["mean"] - lines.theory).abs() / (lines.se + 1e-6 + allowed / SIGMAS)
    what = "lengths" if PANELS[name].of == "q" else "correlations"
    numbers = (
        f"{len(lines)} dots of {lines.width.iloc[0]} units; the farthest {z.max():.1f} standard"
        " errors off its line"
    )
    holds = bool(z.max() < SIGMAS) if known(z) else None
    return Finding(f"({name}) one layer maps {what} as mean field theory says", holds, numbers)


def _longer(lines: Frame) -> Finding:
    """Within a panel, by decreasing keep rate."""
    steps = [lines[lines.panel == name].sort_values("keep", ascending=False) for name in ("a", "b")]
    larger = all(
        (np.diff(s.q) > SIGMAS * np.hypot(s.q_se[1:], s.q_se[:-1].to_numpy())).all() for s in steps
    )
    near = (
        (lines.q - lines.q_star).abs()
        <= SIGMAS * lines.q_se + CURVATURE / lines.width * lines.q_star
    ).all()
    numbers = "; ".join(
        f"({e.panel}) ρ = {e.keep:g}: {e.q:.3f} ± {e.q_se:.3f}, q* {e.q_star:.4g}"
        for e in lines.itertuples()
    )
    holds = bool(larger and near) if known(lines.q, lines.q_se) else None
    return Finding("The fewer units are kept, the longer signals come to be", holds, numbers)


def _only_without_dropout(lines: Frame) -> Finding:
    """Panels (c) and (d), whose networks are in the ordered phase without dropout."""
    whole = lines[lines.keep == 1]
    dropped = lines[lines.keep < 1]
    holds = bool(
        (1 - whole.c < SAME).all() and (1 - dropped.c > SAME + SIGMAS * dropped.c_se).all()
    )
    told = holds if known(whole.c, dropped.c, dropped.c_se) else None
    return Finding(
        "(c), (d) correlations come to 1 without dropout and only then", told, _correlations(lines)
    )


def _always_one(lines: Frame) -> Finding:
    if known(lines.c, lines.c_se):
        holds = bool((1 - lines.c < SAME + SIGMAS * lines.c_se).all())
    else:
        holds = None
    return Finding("Without dropout, correlations always come to 1", holds, _correlations(lines))


def _one_if_ordered(lines: Frame) -> Finding:
    """Every measured correlation is c*, and c* is 1 in the ordered phase only."""
    finite = CURVATURE / lines.width / (1 - lines.chi2).clip(lower=1e-3)
    settled = lines.chi2**lines.depth  # what is left of where they started
    near = (lines.c - lines.c_star).abs() <= SAME + SIGMAS * lines.c_se + finite + settled
    split = (1 - lines.c < SAME + SIGMAS * lines.c_se) == (lines.chi1 <= 1)
    numbers = "; ".join(
        f"{e.activation} χ₁ {e.chi1:.3f}: c {e.c:.4f} ± {e.c_se:.4f}, c* {e.c_star:.4f}"
        for e in lines.itertuples()
    )
    claim = "Without dropout, correlations come to 1 if χ₁ ≤ 1, and to c* < 1 otherwise"
    if known(lines.c, lines.c_se, lines.c_star):
        holds = bool((near & split).all())
    else:
        holds = None
    return Finding(claim, holds, numbers, "corrected", "S1.1")


def _every_length_ends(fixed: Frame) -> Finding:
    """The second half of the layers changes nothing."""
    grows = fixed.growth_low > SAME
    holds = not grows.any() if known(fixed.growth_low) else None
    return Finding("All of these lengths have fixed points", holds, _growing(fixed[grows]))


def _ends_unless_it_diverges(fixed: Frame) -> Finding:
    lines = fixed[fixed.status == "diverges"]
    right = (lines.growth_low > SAME) & lines.growth_expected.between(
        lines.growth_low, lines.growth_high
    )
    claim = "(c) at ρ = .4 lengths grow for ever, since σ_w² > 2ρ; only correlations have a limit"
    return Finding(
        claim,
        bool(right.all()) if known(lines.growth_low) else None,
        _growing(lines),
        "corrected",
        "S1.2",
    )


def _growing(lines: Frame) -> str:
    said = (
        f"({e.panel}) {e.activation} ρ = {e.keep:g}: layers {e.depth // 2} to {e.depth} lengthen"
        f" signals by a factor {np.exp(e.growth):.2f} [{np.exp(e.growth_low):.2f},"
        f" {np.exp(e.growth_high):.2f}], in theory {np.exp(e.growth_expected):.2f}"
        for e in lines.itertuples()
    )
    return "; ".join(said) or "none of them grows"


def _correlations(lines: Frame) -> str:
    return "; ".join(
        f"({e.panel}) {e.activation} ρ = {e.keep:g}: {e.c:.4f} ± {e.c_se:.4f}"
        for e in lines.itertuples()
    )
