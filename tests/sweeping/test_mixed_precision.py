"""In mixed precision a stack computes each operation in the precision that torch uses for a single
network."""

from collections.abc import Callable

import pytest
import torch
from support.hf_sweeps import distance, distance_of_kernels, losses
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from orderone.sweeping.stacked import Stack
from orderone.training.stacked.vmap_overrides import FastPaths

MEMBERS = 2
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]
DTYPES = [torch.float32, torch.bfloat16]


def classes(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.long, device=x.device)


def attention_to_itself(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


def multi_head_attention(x: Tensor) -> Tensor:
    """Return the attention of nn.MultiheadAttention, with the same weights for all members."""
    weights = torch.linspace(-1, 1, 24 * 8, device=x.device).view(24, 8)
    tokens = x[:, None]
    result, _ = F.multi_head_attention_forward(
        tokens, tokens, tokens, 8, 2, weights, None, None, None, False, 0.0, weights[:8], None
    )
    return result


# Functions of a (4, 8) matrix. They cover operations that autocast casts down, casts up or does not
# cast, and functions of torch that consist of such operations.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "conv1d": lambda x: F.conv1d(x[None], x[:, :4, None].expand(4, 4, 2)),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None, :2, :2]),
    "conv3d": lambda x: F.conv3d(x[None, None, None], x[None, None, None, :2, :2]),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, None], x[None, None, :2, :2]),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None].mT),
    "mv": lambda x: torch.mv(x, x[0]),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x.mT, x]),
    "linear": lambda x: F.linear(x, x),
    "linear with a float32 bias": lambda x: F.linear(x, x, torch.ones(4, device=x.device)),
    "prelu": lambda x: F.prelu(x, x[0, :1]),
    "attention": lambda x: attention_to_itself(x[None, None]),
    "attention, other dtype of values": lambda x: F.scaled_dot_product_attention(
        x[None, None].float(), x[None, None].float(), x[None, None].bfloat16()
    ),
    "attention of matrices": attention_to_itself,
    "attention, five axes": lambda x: attention_to_itself(x[None, None, None]),
    "multi-head attention": multi_head_attention,
    "softmax": lambda x: F.softmax(x, -1),
    "softmax, method": lambda x: x.softmax(-1),
    "softmax, dtype": lambda x: F.softmax(x, -1, dtype=torch.float32),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "layer_norm with float32 weights": lambda x: F.layer_norm(
        x, (8,), torch.ones(8, device=x.device)
    ),
    "rms_norm": lambda x: F.rms_norm(x, (8,)),
    "group_norm": lambda x: F.group_norm(x[None], 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "gelu": F.gelu,
    "softplus": F.softplus,
    "pow": lambda x: x**2,
    "exp": torch.exp,
    "rsqrt": lambda x: x.abs().rsqrt(),
    "sum": lambda x: x.sum(),
    "norm": lambda x: x.norm(),
    "prod": lambda x: x.prod(),
    "cumsum": lambda x: x.cumsum(0),
    "mse_loss": lambda x: F.mse_loss(x, 2 * x),
    "l1_loss": lambda x: F.l1_loss(x, 2 * x),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(
        x, x.sigmoid()
    ),
    "kl_div": lambda x: F.kl_div(x, x.softmax(-1), reduction="sum"),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(
        x, x + 1, torch.ones(4, device=x.device)
    ),
    "triplet_margin_loss": lambda x: F.triplet_margin_loss(x, 2 * x, 3 * x),
    "cross_entropy": lambda x: F.cross_entropy(x, classes(x)),
    "cross_entropy, sum": lambda x: F.cross_entropy(x, classes(x), reduction="sum"),
    "cross_entropy, weights": lambda x: F.cross_entropy(
        x, classes(x), torch.ones(8, device=x.device)
    ),
    "nll_loss": lambda x: F.nll_loss(x, classes(x)),
    "cdist": lambda x: torch.cdist(x, 2 * x),
    "fft": lambda x: torch.fft.rfft(x).real,
    "cat of two precisions": lambda x: torch.cat([x, x.float()]),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_stack_casts_as_torch_does(name, device, dtype):
    function = FUNCTIONS[name]
    x = torch.randn(MEMBERS, 4, 8, generator=torch.Generator().manual_seed(0)).to(device, dtype)

    def one_member(own: Tensor) -> Tensor:
        with FastPaths(MEMBERS):
            return function(own)

    with torch.autocast(device, torch.bfloat16):
        try:
            alone = torch.stack([function(own) for own in x])
        except RuntimeError:  # torch has no such kernel, such as for Fourier transforms on a GPU
            pytest.skip(f"torch cannot do this in {dtype} on {device}")
        stacked = torch.vmap(one_member)(x)
    assert stacked.dtype == alone.dtype
    ulp = torch.finfo(alone.dtype).eps
    assert torch.allclose(
        stacked.double(), alone.double(), rtol=8 * ulp, atol=8 * ulp * float(alone.abs().max())
    )


# Functions of a bfloat16 matrix (4, 8) and a float32 vector (8,), both of which differ between
# members.
MIXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "layer_norm": lambda x, w: F.layer_norm(x, (8,), w, w),
    "rms_norm": lambda x, w: F.rms_norm(x, (8,), w),
    "group_norm": lambda x, w: F.group_norm(x[None].mT, 2, w, w),
    "instance_norm": lambda x, w: F.instance_norm(x[None].mT, weight=w, bias=w),
    "batch_norm": lambda x, w: F.batch_norm(x, None, None, w, w, training=True),
    "binary_cross_entropy_with_logits": lambda x, w: F.binary_cross_entropy_with_logits(
        x, w.sigmoid().expand_as(x)
    ),
    "poisson_nll_loss": lambda x, w: F.poisson_nll_loss(x, w.abs().expand_as(x)),
    "cosine_embedding_loss": lambda x, w: F.cosine_embedding_loss(
        x, w.expand_as(x), torch.ones(4).to(x)
    ),
    "mse_loss": lambda x, w: F.mse_loss(x, w.expand_as(x)),
    "product": lambda x, w: x * w,
    "linear": lambda x, w: F.linear(x, w.expand(3, 8), w[:3]),
    "linear in float64": lambda x, w: F.linear(x.double(), w.double().expand(3, 8), w[:3].double()),
    "linear of complex numbers": lambda x, w: (
        F.linear(torch.complex(x.to(w), x.to(w)), torch.complex(w, -w).expand(3, 8)).imag
    ),
    "conv1d": lambda x, w: F.conv1d(x[None], w.expand(2, 4, 8)),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:Mismatch dtype")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MIXED)
def test_inputs_of_two_precisions(name, device):
    """Results equal those of one member; gradients, which kernels round differently, are as
    accurate."""
    function = MIXED[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(MEMBERS, 4, 8, generator=generator).to(device, torch.bfloat16)
    w = torch.randn(MEMBERS, 8, generator=generator).to(device)

    def one_member(*own: Tensor) -> Tensor:
        with FastPaths(MEMBERS):
            return function(*own)

    def in_a_loop(*inputs: Tensor) -> Tensor:
        return torch.stack([function(*own) for own in zip(*inputs, strict=True)])

    def gradients(run: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        leaves = [one.clone().requires_grad_() for one in inputs]
        result = run(*leaves)
        weights = torch.linspace(1, 2, result.numel(), device=device).view(result.shape)
        return result.detach(), *torch.autograd.grad((result.double() * weights).sum(), leaves)

    with torch.autocast(device, torch.bfloat16):
        alone, *alone_gradients = gradients(in_a_loop, x, w)
        stacked, *stacked_gradients = gradients(torch.vmap(one_member), x, w)
    _, *true_gradients = gradients(in_a_loop, x.double(), w.double())
    assert stacked.dtype == alone.dtype
    ulp = torch.finfo(alone.dtype).eps
    assert torch.allclose(
        stacked.double(), alone.double(), rtol=8 * ulp, atol=8 * ulp * float(alone.abs().max())
    )
    for ours, torchs, true in zip(stacked_gradients, alone_gradients, true_gradients, strict=True):
        assert ours.dtype == torchs.dtype
        error, allowed = (float((found.double() - true).abs().max()) for found in (ours, torchs))
        assert error <= 2 * allowed + 2 * torch.finfo(ours.dtype).eps * float(true.abs().max())


def test_statistics_of_batch_norm_are_updated_once():
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))

    models, alone = [build(), build()], build()
    stack = Stack(
        models, [torch.optim.SGD(m.parameters(), lr=0.0) for m in models], precision=torch.bfloat16
    )
    x, y = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    stack.step((x.expand(2, 8, 4), y.expand(2, 8)))
    with torch.autocast("cpu", torch.bfloat16):
        alone(x)
    for name in ("1.running_mean", "1.running_var"):
        wanted = alone.get_buffer(name).expand(2, -1)
        assert torch.allclose(stack.buffers[name], wanted, rtol=1e-5, atol=1e-6)


def test_autocast_that_the_model_switches_off_stays_off():
    def matrix_product(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return F.conv1d(x[None], x[:, :4, None]) + x @ x.mT @ x

    def one_member(own: Tensor) -> Tensor:
        with FastPaths(MEMBERS):
            return matrix_product(own)

    with torch.autocast("cpu", torch.bfloat16):
        assert torch.vmap(one_member)(torch.randn(MEMBERS, 4, 8)).dtype == torch.float32


def test_random_operations_are_not_repeated_to_measure_their_precision():
    def one_member(own: Tensor) -> Tensor:
        with FastPaths(MEMBERS):
            return F.dropout(own, 0.5) + torch.rand_like(own)

    x = torch.ones(MEMBERS, 4, 8)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        first = torch.vmap(one_member, randomness="different")(x)
    torch.manual_seed(0)
    assert torch.equal(torch.vmap(one_member, randomness="different")(x), first)


# Rotary positions, experts, an encoder with a decoder, convolutions. test_hf_matrix.py has all.
FAST_FAMILIES = ("llama", "mixtral", "t5", "wav2vec2")


# --- whole models ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # a warning of mkldnn.flags
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAST_FAMILIES)
def test_families_of_hugging_face_stack_in_bfloat16(family, device):
    """Differ from stand-alone runs no more than two stand-alone runs with different kernels."""
    alone = losses(family, device, stacked=False, steps=5)
    rounding = distance_of_kernels(family, device, alone, "bfloat16", None)
    # twice: each of these numbers is the largest of 20 rounding errors
    stacked = losses(family, device, stacked=True, steps=5)
    assert distance(stacked, alone) <= max(2 * rounding, 1e-6)
