"""Stacks of 24 further Hugging Face families equal stand-alone runs, as in `test_hf_matrix`."""

import pytest
from support import hf_families
from support.hf_sweeps import distance, distance_of_kernels, losses

NEAR = 1e-5
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:TF32 acceleration"),  # a warning of mkldnn.flags
]


@pytest.mark.parametrize("family", hf_families.MORE)
def test_a_stack_in_float32(family):
    options = {"precision": "float32", "attention": hf_families.attentions(family)[0]}
    alone = losses(family, "cpu", stacked=False, **options)
    assert distance(losses(family, "cpu", stacked=True, **options), alone) <= NEAR


@pytest.mark.parametrize("family", hf_families.MORE)
def test_a_stack_in_bfloat16(family):
    options = {"precision": "bfloat16", "attention": hf_families.attentions(family)[0]}
    alone = losses(family, "cpu", stacked=False, **options)
    rounding = distance_of_kernels(family, "cpu", alone, **options)
    apart = distance(losses(family, "cpu", stacked=True, **options), alone)
    assert apart <= max(2 * rounding, 1e-6)
