"""`orderone predict phase`: a phase diagram as a map in the terminal, JSON, or an HTML page."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orderone.cli import show
from orderone.cli.files import check_files, wrote

if TYPE_CHECKING:
    import numpy as np

    from orderone.theory.meanfield import PhaseDiagram

SIZE = (64, 20)  # of the map, in characters
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
    """Phases, the critical line, and how deep networks can be trained, over weight and bias
    variances.

    Args:
        activation: A name such as tanh, relu, gelu or leaky-relu(0.2).
        weight_var: Values from:to:count, or a list such as 1,1.5,2.
        bias_var: The same.
        keep: Rate at which units are kept: 1 minus the dropout rate.
        html: Write a page with phases, critical line and contours of the trainable depth.
        json: Print axes and arrays as JSON; entry [i][j] is for weight_var[i] and bias_var[j].
    """
    from orderone.theory import phase_diagram

    weights = _axis(weight_var, "--weight-var")
    biases = _axis(bias_var, "--bias-var")
    if len(weights) * len(biases) > MOST_POINTS:
        raise ValueError(
            f"--weight-var, --bias-var: expected at most {MOST_POINTS} points in all; got more;"
            " thin them out"
        )
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
        raise ValueError(
            f"{name}: expected from:to:count or a list such as 1,1.5,2; got {text!r}"
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
        f"{network.phi.name}, keep {network.keep:g}: bias_var upward, weight_var to the right"
    )
    for line in _map(diagram):
        out.print(line, soft_wrap=True)
    legend = "  ".join(f"{sign} {word}" for word, sign in SIGNS.items())
    out.print(f"{legend}  {DIVERGES} the length diverges")
    out.print(
        show.table("Along the critical line", ("bias_var", "weight_var", "xi2"), _line(diagram))
    )


def _map(diagram: "PhaseDiagram") -> Iterator[str]:
    import numpy as np

    drawn = [diagram.status == "diverges", *(diagram.phase == word for word in SIGNS)]
    signs = np.select(drawn, [DIVERGES, *SIGNS.values()], default=" ")
    columns = _thinned(signs.shape[0], SIZE[0])
    rows = _thinned(signs.shape[1], SIZE[1])
    for j in rows[::-1]:
        yield f"{diagram.bias_var[j]:10.4g} {''.join(signs[columns, j])}"
    first = diagram.weight_var[0]
    last = diagram.weight_var[-1]
    yield f"{'':10} {first:<{max(len(columns) - 8, 1)}.4g}{last:>8.4g}"


def _thinned(points: int, most: int) -> "np.ndarray":
    """Return at most so many indices of an axis, at equal distances."""
    import numpy as np

    return np.unique(np.linspace(0, points - 1, most).astype(int))


def _line(diagram: "PhaseDiagram") -> Iterator[tuple[str, str, str]]:
    """Yield the critical weight variance and the depth scale there, at a few bias variances."""
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
