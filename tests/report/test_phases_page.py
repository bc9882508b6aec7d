"""A phase diagram as a page: the figures contain the computed numbers."""

import base64
import json
import re

import numpy as np
import pytest

from orderone.report.phases import write_phases
from orderone.theory import critical_weight_var, phase_diagram


@pytest.fixture
def figures(tmp_path):
    def drawn(*arguments, **options):
        page = write_phases(
            phase_diagram(*arguments, **options), tmp_path / "page.html"
        ).read_text()
        script = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
        assert script
        return json.loads(script[1])

    return drawn


def numbers(written):
    """Return an array, which plotly writes as a list or as base64."""
    return (
        np.frombuffer(base64.b64decode(written["bdata"]), written["dtype"])
        if isinstance(written, dict)
        else np.array(written)
    )


def test_phases_line_and_contours(figures):
    phases, correlation = figures("tanh", np.linspace(0.5, 4, 20), np.linspace(0.01, 0.3, 10))
    kinds = [trace["type"] for trace in phases["data"]]
    assert kinds[0] == "heatmap"
    assert kinds.count("contour") >= 4
    line = phases["data"][-1]
    assert line["name"] == "chi_1 = 1"
    x, y = (numbers(line[axis]) for axis in "xy")
    assert x == pytest.approx(critical_weight_var("tanh", y), rel=1e-5)  # pages have six digits
    assert correlation["data"][0]["type"] == "heatmap"


def test_a_diagram_without_a_critical_line(figures):
    phases, _ = figures("softplus", [0.5, 1.0, 3.0], [0.1, 0.2])
    assert all(trace["type"] != "scatter" for trace in phases["data"])


def test_a_single_row(figures):
    phases, _ = figures("tanh", [1.0, 2.0], [0.1])
    assert all(trace["type"] != "contour" for trace in phases["data"])
