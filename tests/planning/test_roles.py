"""Widths, roles of tensors, and errors if a role is ambiguous."""

import pytest
import torch
from support.errors import refuses
from torch import nn

import orderone as o1
from orderone.core.errors import code_of
from orderone.planning.counterparts import counterparts, stack_of
from orderone.planning.roles.evidence import commensurate


def mlp(width: int, inputs: int = 32, classes: int = 10, depth: int = 2) -> nn.Sequential:
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), *hidden, nn.Linear(width, classes))


class Language(nn.Module):
    def __init__(self, width: int, vocabulary: int = 50, context: int = 16, tied: bool = False):
        super().__init__()
        self.word, self.place = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.body, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.word.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.word(ids) + self.place(torch.arange(ids.shape[1]))
        return self.head(self.norm(h + self.body(h)))


def roles(model: nn.Module, base: nn.Module, **options) -> dict[str, str]:
    return {row.name: row.role for row in o1.plan(model, base=base, **options).rows}


def test_an_mlp_has_all_roles():
    found = roles(mlp(256), mlp(64))
    assert found["0.weight"] == "embedding"
    assert found["2.weight"] == found["4.weight"] == "hidden"
    assert found["6.weight"] == "readout"
    assert found["0.bias"] == "vector"
    assert found["6.bias"] == "fixed"


def test_vocabulary_context_classes_and_inputs_are_not_widths():
    language = roles(Language(256, vocabulary=1000, context=64), Language(64))
    assert language == roles(Language(256), Language(64))
    assert language["head.weight"] == "readout"
    assert roles(mlp(256, inputs=100, classes=1000), mlp(64)) == roles(mlp(256), mlp(64))


def test_a_vocabulary_that_grows_by_the_same_ratio_is_still_not_a_width():
    found = roles(Language(256, vocabulary=200), Language(64, vocabulary=50))
    assert found["head.weight"] == "readout"


def test_without_a_width_the_first_line_says_what_differs():
    plan = o1.plan(Language(64, vocabulary=1000), base=Language(64))
    assert "no width grows; base and target differ in vocabulary or context" in plan.headline
    assert all(row.factors.lr == 1 for row in plan.rows)
    deeper = o1.plan(mlp(64, depth=4), base=mlp(64, depth=2))
    assert "no width grows; base and target differ in depth" in deeper.headline


def test_a_vocabulary_of_the_size_of_the_width_is_an_error_that_says_what_to_do():
    with refuses("ambiguous-role", argument="overrides") as caught:
        o1.plan(Language(256, vocabulary=256), base=Language(64, vocabulary=64))
    assert isinstance(caught.value, o1.AmbiguousRole)
    assert "head.weight" in str(caught.value)
    assert "readout or hidden" in str(caught.value)
    settled = roles(
        Language(256, vocabulary=256), Language(64, vocabulary=64), overrides={"head.*": "readout"}
    )
    assert settled["head.weight"] == "readout"


def test_tied_tensors_appear_once_with_all_their_uses():
    plan = o1.plan(Language(256, tied=True), base=Language(64, tied=True), probe=False)
    [row] = [row for row in plan.rows if "word" in row.uses]
    assert row.uses == ("word", "head")
    assert row.multiplier == pytest.approx(0.25)
    assert [(m.module, m.side) for m in plan.multipliers] == [("head", "input")]
    seen = o1.plan(
        Language(256, tied=True),
        base=Language(64, tied=True),
        inputs=torch.zeros(2, 4, dtype=torch.long),
    )
    assert not seen.multipliers
    assert seen["norm.weight"].constant == pytest.approx(0.25)


