"""`orderone predict transformer`: kernels and tangent kernels after every block."""

from typing import TYPE_CHECKING, Any, cast

from orderone.cli import show
from orderone.cli.files import check_files, wrote
from orderone.cli.help import Help
from orderone.cli.unused import refuse_unused
from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.reals import real

if TYPE_CHECKING:
    import numpy as np

    from orderone.theory.transformer import Prediction

HELP = Help(
    example="orderone predict transformer --width 256 --heads 8 --depth 2 --tokens 16",
    groups={
        "Model": (
            "width",
            "depth",
            "blocks",
            "heads",
            "mlp",
            "activation",
            "constants",
            "eps",
            "causal",
        ),
        "Data": ("tokens", "correlation", "n_in", "n_out"),
        "Learning rates": ("optimizer", "strategy"),
        "Output": ("html", "json"),
    },
)
DEPTH = 12
MOST_CAUSAL = 128  # tokens; with more, a deep model takes minutes


def transformer(
    width: int = 768,
    depth: int | None = None,
    heads: int = 12,
    tokens: int = 196,
    correlation: float = 0.5,
    blocks: str | None = None,
    activation: str = "gelu",
    constants: str = "",
    eps: float = 1e-5,
    causal: bool = False,
    optimizer: str = "adamw",
    strategy: str = "neural-tangent",
    n_in: int = 768,
    n_out: int = 1000,
    mlp: float = 4.0,
    html: str | None = None,
    json: bool = False,
) -> None:
    """Print kernel and tangent kernel of a wide Transformer after every block, the share of each
    parameter group in the tangent kernel, and the fluctuation caused by a finite number of heads.

    Args:
        width: Embedding dimension, a multiple of the number of heads.
        depth: Number of layers, each with an attention and an MLP block. Default: 12.
        heads: Number of attention heads.
        tokens: Number of tokens in a sequence.
        correlation: Correlation of any two tokens of the input.
        blocks: Sequence of blocks, used instead of --depth, as letters: AMAM (A: attention, M:
            MLP).
        activation: A name such as gelu or relu.
        constants: Initial variances C of parameter groups, such as Q=0.5,K=0.5,U=0.33. Default:
            PE=0.25 and 1 for all others.
        eps: The eps of the layer norms.
        causal: Use causal attention.
        optimizer: adamw or sgd.
        strategy: standard, neural-tangent, hybrid, maximal-update, or a power such as s=1/4.
        n_in: Inputs of the patch embedding, for the learning rates of --strategy standard.
        n_out: Number of outputs, for the learning rates of --strategy standard.
        mlp: Width of the MLP divided by the embedding dimension, for the learning rates of
            --strategy standard.
        html: Write an HTML page with figures to this file.
        json: Print JSON instead of tables.
    """
    from orderone.theory.scaling import strategy_power
    from orderone.theory.transformer import Transformer

    check_files({"html": html})
    C = _constants(constants)
    power = -float(strategy_power(strategy) or 0)
    C["head"] = C.get("head", 1.0) * count(width, "--width") ** power  # S2 (1.34)
    letters = _letters(blocks, depth)
    model = Transformer(letters, activation, C, eps, causal, heads, width, mlp)
    G0 = _tokens(tokens, correlation, causal)
    prediction = model.predict(G0, optimizer, model.rates(strategy, optimizer, n_in, n_out))
    record = {
        "width": width,
        "heads": heads,
        "tokens": tokens,
        "correlation": correlation,
        "blocks": letters,
        "activation": activation,
        "optimizer": optimizer,
        "strategy": strategy,
        **_record(prediction, letters, heads),
    }
    if html is not None:
        from orderone.report.transformer import TransformerRecord, write_transformer

        write_transformer(cast(TransformerRecord, record), html)
        wrote(html)
    if json:
        show.print_json(record)
    else:
        _show(record)


def _letters(blocks: str | None, depth: int | None) -> str:
    """Return the sequence of blocks, such as AMAM."""
    if blocks is not None:
        refuse_unused("--blocks", depth=depth)
        return blocks
    if depth is None:
        depth = DEPTH
    return "AM" * count(depth, "--depth", least=0)


def _constants(text: str) -> dict[str, float]:
    pairs = [pair.split("=") for pair in text.split(",") if pair]
    try:
        return {name.strip(): float(value) for name, value in pairs}
    except ValueError as error:
        raise InputError(
            f"--constants: expected group=number pairs separated by commas; got {text!r}",
            argument="constants",
        ) from error


def _tokens(tokens: int, correlation: float, causal: bool) -> "np.ndarray":
    import numpy as np

    number = count(tokens, "--tokens")
    if causal and number > MOST_CAUSAL:
        raise InputError(
            f"--tokens: expected at most {MOST_CAUSAL} with --causal, got {number}; use a shorter"
            " sequence, or theory.Transformer(..., accuracy=1e-2) in Python",
            argument="tokens",
        )
    low = -1.0
    if number > 1:
        low = -1 / (number - 1)
    c = real(correlation, "--correlation", least=low, most=1)
    return (1 - c) * np.eye(number) + c


def _record(prediction: "Prediction", blocks: str, heads: int) -> dict[str, Any]:
    numbered = [f"{number} {letter}" for number, letter in enumerate(blocks, 1)]
    return {
        "places": ["stem", *numbered, "output"],
        "kernel": [_summary(G) for G in [*prediction.kernels, prediction.output]],
        "ntk": [_summary(theta) for theta in prediction.ntk],
        "shares": prediction.shares,
        "head_std": [_summary(std) for std in prediction.head_std(heads)],
        "error": [0.0, *prediction.errors],
    }


def _summary(matrix: "np.ndarray") -> dict[str, float]:
    """Return the mean of the diagonal (same token) and of the rest (two tokens)."""
    T = len(matrix)
    same = float(matrix.diagonal().mean())
    other = same
    if T > 1:
        other = (float(matrix.sum()) - T * same) / (T * (T - 1))
    return {"same": same, "other": other}


def _show(record: dict[str, Any]) -> None:
    out = show.console()
    title = (
        f"{record['blocks'] or 'no blocks'}, {record['activation']}, {record['tokens']} tokens"
        " with correlation "
    )
    columns = ("block", "G", "G other", "NTK", "NTK other", "std of G", "largest group")
    out.print(show.table(f"{title}{record['correlation']:g}", columns, _rows(record)))
    shares = sorted(record["shares"][-1].items(), key=lambda item: -item[1])
    rows = [(group, f"{share:.1%}") for group, share in shares]
    title = f"{record['optimizer']}, {record['strategy']}"
    out.print(show.table(title, ("group", "share in the output's NTK"), rows))
    out.print(
        f"G, NTK: kernel and tangent kernel of a token; other: of two tokens; std of G: over"
        f" networks with {record['heads']} heads, at any width"
    )
    if max(record["error"]) > 0:
        out.print(
            f"attention averages are sampled: standard error {max(record['error']):.1g} per block"
        )


def _rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    stds = [f"{std['same']:.2g}" for std in record["head_std"]]
    stds.append("")  # the output has none
    columns = (record["places"], record["kernel"], record["ntk"], stds, record["shares"])
    rows = []
    for place, G, theta, std, shares in zip(*columns, strict=True):
        numbers = (G["same"], G["other"], theta["same"], theta["other"])
        cells = [f"{number:.4g}" for number in numbers]
        rows.append((place, *cells, std, max(shares, key=shares.get)))
    return rows
