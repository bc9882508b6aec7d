"""What the page is told is what the library says, and what is wrong with a query is said by it
too."""

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


def tell(view, **changes):
    status, body = ask(view, urlencode(QUERIES[view] | changes))
    assert status == 200, body
    return body


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu", "leaky-relu(0.2)"])
def test_a_network_is_that_of_mean_field_theory(activation):
    told, network = tell("network", activation=activation), MeanField(activation, 1.4, 0.1, 0.9)
    for name in ("q_star", "c_star", "chi1", "chi2", "xi1", "xi2", "phase", "status"):
        assert told[name] == getattr(network, name)
    assert told["trainable_depth"] == network.trainable_depth()
    assert told["critical_weight_var"] == critical_weight_var(activation, 0.1, 0.9)


def test_paths_maps_and_cobwebs_are_those_of_the_network():
    told, network = tell("network", q0=2, c0=-0.4), MeanField("tanh", 1.4, 0.1, 0.9)
    path = network.trajectory(2.0, -0.4, 30)
    assert told["lengths"]["path"] == pytest.approx(path.q, rel=1e-12)
    assert told["correlations"]["path"] == pytest.approx(path.c, rel=1e-12)
    for name, step in (("lengths", network.length_map), ("correlations", network.correlation_map)):
        assert told[name]["y"] == pytest.approx(step(told[name]["x"]))
        cobweb = told[name]["cobweb"]
        assert len(cobweb) == 17
        assert cobweb[1:] == pytest.approx(
            step(np.asarray(cobweb[:-1])), rel=1e-9
        )  # each step is one of the map


def test_signals_that_grow_for_ever_have_no_cobweb_at_their_length():
    told = tell("network", activation="relu", weight_var=2.5)
    assert (told["q_star"], told["status"]) == (math.inf, "diverges")
    assert len(told["correlations"]["cobweb"]) == 0
    assert plain(told["q_star"]) == "Infinity"


def test_a_diagram_is_that_of_the_library():
    told = tell("diagram", keep=0.9)
    found = phase_diagram("tanh", told["weight_var"], told["bias_var"], 0.9)
    assert np.array(told["depth"]) == pytest.approx(found.trainable_depth.T, rel=1e-3)
    words = np.array(["ordered", "critical", "chaotic"])
    assert (words[np.asarray(told["phase"]) + 1] == found.phase.T).all()
    line = told["critical"]
    on_line = MeanField("tanh", line["weight_var"][1:], line["bias_var"][1:], 0.9)
    assert on_line.chi1 == pytest.approx(np.ones(len(line["bias_var"]) - 1))


def test_depths_without_bound_are_numbers():
    told = tell(
        "diagram", activation="linear", most_weight_var=2, points=10
    )  # chi_1 = 1 passes between two cells
    assert np.isfinite(told["depth"]).all()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adafactor", "muon"])
@pytest.mark.parametrize("name", rules.names())
def test_a_rule_is_that_of_the_solver(name, optimizer):
    told, p = tell("rule", rule=name, optimizer=optimizer), rules.get(name, optimizer)
    assert [(row["role"], row["a"], row["b"], row["c"]) for row in told["roles"]] == [
        (role, str(p.a[role]), str(p.b[role]), str(p.c[role])) for role in p.roles
    ]
    assert told["stable"] == bool(stability(p, optimizer, "worst"))
    sizes = {
        f"{row['symbol']}{row['first'] + k}": e
        for row in told["sizes"]["initialization"]
        for k, e in enumerate(row["exponents"])
    }
    assert sizes == {name: float(e) for name, e in rms(p).items()}


def test_the_verdict_can_say_both():
    assert not tell("rule", rule="sp")["stable"]
    failed = [j["text"] for j in tell("rule", rule="sp")["judged"] if not j["holds"]]
    assert failed == [
        "(18)/(24) readout: W Δh into the logits, a + b + r >= omega: grows like n^(1/2)"
    ]
    assert tell("rule", rule="sp", rates="worst")["stable"]  # smaller rates, for what training does
    assert tell("rule", rule="mup")["stable"]


def test_why_a_rate_is_no_larger():
    told = tell("rule", rule="mup", optimizer="sgd")
    solution = solve(rules.get("mup", "sgd"), "sgd", "full")
    assert [row["why"] for row in told["roles"]] == [
        solution.why(row["role"]) for row in told["roles"]
    ]
    assert {row["why"] for row in tell("rule", rule="standard")["roles"]} == {"given by the rule"}


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
def test_a_depth_report_is_that_of_the_library(query, options):
    told, report = tell("depth", **query), depth_report(**({"width": 512, "depth": 64} | options))
    for name in ("regime", "ratio", "growth", "norm_spread", "reasons", "remedies", "caveat"):
        assert told[name] == getattr(report, name)
    assert list(told["correlation"].values()) == list(report.correlation.values())


