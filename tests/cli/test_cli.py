"""The command line as a user meets it: in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support.warm import orderone

from orderone import rules

ORDERONE = [sys.executable, "-m", "orderone"]


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*ORDERONE, *arguments], capture_output=True, text=True, timeout=120, **options
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("predict", "--help"),
        ("predict", "exponents", "--help"),
        ("reproduce", "--help"),
    ],
)
def test_help(arguments):
    result = run(*arguments)
    assert result.returncode == 0
    assert "usage: orderone" in result.stdout


def test_predict_as_json_is_exact():
    result = run(
        "predict",
        "exponents",
        "--rule",
        "mup",
        "--optimizer",
        "adam",
        "--alignment",
        "full",
        "--json",
    )
    data = json.loads(result.stdout)
    assert data["c"] == {"embedding": "1/2", "hidden": "1", "readout": "1/2", "vector": "0"}
    assert data["stable"] is True
    assert data["rms"]["initialization"]["W'1"] == "-1"
    assert data["rms"]["training"]["Δh5"] == "0"


def test_predict_as_a_table():
    result = run("predict", "exponents", "--rule", "sp", "--rates", "full", "--alignment", "worst")
    assert result.returncode == 0
    assert "UNSTABLE" in result.stdout
    assert "n^(1/2)" in result.stdout


def test_predict_options():
    folded = json.loads(run("predict", "exponents", "--gauge", "folded", "--json").stdout)
    assert folded["b"]["readout"] == "1"
    given = json.loads(
        run("predict", "exponents", "--alignment", '{"alpha": 0.9}', "--json").stdout
    )
    assert given["alignment"]["alpha"]["hidden"] == "9/10"
    heads = json.loads(run("predict", "exponents", "--heads", "larger", "--json").stdout)
    assert heads["rms"]["attention"]["Δs"] == "1/2"
    assert not heads["stable"]
    both = json.loads(
        run(
            "predict",
            "exponents",
            "--constraint",
            "c_hidden >= 3/2",
            "--constraint",
            "c_readout >= 2",
            "--json",
        ).stdout
    )
    assert (both["c"]["hidden"], both["c"]["readout"]) == ("3/2", "2")
    unit = json.loads(
        run(
            "predict", "exponents", "--gauge", "unit", "--constraint", "c_readout = 1/2", "--json"
        ).stdout
    )
    assert unit["c"]["readout"] == "1/2"
    assert run("--version").stdout.startswith("orderone 0.")
    more = json.loads(
        run(
            "predict", "exponents", "--constraint", "c_readout = 3/4", "--tied", "--norm", "--json"
        ).stdout
    )
    assert more["c"]["readout"] == more["c"]["embedding"] == "3/4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rule", "mupp"), "unknown rule: expected one of sp"),
        (("--optimizer", "adamax"), "unknown optimizer"),
        (("--alignment", "{"), "expected a name or JSON"),
        (("--heads", "many"), "unknown heads: expected one of more, larger"),
        (
            ("--score-power", "1"),
            "score_power: a network without --heads has no use for --score-power, got '1'",
        ),
        (("--qk-norm",), "a network without --heads has no use for --qk-norm"),
        (("--depth", "0"), "number of hidden layers"),
        (("--depth", "x"), "invalid"),
        (("--ruel", "mup"), "--rule"),
    ],
)
def test_wrong_input_is_explained_without_a_traceback(arguments, message):
    result = run("predict", "exponents", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not result.stdout


@pytest.mark.parametrize("name", rules.names())
def test_every_rule_is_predicted_as_its_authors_mean_it(name):
    data = json.loads(run("predict", "exponents", "--rule", name, "--json").stdout)
    assert data["c"] == {role: str(c) for role, c in rules.get(name).c.items()}


def test_no_answer_is_an_answer():
    result = run("predict", "exponents", "--constraint", "c_readout = 0")
    assert (result.returncode, result.stderr) == (1, "")
    assert "cannot hold together" in result.stdout
    data = json.loads(run("predict", "exponents", "--constraint", "c_readout = 0", "--json").stdout)
    assert data["feasible"] is False
    assert any("c_readout = 0" in k for k in data["conflict"])


def test_a_reader_that_leaves_is_no_error_to_see():
    result = subprocess.run(
        f"{' '.join(ORDERONE)} predict exponents --json | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout == "{\n"
    assert result.stderr == ""


def test_interrupt_ends_quietly(tmp_path, start):
    words = [
        *ORDERONE,
        "reproduce",
        "s0-table2",
        "--seeds",
        "4000",
        "--out",
        str(tmp_path),
    ]  # long enough to be interrupted
    process = start(words)
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().endswith("orderone: interrupted")
    assert "Traceback" not in errors


def test_a_terminal_without_unicode_still_gets_its_answer():
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    result = run("predict", "exponents", env=plain)
    assert result.returncode == 0
    assert "STABLE" in result.stdout


# --- orderone plan --------------------------------------------------------------------------------

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}
BASE = "hidden_size=256,intermediate_size=896,num_attention_heads=2,num_key_value_heads=1"


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path / "config.json"


def test_a_plan_for_a_model_that_fits_no_machine(config):
    result = orderone(
        "plan", "--hf-config", str(config), "--base", BASE, "--rule", "mup", "--lr", "3e-3"
    )
    assert result.returncode == 0, result.stderr
    first, *lines = result.stdout.splitlines()
    assert first == "mup for adamw: width x32 (256 -> 8192, 896 -> 28672); 723 tensors in 4 groups"
    [line] = [line for line in lines if "mlp.down_proj" in line]
    assert line.split()[:4] == [
        "model.layers.{0..79}.mlp.down_proj.weight",
        "hidden",
        "8192x28672",
        "in",
    ]
    assert "9.375e-05" in line
    assert "exponents at initialization as expected" in lines[-1]


def test_a_plan_as_json_and_as_a_file(config, tmp_path):
    saved = tmp_path / "plan.json"
    words = (
        "plan",
        "--hf-config",
        str(tmp_path),
        "--base",
        *BASE.split(","),
        "--no-probe",
        "--save",
        str(saved),
        "--json",
    )
    result = orderone(*words)
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert record == json.loads(saved.read_text())
    assert record["rows"][0]["role"] == "embedding"
    again = orderone(
        "plan", "--hf-config", str(config), "--base", str(saved), "--no-probe", "--json"
    )
    assert json.loads(again.stdout)["rows"] == record["rows"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--hf-config", "nowhere.json", "--base", BASE), "there is no file nowhere.json"),
        (("--base", BASE), "--hf-config"),
        (("--hf-config", "CONFIG", "--base", "hidden_sise=256"), "has no 'hidden_sise'"),
        (("--hf-config", "CONFIG", "--base", "256"), "expected overrides such as hidden_size=256"),
        (("--hf-config", "CONFIG", "--base", BASE, "--rule", "mupp"), "did you mean 'mup'"),
        (("--hf-config", "CONFIG", "--base", BASE, "--override", "lm_head"), "expected name=value"),
    ],
)
def test_wrong_input_of_a_plan_is_explained(config, arguments, message):
    result = orderone("plan", *(str(config) if word == "CONFIG" else word for word in arguments))
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_is_no_configuration(tmp_path):
    (tmp_path / "config.json").write_text('{"a": 1}')
    result = orderone("plan", "--hf-config", str(tmp_path), "--base", BASE)
    assert result.returncode == 2
    assert "has no model_type" in result.stderr
