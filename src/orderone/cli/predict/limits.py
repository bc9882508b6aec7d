"""`orderone predict limits`: what depth does to a random network of finite width, and how well the
limits know."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orderone.cli import show
from orderone.cli.files import check_files, wrote
from orderone.cli.unused import no_use
from orderone.core.progress import bar

SMOOTH = "shaped-smooth"
SHORT = {"wasserstein": "W1"}  # a terminal of 80 columns has no room for more

if TYPE_CHECKING:
    from orderone.measure import Comparison
    from orderone.theory.limits import DepthReport


def limits(
    width: int = 150,
    depth: int = 150,
    activation: str = "relu",
    residual: bool = False,
    phi: str | None = None,
    a: float | None = None,
    rho0: float = 0.3,
    samples: int = 8192,
    seed: int = 0,
    html: str | None = None,
    json: bool = False,
) -> None:
    """How norms and correlations spread at this depth and width, and how far finite networks are
    from the limit.

    Args:
        width: Neurons in a layer.
        depth: Hidden layers.
        activation: relu, shaped-relu, shaped-smooth or linear, which have a limit law; resnet (relu
            with --residual); or any other name, such as tanh, gelu, silu or leaky-relu(0.2), whose
            networks are sampled for the report.
        residual: Skip connections, with branches scaled by 1/sqrt(depth).
        phi: The function of shaped-smooth, s phi(x / s) with s = a sqrt(depth): tanh, sin, atan,
            asinh or expm1. Default: tanh.
        a: Of shaped-smooth. Default: 1.
        rho0: Correlation of the two inputs that are followed.
        samples: Networks, and paths of the limit, where there is one. 0 leaves both out, and only
            theory speaks.
        seed: Of both.
        html: Draw the densities in this file, which opens in any browser without a network.
        json: Print JSON instead of text.
    """
    from orderone.core.exact import count
    from orderone.theory import depth_report

    if activation.lower() == "resnet":
        activation = "relu"
        residual = True
    if activation.lower() != SMOOTH:
        no_use(activation, f"give --activation {SMOOTH}", phi=phi, a=a)
    phi = "tanh" if phi is None else phi
    a = 1.0 if a is None else a
    report = depth_report(width, depth, activation, residual, rho0, phi=phi, a=a)
    number = count(samples, "samples", least=0)
    shape = _shape(report, phi, a)
    compared = bool(number and not residual and shape is not None)
    if html is not None and not compared:
        raise ValueError(
            "html: expected networks with a random limit to draw, relu, shaped-relu, shaped-smooth"
            " or linear; leave out --residual and --samples 0"
        )
    check_files({"html": html})
    found = _compare(report, number, seed, json, shape or {}) if compared else []
    show.print_json(_record(report, found)) if json else _show(report, found)
    if html is not None:
        _draw(html, report, found)


def _shape(report: "DepthReport", phi: str, a: float) -> dict[str, Any] | None:
    """What the report counts in the depth, (2.5) and (2.6) count in the width. None for those
    without a limit."""
    ratio = report.ratio**0.5
    shapes: dict[str, dict[str, Any]] = {"relu": {}, "linear": {}}
    shapes |= {"shaped-relu": {"c_minus": -1 / ratio}, SMOOTH: {"phi": phi, "a": a * ratio}}
    return shapes.get(report.activation)


def _compare(
    report: "DepthReport", samples: int, seed: int, quiet: bool, shape: dict[str, Any]
) -> list[Any]:
    from orderone.measure import compare_with_limit

    sizes = report.activation, report.width, report.depth
    with bar("networks", quiet) as progress:
        return compare_with_limit(
            *sizes, rho0=report.rho0, samples=samples, seed=seed, progress=progress, **shape
        )


def _show(report: "DepthReport", found: list["Comparison"]) -> None:
    out = show.console()
    out.print(show.coloured(str(report)), soft_wrap=True)
    for comparison in found:
        columns = ("", "mean", "std", "distance", "95 % interval")
        table = show.table(
            f"{comparison.quantity}: networks against their limit", columns, _rows(comparison)
        )
        out.print(table)


def _rows(c: "Comparison") -> list[tuple[str, ...]]:
    moments = [
        (name, f"{x.mean():.3f}", f"{x.std():.3f}")
        for name, x in (("network", c.network), ("limit", c.limit))
    ]
    return [
        (*cells, f"{SHORT.get(d.name, d.name)} {d.value:.3f}", f"{d.low:.3f} .. {d.high:.3f}")
        for cells, d in zip([*moments, ("", "", "")], c.distances, strict=True)
    ]


def _record(report: "DepthReport", found: list["Comparison"]) -> dict[str, Any]:
    record = asdict(report) | {
        "correlation": {str(q): rho for q, rho in report.correlation.items()}
    }
    record["comparison"] = {
        c.quantity: {
            "network": {
                "mean": float(c.network.mean()),
                "std": float(c.network.std()),
                "lost": c.lost,
            },
            "limit": {"mean": float(c.limit.mean()), "std": float(c.limit.std())},
            **{d.name: {"value": d.value, "low": d.low, "high": d.high} for d in c.distances},
        }
        for c in found
    }
    return record


def _draw(path: str, report: "DepthReport", found: list["Comparison"]) -> None:
    from orderone.report import write_figures
    from orderone.report.limits import density_figure

    settings = f"{report.activation}, width {report.width}, depth {report.depth}"
    write_figures(
        path,
        f"Depth limits: {settings}",
        [density_figure(c, settings) for c in found],
        [str(report)],
    )
    wrote(path)
