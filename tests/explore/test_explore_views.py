"""The numbers of the views equal the library's, and errors in a query name the value."""

import json
import math
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.explorer import QUERIES

from orderone import rules
from orderone.explore.query import LONGEST
from orderone.explore.views import VIEWS
from orderone.explore.worker import answer, plain
from orderone.theory import MeanField, critical_weight_var, depth_report, phase_diagram
from orderone.theory.exponents import rms, solve, stability


def ask(view, text) -> tuple[int, Any]:
    return answer(view, text)


def body_of(view, **changes):
    """Return the answer to the default query with some changes."""
    status, body = ask(view, urlencode(QUERIES[view] | changes))
    assert status == 200, body
    return body


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "leaky-relu(0.2)"])
def test_a_network_equals_mean_field_theory(activation):
    body, network = body_of("network", activation=activation), MeanField(activation, 1.4, 0.1, 0.9)
    for name in ("q_star", "c_star", "chi1", "chi2", "xi1", "xi2", "phase", "status"):
        assert body[name] == getattr(network, name)
    assert body["trainable_depth"] == network.trainable_depth()
    assert body["critical_weight_var"] == critical_weight_var(activation, 0.1, 0.9)


def test_paths_maps_and_cobwebs_equal_the_networks():
    body, network = body_of("network", q0=2, c0=-0.4), MeanField("tanh", 1.4, 0.1, 0.9)
    path = network.trajectory(2.0, -0.4, 30)
    assert body["lengths"]["path"] == pytest.approx(path.q, rel=1e-12)
    assert body["correlations"]["path"] == pytest.approx(path.c, rel=1e-12)
    for name, step in (("lengths", network.length_map), ("correlations", network.correlation_map)):
        assert body[name]["y"] == pytest.approx(step(body[name]["x"]))
        cobweb = body[name]["cobweb"]
        assert len(cobweb) == 17
        assert cobweb[1:] == pytest.approx(
            step(np.asarray(cobweb[:-1])), rel=1e-9
        )  # each step applies the map once


def test_signals_that_grow_without_bound_have_no_cobweb_at_their_length():
    body = body_of("network", activation="relu", weight_var=2.5)
    assert (body["q_star"], body["status"]) == (math.inf, "diverges")
    assert len(body["correlations"]["cobweb"]) == 0
    assert plain(body["q_star"]) == "Infinity"


def test_a_diagram_equals_the_librarys():
    body = body_of("diagram", keep=0.9)
    expected = phase_diagram("tanh", body["weight_var"], body["bias_var"], 0.9)
    assert np.array(body["depth"]) == pytest.approx(expected.trainable_depth.T, rel=1e-3)
    words = np.array(["ordered", "critical", "chaotic"])
    assert (words[np.asarray(body["phase"]) + 1] == expected.phase.T).all()
    line = body["critical"]
    on_line = MeanField("tanh", line["weight_var"][1:], line["bias_var"][1:], 0.9)
    assert on_line.chi1 == pytest.approx(np.ones(len(line["bias_var"]) - 1))


def test_depths_without_bound_are_numbers():
    body = body_of(
        "diagram", activation="linear", most_weight_var=2, points=10
    )  # chi_1 = 1 passes between two cells
    assert np.isfinite(body["depth"]).all()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adafactor", "muon"])
@pytest.mark.parametrize("name", rules.names())
def test_a_rule_equals_the_solvers(name, optimizer):
    body, p = body_of("rule", rule=name, optimizer=optimizer), rules.get(name, optimizer)
    assert [(row["role"], row["a"], row["b"], row["c"]) for row in body["roles"]] == [
        (role, str(p.a[role]), str(p.b[role]), str(p.c[role])) for role in p.roles
    ]
    assert body["stable"] == bool(stability(p, optimizer, "worst"))
    sizes = {
        f"{row['symbol']}{row['first'] + k}": e
        for row in body["sizes"]["initialization"]
        for k, e in enumerate(row["exponents"])
    }
    assert sizes == {name: float(e) for name, e in rms(p).items()}


def test_verdicts_of_stable_and_unstable_rules():
    assert not body_of("rule", rule="sp")["stable"]
    failed = [j["text"] for j in body_of("rule", rule="sp")["judged"] if not j["holds"]]
    assert len(failed) == 1
    assert failed[0].startswith("(18)/(24) readout: ")
    assert "n^(1/2)" in failed[0]
    assert body_of("rule", rule="sp", rates="worst")[
        "stable"
    ]  # smaller learning rates, for the alignment of training
    assert body_of("rule", rule="mup")["stable"]


