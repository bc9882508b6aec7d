"""`orderone predict limits`: random networks of finite width and depth, and their limit law."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orderone.cli import show
from orderone.cli.files import check_files, wrote
from orderone.cli.help import Help
from orderone.cli.unused import refuse_unused
from orderone.core.errors import InputError
from orderone.core.progress import bar

HELP = Help(
    example="orderone predict limits --width 150 --depth 150 --activation shaped-relu",
    groups={
        "Network": ("width", "depth", "activation", "residual", "phi", "a", "rho0"),
        "Sampling": ("samples", "seed"),
        "Output": ("html", "json"),
    },
)
SMOOTH = "shaped-smooth"
SHORT = {"wasserstein": "W1"}  # 80 columns have no room for the long name

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
    """Print how much norms and correlations spread over random networks of this width and depth,
    and compare sampled networks with their limit law.

    Args:
        width: Width of the hidden layers.
        depth: Number of hidden layers.
        activation: relu, shaped-relu, shaped-smooth or linear, which have a limit law; resnet
            (relu with --residual); or another activation, such as tanh, gelu, silu or
            leaky-relu(0.2), which is sampled for the report.
        residual: Add skip connections, with branches scaled by 1/sqrt(depth).
        phi: The function phi of shaped-smooth, s phi(x / s) with s = a sqrt(depth): tanh, sin,
            atan, asinh or expm1. Default: tanh.
        a: The constant a of shaped-smooth. Default: 1.
        rho0: Correlation of the two inputs.
        samples: Number of sampled networks, and of sampled paths of the limit law. 0 prints the
            report only.
        seed: Seed of the samples.
        html: Write a page with densities to this file. It opens in any browser, offline too.
        json: Print JSON instead of text.
    """
    from orderone.core.exact import count
    from orderone.theory import depth_report

    if activation.lower() == "resnet":
        activation = "relu"
        residual = True
    if activation.lower() != SMOOTH:
        refuse_unused(f"the activation {activation}", f"use --activation {SMOOTH}", phi=phi, a=a)
    if phi is None:
        phi = "tanh"
    if a is None:
        a = 1.0
    report = depth_report(width, depth, activation, residual, rho0, phi=phi, a=a)
    number = count(samples, "samples", least=0)
    shape = None
    if number and not residual:
        shape = _shape(report, phi, a)
    if html is not None and shape is None:
        raise InputError(
            "html: only networks with a random limit law can be drawn: relu, shaped-relu,"
            " shaped-smooth or linear, without --residual and --samples 0",
            "no-random-limit",
            argument="html",
        )
    check_files({"html": html})
    comparisons = []
    if shape is not None:
        comparisons = _compare(report, number, seed, json, shape)
    if json:
        show.print_json(_record(report, comparisons))
    else:
        _show(report, comparisons)
    if html is not None:
        _draw(html, report, comparisons)


def _shape(report: "DepthReport", phi: str, a: float) -> dict[str, Any] | None:
    """Return arguments of `compare_with_limit`; None for activations without a limit law.

    The report scales the shape with the depth, but Eq. (2.5) and (2.6) of S3 (Li and Nica) scale
    it with the width.
    """
    ratio = report.ratio**0.5
    shapes: dict[str, dict[str, Any]] = {
        "relu": {},
        "linear": {},
        "shaped-relu": {"c_minus": -1 / ratio},
        SMOOTH: {"phi": phi, "a": a * ratio},
    }
    return shapes.get(report.activation)


def _compare(
    report: "DepthReport", samples: int, seed: int, quiet: bool, shape: dict[str, Any]
) -> list["Comparison"]:
    from orderone.measure import compare_with_limit

    with bar("networks", quiet) as progress:
        return compare_with_limit(
            report.activation,
            report.width,
            report.depth,
            rho0=report.rho0,
            samples=samples,
            seed=seed,
            progress=progress,
            **shape,
        )


def _show(report: "DepthReport", comparisons: list["Comparison"]) -> None:
    out = show.console()
    out.print(show.prose(str(report), out.width))
    columns = ("", "mean", "std", "distance", "95 % interval")
    for comparison in comparisons:
        title = f"{comparison.quantity}: networks compared with their limit law"
        out.print(show.table(title, columns, _rows(comparison)))


def _rows(comparison: "Comparison") -> list[tuple[str, ...]]:
    """Return three rows: distances, with the moments beside the first two."""
    network = comparison.network
    limit = comparison.limit
    moments = [
        ("network", f"{network.mean():.3f}", f"{network.std():.3f}"),
        ("limit", f"{limit.mean():.3f}", f"{limit.std():.3f}"),
        ("", "", ""),
    ]
    rows = []
    for cells, distance in zip(moments, comparison.distances, strict=True):
        name = SHORT.get(distance.name, distance.name)
        interval = f"{distance.low:.3f} .. {distance.high:.3f}"
        rows.append((*cells, f"{name} {distance.value:.3f}", interval))
    return rows


def _record(report: "DepthReport", comparisons: list["Comparison"]) -> dict[str, object]:
    record: dict[str, object] = asdict(report)
    record["correlation"] = {str(q): rho for q, rho in report.correlation.items()}
    record["comparison"] = {
        comparison.quantity: _comparison_record(comparison) for comparison in comparisons
    }
    return record


def _comparison_record(comparison: "Comparison") -> dict[str, object]:
    network = comparison.network
    limit = comparison.limit
    record: dict[str, object] = {
        "network": {
            "mean": float(network.mean()),
            "std": float(network.std()),
            "lost": comparison.lost,
        },
        "limit": {"mean": float(limit.mean()), "std": float(limit.std())},
    }
    for distance in comparison.distances:
        record[distance.name] = {
            "value": distance.value,
            "low": distance.low,
            "high": distance.high,
        }
    return record


def _draw(path: str, report: "DepthReport", comparisons: list["Comparison"]) -> None:
    from orderone.report import write_figures
    from orderone.report.limits import density_figure

    settings = f"{report.activation}, width {report.width}, depth {report.depth}"
    figures = [density_figure(comparison, settings) for comparison in comparisons]
    write_figures(path, f"Depth limits: {settings}", figures, [str(report)])
    wrote(path)
