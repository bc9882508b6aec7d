"""`orderone predict phase`: a phase diagram as a map in the terminal, as JSON or as a page."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orderone.cli import show
from orderone.cli.files import check_files, wrote
from orderone.cli.help import Help, terminal_width
from orderone.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from orderone.theory.meanfield import PhaseDiagram

HELP = Help(
    example="orderone predict phase --activation tanh --weight-var 0.5:4:50 --html phases.html",
    groups={
        "Network": ("activation", "weight_var", "bias_var", "keep"),
        "Output": ("html", "json"),
    },
)
SIZE = (64, 20)  # largest size of the map, in characters
MARGIN = 12  # characters for the bias variance, left of the map
SIGNS = {"ordered": ".", "critical": "+", "chaotic": "#"}
DIVERGES = "!"
MOST_POINTS = 10**6


def phase(
    activation: str = "tanh",
    weight_var: str = "0.5:4:50",
    bias_var: str = "0.005:0.3:50",
    keep: float = 1.0,
    html: str | None = None,
    json: bool = False,
) -> None:
    """Print a map of the phases of random networks, and the critical line, over weight and bias
    variances.

    Args:
        activation: A name such as tanh, relu, gelu or leaky-relu(0.2).
        weight_var: Variances of a weight times the width, as first:last:number or as a list such
            as 1,1.5,2.
        bias_var: Variances of a bias, written in the same way.
        keep: Keep rate of dropout: 1 minus the dropout rate.
        html: Write a page with phases, critical line and contours of the trainable depth to this
            file.
        json: Print axes and arrays as JSON. Entry [i][j] is for weight_var[i] and bias_var[j].
    """
    from orderone.theory import phase_diagram

    weights = _axis(weight_var, "--weight-var")
    biases = _axis(bias_var, "--bias-var")
    _check_number(weights, biases)
    check_files({"html": html})
    diagram = phase_diagram(activation, weights, biases, keep)
    if html is not None:
        from orderone.report.phases import write_phases

        write_phases(diagram, html)
        wrote(html)
    if json:
        show.print_json(_record(diagram))
    else:
        _show(diagram)


def _check_number(weights: "np.ndarray", biases: "np.ndarray") -> None:
    if len(weights) * len(biases) > MOST_POINTS:
        raise InputError(
            f"--weight-var, --bias-var: expected at most {MOST_POINTS} points in total; got"
            f" {len(weights)} x {len(biases)}",
            argument="weight_var",
        )


def _axis(text: str, name: str) -> "np.ndarray":
    import numpy as np

    try:
        if ":" not in text:
            return np.array([float(number) for number in text.split(",")])
        low, high, points = text.split(":")
        if int(points) < 1:
            raise ValueError(points)
        return np.linspace(float(low), float(high), int(points))
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{name}: expected first:last:number or a list such as 1,1.5,2; got {text!r}",
            argument=name.removeprefix("--").replace("-", "_"),
        ) from error


def _record(diagram: "PhaseDiagram") -> dict[str, object]:
    arrays = {
        **diagram,
        "trainable_depth": diagram.trainable_depth,
        "phase": diagram.phase,
        "status": diagram.status,
    }
    axes = {"weight_var": diagram.weight_var, "bias_var": diagram.bias_var}
    return {name: array.tolist() for name, array in (axes | arrays).items()}


def _show(diagram: "PhaseDiagram") -> None:
    out = show.console()
    network = diagram.networks
    out.print(
        f"{network.phi.name}, keep {network.keep:g} (vertical: bias_var, horizontal: weight_var)"
    )
    for line in _map(diagram):
        out.print(line, soft_wrap=True)
    legend = "  ".join(f"{sign} {word}" for word, sign in SIGNS.items())
    out.print(f"{legend}  {DIVERGES} diverges")
    out.print(
        show.table("Along the critical line", ("bias_var", "weight_var", "xi2"), _line(diagram))
    )


def _map(diagram: "PhaseDiagram") -> Iterator[str]:
    import numpy as np

    drawn = [diagram.status == "diverges", *(diagram.phase == word for word in SIGNS)]
    signs = np.select(drawn, [DIVERGES, *SIGNS.values()], default=" ")
    width = max(10, min(SIZE[0], terminal_width() - MARGIN))
    columns = _thinned(signs.shape[0], width)
    rows = _thinned(signs.shape[1], SIZE[1])
    for j in rows[::-1]:
        yield f"{diagram.bias_var[j]:10.4g} {''.join(signs[columns, j])}"
    first = diagram.weight_var[0]
    last = diagram.weight_var[-1]
    yield f"{'':10} {first:<{max(len(columns) - 8, 1)}.4g}{last:>8.4g}"


def _thinned(points: int, most: int) -> "np.ndarray":
    """Return at most `most` indices of an axis with `points` points, evenly spaced."""
    import numpy as np

    return np.unique(np.linspace(0, points - 1, most).astype(int))


def _line(diagram: "PhaseDiagram") -> Iterator[tuple[str, str, str]]:
    """Yield the critical weight variance and the depth scale xi2 at a few bias variances."""
    import numpy as np

    from orderone.theory import MeanField, critical_weight_var

    network = diagram.networks
    axis = diagram.bias_var
    for bias_var in axis[_thinned(len(axis), 5)]:
        critical = critical_weight_var(network.activation, bias_var, network.keep)
        if np.isfinite(critical):
            xi2 = MeanField(network.activation, critical, bias_var, network.keep).xi2
            yield f"{bias_var:.4g}", f"{critical:.8g}", f"{xi2:.6g}"
        else:
            yield f"{bias_var:.4g}", "none", ""
