"""Numbers that the probe records for whole models, compared with a plain loop."""

import pytest
import torch
from probe_oracle import adamw, agree, batch, compare, outputs, sizes, table, twins, zoo_loss
from support.zoo import BATCH, FEATURES, HEAD, LENGTH, ZOO
from torch import Tensor, nn
from torch.nn import functional

import orderone as o1
from orderone.measure.recording import DEFAULT


def test_an_mlp_written_out():
    """The reference has no hooks: it applies the layers one by one."""
    model, other = twins(lambda: ZOO["mlp"].build(32).net)
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), batch(0, BATCH, FEATURES)
    with o1.probe(model, optimizer, batch=x) as p:
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    found, first = table(p.frame), []
    for step in range(4):
        h, given = x, [x]
        for layer in other:
            h = (
                functional.linear(h, layer.weight, layer.bias)
                if isinstance(layer, nn.Linear)
                else h.clamp(min=0)
            )
            given.append(h)
        first = first or given
        for i in range(1, len(given)):
            if step:
                assert found[step, str(i - 1), "change"] == pytest.approx(
                    sizes(given[i] - first[i]), rel=1e-4, abs=1e-7
                )
        if step == 3:
            break
        parameters = dict(other.named_parameters())
        gradients = torch.autograd.grad(h.square().sum(), [*given[1:], *parameters.values()])
        for i in range(1, len(given)):
            assert found[step, str(i - 1), "input"] == pytest.approx(
                sizes(given[i - 1]), rel=1e-5, abs=1e-6
            )
            assert found[step, str(i - 1), "output"] == pytest.approx(
                sizes(given[i]), rel=1e-5, abs=1e-6
            )
            wanted = sizes(gradients[i - 1])
            assert found[step, str(i - 1), "output gradient"] == pytest.approx(
                wanted, rel=1e-4, abs=1e-6
            )
        for (name, p_), gradient in zip(
            parameters.items(), gradients[len(given) - 1 :], strict=True
        ):
            assert found[step, name, "weight"] == pytest.approx(sizes(p_), rel=1e-5, abs=1e-7)
            assert found[step, name, "gradient"] == pytest.approx(
                sizes(gradient), rel=1e-4, abs=1e-6
            )
            assert found[step, name, "update"] == pytest.approx(
                sizes(-0.1 * gradient), rel=1e-4, abs=1e-6
            )
            p_.data.sub_(0.1 * gradient)
    assert (3, "0", "output") not in found
    assert (0, "0", "change") not in found


@pytest.mark.parametrize(
    "name", ["mlp", "gpt2", "llama-gqa", "cnn-batchnorm", "nn-transformer-encoder", "lstm", "t5"]
)
def test_models_of_the_zoo(name):
    entry = ZOO[name]
    frame = compare(lambda: entry.build(32, 1), zoo_loss(entry))
    assert set(frame["quantity"]) == set(DEFAULT) - {"change"}
    assert frame.loc[frame["quantity"] == "output", "module"].nunique() >= 4


def test_the_change_of_gpt2_is_that_of_every_module_on_the_fixed_batch():
    entry = ZOO["gpt2"]
    model, other = twins(lambda: entry.build(32))
    optimizer, fixed = adamw(model), entry.batch(7)
    with o1.probe(model, optimizer, batch=fixed, quantities="change") as p:
        entry.train(model, optimizer, steps=2)
    optimizer, first, seen = adamw(other), outputs(other, **fixed), {}
    for step in (1, 2):
        entry.train(other, optimizer, steps=1)
        for module, found in outputs(other, **fixed).items():
            seen[step, module, "change"] = [
                y - x for x, y in zip(first[module], found, strict=True)
            ]
    agree(p.frame, seen, rel=1e-3)


def test_scores_of_gpt2_are_those_of_queries_and_keys():
    entry, width = ZOO["gpt2"], 32
    model = twins(lambda: entry.build(width))[0]
    optimizer, fixed = adamw(model), entry.batch(0)

    def scores() -> list[Tensor]:
        found = []
        for name, y in outputs(model, **fixed).items():
            if name.endswith("c_attn"):
                q, k, _ = (x.unflatten(-1, (-1, HEAD)).transpose(1, 2) for x in y[0].chunk(3, -1))
                full = q.double() @ k.double().mT / HEAD**0.5
                found.append(full[..., torch.ones(LENGTH, LENGTH).tril().bool()])
        return found

    before = scores()
    with o1.probe(model, optimizer, batch=fixed, quantities=["scores", "score change"]) as p:
        entry.train(model, optimizer, steps=1)
    found, after = table(p.frame), scores()
    for i in range(2):
        name = f"transformer.h.{i}.attn"
        assert found[0, name, "scores"] == pytest.approx(sizes(before[i]), rel=1e-4, abs=1e-6)
        assert found[1, name, "score change"] == pytest.approx(
            sizes(after[i] - before[i]), rel=1e-3, abs=1e-6
        )
    assert len(found) == 4
