"""`orderone predict meanfield`: fixed points and trainable depth of a wide dropout network."""

from typing import TYPE_CHECKING

from orderone.cli import show
from orderone.cli.help import Help

if TYPE_CHECKING:
    from orderone.theory import MeanField

HELP = Help(
    example=(
        "orderone predict meanfield --activation tanh --weight-var 1.4 --bias-var 0.1 --keep 0.9"
    ),
    groups={"Network": ("activation", "weight_var", "bias_var", "keep"), "Output": ("json",)},
)
SCALARS = ("q_star", "c_star", "chi1", "chi2", "xi1", "xi2", "phase", "status")
MEANING = {
    "q_star": "fixed point of q, the mean square of a signal",
    "c_star": "fixed point of the correlation of two signals (q* = 0: limit of small biases)",
    "chi1": "factor of squared gradients per layer",
    "chi2": "factor of the distance of a correlation from c_star per layer",
    "xi1": "number of layers over which squared gradients change by a factor e",
    "xi2": "number of layers over which correlations approach c_star by a factor e",
    "phase": "ordered: gradients vanish; chaotic: gradients explode",
    "status": "converged, or diverges if q grows without bound",
    "trainable_depth": "min(12 xi1, 12 xi2), in layers",
}


def meanfield(
    activation: str = "tanh",
    weight_var: float = 1.0,
    bias_var: float = 0.0,
    keep: float = 1.0,
    json: bool = False,
) -> None:
    """Print fixed points, phase, depth scales and trainable depth of a wide random network with
    dropout.

    Args:
        activation: A name such as tanh, relu, gelu or leaky-relu(0.2).
        weight_var: Variance of a weight, times the width.
        bias_var: Variance of a bias.
        keep: Keep rate of dropout: 1 minus the dropout rate.
        json: Print JSON instead of a table. Infinity is printed as 1e999.
    """
    from orderone.theory import MeanField

    record = _record(MeanField(activation, weight_var, bias_var, keep))
    if json:
        show.print_json(record)
        return
    title = f"{activation}: weight_var {weight_var:g}, bias_var {bias_var:g}, keep {keep:g}"
    rows = []
    for name, value in record.items():
        if isinstance(value, float):
            text = f"{value:.10g}"
        else:
            text = value
        rows.append((name, text, MEANING[name]))
    show.console().print(show.table(title, ("quantity", "value", "meaning"), rows))


def _record(network: "MeanField") -> dict[str, float | str]:
    record = {name: getattr(network, name) for name in SCALARS}
    record["trainable_depth"] = network.trainable_depth()
    return record
