"""`orderone predict transformer`: kernels and tangent kernels, block by block."""

from typing import TYPE_CHECKING, Any, cast

from orderone.cli import show
from orderone.cli.files import check_files, wrote
from orderone.cli.unused import no_use
from orderone.core.exact import count
from orderone.core.reals import real

if TYPE_CHECKING:
    import numpy as np

    from orderone.theory.transformer import Prediction

DEPTH = 12
MOST_CAUSAL = 128  # tokens: beyond, a deep model takes minutes


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
    """Kernel and tangent kernel behind every block, the share of each group, and what few heads do.

    Args:
        width: Embedding dimension: for strategies, and to be divided by heads.
        depth: Number of encoders, each of one attention and one MLP block. Default: 12.
        heads: Attention heads.
        tokens: Tokens of a sequence.
        correlation: Between any two tokens of the input.
        blocks: Blocks by letters, such as AMAM (A attention, M MLP), instead of depth.
        activation: A name such as gelu or relu.
        constants: Initial variances of groups, such as Q=0.5,K=0.5,U=0.33; 1 for all others, and
            PE=0.25.
        eps: Of the layer norms.
        causal: Whether tokens see only themselves and those before.
        optimizer: adamw or sgd.
        strategy: standard, neural-tangent, hybrid, maximal-update, or s=1/4 and the like.
        n_in: Pixels of a patch, for the rates of `standard`.
        n_out: Number of outputs, likewise.
        mlp: Width of the MLP over the embedding dimension, likewise.
        html: Write a page with pictures.
        json: Print JSON instead of tables.
    """
    from orderone.theory.scaling import strategy_power
    from orderone.theory.transformer import Transformer

    check_files({"html": html})
    C = _constants(constants)
    power = -float(strategy_power(strategy) or 0)
    C["head"] = C.get("head", 1.0) * count(width, "--width") ** power  # S2 (1.34)
    if blocks is None:
        if depth is None:
            depth = DEPTH
        letters = "AM" * count(depth, "--depth", least=0)
    else:
        no_use("--blocks", depth=depth)
        letters = blocks
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


def _constants(text: str) -> dict[str, float]:
    pairs = [pair.split("=") for pair in text.split(",") if pair]
    try:
        return {name.strip(): float(value) for name, value in pairs}
    except ValueError as error:
        raise ValueError(
            f"--constants: expected group=number, with commas between; got {text!r}"
        ) from error


def _tokens(tokens: int, correlation: float, causal: bool) -> "np.ndarray":
    import numpy as np

    number = count(tokens, "--tokens")
    if causal and number > MOST_CAUSAL:
        raise ValueError(
            f"--tokens: expected at most {MOST_CAUSAL} with --causal, got {number}; "
            "a shorter sequence shows the same, or use theory.Transformer(..., accuracy=1e-2)"
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
    """Return means over tokens: of one with itself, and of one with another."""
    T = len(matrix)
    same = float(matrix.diagonal().mean())
    other = same
    if T > 1:
        other = (float(matrix.sum()) - T * same) / (T * (T - 1))
    return {"same": same, "other": other}


def _show(record: dict[str, Any]) -> None:
    out = show.console()
    title = (
        f"{record['blocks'] or 'no blocks'}, {record['activation']}, {record['tokens']} tokens of"
        " correlation "
    )
    columns = ("block", "G", "G other", "NTK", "NTK other", "std of G", "largest group")
    out.print(show.table(f"{title}{record['correlation']:g}", columns, _rows(record)))
    shares = sorted(record["shares"][-1].items(), key=lambda item: -item[1])
    rows = [(group, f"{share:.1%}") for group, share in shares]
    title = f"{record['optimizer']}, {record['strategy']}"
    out.print(show.table(title, ("group", "share in the output's NTK"), rows))
    out.print(
        f"other: between two tokens. std of G: from network to network with {record['heads']}"
        " heads, at any width"
    )
    if max(record["error"]) > 0:
        out.print(
            f"attention averages are sampled: standard error {max(record['error']):.1g} in each"
            " block"
        )


def _rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    stds = [f"{std['same']:.2g}" for std in record["head_std"]]
    stds.append("")  # of the output
    columns = (record["places"], record["kernel"], record["ntk"], stds, record["shares"])
    rows = []
    for place, G, theta, std, shares in zip(*columns, strict=True):
        numbers = (G["same"], G["other"], theta["same"], theta["other"])
        cells = [f"{number:.4g}" for number in numbers]
        rows.append((place, *cells, std, max(shares, key=shares.get)))
    return rows
