"""`orderone predict strategies`: tables of S2 (Dinan, Yaida, Zhang), Part II, for any sizes."""

from typing import Any

from orderone.cli import show
from orderone.cli.help import Help
from orderone.theory.scaling import STRATEGIES, init_std, lr_factors

HELP = Help(
    example="orderone predict strategies --n 1024 --optimizer adamw",
    groups={
        "Model": ("n", "n_in", "n_out", "mlp"),
        "Optimizer": ("optimizer",),
        "Output": ("json",),
    },
)
RESCALE = "tied head (rescale)"


def strategies(
    n: int = 768,
    n_in: int = 768,
    n_out: int = 1000,
    mlp: float = 4.0,
    optimizer: str = "adamw",
    json: bool = False,
) -> None:
    """Print initial standard deviations and relative learning rates of every parameter group of a
    Transformer, for four scaling strategies.

    Args:
        n: Width (embedding dimension).
        n_in: Inputs of the patch embedding: pixels of a patch times colours.
        n_out: Number of outputs.
        mlp: Width of the MLP divided by n. Use 1 for the numbers of the published experiments,
            which ignored this ratio.
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
        "The initial std is for C = 1; multiply it with sqrt(C) of the group. QKVU: queries, keys,"
        " values and their projection. W, X: first and second matrix of the MLP. WE, PE: word and"
        " position embeddings, whose std you choose."
    )


def _strategy(name: str, optimizer: str, sizes: dict[str, Any]) -> dict[str, dict[str, float]]:
    std = init_std(name, **sizes)
    rescale = std["head"]  # S2 (1.34)
    if name == "standard":
        rescale = 1.0
    return {"std": std | {RESCALE: rescale}, "lr": lr_factors(name, optimizer, **sizes)}
