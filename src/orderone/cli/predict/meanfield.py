"""`orderone predict meanfield`: fixed points and trainable depth of a wide dropout network."""

from typing import TYPE_CHECKING

from orderone.cli import show

if TYPE_CHECKING:
    from orderone.theory import MeanField

SCALARS = ("q_star", "c_star", "chi1", "chi2", "xi1", "xi2", "phase", "status")
MEANING = {
    "q_star": "length of a signal, far from the input",
    "c_star": "correlation of two signals, far from the input (q* = 0: limit of small biases)",
    "chi1": "factor of squared gradients, layer by layer",
    "chi2": "factor of differences between correlations",
    "xi1": "layers over which squared gradients change by e",
    "xi2": "layers over which correlations settle by e",
    "phase": "ordered: gradients vanish; chaotic: they explode",
    "status": "of the length: converged or diverges",
    "trainable_depth": "min(12 xi1, 12 xi2)",
}


def meanfield(
    activation: str = "tanh",
    weight_var: float = 1.0,
    bias_var: float = 0.0,
    keep: float = 1.0,
    json: bool = False,
) -> None:
    """Fixed points, phase, depth scales and trainable depth of a random network with dropout.

    Args:
        activation: A name such as tanh, relu, gelu or leaky-relu(0.2).
        weight_var: N times the variance of a weight, N the width.
        bias_var: Variance of a bias.
        keep: Rate at which units are kept: 1 minus the dropout rate.
        json: Print JSON instead of a table. What is infinite is written as 1e999.
    """
    from orderone.theory import MeanField

    record = _record(MeanField(activation, weight_var, bias_var, keep))
    if json:
        show.print_json(record)
        return
    title = f"{activation}: weight_var {weight_var:g}, bias_var {bias_var:g}, keep {keep:g}"
    rows = []
    for name, value in record.items():
        text = f"{value:.10g}" if isinstance(value, float) else value
        rows.append((name, text, MEANING[name]))
    show.console().print(show.table(title, ("quantity", "value", "meaning"), rows))


def _record(network: "MeanField") -> dict[str, float | str]:
    record = {name: getattr(network, name) for name in SCALARS}
    record["trainable_depth"] = network.trainable_depth()
    return record
