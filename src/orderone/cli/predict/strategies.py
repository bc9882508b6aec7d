"""`orderone predict strategies`: the tables of S2, Part II, for any dimensions."""

from typing import Any

from orderone.cli import show
from orderone.theory.scaling import STRATEGIES, init_std, lr_factors

RESCALE = "tied head (rescale)"


def strategies(
    n: int = 768,
    n_in: int = 768,
    n_out: int = 1000,
    mlp: float = 4.0,
    optimizer: str = "adamw",
    json: bool = False,
) -> None:
    """Initial standard deviations and relative learning rates of every group of a Transformer, for
    four strategies.

    Args:
        n: Width (embedding dimension).
        n_in: Pixels of a patch, colours included.
        n_out: Number of outputs.
        mlp: Width of the MLP over n. The published experiments ignored it, as 1 does here.
        optimizer: adamw or sgd.
        json: Print JSON instead of tables.
    """
    sizes: dict[str, Any] = {"n": n, "n_in": n_in, "n_out": n_out, "mlp": mlp}
    record = {name: _strategy(name, optimizer, sizes) for name in STRATEGIES}
    if json:
        show.print_json({"optimizer": optimizer, **sizes, "strategies": record})
        return
    out = show.console()
    for name, columns in record.items():
        rows = [
            (group, _number(std), _number(columns["lr"].get(group)))
            for group, std in columns["std"].items()
        ]
        out.print(
            show.table(
                f"{name} ({optimizer}, n = {n})", ("group", "initial std", "relative lr"), rows
            )
        )
    out.print(
        "initial std for C = 1; times sqrt(C) of the group. QKVU: queries, keys, values and their"
        " projection;"
    )
    out.print(
        "W, X: into and out of the MLP; WE, PE: words and positions, whose std is a constant of"
        " your choice"
    )


def _strategy(name: str, optimizer: str, sizes: dict[str, Any]) -> dict[str, dict[str, float]]:
    std = init_std(name, **sizes)
    rescale = (
        1.0 if name == "standard" else std["head"]
    )  # S2 (1.34); the standard head is not rescaled
    return {"std": std | {RESCALE: rescale}, "lr": lr_factors(name, optimizer, **sizes)}


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"
