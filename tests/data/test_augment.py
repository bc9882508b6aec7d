"""Every operation equals Pillow's on single images, and the random draws follow their laws."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from orderone.data.augment import OPERATIONS, affine, erase, flip, mix, shades
from orderone.data.augment.crop import crop as crop_boxes
from orderone.data.augment.crop import draw_chances, padded_crop, place_boxes, resized_crop
from orderone.data.augment.erase import draw_rectangles
from orderone.data.augment.mix import draw_mixes, one_hot, smooth, soft_cross_entropy
from orderone.data.augment.randaugment import apply, randaugment
from orderone.data.draws import Draws


@pytest.fixture(scope="module")
def images():
    """Coloured images: noise, ramps, a narrow range of shades, one shade, and blobs."""
    noise = Draws([0], 0).below(256, "test", 2, 3, 20, 24)[0].to(torch.uint8)
    ramp = (torch.arange(24) * 10).to(torch.uint8).expand(1, 3, 20, 24)
    blobs = (noise[:1].float().unfold(2, 5, 1).unfold(3, 5, 1).mean((-1, -2))).round()
    blobs = torch.nn.functional.pad(blobs, (2, 2, 2, 2), mode="replicate").to(torch.uint8)
    flat = torch.full((1, 3, 20, 24), 77, dtype=torch.uint8)
    return torch.cat([noise, ramp, noise[:1] // 8 + 100, flat, blobs])


def to_pillow(image):
    return (
        Image.fromarray(image.permute(1, 2, 0).numpy())
        if len(image) == 3
        else Image.fromarray(image[0].numpy())
    )


def from_pillow(image):
    array = torch.from_numpy(np.array(image))
    return array.permute(2, 0, 1) if array.dim() == 3 else array[None]


def enhanced(kind):
    return lambda image, factor: getattr(ImageEnhance, kind)(image).enhance(factor)


def solarize_add(image, more):
    table = [min(255, i + more) if i < 128 else i for i in range(256)]
    return image.point(table * len(image.getbands()))


SHADES = {
    "autocontrast": (lambda image, _: ImageOps.autocontrast(image), [None]),
    "equalize": (lambda image, _: ImageOps.equalize(image), [None]),
    "invert": (lambda image, _: ImageOps.invert(image), [None]),
    "posterize": (ImageOps.posterize, [1, 3, 8]),
    "solarize": (ImageOps.solarize, [0, 26, 128, 256]),
    "solarize_add": (solarize_add, [0, 50, 110]),
    "colour": (enhanced("Color"), [0.1, 0.6, 1.0, 1.9]),
    "contrast": (enhanced("Contrast"), [0.1, 0.6, 1.0, 1.9]),
    "brightness": (enhanced("Brightness"), [0.1, 0.6, 1.0, 1.9]),
    "sharpness": (enhanced("Sharpness"), [0.1, 0.6, 1.0, 1.9]),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", SHADES)
def test_operations_on_shades_equal_pillow(name, channels, images):
    oracle, strengths = SHADES[name]
    images = images[:, :channels].contiguous()
    for strength in strengths:
        given = () if strength is None else (torch.full((len(images),), strength),)
        found = getattr(shades, name)(images, *given)
        expected = torch.stack(
            [from_pillow(oracle(to_pillow(image), strength)) for image in images]
        )
        assert (found.int() - expected.int()).abs().max() <= (
            name in {"colour", "contrast", "sharpness"}
        ), strength
        assert (found != expected).float().mean() < 0.01  # a blend rounds down, and 3.9999 may be 4


SHAPES = {
    "rotate": lambda image, v: image.rotate(v, Image.Resampling.BILINEAR, fillcolor=(9, 99, 199)),
    "shear": lambda image, v: image.transform(
        image.size,
        Image.Transform.AFFINE,
        (1, v, 0, 0, 1, 0),
        Image.Resampling.BILINEAR,
        fillcolor=(9, 99, 199),
    ),
    "translate": lambda image, v: image.transform(
        image.size,
        Image.Transform.AFFINE,
        (1, 0, 0, 0, 1, v),
        Image.Resampling.BILINEAR,
        fillcolor=(9, 99, 199),
    ),
}


@pytest.mark.parametrize(
    ("name", "values", "matrices"),
    [
        ("rotate", [-30, -7.5, 0, 12, 27], lambda v: affine.rotation(v, 20, 24)),
        ("shear", [-0.3, 0, 0.11], affine.shear_x),
        ("translate", [-8.3, 0, 2.5, 7], affine.translate_y),
    ],
)
def test_affine_operations_equal_pillow(name, values, matrices, images):
    for value in values:
        found = affine.transform(
            images,
            matrices(torch.full((len(images),), float(value))),
            torch.tensor([9, 99, 199], dtype=torch.uint8),
        )
        expected = torch.stack(
            [from_pillow(SHAPES[name](to_pillow(image), value)) for image in images]
        )
        difference = (found.int() - expected.int()).abs()
        assert (difference > 1).float().mean() < 0.005, (
            value
        )  # a pixel at the rim, which is in or out by rounding


def test_crops_equal_pillow(images):
    boxes = torch.tensor(
        [
            [0, 0, 20, 24],
            [3, 5, 7, 9],
            [10, 2, 10, 3],
            [19, 23, 1, 1],
            [0, 20, 20, 4],
            [6, 0, 5, 24],
        ]
    )
    found = crop_boxes(images, boxes)
    for image, (top, left, high, wide), result in zip(images, boxes.tolist(), found, strict=True):
        box = (left, top, left + wide, top + high)
        expected = from_pillow(
            to_pillow(image).crop(box).resize((24, 20), Image.Resampling.BILINEAR)
        )
        assert (result.int() - expected.int()).abs().max() <= 1


def test_boxes_have_the_expected_area_and_aspect():
    boxes = place_boxes(draw_chances(Draws(range(10), 0), 400), 64, 64).double()
    top, left, high, wide = boxes.unbind(-1)
    assert top.min() >= 0
    assert (top + high).max() <= 64
    assert left.min() >= 0
    assert (left + wide).max() <= 64
    assert (high * wide / 4096).min() > 0.07
    assert (wide / high).log().abs().max() < np.log(4 / 3) + 0.06
    # given that it fits, about uniform over the area below 3/4, where every aspect fits
    small = (high * wide / 4096)[(high * wide / 4096) < 0.75]
    assert small.mean().item() == pytest.approx((0.08 + 0.75) / 2, abs=0.02)
    assert (top / (64 - high))[high < 64].mean().item() == pytest.approx(0.5, abs=0.02)


def test_a_long_strip_is_cropped_in_the_middle():
    assert place_boxes(draw_chances(Draws([0], 0), 50), 4, 400).tolist()[0] == [0, 198, 4, 5]


def test_padded_crops_are_shifts(images):
    found = padded_crop(images, Draws([3], 1), by=4)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    for result, image in zip(found, padded, strict=True):
        assert any(
            torch.equal(result, image[:, i : i + 20, j : j + 24])
            for i in range(9)
            for j in range(9)
        )


def test_half_of_the_images_are_flipped():
    images = torch.arange(4, dtype=torch.uint8).view(1, 1, 1, 4).expand(4000, 1, 1, 4)
    found = flip(images, Draws([0, 1], 0))
    turned = (found == images.flip(-1)).all((1, 2, 3))
    assert ((found == images).all((1, 2, 3)) ^ turned).all()
    assert turned.float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_randaugment_equals_its_operations(images):
    """Compare each operation alone, at magnitude 9, with Pillow and the strengths of the paper."""
    level, sign, fill = (
        torch.full((len(images),), 0.9),
        torch.ones(len(images)),
        torch.tensor([1, 2, 3]).byte(),
    )
    oracles = {
        "posterize": lambda image: ImageOps.posterize(image, 1),
        "solarize": lambda image: ImageOps.solarize(image, 26),
        "solarize-add": lambda image: solarize_add(image, 99),
        "brightness": lambda image: ImageEnhance.Brightness(image).enhance(1.81),
        "rotate": lambda image: image.rotate(27, Image.Resampling.BILINEAR, fillcolor=(1, 2, 3)),
        "translate-x": lambda image: image.transform(
            image.size,
            Image.Transform.AFFINE,
            (1, 0, 0.405 * 24, 0, 1, 0),
            Image.Resampling.BILINEAR,
            fillcolor=(1, 2, 3),
        ),
    }
    for name, oracle in oracles.items():
        which = torch.full((len(images),), OPERATIONS.index(name))
        found = apply(images, which, level, sign, fill)
        expected = torch.stack([from_pillow(oracle(to_pillow(image))) for image in images])
        assert ((found.int() - expected.int()).abs() > 1).float().mean() < 0.005, name


def test_randaugment_leaves_one_image_in_four_unchanged():
    """There are two operations, each applied with probability 1/2; nearly all change noise."""
    images = Draws([0], 0).below(256, "test", 2000, 3, 8, 8)[0].to(torch.uint8)
    found = randaugment(images, Draws([5], 0))
    same = (found == images).flatten(1).all(1).float().mean().item()
    assert same == pytest.approx(0.25, abs=0.05)
    assert torch.equal(found, randaugment(images, Draws([5], 0)))
    assert not torch.equal(found, randaugment(images, Draws([5], 1)))


def test_mixup_is_an_average_and_its_labels_sum_to_one():
    x = Draws([1, 2, 3], 0).uniform("x", 6, 2, 5, 5)
    y = one_hot(torch.arange(18).view(3, 6) % 4, 4)
    mixed, labels = mix(x, y, Draws(range(3), 0), mixup=0.8, cutmix=0)
    share, _ = draw_mixes(Draws(range(3), 0), 5, 5, 0.8, 0)
    for k in range(3):
        m = share[k].float()
        torch.testing.assert_close(mixed[k], m * x[k] + (1 - m) * x[k].flip(0))
        torch.testing.assert_close(labels[k], m * y[k] + (1 - m) * y[k].flip(0))
    torch.testing.assert_close(labels.sum(-1), torch.ones(3, 6))


def test_cutmix_labels_equal_the_remaining_area():
    x = torch.zeros(200, 2, 1, 12, 16)
    x[:, 1] = 1
    y = one_hot(torch.tensor([0, 1]).expand(200, 2), 2)
    mixed, labels = mix(x, y, Draws(range(200), 0), mixup=0, cutmix=1.0)
    torch.testing.assert_close(mixed[:, 0].mean((1, 2, 3)), labels[:, 0, 1])
    torch.testing.assert_close(mixed[:, 1].mean((1, 2, 3)), labels[:, 1, 1])
    assert set(mixed.unique().tolist()) == {0.0, 1.0}
    assert labels[:, 0, 1].mean() > 0.2


def test_shares_are_beta_draws_and_half_of_the_batches_use_cutmix():
    share, boxes = draw_mixes(Draws(range(4000), 0), 32, 32, 0.8, 1.0)
    cut = boxes[:, 0] >= 0
    assert cut.double().mean().item() == pytest.approx(0.5, abs=0.03)
    up = share[~cut]
    assert up.mean().item() == pytest.approx(0.5, abs=0.03)
    assert up.var().item() == pytest.approx(1 / (4 * (2 * 0.8 + 1)), abs=0.01)  # of Beta(v, v)


def test_a_quarter_of_the_images_has_a_rectangle_of_noise():
    images = torch.full((2000, 3, 32, 32), 7.0)
    found = erase(images, Draws(range(4), 0), Draws(range(4), 0))
    changed = (found != 7).any(1)
    erased = changed.flatten(1).any(1)
    assert erased.float().mean().item() == pytest.approx(0.25, abs=0.04)
    part = changed[erased].double().mean((1, 2))
    assert part.min() > 0.015 and part.max() < 0.36  # noqa: PT018
    noise = found[found != 7]
    assert noise.mean().item() == pytest.approx(0, abs=0.01)
    assert noise.std().item() == pytest.approx(1, abs=0.01)
    rows, columns = changed[erased].any(2).sum(1), changed[erased].any(1).sum(1)
    assert torch.equal(rows * columns, changed[erased].sum((1, 2)))  # it is a rectangle
    assert draw_rectangles(Draws([0], 0), 100, 32, 32)[1].all()


def test_smoothing_and_its_loss():
    labels = smooth(one_hot(torch.tensor([2, 0]), 5), 0.1)
    torch.testing.assert_close(labels.sum(-1), torch.ones(2))
    logits = torch.tensor([[1.0, -1, 0.5, 0, 2], [0.0, 3, 1, 1, 1]])
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([2, 0]), label_smoothing=0.1)
    torch.testing.assert_close(soft_cross_entropy(logits, labels), expected)
    torch.testing.assert_close(
        soft_cross_entropy(logits, torch.tensor([2, 0])),
        soft_cross_entropy(logits, one_hot(torch.tensor([2, 0]), 5)),
    )


def test_crops_of_many_members_equal_those_of_each(images):
    both = resized_crop(torch.cat([images, images]), Draws([4, 9], 7))
    for part, seed in zip(both.split(len(images)), (4, 9), strict=True):
        assert torch.equal(part, resized_crop(images, Draws([seed], 7)))