class Unknown(nn.Module):
    """A tensor in an unregistered module, used as a readout."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, width)
        self.mix = nn.Parameter(torch.randn(3, width) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) @ self.mix.T


def test_an_ambiguous_role_is_an_error_with_three_remedies():
    with refuses("ambiguous-role", argument="overrides") as caught:
        roles(Unknown(256), Unknown(64))
    assert "mix (3, 64) -> (3, 256) in Unknown" in str(caught.value)
    assert roles(Unknown(256), Unknown(64), overrides={"mix": "readout"})["mix"] == "readout"
    assert roles(Unknown(256), Unknown(64), inputs=torch.randn(4, 8))["mix"] == "readout"


def test_a_registered_module_type_is_known_with_its_subclasses():
    class Transposed(nn.Module):
        def __init__(self, into: int, out: int):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(into, out) / into**0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    class Special(Transposed):
        pass

    def build(width: int) -> nn.Module:
        return nn.Sequential(Transposed(8, width), Transposed(width, width), Special(width, 3))

    with pytest.raises(o1.AmbiguousRole):
        roles(build(256), build(64))
    o1.register(Transposed, weight=o1.matrix(into=0, out=1))
    assert list(roles(build(256), build(64)).values()) == ["embedding", "hidden", "readout"]


def test_learned_tables_are_recognised_by_name():
    class Vision(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.patch = nn.Conv2d(3, width, 4, 4)
            self.pos_embed, self.cls_token = (
                nn.Parameter(torch.zeros(1, 17, width)),
                nn.Parameter(torch.zeros(1, 1, width)),
            )
            self.body = nn.Linear(width, width)

    plan = o1.plan(Vision(256), base=Vision(64))
    assert plan["pos_embed"].role == "embedding"
    assert "by its name" in plan["pos_embed"].reason
    assert plan["cls_token"].role == "vector"


def test_a_bottleneck_of_constant_size_is_noted():
    def build(width: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(8, width), nn.Linear(width, 300), nn.Linear(300, width), nn.Linear(width, 2)
        )

    plan = o1.plan(build(256), base=build(64))
    assert plan["1.weight"].role == "readout"
    [note] = [note for note in plan.notes if code_of(note) == "bottleneck-size"]
    assert "1.weight" in note or "*.weight" in note
    assert "bottleneck" in plan["1.weight"].reason


def test_frozen_tensors_are_not_changed():
    model, base = mlp(256), mlp(64)
    model[2].weight.requires_grad_(False)
    assert o1.plan(model, base=base)["2.weight"].reason.startswith("frozen")


def test_wrong_overrides_are_refused():
    with refuses("unknown-name", argument="overrides") as caught:
        o1.plan(mlp(256), base=mlp(64), overrides={"head.weight": "readout"})
    assert "'head.weight'" in str(caught.value)
    with refuses("unknown-name", argument="role in overrides['0.weight']") as caught:
        o1.plan(mlp(256), base=mlp(64), overrides={"0.weight": "input"})
    assert "embedding, hidden, readout, vector, fixed" in str(caught.value)


def test_a_base_of_another_architecture_is_refused():
    with refuses("other-architecture", argument="base") as caught:
        o1.plan(mlp(256), base=Language(64))
    assert "0.weight" in str(caught.value)


def test_layers_of_a_deeper_model_have_counterparts_at_the_same_relative_depth():
    found = counterparts(
        {f"layers.{i}.w": (8,) for i in range(6)}, {f"layers.{i}.w": (8,) for i in range(2)}
    )
    assert [found[f"layers.{i}.w"].name[-3] for i in range(6)] == ["0", "0", "0", "1", "1", "1"]
    assert {c.depth for c in found.values()} == {3.0}


def test_in_a_sequential_the_counterpart_is_one_that_fits():
    deep = {"0.w": (256, 8), "2.w": (256, 256), "4.w": (256, 256), "6.w": (4, 256)}
    found = counterparts(deep, {"0.w": (64, 8), "2.w": (64, 64), "4.w": (4, 64)})
    assert [found[name].name for name in deep] == ["0.w", "2.w", "2.w", "4.w"]
    with refuses("other-architecture") as caught:
        counterparts(deep, {"0.w": (64, 8), "2.w": (4, 64)})
    assert "fits 2.w" in str(caught.value)


def test_stages_keep_their_place_when_blocks_are_added():
    target = {f"stages.{s}.blocks.{b}.w": (8 + s,) for s, n in enumerate((2, 6)) for b in range(n)}
    base = {f"stages.{s}.blocks.{b}.w": (8 + s,) for s in range(2) for b in range(2)}
    found = counterparts(target, base)
    assert all(c.name.startswith(name[:9]) for name, c in found.items())


def test_names_of_stacks():
    assert stack_of("model.layers.11.mlp.weight") == "model.layers.*.mlp.weight"
    assert commensurate((64, 256), (192, 768))
    assert not commensurate((64, 256), (100, 400))
    assert not commensurate((64, 256), (64, 128))
