"""S2 Figure 5: a larger encoder-decoder with the settings of the smaller one, without tuning."""

import pandas as pd

from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.frames import Frame
from orderone.gallery.paper_scale import at_scale
from orderone.gallery.s2.compare import difference
from orderone.gallery.s2.denoising_strategies import COMPARED, GPU, PAPER, SMALL, Settings, larger
from orderone.gallery.s2.figure3 import layout
from orderone.gallery.s2.figure4 import DASHES, curves_of


def parts(settings: Settings) -> Parts:
    return {strategy: lambda strategy=strategy: larger(settings, strategy) for strategy in COMPARED}


def widths(frame: Frame) -> list[int]:
    return sorted(int(width) for width in frame.width.unique())


def lowest(frame: Frame, width: int) -> list[float]:
    return list(frame[frame.width == width].groupby("seed").loss.min())


def judge(records: Records) -> list[Finding]:
    claim = "neural-tangent trains the larger model faster than standard"
    sizes = widths(pd.concat([records[name] for name in COMPARED]))
    if len(sizes) != 2:
        return [Finding(claim, None, f"two widths are needed, the records have {sizes}")]
    small, large = sizes
    of_large: dict[str, list[float]] = {}
    means: list[str] = []
    better: list[Finding] = []
    for name in COMPARED:
        values = lowest(records[name], large)
        of_large[name] = values
        means.append(f"{name} {sum(values) / max(len(values), 1):.3f}")
        better.append(_better(name, lowest(records[name], small), values))
    ahead = difference(of_large["standard"], of_large["neural-tangent"])
    faster = Finding(claim, ahead.positive, f"{', '.join(means)}; ahead by {ahead}")
    updates = float(max(records[name].step.max() for name in COMPARED))
    return at_scale([faster, *better], updates, PAPER.updates, "updates")


def _better(name: str, small: list[float], large: list[float]) -> Finding:
    gain = difference(small, large)
    return Finding(
        f"{name}: the larger model has a lower loss than the smaller one",
        gain.positive,
        f"by {gain}",
    )


def draw(records: Records) -> list[Picture]:
    frame: Frame = pd.concat(records.values())
    small, large = widths(frame)
    curves = []
    for width, dash in ((large, DASHES[0]), (small, DASHES[1])):
        for name in COMPARED:
            runs: Frame = records[name]
            label = f"width {width}, {name}"
            curves += curves_of(runs[runs.width == width], name, label, dash)
    best = [f"{name} {min(lowest(records[name], large)):.3f}" for name in COMPARED]
    alt = (
        "Held-out loss over updates of a larger model (solid) and a smaller one (dashed); lowest of"
        f" the larger: {', '.join(best)}."
    )
    return [
        Picture(
            "The larger encoder-decoder with the settings of the smaller",
            {"data": curves, "layout": layout(frame)},
            alt,
        )
    ]


EXPERIMENT = Experiment(
    name="s2-figure5",
    title="Two strategies for span denoising: the larger model",
    place="Figure 5 and section II.2.E",
    claim=(
        "With settings taken from smaller models, neural-tangent improves the convergence of the"
        " larger model."
    ),
    method=(
        "The best rate of the smaller model, (lr, wd) for standard and (n^(3/2) lr, n^(-3/2) wd)"
        " for neural-tangent with the larger width, untuned; lowest held-out losses at the same"
        " number of updates with Welch's 95 % interval. (The paper took lr = 7e-4 for its larger"
        " model from the literature.)"
    ),
    scales={"small": SMALL, "gpu": GPU, "paper": PAPER},
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S2.8", "S2.9"),
)
