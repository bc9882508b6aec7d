"""The command line in processes; and the verbs `predict exponents` and `plan`."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support import warm
from support.command_line import assert_refused, orderone

from orderone import rules

ORDERONE = [sys.executable, "-m", "orderone"]


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Run a command in a process."""
    return subprocess.run(
        [*ORDERONE, *arguments], capture_output=True, text=True, timeout=120, **options
    )


def exponents(*arguments: str) -> dict:
    """Return the JSON of `orderone predict exponents`."""
    return json.loads(orderone("predict", "exponents", *arguments, "--json").out)


def test_predict_as_json_is_exact():
    words = ("--rule", "mup", "--optimizer", "adam", "--alignment", "full", "--json")
    data = json.loads(run("predict", "exponents", *words).stdout)
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
    folded = exponents("--gauge", "folded")
    assert folded["b"]["readout"] == "1"
    partial = exponents("--alignment", '{"alpha": 0.9}')
    assert partial["alignment"]["alpha"]["hidden"] == "9/10"
    heads = exponents("--heads", "larger")
    assert heads["rms"]["attention"]["Δs"] == "1/2"
    assert not heads["stable"]
    both = exponents("--constraint", "c_hidden >= 3/2", "--constraint", "c_readout >= 2")
    assert (both["c"]["hidden"], both["c"]["readout"]) == ("3/2", "2")
    unit = exponents("--gauge", "unit", "--constraint", "c_readout = 1/2")
    assert unit["c"]["readout"] == "1/2"
    more = exponents("--constraint", "c_readout = 3/4", "--tied", "--norm")
    assert more["c"]["readout"] == more["c"]["embedding"] == "3/4"


