"""A Transformer's kernels as a page: sizes behind every block, and the share of each group of
weights."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from orderone.report.figures import write_figures

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


def write_transformer(record: Mapping[str, Any], path: str | PathLike[str]) -> Path:
    """`record` is what `orderone predict transformer --json` prints. Writes the page, and says
    where."""
    title = f"Transformer {record['blocks']}: {record['tokens']} tokens, {record['activation']}"
    notes = (
        (
            "G is the kernel of the residual stream: it grows in proportion to depth, and the last"
            " norm takes that away. Bars are its standard deviation from network to network with"
            f" {record['heads']} heads."
        ),
        (
            f"The tangent kernel is that of {record['optimizer']} with the rates of the"
            f" {record['strategy']} strategy. Shares are parts of its trace."
        ),
    )
    figures = [
        _sizes(record, "kernel", "Kernel G"),
        _sizes(record, "ntk", "Tangent kernel"),
        _shares(record),
    ]
    return write_figures(path, title, figures, notes)


def _sizes(record: Mapping[str, Any], name: str, title: str) -> dict[str, Any]:
    lines = []
    for which, word in (("same", "a token with itself"), ("other", "two tokens")):
        line = {"type": "scatter", "mode": "lines+markers", "name": word, "x": record["places"]}
        line |= {
            "y": [each[which] for each in record[name]],
            "hovertemplate": "%{x}: %{y:.5g}<extra></extra>",
        }
        if name == "kernel":
            line["error_y"] = {
                "type": "data",
                "array": [*(std[which] for std in record["head_std"]), 0],
            }
        lines.append(line)
    return {"data": lines, "layout": {"title": {"text": title}, "xaxis": {"type": "category"}}}


def _shares(record: Mapping[str, Any]) -> dict[str, Any]:
    groups = list(dict.fromkeys(group for shares in record["shares"] for group in shares))
    bars = [
        {
            "type": "bar",
            "name": group,
            "x": record["places"],
            "y": [shares.get(group, 0) for shares in record["shares"]],
            "marker": {"color": COLOURS[k % len(COLOURS)]},
            "hovertemplate": "%{x}, " + group + ": %{y:.1%}<extra></extra>",
        }
        for k, group in enumerate(groups)
    ]
    layout = {"title": {"text": "Share of each group in the tangent kernel"}, "barmode": "stack"}
    return {
        "data": bars,
        "layout": layout | {"yaxis": {"tickformat": ".0%"}, "xaxis": {"type": "category"}},
    }
