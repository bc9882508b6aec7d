"""The measured start: activations, attention scores and logits beside the sizes of theory."""

from typing import Any

import pytest
import torch
from support.errors import refuses
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import orderone as o1
from orderone.core.errors import code_of
from orderone.measure.check import NOT_JUDGED
from orderone.planning.start_outputs import Kind, output_size


def llama(width: int) -> nn.Module:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=width // 16,
        num_key_value_heads=width // 16,
        attn_implementation="eager",  # pyright: ignore[reportCallIssue]
    )
    return LlamaForCausalLM(config)


IDS = torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(0))


def measured(init: Any):
    torch.manual_seed(0)
    model = llama(64)
    plan = o1.plan(model, base=llama(32), lr=1e-2, init=init, inputs={"input_ids": IDS})
    plan.apply()
    return plan.measure_start({"input_ids": IDS})


def test_a_small_start_is_named_per_module_and_as_a_whole():
    report = measured("keep")
    verdicts = {(output.name, output.kind): output.verdict for output in report.outputs}
    assert verdicts["model.embed_tokens", Kind.ACTIVATION] == "small"
    assert verdicts["", Kind.LOGITS] == "fine"  # small logits are no fault
    assert sum(kind == Kind.SCORES for _, kind in verdicts) == 2
    codes = [code_of(finding) for finding in report.findings]
    assert "outputs-too-small" in codes
    assert "outputs-too-large" not in codes
    assert " outputs: " in report.summary
    assert "attention scores of model.layers.0.self_attn" in str(report)


def test_a_good_start_is_fine_everywhere_that_counts():
    report = measured("fan-in")
    sizes = {output.name: output for output in report.outputs if output.kind == Kind.ACTIVATION}
    assert sizes["model.embed_tokens"].verdict == "fine"
    assert sizes["model.embed_tokens"].size == pytest.approx(1, rel=0.1)
    for name in ("model.layers.0", "model.layers.1", "model.norm"):
        assert sizes[name].verdict == "fine", name
    assert all(output.verdict == "fine" for output in report.outputs if output.kind != "activation")


def test_large_scores_and_logits_are_named():
    report = measured({"default": "fan-in", "readout": 2.0, "*.q_proj.weight": 3.0})
    codes = [code_of(finding) for finding in report.findings]
    assert codes.count("outputs-too-large") >= 2
    verdicts = {
        output.kind: output.verdict for output in report.outputs if output.kind != "activation"
    }
    assert verdicts == {Kind.SCORES: "large", Kind.LOGITS: "large"}


def test_the_residual_stream_may_grow_with_the_depth():
    assert output_size("layers.0", Kind.ACTIVATION, 1.7).ratio == 1
    assert output_size("layers.11", Kind.ACTIVATION, 5.0).ratio == 1  # sqrt(1 + 24)
    assert output_size("embed", Kind.ACTIVATION, 5.0).verdict == "large"
    assert output_size("embed", Kind.ACTIVATION, 0.0).verdict == "fine"  # zero is a choice
    assert output_size("", Kind.LOGITS, float("nan")).verdict == "large"


def test_the_measurement_leaves_the_model_as_it_was():
    model = llama(32)
    model.train()
    plan = o1.plan(model, base=llama(32), lr=1e-2)
    state = torch.random.get_rng_state()
    plan.measure_start({"input_ids": IDS})
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_model_without_values_is_refused():
    with torch.device("meta"):
        plan = o1.plan(llama(32), base=llama(32), lr=1e-2)
    with refuses("model-without-memory", argument="inputs"):
        plan.measure_start({"input_ids": IDS})


@pytest.mark.parametrize(("scale", "found"), [(0.05, True), (1.0, False)])
def test_a_check_reports_the_start_and_still_passes(scale, found):
    def build(width):
        model = nn.Sequential(
            nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
        )
        with torch.no_grad():
            for layer in (model[0], model[2]):
                assert isinstance(layer, nn.Linear)
                layer.weight.normal_(std=scale * layer.in_features**-0.5)
        return model

    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    check = o1.coord_check(
        build, widths=[16, 32, 64, 128], lr=1e-3, steps=2, seeds=2, batches=(x, x[:, :3].argmax(-1))
    )
    assert check.start is not None
    codes = {code_of(finding) for finding in check.start.findings}
    assert ("start-too-small" in codes) == found
    assert (NOT_JUDGED in str(check)) == bool(codes)
    assert not any("start" in line.cause for line in check.judgements if line.verdict == "FAIL")
