"""Quantities that are recorded while a model trains, and those derived from them."""

from enum import StrEnum


class Quantity(StrEnum):
    """A measured quantity of a module or tensor; compares and prints like its plain string."""

    # quantities of modules
    INPUT = "input"
    OUTPUT = "output"
    OUTPUT_GRADIENT = "output gradient"
    CHANGE = "change"  # change of the output on a fixed batch, since the first step
    SCORES = "scores"  # inputs of the softmax in attention
    SCORE_CHANGE = "score change"
    # quantities of tensors
    WEIGHT = "weight"
    GRADIENT = "gradient"
    UPDATE = "update"
    RATE = "learning rate"  # of the tensor's group: a known number
    DECAY = "decay"  # fraction by which weight decay shrinks a tensor in one step
    PENALTY = "penalty"  # weight decay added to a gradient, relative to the gradient
    EPS = "eps"  # of the tensor's group: a known number
    # of the whole study; these are judged without a fit
    STEP = "step"  # updates of all tensors, relative to what rates and gradients imply
    SETTINGS = "optimizer settings"  # betas, momentum, ...
    MULTIPLIER = "multiplier"  # a number in the forward code that no tensor compensates
    SCHEDULE = "schedule"
    SHAPES = "shapes"

    def __repr__(self) -> str:
        return repr(self.value)


OF_TENSORS = (
    Quantity.WEIGHT,
    Quantity.GRADIENT,
    Quantity.UPDATE,
    Quantity.RATE,
    Quantity.DECAY,
    Quantity.PENALTY,
    Quantity.EPS,
)
