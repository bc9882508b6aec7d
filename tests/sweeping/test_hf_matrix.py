"""Hugging Face architectures x precision x attention: a stack equals stand-alone runs.

In float32 within 1e-5. In half precision no farther than twice the distance of stand-alone runs
with other kernels: each of these distances is the largest of 40 rounding errors.
"""

import pytest
from support import hf_families
from support.hf_sweeps import distance, distance_of_kernels, losses

NEAR = 1e-5
CELLS = [
    (family, attention)
    for family in hf_families.FAMILIES
    for attention in hf_families.attentions(family)
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:TF32 acceleration"),  # a warning of mkldnn.flags
]


def test_there_are_enough_architectures():
    assert len(hf_families.FAMILIES) >= 25


@pytest.mark.parametrize(("family", "attention"), CELLS)
def test_a_stack_in_float32(family, attention):
    options = {"precision": "float32", "attention": attention}
    alone = losses(family, "cpu", stacked=False, **options)
    assert distance(losses(family, "cpu", stacked=True, **options), alone) <= NEAR


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize(("family", "attention"), CELLS)
def test_a_stack_in_half_precision(family, attention, precision):
    options = {"precision": precision, "attention": attention}
    alone = losses(family, "cpu", stacked=False, **options)
    rounding = distance_of_kernels(family, "cpu", alone, **options)
    apart = distance(losses(family, "cpu", stacked=True, **options), alone)
    assert apart <= max(2 * rounding, 1e-6)