def test_reasons_that_limit_a_learning_rate():
    body = body_of("rule", rule="mup", optimizer="sgd")
    solution = solve(rules.get("mup", "sgd"), "sgd", "full")
    assert [row["why"] for row in body["roles"]] == [
        solution.why(row["role"]) for row in body["roles"]
    ]
    assert {row["why"] for row in body_of("rule", rule="standard")["roles"]} == {
        "the rule sets this learning rate"
    }


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ({}, {}),
        ({"shaped": 1}, {"activation": "shaped-relu"}),
        ({"skips": "scaled"}, {"residual": True}),
        ({"skips": "factor", "factor": 0.5}, {"residual": 0.5}),
        (
            {"width": 40, "depth": 25, "activation": "sin", "shaped": 1, "a": 2},
            {"width": 40, "depth": 25, "activation": "shaped-smooth", "phi": "sin", "a": 2.0},
        ),
        (
            {"width": 40, "depth": 25, "activation": "tanh"},
            {"width": 40, "depth": 25, "activation": "tanh"},
        ),
        ({"width": 40, "depth": 10}, {"width": 40, "depth": 10}),
    ],
)
def test_a_depth_report_equals_the_librarys(query, options):
    body, report = (
        body_of("depth", **query),
        depth_report(**({"width": 512, "depth": 64} | options)),
    )
    for name in ("regime", "ratio", "growth", "norm_spread", "reasons", "remedies", "caveat"):
        assert body[name] == getattr(report, name)
    assert list(body["correlation"].values()) == list(report.correlation.values())


@pytest.mark.parametrize(
    "query",
    [{}, {"shaped": 1}, {"skips": "scaled"}, {"width": 40, "depth": 10, "activation": "tanh"}],
)
def test_densities_match_the_report(query):
    body = body_of("depth", **query)
    for name in ("norms", "correlations"):
        x, y = np.asarray(body[name]["x"]), np.asarray(body[name]["y"])
        assert y.sum() * (x[1] - x[0]) == pytest.approx(1, abs=0.01)
    low, middle, high = body["correlations"]["quantiles"]
    if body["correlations"]["scale"] == "ρ":
        assert [low, middle, high] == pytest.approx(list(body["correlation"].values()))
    else:
        assert [1 - 10**high, 1 - 10**middle, 1 - 10**low] == pytest.approx(
            list(body["correlation"].values()), abs=1e-4
        )
    x, y = np.asarray(body["norms"]["x"]), np.asarray(body["norms"]["y"])
    spread = np.sqrt(np.average((x - np.average(x, weights=y)) ** 2, weights=y))
    assert spread == pytest.approx(body["norm_spread"], rel=0.03)


def test_equal_inputs_have_a_density():
    body = body_of("depth", rho0=1)
    assert body["correlation"]["median"] == 1
    assert np.isfinite(body["correlations"]["y"]).all()


# --- wrong queries --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "change", "message"),
    [
        ("network", {"weight_var": "-1"}, "weight_var: "),
        ("network", {"weight_var": "nan"}, "weight_var: "),
        ("network", {"bias_var": "1e999"}, "bias_var: "),
        ("network", {"bias_var": "abc"}, "bias_var: expected a number, got 'abc'"),
        ("network", {"keep": "0"}, "keep: "),
        ("network", {"c0": "1.5"}, "c0: "),
        ("network", {"q0": ""}, "q0: expected a number, got ''"),
        ("network", {"activation": "tanhh"}, "unknown activation: "),
        ("network", {"activation": "elu(x)"}, "activation: "),
        ("network", {"more": "1"}, "more: "),
        ("diagram", {"points": "1000"}, "points: "),
        ("diagram", {"most_bias_var": "0"}, "most_bias_var: "),
        ("rule", {"rule": "mupp"}, "unknown rule: "),
        ("rule", {"optimizer": ""}, "unknown optimizer: "),
        ("rule", {"alignment": "some"}, "unknown alignment: "),
        ("rule", {"gauge": "my"}, "unknown gauge: "),
        ("rule", {"layers": "1e1"}, "layers: expected a whole number"),
        ("rule", {"norm": "yes"}, "unknown norm: expected one of 0, 1"),
        ("depth", {"width": "0"}, "width: "),
        ("depth", {"depth": "9" * 30}, "depth: "),
        ("depth", {"skips": "factor", "factor": "-1"}, "residual: "),
        ("depth", {"shaped": "1", "activation": "gelu"}, "unknown activation to shape: "),
        ("depth", {"shaped": "1", "activation": "tanh", "a": "0"}, "a: "),
        ("depth", {"activation": "tanh", "depth": "3000"}, "depth: "),
        ("depth", {"rho0": "2"}, "rho0: "),
    ],
)
def test_the_message_names_the_wrong_value(view, change, message):
    status, body = ask(view, urlencode(QUERIES[view] | change))
    assert status == 400
    assert body["error"].startswith(message)


