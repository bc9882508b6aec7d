"""The norm of real updates against width, beside the exponent of the law of each optimizer.

    python benchmarks/update_laws.py

Exponents of the width, 64 to 512, in a ReLU network: spectral norm and entries of the update of a
hidden matrix, divided by the learning rate (`tests/support/update_slopes.py`). The first table is
for one example, whose gradients have rank one; the second is for SOAP, whose law depends on it.
Packages that are not installed are left out.
"""

import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.update_cases import CASES, Case
from support.update_slopes import predicted_norm, slopes

from orderone.theory.exponents.updates import update_law

WIDTHS = (64, 128, 256, 512)


def main() -> None:
    warnings.simplefilter("ignore")  # of the packages
    with torch.compiler.set_stance("force_eager"):
        one_example()
        soap()


def one_example() -> None:
    """Print the exponents of all optimizers for gradients of rank one."""
    print("| optimizer | law | norm | predicted | entries |")
    print("| --- | --- | --- | --- | --- |")
    for case in CASES:
        if not installed(case):
            continue
        found = slopes(case.make(), replace(case.setting, widths=WIDTHS))
        predicted = predicted_norm(update_law(case.law), found.gradient)
        cells = " | ".join(f"{x:+.2f}" for x in (found.norm, predicted, found.entries))
        print(f"| {case.title} | {case.law} | {cells} |", flush=True)


def soap() -> None:
    """Print the exponents of SOAP for repeated and fresh data, and for two values of eps."""
    print("| optimizer | data | eps | norm | effect | entries |")
    print("| --- | --- | --- | --- | --- | --- |")
    for case in CASES:
        if case.law != "soap" or not installed(case):
            continue
        for repeated, eps in ((True, 1e-5), (True, 1e-8), (False, 1e-8)):
            setting = replace(case.setting, widths=WIDTHS, repeated=repeated)
            make = replace(case, options={**case.options, "eps": eps}).make()
            found = slopes(make, setting)
            cells = " | ".join(f"{x:+.2f}" for x in (found.norm, found.effect, found.entries))
            data = "one example" if repeated else "fresh batches"
            print(f"| {case.title} | {data} | {eps:g} | {cells} |", flush=True)


def installed(case: Case) -> bool:
    try:
        case.make()
    except ModuleNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main()
