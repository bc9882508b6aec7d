"""S2 Figure 2: the four strategies at their optima, over several seeds. `gallery.s2.spikes` counts
spikes.

The paper compares three seeds by eye. Here each claim needs an interval that excludes the opposite;
with three seeds and small differences a claim may remain unclear.
"""

from math import log2

from orderone.core.colours import RULE_COLOURS
from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.frames import Frame
from orderone.gallery.judge import opposite, together
from orderone.gallery.paper_scale import at_scale
from orderone.gallery.s2.axes import axes
from orderone.gallery.s2.compare import CONFIDENCE, difference, fewer
from orderone.gallery.s2.strategy_runs import STRATEGIES
from orderone.gallery.s2.vision_strategies import EPOCHS, GPU, PAPER, SMALL, Settings, at_the_best

OPACITIES = (1.0, 0.7, 0.45)
SAME = 1.0
OTHER = 3.0  # octaves; each of two optima is known to a factor of 2


def parts(settings: Settings) -> Parts:
    return {"seeds": lambda: at_the_best(settings)}


def judge(records: Records) -> list[Finding]:
    frame: Frame = records["seeds"]
    best = {}
    spikes = {}
    for name in STRATEGIES:
        runs = frame[frame.strategy == name]
        best[name] = list(runs.groupby("seed").accuracy.max())
        spikes[name] = int(runs.spikes.sum())
    ahead = difference(best["neural-tangent"], best["standard"])
    findings = [
        Finding(
            "neural-tangent is better than standard",
            ahead.positive,
            f"accuracy {ahead}, {_means(best)}",
        ),
        _extreme(best, "hybrid", 1, "hybrid is the best of the four"),
        _extreme(best, "maximal-update", -1, "maximal-update is the worst of the four"),
        *(_spikes(name, spikes) for name in STRATEGIES[1:]),
        _same(frame, "wd", "lr* wd* is the same for standard and neural-tangent"),
        _same(
            frame,
            "rate",
            "the effective learning rate of attention and MLP is the same for standard and"
            " neural-tangent",
        ),
    ]
    return at_scale(findings, float(frame.epoch.max()), EPOCHS, "epochs")


def _means(best: dict[str, list[float]]) -> str:
    return "; ".join(f"{name} {sum(values) / len(values):.1%}" for name, values in best.items())


def _extreme(best: dict[str, list[float]], name: str, sign: int, claim: str) -> Finding:
    """Compare with each other strategy, with one confidence level for all comparisons together;
    False if one is clearly better (or worse)."""
    confidence = 1 - (1 - CONFIDENCE) / (len(best) - 1)
    verdicts = []
    numbers = []
    for other in best:
        if other != name:
            gap = difference(best[name], best[other], confidence)
            verdicts.append(gap.positive if sign > 0 else opposite(gap.positive))
            numbers.append(f"{gap} to {other}")
    return Finding(claim, together(verdicts), "; ".join(numbers))


def _spikes(name: str, spikes: dict[str, int]) -> Finding:
    numbers = f"{spikes[name]} against {spikes['standard']} in all seeds"
    return Finding(
        f"{name} has fewer spikes than standard", fewer(spikes[name], spikes["standard"]), numbers
    )


def _same(frame: Frame, column: str, claim: str) -> Finding:
    """Judge equality within the resolution of the grid."""
    values = []
    for name in STRATEGIES[:2]:
        row = frame[frame.strategy == name].iloc[0]
        values.append(float(row.lr * row.wd if column == "wd" else row.rate))
    octaves = log2(values[1] / values[0])
    holds = None
    if frame.accuracy.notna().any():  # otherwise there is no optimum
        if abs(octaves) < SAME + 0.5:
            holds = True
        elif abs(octaves) > OTHER - 0.5:
            holds = False
    return Finding(claim, holds, f"{values[0]:.3g} and {values[1]:.3g}, {octaves:+.0f} octaves")


def draw(records: Records) -> list[Picture]:
    frame: Frame = records["seeds"]
    data = []
    for name in STRATEGIES:
        runs = frame[frame.strategy == name]
        highest = runs.groupby("seed").accuracy.max()
        for number, (_, run) in enumerate(runs.groupby("seed")):
            line = {"color": RULE_COLOURS[name], "width": 2}
            label = (
                f"{name}: ({run.lr.iloc[0]:.3g}, {run.wd.iloc[0]:.3g})"
                f" [{100 * highest.mean():.1f}%]"
            )
            x = run.epoch.to_list()
            y = (100 * run.accuracy).to_list()
            extra = {"name": label, "legendgroup": name, "showlegend": number == 0}
            extra["opacity"] = OPACITIES[min(number, len(OPACITIES) - 1)]
            data.append({"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, **extra})
    layout = axes("epoch", "top-one validation accuracy, %", height=480, yaxis={"range": [0, 100]})
    order = sorted(
        STRATEGIES,
        key=lambda name: -frame[frame.strategy == name].groupby("seed").accuracy.max().mean(),
    )
    alt = (
        "Validation accuracy over epochs, several seeds each; from the best to the worst:"
        f" {', '.join(order)}."
    )
    caption = "In the legend: (lr*, wd*) and the mean over seeds of the highest accuracy."
    return [
        Picture(
            "Vision Transformers at their optima", {"data": data, "layout": layout}, alt, caption
        )
    ]


EXPERIMENT = Experiment(
    name="s2-figure2",
    title="Four strategies for Vision Transformers: at their optima",
    place="Figure 2 and section II.1.E",
    claim=(
        "Neural-tangent is better than standard; hybrid is the best and maximal-update the worst of"
        " the four. All three have fewer spikes than standard. The optima of neural-tangent and"
        " standard have the same effective learning rate and the same product lr x wd."
    ),
    method=(
        "The search of Figure 1, then new seeds at the optimum of each strategy. Differences of"
        " the highest validation accuracies with Welch's 95 % intervals; a spike is three training"
        " losses in a row more than five standard deviations above the median of the fifty before."
    ),
    scales={"small": SMALL, "gpu": GPU, "paper": PAPER},
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S2.3", "S2.9"),
)
