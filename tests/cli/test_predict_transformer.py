"""`orderone predict transformer` and `orderone predict strategies`."""

import json

import pytest

from orderone import theory
from orderone.cli.main import main


def said(capsys, *arguments: str) -> str:
    main(["predict", *arguments])
    return capsys.readouterr().out


def test_two_tokens_are_those_of_the_theory(capsys):
    options = ("--width", "64", "--heads", "4", "--depth", "2", "--tokens", "2", "--json")
    record = json.loads(said(capsys, "transformer", *options))
    assert record["places"] == ["stem", "1 A", "2 M", "3 A", "4 M", "output"]
    assert record["ntk"][-1] == pytest.approx({"same": 5.712881, "other": 4.370006}, abs=1e-5)
    assert sum(record["shares"][-1].values()) == pytest.approx(1)
    assert record["head_std"][0]["same"] == 0 < record["head_std"][1]["same"]


def test_a_table_and_a_page(capsys, tmp_path):
    page = tmp_path / "transformer.html"
    options = ("--depth", "1", "--tokens", "6", "--constants", "Q=2,PE=0.1", "--html", str(page))
    out = said(capsys, "transformer", *options)
    assert "share in the output's NTK" in out
    assert "standard error" in out
    text = page.read_text()
    assert "Share of each group" in text
    assert "Tangent kernel" in text


def test_standard_rates_neglect_positions(capsys):
    small = ("--depth", "1", "--tokens", "2", "--json")
    standard = json.loads(said(capsys, "transformer", *small, "--strategy", "standard"))["shares"][
        -1
    ]
    tangent = json.loads(said(capsys, "transformer", *small))["shares"][-1]
    assert standard["PE"] < 1e-3 < 0.05 < tangent["PE"]


def test_strategies_are_the_tables_of_the_paper(capsys):
    record = json.loads(said(capsys, "strategies", "--n", "768", "--json"))["strategies"]
    assert list(record) == ["standard", "neural-tangent", "hybrid", "maximal-update"]
    hybrid = record["hybrid"]
    assert hybrid["lr"]["QKVU"] == pytest.approx(0.0002473423455897111, rel=1e-12)
    assert hybrid["lr"]["W"] == pytest.approx(0.00012367117279485555, rel=1e-12)
    assert (
        hybrid["std"]["head"]
        == hybrid["std"]["tied head (rescale)"]
        == pytest.approx(0.006854552150794231)
    )
    assert set(record["standard"]["lr"].values()) == {1.0}
    published = json.loads(said(capsys, "strategies", "--mlp", "1", "--json"))["strategies"][
        "neural-tangent"
    ]["lr"]
    assert (
        published["W"]
        == published["X"]
        == published["QKVU"]
        == pytest.approx(4.698488518795783e-05, rel=1e-12)
    )
    out = said(capsys, "strategies", "--n", "1024", "--optimizer", "sgd")
    assert "neural-tangent (sgd, n = 1024)" in out
    assert f"{theory.lr_factors('hybrid', 'sgd', n=1024)['PE']:.4g}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("transformer", "--width", "100", "--heads", "12"),
            "heads: expected a divisor of the width 100",
        ),
        (
            ("transformer", "--tokens", "129", "--causal"),
            "--tokens: expected at most 128 with --causal",
        ),
        (("transformer", "--tokens", "3", "--correlation", "-0.9"), "--correlation: expected"),
        (("transformer", "--constants", "Q"), "--constants: expected group=number"),
        (("transformer", "--constants", "Y=1", "--tokens", "2"), "C: expected the groups"),
        (("transformer", "--strategy", "mup", "--tokens", "2"), "unknown strategy"),
        (
            ("transformer", "--blocks", "AM", "--depth", "3"),
            "--blocks has no use for --depth, got 3; leave it out",
        ),
        (("strategies", "--n", "0"), "n: expected a whole number"),
        (("strategies", "--optimizer", "muon"), "unknown optimizer"),
    ],
)
def test_wrong_input_ends_with_two(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["predict", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_said_before_the_work(monkeypatch):
    import orderone.theory.transformer as transformers
    from orderone.cli.predict.transformer import transformer

    monkeypatch.setattr(transformers, "Transformer", lambda *_: pytest.fail("worked first"))
    with pytest.raises(ValueError, match="html: cannot write"):
        transformer(html="/no/such/folder/page.html")
