"""Rules: names, derived rates, custom ones, and input that is refused."""

import copy
import pickle
from fractions import Fraction as F

import numpy as np
import pytest
from support.errors import refuses

from orderone import rules
from orderone.theory.exponents import equivalent, max_lr


def test_names_and_lookup():
    assert rules.names() == (
        "sp",
        "ntk",
        "mup",
        "mf",
        "standard",
        "neural-tangent",
        "hybrid",
        "maximal-update",
    )
    assert rules.get("muP").name == "mup"
    with refuses("unknown-name", argument="rule") as caught:
        rules.get("mupp")
    assert "'mup'?" in str(caught.value)


def test_table_1():
    p = rules.get("mup")
    assert [p.a[r] for r in ("embedding", "hidden", "readout", "vector")] == [
        F(-1, 2),
        0,
        F(1, 2),
        0,
    ]
    assert [p.b[r] for r in ("embedding", "hidden", "readout", "vector")] == [
        F(1, 2),
        F(1, 2),
        F(1, 2),
        0,
    ]
    assert [p.c[r] for r in ("embedding", "hidden", "readout", "vector")] == [
        F(1, 2),
        1,
        F(1, 2),
        0,
    ]


def test_rates_are_derived_for_the_optimizer_and_alignment_at_hand():
    assert rules.get("mup", optimizer="sgd").c["hidden"] == 0
    assert rules.get("mup", alignment="no").c["hidden"] == F(1, 2)
    assert rules.get("neural-tangent").c["hidden"] == F(3, 2)
    assert rules.get("neural-tangent", alignment="full").c["hidden"] == 1


def test_vectors_learn_like_embeddings():
    """A bias is a column of an embedding that is always read; muP's SGD rate for it grows with
    width."""
    assert rules.get("mup", "adam").c["vector"] == 0
    assert rules.get("mup", "sgd").c["vector"] == -1
    assert rules.get("sp", "sgd").c["vector"] == F(-1, 2)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1/2", F(1, 2)),
        ("0.1", F(1, 10)),
        (0.5, F(1, 2)),
        (np.float64(0.25), F(1, 4)),
        (np.float32(0.5), F(1, 2)),
        (np.int64(1), 1),
        (np.int8(100), 100),
        (np.uint64(1), 1),
    ],
)
def test_exponents_are_exact(value, expected):
    p = rules.custom(
        "mine", a={"embedding": 0, "hidden": value, "readout": 0}, b=(0, 0, 0), c=(0, 0, 0)
    )
    assert p.a["hidden"] == expected
    assert type(p.a["hidden"]) is F
    assert type(p.a["hidden"].numerator) is int  # numpy's would overflow


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"a": {"embedding": 0.1, "hidden": 0, "readout": 0}},
            r"a\[embedding\]: .*0\.1.* Fraction\('0.1'\) or '1/10'",
        ),
        (
            {"a": {"embedding": float("nan"), "hidden": 0, "readout": 0}},
            r"a\[embedding\]: .*exact number",
        ),
        (
            {"a": {"embedding": "half", "hidden": 0, "readout": 0}},
            r"a\[embedding\]: .*exact number",
        ),
        ({"a": {"embedding": True, "hidden": 0, "readout": 0}}, r"a\[embedding\]: .*exact number"),
        ({"a": {"embedding": "1/0", "hidden": 0, "readout": 0}}, r"a\[embedding\]: .*exact number"),
        ({"b": {"embedding": 0, "hidden": 0}}, "b: .*readout"),
        (
            {"c": {"embedding": 0, "hidden": 0, "readout": 0, "head": 0}},
            "role in c: .*'head'",
        ),
        ({"b": (0, 0)}, "b: expected 3 or 4"),
    ],
)
def test_wrong_exponents_are_refused(changed, message):
    good = {"a": (0, 0, 0), "b": (0, "1/2", "1/2"), "c": (0, 1, 1)}
    rules.custom("good", **good)
    with pytest.raises(ValueError, match=message):
        rules.custom("bad", **(good | changed))


def test_a_rule_is_an_immutable_value():
    p = rules.get("mup")
    assert copy.deepcopy(p) == p == pickle.loads(pickle.dumps(p))
    assert hash(p) == hash(rules.get("mup"))
    assert isinstance(p.a, dict)
    with pytest.raises(TypeError, match="read-only"):
        p.c["hidden"] = F(0)


def test_a_rule_with_explicit_rates_has_the_roles_that_they_name():
    sgd = rules.get("ntk", "sgd")
    mine = rules.custom("mine", a=sgd.a, b=sgd.b, c=max_lr(sgd, "sgd"))
    assert mine.roles == ("embedding", "hidden", "readout")
    assert equivalent(sgd, mine, optimizer="sgd")
    assert rules.custom("derived", a=(0, 0, 0), b=(0, "1/2", "1/2")).c["vector"] == 0


def test_unknown_names_are_refused():
    for name in (None, 3, "muup"):
        with refuses("unknown-name", argument="rule"):
            rules.get(name)  # pyright: ignore[reportArgumentType]