@pytest.mark.parametrize(
    "query",
    [{}, {"shaped": 1}, {"skips": "scaled"}, {"width": 40, "depth": 10, "activation": "tanh"}],
)
def test_densities_are_those_of_the_report(query):
    told = tell("depth", **query)
    for name in ("norms", "correlations"):
        x, y = np.asarray(told[name]["x"]), np.asarray(told[name]["y"])
        assert y.sum() * (x[1] - x[0]) == pytest.approx(1, abs=0.01)
    low, middle, high = told["correlations"]["quantiles"]
    if told["correlations"]["scale"] == "ρ":
        assert [low, middle, high] == pytest.approx(list(told["correlation"].values()))
    else:
        assert [1 - 10**high, 1 - 10**middle, 1 - 10**low] == pytest.approx(
            list(told["correlation"].values()), abs=1e-4
        )
    x, y = np.asarray(told["norms"]["x"]), np.asarray(told["norms"]["y"])
    spread = np.sqrt(np.average((x - np.average(x, weights=y)) ** 2, weights=y))
    assert spread == pytest.approx(told["norm_spread"], rel=0.03)


def test_inputs_that_are_one_have_a_density():
    told = tell("depth", rho0=1)
    assert told["correlation"]["median"] == 1
    assert np.isfinite(told["correlations"]["y"]).all()


# --- wrong questions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "change", "message"),
    [
        ("network", {"weight_var": "-1"}, "weight_var: expected 0 or more"),
        ("network", {"weight_var": "nan"}, "weight_var: expected 0 or more, and finite; got nan"),
        ("network", {"bias_var": "1e999"}, "bias_var: expected 0 or more, and finite; got inf"),
        ("network", {"bias_var": "abc"}, "bias_var: expected a number, got 'abc'"),
        ("network", {"keep": "0"}, "keep: expected in (0, 1]"),
        ("network", {"c0": "1.5"}, "c0: expected between -1 and 1"),
        ("network", {"q0": ""}, "q0: expected a number, got ''"),
        ("network", {"activation": "tanhh"}, "unknown activation: "),
        ("network", {"activation": "elu(x)"}, "activation: expected numbers in brackets"),
        ("network", {"more": "1"}, "more: expected nothing of this name"),
        ("diagram", {"points": "1000"}, "points: expected at most"),
        ("diagram", {"most_bias_var": "0"}, "most_bias_var: expected a finite number above 0"),
        ("rule", {"rule": "mupp"}, "unknown rule: "),
        ("rule", {"optimizer": ""}, "unknown optimizer: "),
        ("rule", {"alignment": "some"}, "unknown alignment: "),
        ("rule", {"gauge": "my"}, "unknown gauge: "),
        ("rule", {"layers": "1e1"}, "layers: expected a whole number"),
        ("rule", {"norm": "yes"}, "unknown norm: expected one of 0, 1"),
        ("depth", {"width": "0"}, "width: expected a whole number, 1 or more"),
        ("depth", {"depth": "9" * 30}, "depth: expected at most"),
        ("depth", {"skips": "factor", "factor": "-1"}, "residual: expected a finite number"),
        ("depth", {"shaped": "1", "activation": "gelu"}, "unknown activation to shape: "),
        (
            "depth",
            {"shaped": "1", "activation": "tanh", "a": "0"},
            "a: expected a number of a size",
        ),
        (
            "depth",
            {"activation": "tanh", "depth": "3000"},
            "depth: expected at most 2000 layers of tanh",
        ),
        ("depth", {"rho0": "2"}, "rho0: expected a finite number of at least -1"),
    ],
)
def test_a_wrong_value_is_named(view, change, message):
    status, body = ask(view, urlencode(QUERIES[view] | change))
    assert status == 400
    assert body["error"].startswith(message)


@pytest.mark.parametrize("view", QUERIES)
def test_what_is_missing_is_named(view):
    for name in QUERIES[view]:
        query = {key: value for key, value in QUERIES[view].items() if key != name}
        assert answer(view, urlencode(query)) == (
            400,
            {"error": f"{name}: expected a value, got none; add {name}=... to the query"},
        )


def test_a_value_twice_and_one_without_end():
    query = urlencode(QUERIES["network"])
    assert (
        answer("network", query + "&keep=1")[1]["error"]
        == "keep: expected one value, got several; give one"
    )
    status, body = ask("network", query.replace("tanh", "t" * (LONGEST + 1)))
    assert (status, body["error"].partition(";")[0]) == (
        400,
        "activation: expected at most 120 characters, got 121",
    )
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
    """Never an exception, and never something that JSON cannot hold."""
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


def test_a_fault_of_ours_is_no_traceback(monkeypatch):
    monkeypatch.setattr("orderone.explore.views.VIEWS", {"network": lambda query: 1 / 0})
    assert answer("network", "") == (500, {"error": "ZeroDivisionError: division by zero"})