@pytest.mark.parametrize("view", QUERIES)
def test_the_message_names_the_missing_value(view):
    for name in QUERIES[view]:
        query = {key: value for key, value in QUERIES[view].items() if key != name}
        status, body = ask(view, urlencode(query))
        assert status == 400
        assert body["error"].startswith(f"{name}: expected a value, got none")


def test_repeated_and_very_long_values_are_refused():
    query = urlencode(QUERIES["network"])
    assert ask("network", query + "&keep=1")[1]["error"].startswith("keep: expected one value")
    status, body = ask("network", query.replace("tanh", "t" * (LONGEST + 1)))
    assert status == 400
    assert body["error"].startswith("activation: ")
    assert body["error"].endswith("120 characters, got 121")
    assert answer("network", "&".join(f"x{k}=1" for k in range(50)))[0] == 400


NUMBERS = st.one_of(
    st.floats(width=16).map(str),  # half precision: sizes that are computed at once
    st.sampled_from(
        [
            "nan",
            "inf",
            "-inf",
            "-0",
            "1e999",
            "",
            " ",
            "1e-320",
            "0x1",
            "1,5",
            "½",
            "1_0",
            "true",
            "[]",
        ]
    ),
    st.text(max_size=12),
)
WORDS = st.one_of(
    st.sampled_from(["tanh", "relu", "linear", "mup", "adam", "full", "paper", "none", "0", "1"]),
    st.text(max_size=12),
    NUMBERS,
)


@pytest.mark.parametrize("view", [*QUERIES, "choices"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_bad_queries_get_an_answer_or_a_message(view, data):
    """A query never raises an exception, and every answer can be written as JSON."""
    usual = QUERIES.get(view, {})
    wrong = data.draw(
        st.dictionaries(st.sampled_from([*usual, "more"]), WORDS, min_size=1, max_size=3)
    )
    if view == "depth" and data.draw(st.booleans()):
        wrong |= {"depth": "5", "width": "8"}
    status, body = answer(view, urlencode(usual | wrong, errors="replace"))
    assert status in (200, 400)
    assert status == 200 or body["error"]
    json.dumps(plain(body), allow_nan=False)


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=80))
def test_any_text_as_a_query(text):
    for view in VIEWS:
        assert answer(view, text)[0] in (200, 400)


def test_a_bug_of_the_library_is_reported_as_status_500(monkeypatch):
    monkeypatch.setattr("orderone.explore.views.VIEWS", {"network": lambda query: 1 / 0})
    assert answer("network", "") == (500, {"error": "ZeroDivisionError: division by zero"})


# --- a model with infinitely many channels --------------------------------------------------------


def test_a_model_has_the_scales_of_mean_field_theory():
    body = body_of("model")
    row = body["scales"][0]
    network = MeanField("tanh", row["weight_var"], row["bias_var"])
    for name in ("phase", "chi1", "xi1", "xi2"):
        assert row[name] == getattr(network, name)
    assert row["suggested_weight_var"] == critical_weight_var("tanh", row["bias_var"])
    depths = [each["trainable_depth"] for each in body["scales"]]
    assert body["trainable_depth"] == min(depths)
    assert np.shape(body["nngp"]) == np.shape(body["ntk"]) == (4, 4)
    assert body["path"][0]["correlation"] == pytest.approx(0.5, abs=0.25)
    assert len(body["path"]) == len(body["layers"]) + 1


def test_a_model_of_the_user(tmp_path, monkeypatch):
    (tmp_path / "my_code_for_explore.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def build():\n    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))\n"
        "def pair():\n    return nn.Conv1d(2, 4, 3), torch.ones(1, 2, 9)\n"
        "def odd():\n    return nn.Sequential(nn.Linear(5, 8), nn.Softmax(-1))\n"
        "def broken():\n    raise RuntimeError('no model today')\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    scales = body_of("model", architecture="my_code_for_explore:build")["scales"]
    assert [row["activation"] for row in scales] == ["relu"]
    assert body_of("model", architecture="my_code_for_explore:pair")["scales"] == []
    words = {"odd": "softmax", "broken": "no model today", "number": "int", "missing": "missing"}
    for name, word in words.items():
        changes = {"architecture": f"my_code_for_explore:{name}"}
        status, body = ask("model", urlencode(QUERIES["model"] | changes))
        assert status == 400
        assert word in body["error"]
