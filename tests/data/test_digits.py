"""Images that come with scikit-learn."""

import sys

import pytest
import torch

from orderone.data import digits, digits_batch


def test_images_are_of_order_one():
    pytest.importorskip("sklearn")
    images, labels = digits()
    assert (images.shape, labels.shape) == ((1797, 1, 8, 8), (1797,))
    assert (images.dtype, labels.dtype) == (torch.float32, torch.long)
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std().item() == pytest.approx(1, abs=1e-5)
    assert set(labels.tolist()) == set(range(10))


def test_a_batch_keeps_images_and_labels_together():
    pytest.importorskip("sklearn")
    everything = digits()
    known = {image.numpy().tobytes(): label for image, label in zip(*everything, strict=True)}
    images, labels = digits_batch(seed=1, batch=50)
    assert [known[image.numpy().tobytes()] for image in images] == labels.tolist()
    assert torch.equal(images, digits_batch(seed=1, batch=50)[0])
    assert not torch.equal(images, digits_batch(seed=2, batch=50)[0])
    with pytest.raises(ValueError, match=r"^batch: .*1797"):
        digits_batch(batch=2000)


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    digits.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'orderone\[data\]'"):
        digits()
