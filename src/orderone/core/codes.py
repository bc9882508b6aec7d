"""Codes of errors and notes: a short, stable name for each kind of message.

A message ends with its code in square brackets: `pass inputs=... [needs-example-batch]`. Sentences
may be reworded; codes stay, so that programs and tests can rely on them. `EXPLANATIONS` says what
each code means and what to do. `orderone explain CODE` prints it, and the page Troubleshooting of
the documentation shows all of them.
"""

import re

GENERAL = {
    "invalid-argument": (
        "An argument has a value that the function cannot use. The message names the argument,"
        " the values that are accepted, and the value that was passed."
    ),
    "unknown-name": (
        "A name is not in the list of names that the function knows: an optimizer, a rule, an"
        " activation, a column. The message lists the accepted names."
    ),
    "wrong-type": (
        "An argument is of another type than expected. The message names the type and shows how"
        " to make one."
    ),
}
PLAN: dict[str, str] = {}
CHECK: dict[str, str] = {}
SWEEP: dict[str, str] = {}
TRAIN: dict[str, str] = {}
THEORY: dict[str, str] = {
    "inexact-number": (
        "Exponents are compared exactly, so a float such as 0.1, which is not exactly 1/10, is"
        " refused. Write Fraction(1, 10) or '1/10'. Floats with a small power of 2 as denominator,"
        " such as 0.5 and 0.375, are accepted."
    ),
    "infeasible-rates": (
        "No learning rates satisfy all stability conditions and constraints. The message lists a"
        " minimal set of conditions that contradict one another: relax one of them. A tied"
        " embedding needs equal initial sizes of embedding and readout: use gauge(p, 'unit',"
        " optimizer)."
    ),
    "rates-for-another-optimizer": (
        "The learning-rate exponents of this rule were derived for another optimizer than the one"
        " that was tested. Get the rule with rules.get(name, optimizer=...)."
    ),
    "growing-logits": (
        "Each failed condition is tested separately. This note adds up all causes: how fast the"
        " logits, or their change in one step, grow with the width."
    ),
    "lazy-training": (
        "Changes of the last hidden layer vanish as the width grows: a very wide network trains"
        " only its readout and learns no features (neural tangent regime). Rules such as mup avoid"
        " it."
    ),
    "readout-alignment": (
        "The verdict assumes that changes of the last hidden layer are not aligned with the readout"
        " weights. In training they align from the first step on, and the logits change faster."
        " Test the rule with alignment='worst' too."
    ),
    "not-a-covariance": (
        "A covariance matrix must be symmetric and have no negative eigenvalues, up to rounding."
        " For inputs X of shape (inputs, features), X @ X.T / features is one. If the difference is"
        " rounding, pass (V + V.T) / 2 or add a small number to the diagonal."
    ),
    "zero-variance": (
        "A normalization divides by the standard deviation of a point, which is 0 here. Pass"
        " eps=1e-5, as PyTorch does, or remove inputs that are constant or zero."
    ),
    "needs-dense-layer": (
        "The kernels of activations need Gaussian neurons, and the branch of a residual block must"
        " be independent of its input. Both follow from new random weights: put kernels.Dense(...)"
        " before the activation, or at the end of the branch."
    ),
    "needs-tokens": (
        "Attention and pooling over tokens need inputs of the shape (inputs, tokens, features)."
        " Inputs of the shape (inputs, features) are single points without tokens."
    ),
    "not-elementwise": (
        "An activation must treat every number separately: its result may not depend on the other"
        " numbers of the array, and must have the same shape. Softmax, normalizations, sorting and"
        " random noise are not elementwise."
    ),
    "unresolved-function": (
        "The function varies so fast that it cannot be approximated by polynomials on intervals,"
        " and so its derivative and averages cannot be computed. Pass its derivative, or a smoother"
        " function."
    ),
    "no-critical-value": (
        "No value of the parameter gives chi_1 = 1, the critical line between vanishing and"
        " exploding gradients. The message says which quantity is out of its range: change"
        " weight_var or keep."
    ),
    "dead-network": (
        "Activations of the sampled networks are 0 or overflow after so many layers, so their norms"
        " and correlations have no distribution. Use fewer layers, another activation, or a smaller"
        " factor of the residual branches."
    ),
    "step-too-large": (
        "One step of the differential equation changes the covariances by too much to be accurate."
        " Use a smaller dt, or an activation closer to the identity."
    ),
    "no-shaped-form": (
        "Shaping needs a function with a finite slope other than 0 at 0. Functions with a kink at 0"
        " have a ShapedReLU, smooth ones a ShapedActivation. Functions with a trained slope (PReLU)"
        " or the slope 0 (Softshrink) have neither: leave them unchanged with keep=[name]."
    ),
    "already-shaped": (
        "The model already has shaped activations, and shaping them again would change their slopes"
        " twice. Call undo() of the first shaping, or leave its with block, before the next one."
    ),
    "no-activations": (
        "The function shape_activations replaces activation modules, and functions that are"
        " attributes of modules. It cannot replace calls such as torch.relu(x) in forward: use"
        " nn.ReLU() modules there."
    ),
    "tied-sizes-differ": (
        "With tied=True, embedding and readout are one tensor and have one initial size, but the"
        " rule has two different ones. Use a rule or a gauge in which both are equal, for example"
        " gauge(p, 'unit', optimizer)."
    ),
}
DATA: dict[str, str] = {}
PAPERS: dict[str, str] = {}
COMMAND_LINE: dict[str, str] = {}

# in the order of the page Troubleshooting
SECTIONS = {
    "Any function": GENERAL,
    "Plans": PLAN,
    "Checks, probes and alignment": CHECK,
    "Sweeps and transfer": SWEEP,
    "Training": TRAIN,
    "Theory": THEORY,
    "Data": DATA,
    "Papers, reports and the explorer": PAPERS,
    "Command line": COMMAND_LINE,
}
EXPLANATIONS = {code: text for section in SECTIONS.values() for code, text in section.items()}

_CODE_AT_THE_END = re.compile(r" \[([a-z0-9]+(?:-[a-z0-9]+)+)\]$")


def with_code(message: str, code: str) -> str:
    """Return `message` with its code at the end."""
    return f"{message} [{code}]"


def code_of(message: str) -> str | None:
    """Return the code at the end of a message, None if there is none."""
    match = _CODE_AT_THE_END.search(message)
    if match is None:
        return None
    return match.group(1)


def without_code(message: str) -> str:
    """Return `message` without the code at its end."""
    return _CODE_AT_THE_END.sub("", message)
