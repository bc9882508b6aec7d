"""Laws against real updates of real networks: spectral norms of steps, fitted over widths."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.update_cases import CASES, Case
from support.update_slopes import Setting, predicted_norm, slopes
from torch import nn

from orderone.theory.exponents.updates import update_law

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages

NEAR = 0.1


@pytest.fixture(autouse=True)
def _without_compiler() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):
        yield


def case_of(title: str) -> Case:
    return next(case for case in CASES if case.title == title)


@pytest.mark.parametrize("readout", [1.0, 0.5])  # gradients of other sizes
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_norm_of_updates_has_the_exponent_of_the_law(case, readout):
    pytest.importorskip(case.package)
    found = slopes(case.make(), replace(case.setting, readout=readout))
    assert found.norm == pytest.approx(
        predicted_norm(update_law(case.law), found.gradient), abs=NEAR
    )
    # one example: the gradient has rank one, and so have all updates
    assert found.effect == pytest.approx(found.norm, abs=NEAR)


@pytest.mark.parametrize(
    ("title", "wrong"),
    [
        ("pytorch_optimizer.SOAP", "adam"),
        ("pytorch_optimizer.SOAP, inputs only", "soap"),
        ("pytorch_optimizer.ScalableShampoo, blocks of 16", "shampoo"),
        ("pytorch_optimizer.ScalableShampoo, power 1/2", "shampoo"),
        ("pytorch_optimizer.ScalableShampoo, inputs only", "shampoo"),
        ("pytorch_optimizer.AdEMAMix", "muon"),
        ("pytorch_optimizer.NorMuon", "adam"),
    ],
)
def test_another_law_does_not_fit(title, wrong):
    case = case_of(title)
    pytest.importorskip(case.package)
    found = slopes(case.make(), replace(case.setting, readout=0.5))
    assert abs(found.norm - predicted_norm(update_law(wrong), found.gradient)) > 3 * NEAR


# --- rank: what SOAP and Shampoo average over -----------------------------------------------------


def soap(eps: float) -> Any:
    case = case_of("pytorch_optimizer.SOAP")
    return replace(case, options={**case.options, "eps": eps}).make()


def test_soap_has_the_law_of_the_rank_that_it_sees():
    """Entries n^-1 for one example; of Adam's size for fresh batches; and of Adam's size for one
    example, too, if eps lets the rounding errors of empty directions through."""
    pytest.importorskip("pytorch_optimizer")
    low = slopes(soap(1e-5), Setting())
    assert low.entries == pytest.approx(-1, abs=NEAR)
    assert low.norm == pytest.approx(0, abs=NEAR)
    full = slopes(soap(1e-5), Setting(repeated=False))
    assert full.entries == pytest.approx(0, abs=NEAR)
    assert 0.4 < full.norm < 1.0  # between unaligned and aligned entries of size one
    rounding = slopes(soap(1e-8), Setting())
    assert rounding.entries == pytest.approx(0, abs=NEAR)


@pytest.mark.parametrize(
    ("title", "law"),
    [
        ("pytorch_optimizer.Shampoo", "shampoo-full-rank"),
        ("pytorch_optimizer.ScalableShampoo", "shampoo-full-rank"),
        ("pytorch_optimizer.ScalableShampoo, power 1/2", "shampoo-1/2-full-rank"),
        ("pytorch_optimizer.ScalableShampoo, inputs only", "shampoo-in-full-rank"),
    ],
)
def test_shampoo_averages_over_fresh_examples(title, law):
    """Gradients of rank one in random directions, of norm one: |dW| grows like (R_o R_i)^k."""
    case = case_of(title)
    pytest.importorskip(case.package)
    if "betas" in case.options:
        case = replace(case, options={**case.options, "betas": (0.0, 0.998)})
    widths = (8, 16, 32)
    norms = [_mean_norm(case, width) for width in widths]
    slope = float(np.polyfit(np.log(widths), norms, 1)[0])
    assert slope == pytest.approx(predicted_norm(update_law(law), 0.0), abs=NEAR)


def _mean_norm(case: Case, width: int, steps: int = 320, last: int = 60) -> float:
    """Return the mean logarithm of the norm of the last steps."""
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.zeros(width, width, dtype=torch.float64))
    optimizer = case.make()([p], 1.0)
    norms: list[float] = []
    for _ in range(steps):
        left = unit_vector(width, generator)
        p.grad = torch.outer(left, unit_vector(width, generator))
        before = p.detach().clone()
        optimizer.step()
        norms.append(float((p.detach() - before).norm()))
    return float(np.log(norms[-last:]).mean())


def unit_vector(width: int, generator: torch.Generator) -> torch.Tensor:
    """Return a random unit vector."""
    vector = torch.randn(width, generator=generator, dtype=torch.float64)
    return vector / vector.norm()
