"""The batched forms equal a loop over members, forward and backward, and are not used where they
do not apply."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from orderone.torch_compat import outside_vmap
from orderone.training.stacked import vmap_overrides
from orderone.training.stacked.vmap_overrides import FastPaths

K = 3


def normal(*shape: int) -> Tensor:
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape))
    )


def classes(*shape: int, below: int = 5) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(1))


IGNORED = classes(K, 6).index_put((torch.tensor([0, 2]), torch.tensor([1, 4])), torch.tensor(-100))
MASK = (normal(4, 1, 6, 6) > 0) | torch.eye(6, dtype=torch.bool)
BIAS = normal(K, 4, 1, 6, 6)  # of scores; torch has no gradient for it on a CPU
IDS = classes(2, 6)
CASES = {
    "linear": (
        lambda x, w, b: F.linear(x, w, b),
        (0, 0, 0),
        (normal(K, 2, 5, 4), normal(K, 3, 4), normal(K, 3)),
    ),
    "linear, one row": (lambda x, w: F.linear(x, w), (0, 0), (normal(K, 4), normal(K, 3, 4))),
    "linear, shared rows": (
        lambda x, w: F.linear(x, w),
        (None, 0),
        (normal(2, 5, 4), normal(K, 3, 4)),
    ),
    "linear, shared weight": (
        lambda x, w: F.linear(x, w),
        (0, None),
        (normal(K, 2, 4), normal(3, 4)),
    ),
    "linear, shared bias": (
        lambda x, w, b: F.linear(x, w, b),
        (0, 0, None),
        (normal(K, 2, 4), normal(K, 3, 4), normal(3)),
    ),
    "linear, axis elsewhere": (
        lambda x, w: F.linear(x, w),
        (1, 2),
        (normal(2, K, 4), normal(3, 4, K)),
    ),
    "addmm": (
        lambda b, x, w: torch.addmm(b, x, w),
        (0, 0, 0),
        (normal(K, 3), normal(K, 5, 4), normal(K, 4, 3)),
    ),
    "addmm, scaled": (
        lambda b, x, w: torch.addmm(b, x, w, beta=2.0),
        (0, 0, 0),
        (normal(K, 3), normal(K, 5, 4), normal(K, 4, 3)),
    ),
    "matmul": (lambda x, w: x @ w, (0, 0), (normal(K, 2, 5, 4), normal(K, 4, 3))),
    "matmul of activations": (
        lambda x, y: torch.matmul(x, y),
        (0, 0),
        (normal(K, 2, 5, 4), normal(K, 2, 4, 5)),
    ),
    "matmul, vector": (lambda x, w: x.matmul(w), (0, 0), (normal(K, 4), normal(K, 4, 3))),
    "large convolution": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1),
        (0, 0, 0),
        (normal(K, 2, 3, 60, 60), normal(K, 4, 3, 3, 3), normal(K, 4)),
    ),
    "large convolution, shared input": (
        lambda x, w: F.conv1d(x, w, padding="same"),
        (None, 0),
        (normal(4, 3, 2000), normal(K, 2, 3, 3)),
    ),
    "large convolution, shared kernel": (
        lambda x, w: F.conv1d(x, w),
        (0, None),
        (normal(K, 4, 3, 2000), normal(2, 3, 3)),
    ),
    "large transposed convolution": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1),
        (1, 0),
        (normal(2, K, 3, 60, 60), normal(K, 3, 4, 3, 3)),
    ),
    "large group norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (0, 0, 0),
        (normal(K, 2, 4, 60, 60), normal(K, 4), normal(K, 4)),
    ),
    "large group norm without gains": (
        lambda x: F.group_norm(x, 2),
        (0,),
        (normal(K, 2, 4, 60, 60),),
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (0, 0, 0),
        (normal(K, 4, 2, 6, 8), normal(K, 4, 2, 6, 8) * 2, normal(K, 4, 2, 6, 8) + 1),
    ),
    "attention, scale": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.7),
        (0, 0, None),
        (normal(K, 4, 2, 6, 8), normal(K, 4, 2, 5, 8), normal(4, 2, 5, 8)),
    ),
    "attention, shared mask": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, attn_mask=MASK),
        (0, 0),
        (normal(K, 4, 2, 6, 8), normal(K, 4, 2, 6, 8)),
    ),
    "attention, own masks": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        (0, 0),
        (normal(K, 4, 2, 6, 8), BIAS),
    ),
    "attention, grouped": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        (0, 0),
        (normal(K, 4, 4, 6, 8), normal(K, 4, 2, 6, 8)),
    ),
    "attention, flat mask": (
        lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=MASK[0, 0]),
        (0,),
        (normal(K, 4, 2, 6, 8),),
    ),
    "attention, three axes, own masks": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        (0, 0),
        (normal(K, 2, 6, 8), BIAS[:, 0, 0].gt(0) | torch.eye(6, dtype=torch.bool)),
    ),
    "attention, three axes": (
        lambda q: F.scaled_dot_product_attention(q, q, q),
        (0,),
        (normal(K, 2, 6, 8),),
    ),
    "embedding": (lambda w: F.embedding(IDS, w), (0,), (normal(K, 5, 4),)),
    "embedding, own ids": (
        lambda w, i: F.embedding(i, w),
        (0, 0),
        (normal(K, 5, 4), classes(K, 2, 6)),
    ),
    "embedding, padding": (
        lambda w, i: F.embedding(i, w, padding_idx=1),
        (0, 0),
        (normal(K, 5, 4), classes(K, 2, 6)),
    ),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), (0, 0), (normal(K, 6, 5), classes(K, 6))),
    "cross entropy, ignored": (
        lambda x, t: F.cross_entropy(x, t),
        (0, 0),
        (normal(K, 6, 5), IGNORED),
    ),
    "cross entropy, smooth": (
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        (0, 0),
        (normal(K, 6, 5), IGNORED),
    ),
    "cross entropy, sum": (
        lambda x, t: F.cross_entropy(x, t, reduction="sum"),
        (0, 0),
        (normal(K, 6, 5), classes(K, 6)),
    ),
    "cross entropy, weights": (
        lambda x, t: F.cross_entropy(x, t, weight=torch.arange(1.0, 6.0).double()),
        (0, 0),
        (normal(K, 6, 5), classes(K, 6)),
    ),
    "cross entropy, soft": (
        lambda x, t: F.cross_entropy(x, t.softmax(-1)),
        (0, 0),
        (normal(K, 6, 5), normal(K, 6, 5)),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_path_equals_a_loop_over_members(case):
    function, axes, given = case
    found, wanted = (_results(function, axes, given, run) for run in (_mapped, _looped))
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_id_outside_the_table_raises(wrong):
    ids = classes(K, 2).index_put((torch.tensor(0), torch.tensor(1)), torch.tensor(wrong))
    with pytest.raises(IndexError):
        _mapped(lambda w, i: F.embedding(i, w), (0, 0), (normal(K, 5, 4), ids))


def _mapped(function, axes, leaves):
    def one(*inputs):
        with FastPaths(K):
            return function(*inputs)

    return torch.vmap(one, in_dims=axes)(*leaves)


def _looped(function, axes, leaves):
    return torch.stack(
        [
            function(
                *(
                    x if axis is None else x.select(axis, k)
                    for x, axis in zip(leaves, axes, strict=True)
                )
            )
            for k in range(K)
        ]
    )


def _results(function, axes, given, run):
    leaves = [x.clone().requires_grad_(x.is_floating_point() and x is not BIAS) for x in given]
    out = run(function, axes, leaves)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return out, *torch.autograd.grad((out * weights).sum(), [x for x in leaves if x.requires_grad])


@pytest.mark.parametrize(
    "name",
    [
        "linear",
        "attention",
        "embedding, own ids",
        "cross entropy",
        "matmul",
        "addmm",
        "large convolution",
        "large convolution, shared input",
        "large transposed convolution",
        "large group norm",
        "large group norm without gains",
    ],
)
def test_the_fast_paths_are_used(name, monkeypatch):
    """Operations with a slow vmap rule are replaced."""
    function, axes, given = CASES[name]
    taken = []
    for key, path in vmap_overrides.PATHS.items():
        monkeypatch.setitem(
            vmap_overrides.PATHS,
            key,
            lambda *a, path=path, **k: taken.append(r := path(*a, **k)) or r,
        )
    _results(function, axes, given, _mapped)
    assert any(result is not None for result in taken)


@pytest.mark.parametrize(("pixels", "separate"), [(60, True), (6, False)])
def test_only_large_convolutions_are_computed_one_by_one(pixels, separate):
    """Small ones are faster as groups of one convolution."""
    x, w = normal(K, 2, 3, pixels, pixels), normal(K, 4, 3, 3, 3)
    taken = []

    def one(x, w):
        with FastPaths(K) as mode:
            with outside_vmap():
                taken.append(vmap_overrides.PATHS[torch.conv2d](mode, x, w))
            return F.conv2d(x, w)

    torch.vmap(one)(x, w)
    assert [result is not None for result in taken] == [separate]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_on_a_gpu_the_losses_of_all_members_are_one_call(smoothing):
    options = {"ignore_index": -100, "label_smoothing": smoothing}
    logits = normal(K, 6, 5)
    wanted = torch.stack(
        [F.cross_entropy(x, t, **options) for x, t in zip(logits, IGNORED, strict=True)]
    )
    assert torch.allclose(vmap_overrides.mean_of_each(logits, IGNORED, options), wanted, rtol=1e-12)


def test_the_gradient_of_a_weight_has_its_memory_order():
    weight = normal(K, 3, 4).requires_grad_()

    def mapped(x, w):
        with FastPaths(K):
            return F.linear(x, w)

    (gradient,) = torch.autograd.grad(torch.vmap(mapped)(normal(K, 5, 4), weight).sum(), weight)
    assert gradient.is_contiguous()


def test_autocast_rounds_as_in_a_single_network():
    x, w = normal(K, 5, 4).float(), normal(K, 3, 4).float()

    def mapped(x, w):
        with FastPaths(K):
            return F.linear(x, w)

    with torch.autocast("cpu", torch.bfloat16):
        out, wanted = (
            torch.vmap(mapped)(x, w),
            torch.stack([F.linear(*pair) for pair in zip(x, w, strict=True)]),
        )
    assert out.dtype == wanted.dtype == torch.bfloat16
    assert torch.allclose(out, wanted, rtol=1e-2)