def test_version():
    assert run("--version").stdout.startswith("orderone 0.")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--rule", "mupp"), "unknown-name", ("rule", "sp, ", "'mup'?")),
        (("--optimizer", "adamax"), "unknown-name", ("optimizer", "'adamax'")),
        (("--alignment", "{"), None, ("alignment: ", "'{'")),
        (("--heads", "many"), "unknown-name", ("heads", "more, larger")),
        (("--score-power", "1"), "option-without-effect", ("--score-power '1'", "--heads")),
        (("--qk-norm",), "option-without-effect", ("--qk-norm", "--heads")),
    ],
)
def test_wrong_input_is_refused(arguments, code, words):
    assert_refused(orderone("predict", "exponents", *arguments), code, *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--depth", "0"), "depth: expected a whole number"),
        (("--depth", "x"), "invalid"),
        (("--ruel", "mup"), "--rule"),
    ],
)
def test_wrong_usage_is_explained_without_a_traceback(arguments, words):
    result = run("predict", "exponents", *arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not result.stdout


@pytest.mark.parametrize("name", rules.names())
def test_every_rule_is_predicted_with_the_alignment_of_its_authors(name):
    assert exponents("--rule", name)["c"] == {r: str(c) for r, c in rules.get(name).c.items()}


def test_contradicting_constraints_are_printed_with_exit_code_1():
    words = ("predict", "exponents", "--constraint", "c_readout = 0")
    ended = orderone(*words)
    assert (ended.status, ended.err) == (1, "")
    assert "c_readout = 0" in ended.out
    data = json.loads(orderone(*words, "--json").out)
    assert data["feasible"] is False
    assert any("c_readout = 0" in constraint for constraint in data["conflict"])


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("predict exponents --json", "{\n"),
        ("cite", "@software{orderone,\n"),
        ("--help", "Usage: orderone VERB [OPTIONS]\n"),
    ],
)
def test_a_reader_that_ends_first_causes_no_error_message(words, first):
    """`orderone ... | head -1` prints one line and no traceback."""
    result = subprocess.run(
        f"{' '.join(ORDERONE)} {words} | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout == first
    assert result.stderr == ""


def test_a_closed_pipe_has_its_own_exit_code():
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run([*ORDERONE, "cite"], stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert process.returncode == 141
    assert process.stderr == b""


def test_ctrl_c_ends_without_a_traceback(tmp_path, start):
    words = [
        *ORDERONE,
        "reproduce",
        "s0-table2",
        "--seeds",
        "4000",
        "--out",
        str(tmp_path),
    ]  # more work than can finish before the interrupt
    process = start(words)
    while not any(tmp_path.rglob("*.lock")):  # held while the experiment is measured
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 130
    last = errors.strip().splitlines()[-1]
    assert last.startswith("orderone: interrupted: 0 of ")
    assert str(tmp_path) in last
    assert last.endswith("run the same command again to continue")
    assert "Traceback" not in errors


def test_a_terminal_without_unicode_works():
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    result = run("predict", "exponents", env=plain)
    assert result.returncode == 0
    assert "STABLE" in result.stdout


UMLAUTS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.parts = nn.ModuleDict({"größe": nn.Linear(8, width), "grüße": nn.Linear(width, 3)})

    def forward(self, x):
        return self.parts["grüße"](self.parts["größe"](x).relu())

batch = (torch.ones(4, 8), torch.zeros(4, dtype=torch.int64))
"""


def test_names_without_ascii_in_a_terminal_without_unicode(tmp_path):
    (tmp_path / "umlauts.py").write_text(UMLAUTS, encoding="utf-8")
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    words = ("plan", "--builder", "umlauts:Net", "--size", "16", "--base", "8")
    words = (*words, "--data", "umlauts:batch")
    table = warm.orderone(*words, env=plain, cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    assert "gr\\xf6\\xdfe.weight" in table.stdout
    assert "gr\\xfc\\xdfe.weight" in table.stdout
    as_json = warm.orderone(*words, "--json", env=plain, cwd=tmp_path)
    assert "parts.größe.weight" in [row["name"] for row in json.loads(as_json.stdout)["rows"]]


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
    """Two of the 80 layers are enough for most tests."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 2}))
    return tmp_path / "config.json"


def test_a_plan_for_a_model_that_does_not_fit_in_memory(config):
    config.write_text(json.dumps(LLAMA))
    result = warm.orderone(
        "plan", "--hf-config", str(config), "--base", BASE, "--rule", "mup", "--lr", "3e-3"
    )
    assert result.returncode == 0, result.stderr
    head, _, rows = result.stdout.partition("tensor: why")
    words = "mup", "adamw", "256 -> 8192", "896 -> 28672", "queries per key x4", "723 tensors"
    for word in words:
        assert word in " ".join(head.split())
    row = rows.partition("mlp.down_proj")[2].partition("layernorm")[0]
    assert "hidden" in row
    assert "8192x28672" in row
    assert "9.375e-05" in row


def test_a_plan_with_rates_of_roles_and_patterns(config):
    rates = "default=3e-3,embedding=1e-2,*.q_proj.weight=1e-3"
    words = ("--base", BASE, "--lr", rates, "--init-scale", "embedding=0.5", "--no-probe", "--json")
    ended = orderone("plan", "--hf-config", config, *words)
    rows = {row["name"]: row for row in json.loads(ended.out)["rows"]}
    table = rows["model.embed_tokens.weight"]
    queries = rows["model.layers.1.self_attn.q_proj.weight"]
    outputs = rows["model.layers.1.self_attn.o_proj.weight"]
    assert (table["lr"], table["init_scale"]) == (1e-2, 0.5)
    assert queries["lr"] / outputs["lr"] == pytest.approx(1 / 3)


def test_a_plan_for_another_batch_and_more_tokens(tmp_path, monkeypatch):
    code = "from torch import nn\ndef net(width):\n    return nn.Linear(8, width)\n"
    (tmp_path / "batch_net.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    words = ("plan", "--builder", "batch_net:net", "--size", "16", "--base", "8", "--json")
    sizes = ("--batch", "64", "512", "--tokens", "2e8", "5e9")
    plain = json.loads(orderone(*words).out)["rows"][0]
    scaled = json.loads(orderone(*words, *sizes).out)["rows"][0]
    assert scaled["lr"] / plain["lr"] == pytest.approx(0.32**0.5)
    assert scaled["betas"] == pytest.approx([1 - 0.1 * 0.32, 1 - 0.001 * 0.32])
    options = ("--horizon", "none", "--decay", "timescale")
    unscaled = json.loads(orderone(*words, *sizes, *options).out)
    assert unscaled["rows"][0]["betas"] is None
    assert unscaled["rows"][0]["weight_decay"] == pytest.approx(0.01 * 0.32)
    assert unscaled["settings"]["axes"]["tokens"] == [2e8, 5e9]
    longer = json.loads(orderone(*words, *sizes[3:]).out)["rows"][0]
    assert longer["lr"] / plain["lr"] == pytest.approx(25**-0.5)
    refused = orderone(*words, *sizes[3:], "--critical-batch", "100")
    assert_refused(refused, "horizon-needs-batch", "batch")


def test_a_plan_as_json_and_as_a_file(config, tmp_path):
    saved = tmp_path / "plan.json"
    sizes = BASE.split(",")
    words = ("--hf-config", tmp_path, "--base", *sizes, "--no-probe", "--save", saved, "--json")
    ended = orderone("plan", *words)
    assert ended.status == 0, ended.err
    record = json.loads(ended.out)
    assert record == json.loads(saved.read_text())
    assert record["rows"][0]["role"] == "embedding"
    again = orderone("plan", "--hf-config", config, "--base", saved, "--no-probe", "--json")
    assert json.loads(again.out)["rows"] == record["rows"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--hf-config", "nowhere.json", "--base", BASE), "unusable-hf-config", ("nowhere.json",)),
        (("--hf-config", "CONFIG", "--lr", "3e-3"), "needs-base", ("--base absolute",)),
        (("--hf-config", "CONFIG", "--base", "256"), None, ("base: ", "'256'")),
        (
            ("--hf-config", "CONFIG", "--base", BASE, "--rule", "mupp"),
            "unknown-name",
            ("'mup'?",),
        ),
        (
            ("--hf-config", "CONFIG", "--base", BASE, "--override", "lm_head"),
            None,
            ("override: ", "'lm_head'"),
        ),
    ],
)
def test_wrong_input_of_a_plan_is_refused(config, arguments, code, words):
    arguments = [str(config) if word == "CONFIG" else word for word in arguments]
    assert_refused(orderone("plan", *arguments), code, *words)


def test_absolute_laws_are_asked_for(config):
    words = ("plan", "--hf-config", config, "--no-probe", "--json")
    absolute = json.loads(orderone(*words, "--base", "absolute").out)
    strategy = json.loads(orderone(*words, "--rule", "hybrid").out)
    for record in (absolute, strategy):
        assert not record["settings"]["relative"]
        assert record["rows"][0]["base_shape"] is None


def test_an_unknown_size_of_the_base_is_named(config):
    ended = orderone("plan", "--hf-config", config, "--base", "hidden_sise=256")
    assert ended.status == 2
    assert "'hidden_sise'" in ended.err


def test_a_missing_required_option_is_named():
    ended = orderone("plan", "--base", BASE)
    assert ended.status == 2
    assert "--hf-config" in ended.err


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"a": 1}', "model_type"),
        ("{", "not JSON"),
        ('{"model_type": "llama", "architectures": ["Lama"]}', "Lama"),
        ('{"model_type": "no-such-model"}', "no-such-model"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_refused(tmp_path, text, word):
    (tmp_path / "config.json").write_text(text)
    ended = orderone("plan", "--hf-config", tmp_path, "--base", BASE)
    assert_refused(ended, "unusable-hf-config", word)
