"""Stacks of 24 further Hugging Face families equal stand-alone runs, as in `test_hf_matrix`."""

from functools import partial

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
    attention = hf_families.attentions(family)[0]
    run = partial(losses, family, "cpu", precision="float32", attention=attention)
    assert distance(run(stacked=True), run(stacked=False)) <= NEAR


@pytest.mark.parametrize("family", hf_families.MORE)
def test_a_stack_in_bfloat16(family):
    attention = hf_families.attentions(family)[0]
    run = partial(losses, family, "cpu", precision="bfloat16", attention=attention)
    alone = run(stacked=False)
    rounding = distance_of_kernels(family, "cpu", alone, "bfloat16", attention)
    assert distance(run(stacked=True), alone) <= max(2 * rounding, 1e-6)
