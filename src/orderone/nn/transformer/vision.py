"""Vision Transformer of S2: patches, positions, encoder blocks, a norm, pooling, a head.

    z_t     = W_patch x_t + b^PE_t                                            S2 (1.7)
    output  = b_head + W_head mean_t s_t                                      S2 (1.22)-(1.23)

With `pooling="class"` a class token goes first, z_0 = c + b^PE_0 (S2 (1.8)), and the head reads
s_0. Initial sizes are those of S2 II.1.C: uniform with Xavier's variance for Q, K, V (packed) and
for the MLP; order one for patches and head; a small C_PE.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.nn.inputs import Scales, Switch
from orderone.nn.transformer.blocks import EncoderBlock, Stack
from orderone.nn.transformer.layers import Linear, Positions, Table, norm
from orderone.nn.transformer.shape import Shape, read_scales, switches
from orderone.theory.scaling import vision_constants

POOLING = ("mean", "class")


def _check_patches(image: Count, patch: Count) -> None:
    """Raise an InputError if an image cannot be cut into patches."""
    if image % patch:
        remedy = f"crop images to {max(image // patch, 1) * patch}, or choose another patch"
        raise InputError(
            f"image: expected a multiple of the patch size {patch}, got {image}; {remedy}",
            argument="image",
        )


class VisionTransformer(nn.Module):
    """Images (batch, channels, image, image) -> logits (batch, classes)."""

    image: int
    patch: int
    channels: int
    pooling: str
    patchify: Linear
    class_token: Table | None
    positions: Positions
    dropout: nn.Dropout
    layers: Stack
    norm: nn.LayerNorm
    head: Linear

    def __init__(
        self,
        image: Count = 224,
        patch: Count = 16,
        classes: Count = 1000,
        width: Count = 768,
        heads: Count = 12,
        depth: Count = 12,
        mlp: Number = 4,
        *,
        channels: Count = 3,
        pooling: Name = "mean",
        activation: Name = "gelu",
        bias: Switch = False,
        affine: Switch = False,
        head_bias: Switch = True,
        eps: Number = 1e-6,
        dropout: Number = 0.0,
        checkpoint: Switch = False,
        C: Scales = None,
    ):
        super().__init__()
        switches(head_bias=head_bias, checkpoint=checkpoint)
        self.image = count(image, "image")
        self.patch = count(patch, "patch")
        self.channels = count(channels, "channels")
        _check_patches(image, patch)
        self.pooling = one_of(pooling, POOLING, "pooling")
        C = read_scales(C, vision_constants(mlp))
        shape = Shape(width, heads, mlp, activation, bias, affine, eps, dropout, C, uniform=True)
        self.patchify = Linear(channels * patch**2, width, C["patch"], bias=bias)
        self.class_token = None
        if self.pooling == "class":
            self.class_token = Table(1, width, C["PE"])
        self.positions = Positions(
            (image // patch) ** 2 + (self.pooling == "class"), width, C["PE"]
        )
        self.dropout = nn.Dropout(dropout)
        self.layers = Stack(
            (EncoderBlock(shape) for _ in range(count(depth, "depth"))), checkpoint=checkpoint
        )
        self.norm = norm(width, eps, affine)
        self.head = Linear(width, count(classes, "classes"), C["head"], bias=head_bias)

    def forward(self, images: Tensor) -> Tensor:
        z = self.dropout(self._stem(images))
        s = self.norm(self.layers(z))
        if self.pooling == "class":
            return self.head(s[:, 0])
        return self.head(s.mean(1))

    def _stem(self, images: Tensor) -> Tensor:
        z = self.patchify(self._patches(images))
        if self.class_token is not None:
            first = self.class_token(torch.zeros(len(z), 1, dtype=torch.long, device=z.device))
            z = torch.cat((first.to(z.dtype), z), 1)
        return z + self.positions(z.shape[1])

    def _patches(self, images: Tensor) -> Tensor:
        """Reshape (batch, channels, image, image) to (batch, patches, channels patch^2)."""
        expected = (self.channels, self.image, self.image)
        if images.dim() != 4 or images.shape[1:] != expected:
            raise InputError(
                f"images: expected the shape (batch, {', '.join(map(str, expected))}), got "
                f"{tuple(images.shape)}; resize the images, or build the model for this size",
                argument="images",
            )
        if not images.is_floating_point():
            raise InputError(
                f"images: expected floating-point numbers, got {images.dtype}; pass"
                " (images / 255 - mean) / std",
                argument="images",
            )
        side = self.image // self.patch
        cut = images.reshape(len(images), self.channels, side, self.patch, side, self.patch)
        return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
