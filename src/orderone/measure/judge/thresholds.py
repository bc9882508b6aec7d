"""Thresholds of the judge, each with its reason. `docs/read-a-check.md` prints this table."""

from typing import NamedTuple


class Threshold(NamedTuple):
    """A number that a verdict depends on."""

    value: float
    meaning: str
    reason: str


THRESHOLDS: dict[str, Threshold] = {
    "boundary": Threshold(
        0.25,
        "largest distance of a measured exponent from an allowed one",
        "exponents of theory are multiples of 1/2, and a fault moves them by 1/2 or more; this is"
        " half of the way",
    ),
    "next": Threshold(
        0.5,
        "largest distance of the interval's ends from an allowed exponent, for PASS",
        "the next exponent of theory: an interval that reaches it does not exclude a fault",
    ),
    "exact": Threshold(
        0.1,
        "for settings such as learning rates: largest distance of the exponent from the predicted"
        " one",
        "settings are known numbers without noise; sizes that are rounded to multiples of 8 or 64"
        " move their exponents by a few hundredths",
    ),
    "common": Threshold(
        0.15,
        "for the quantity `step`: largest exponent of the factor between the measured updates and"
        " those that follow from learning rates and gradients",
        "clipping to a fixed norm changes the exponents of all tensors by 0.3 to 0.5. Noise changes"
        " those of a few tensors only, so the exponent that is nearest to zero is compared",
    ),
    "rough": Threshold(
        0.6,
        "for gradients, instead of 0.25: largest distance of the exponent from the predicted one",
        "theory predicts gradients whose terms have random signs; equal signs raise the exponent by"
        " up to 1/2",
    ),
    "least growth": Threshold(
        0.1,
        "smallest excess over the bound that counts as growth, where the rule predicts growth",
        "the question there is whether it grows, not how fast; a fit over a factor of 8 in size has"
        " an error of a few hundredths",
    ),
    "missing alignment": Threshold(
        0.5,
        "largest exponent by which missing alignment may reduce a change",
        "a sum of n terms is n times one term if all have the same sign, and n^(1/2) times one term"
        " if signs are independent",
    ),
    "dominant": Threshold(
        0.5,
        "smallest share of a bias in the squares of an output (at the start, in the smallest model)"
        " that lets the output shrink along with the bias",
        "the bias is more than the product with the weight. torch draws biases of size fan_in^-1/2,"
        " and a product with small activations (behind several GELUs) is smaller in small models",
    ),
    "wide": Threshold(
        1.5,
        "widest interval for FAIL; a wider one is UNCLEAR",
        "it contains at least three neighbouring exponents of theory",
    ),
    "fades": Threshold(
        0.5,
        "for FAIL: the exponent is fitted again with the larger half of the sizes only, and at"
        " least this fraction of its deviation must remain",
        "a fault is a power law, with the same exponent at all sizes; corrections of finite size"
        " fall at least like n^-1/2, and a factor of 8 in size leaves less than half of them",
    ),
    "few sizes": Threshold(
        3,
        "smallest number of sizes for PASS",
        "two points always lie on a line, so they cannot show whether sizes follow a power law",
    ),
    "vanishing": Threshold(
        1e-6,
        "smallest gradient that is not a rounding error, relative to the median gradient of tensors"
        " and to the largest gradient of outputs",
        "single precision has 7 digits. Examples, which softmax cancels: a bias of keys, a number"
        " that is added to all classes",
    ),
    "resolution": Threshold(
        1.0,
        "smallest update or change that can be measured, in rounding errors. The rounding error is"
        " the initial weight (for updates) or output (for changes), times 2^-23 for float32, 2^-10"
        " for float16 and 2^-7 for bfloat16",
        "an update is the difference of two weights, each rounded to its last digit, and a change"
        " is the difference of two outputs. Example: a branch whose gate starts at zero, with SGD",
    ),
    "rounded": Threshold(
        0.5,
        "largest relative difference between the gradients of a tensor with and without autocast;"
        " tensors above it are not judged",
        "more than half of such a gradient is rounding error. Example in bfloat16: a bias before"
        " batch norm",
    ),
    "cancelled": Threshold(
        1e-4,
        "smallest gradient of a bias that is not a rounding error, relative to a sum of its terms"
        " with random signs",
        "single precision has 7 digits, and a sum of a thousand terms loses up to 3 of them."
        " Example: a bias before batch norm",
    ),
    "damped": Threshold(
        0.1,
        "largest eps that does not change the size of steps, relative to the gradient",
        "it makes a normalized step smaller by less than ten per cent",
    ),
    "drawn": Threshold(
        3.3,
        "largest difference that chance explains between the initial sizes of a tensor whose shape"
        " does not grow, or of the output of a readout, in standard deviations",
        "normal random numbers are further from their mean in one of a thousand cases. Such tensors"
        " have few entries, and readouts few features, so chance matters (a bias of the output)",
    ),
    "negligible": Threshold(
        1e-2,
        "largest penalty of weight decay that has no effect, relative to the gradient",
        "it changes a normalized step by at most one per cent",
    ),
}

BOUNDARY = THRESHOLDS["boundary"].value
NEXT = THRESHOLDS["next"].value
EXACT = THRESHOLDS["exact"].value
COMMON = THRESHOLDS["common"].value
ROUGH = THRESHOLDS["rough"].value
LEAST_GROWTH = THRESHOLDS["least growth"].value
MISSING_ALIGNMENT = THRESHOLDS["missing alignment"].value
DOMINANT = THRESHOLDS["dominant"].value
WIDE = THRESHOLDS["wide"].value
FADES = THRESHOLDS["fades"].value
FEW = int(THRESHOLDS["few sizes"].value)
VANISHING = THRESHOLDS["vanishing"].value
RESOLUTION = THRESHOLDS["resolution"].value
ROUNDED = THRESHOLDS["rounded"].value
CANCELLED = THRESHOLDS["cancelled"].value
DAMPED = THRESHOLDS["damped"].value
DRAWN = THRESHOLDS["drawn"].value
NEGLIGIBLE = THRESHOLDS["negligible"].value
