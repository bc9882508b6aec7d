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
        rows = []
        for group, std in columns["std"].items():
            lr = columns["lr"].get(group)
            rows.append((group, f"{std:.4g}", None if lr is None else f"{lr:.4g}"))
        title = f"{name} ({optimizer}, n = {n})"
        out.print(show.table(title, ("group", "initial std", "relative lr"), rows))
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
    rescale = std["head"]  # S2 (1.34)
    if name == "standard":
        rescale = 1.0
    return {"std": std | {RESCALE: rescale}, "lr": lr_factors(name, optimizer, **sizes)}
