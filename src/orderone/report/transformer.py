"""The kernels of a Transformer as a page: their sizes after every block, and the share of each
group of weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypedDict

from orderone.core.inputs import UserInput
from orderone.report.figures import write_figures
from orderone.report.inputs import Figure, FilePath

COLOURS = (
    "#4477aa",
    "#66ccee",
    "#228833",
    "#ccbb44",
    "#ee6677",
    "#aa3377",
    "#999933",
    "#882255",
    "#44aa99",
    "#bbbbbb",
)


class KernelSize(TypedDict):
    """Mean entries of a kernel: a token with itself, and two tokens."""

    same: float
    other: float


class TransformerRecord(TypedDict):
    """Kernels of a Transformer, as printed by `orderone predict transformer --json`."""

    blocks: str
    tokens: int
    activation: str
    heads: int
    optimizer: str
    strategy: str
    places: Sequence[str]
    kernel: Sequence[KernelSize]
    ntk: Sequence[KernelSize]
    head_std: Sequence[KernelSize]
    shares: Sequence[Mapping[str, float]]


RecordInput: TypeAlias = Annotated[TransformerRecord, UserInput]


def write_transformer(record: RecordInput, path: FilePath) -> Path:
    """Write the page of a record; return its path."""
    title = f"Transformer {record['blocks']}: {record['tokens']} tokens, {record['activation']}"
    notes = (
        (
            "G is the kernel of the residual stream. It grows in proportion to depth; the last norm"
            " removes this growth. Error bars: standard deviation between networks with"
            f" {record['heads']} heads."
        ),
        (
            f"The tangent kernel is that of {record['optimizer']} with the learning rates of the"
            f" {record['strategy']} strategy. Shares are parts of its trace."
        ),
    )
    figures = [
        _sizes(record, "kernel", "Kernel G"),
        _sizes(record, "ntk", "Tangent kernel"),
        _shares(record),
    ]
    return write_figures(path, title, figures, notes)


def _sizes(record: RecordInput, name: Literal["kernel", "ntk"], title: str) -> Figure:
    lines = []
    entries: tuple[tuple[Literal["same", "other"], str], ...] = (
        ("same", "a token with itself"),
        ("other", "two tokens"),
    )
    for entry, words in entries:
        line = {
            "type": "scatter",
            "mode": "lines+markers",
            "name": words,
            "x": record["places"],
            "y": [size[entry] for size in record[name]],
            "hovertemplate": "%{x}: %{y:.5g}<extra></extra>",
        }
        if name == "kernel":
            stds = [*(std[entry] for std in record["head_std"]), 0]
            line["error_y"] = {"type": "data", "array": stds}
        lines.append(line)
    return {"data": lines, "layout": {"title": {"text": title}, "xaxis": {"type": "category"}}}


def _shares(record: RecordInput) -> Figure:
    groups: dict[str, None] = {}  # in the order of their first share
    for shares in record["shares"]:
        groups |= dict.fromkeys(shares)
    bars = []
    for k, group in enumerate(groups):
        bars.append(
            {
                "type": "bar",
                "name": group,
                "x": record["places"],
                "y": [shares.get(group, 0) for shares in record["shares"]],
                "marker": {"color": COLOURS[k % len(COLOURS)]},
                "hovertemplate": "%{x}, " + group + ": %{y:.1%}<extra></extra>",
            }
        )
    layout = {
        "title": {"text": "Share of each group in the tangent kernel"},
        "barmode": "stack",
        "yaxis": {"tickformat": ".0%"},
        "xaxis": {"type": "category"},
    }
    return {"data": bars, "layout": layout}
