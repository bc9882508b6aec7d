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
CHECK = {
    # likely causes of FAIL
    "same-shapes": (
        "The function `build` returns models of the same shapes for every size, so there is nothing"
        " to compare. Make the model's layers depend on the argument of `build`."
    ),
    "base-equals-target": (
        "The plan that `build` returned was made with a base of the model's own size, so all of its"
        " factors are 1 and nothing is scaled. Make the plan at every size with the same base: the"
        " small model whose hyperparameters you tuned."
    ),
    "broken-schedule": (
        "The learning-rate schedule changes the ratios between the learning rates of the groups. An"
        " absolute floor or peak (`eta_min`, a scalar `max_lr`) does this. Use a schedule that"
        " multiplies every group's learning rate by the same factor."
    ),
    "unfinished-plan": (
        "The plan asks for a change that it cannot make by itself, in the code of the model. The"
        " message names it, and `plan.undone` lists all of them. Make the change and check again."
    ),
    "unscaled-branches": (
        "The sum over residual branches grows with the number of layers. Pass `depth='sqrt'` or"
        " `depth='completep'` to the plan, or multiply what every branch adds by 1/sqrt(L) or 1/L"
        " in the forward code."
    ),
    "rule-predicts-growth": (
        "The rule itself predicts that this quantity grows with the size, so the check fails, or"
        " cannot pass, for a model that follows the rule. This is a property of the rule, not a"
        " mistake in the model. `rule='mup'` keeps activations and updates of order one."
    ),
    "standard-parameterization": (
        "Updates are as large in wide models as in narrow ones, as with one learning rate for all"
        " tensors. Take the learning rates from a plan: `plan.optimizer()` or"
        " `plan.param_groups()`."
    ),
    "frozen-tensor": (
        "No step of any run has changed this tensor. Set `requires_grad=True`, add it to the"
        " optimizer, or make the loss depend on it. If it is not trained on purpose, name it in"
        " `frozen=`."
    ),
    "lr-not-scaled": (
        "Updates of these tensors do not scale with the size as the rule requires. Their learning"
        " rates, or the multipliers in front of them, are wrong for their role. Compare the"
        " optimizer's groups with those of `plan.param_groups()`."
    ),
    "readout-not-scaled": (
        "The readout (the last layer) starts too large or too small, grows, or has the wrong"
        " learning rate. In mup its initial output shrinks with the width, and its learning rate or"
        " its multiplier is 1/width. A plan sets both."
    ),
    "small-gradients": (
        "Updates are smaller than the rule predicts, although the learning rates are right. Either"
        " the optimizer's eps is not small compared with the gradients, so that steps are not"
        " normalized, or gradients are clipped. Pass a smaller `eps=` to the plan or the"
        " optimizer."
    ),
    "attention-scale": (
        "Attention scores grow with the width, because queries and keys align in training. Divide"
        " their product by the head size instead of its square root."
    ),
    "wrong-initial-size": (
        "Weights or outputs do not start with the size that the rule requires. Initialize the model"
        " with `plan.apply()`, or compare its standard deviations with those of the plan."
    ),
    "decay-not-scaled": (
        "Weight decay grows or shrinks with the size. With decoupled decay (AdamW), keep"
        " lr * weight_decay the same at every size: `decay='independent'`. With decay that is added"
        " to the gradient (Adam), scale it like the gradient divided by the weight, or use AdamW."
    ),
    "shrinking-output": (
        "The change of the model's output shrinks with the size by more than missing alignment"
        " explains. Look for a factor in the forward code, such as a division by the width, that"
        " the rule already contains."
    ),
    "growing-activations": (
        "Activations grow with the size, and neither learning rates nor initial sizes explain it."
        " Look at what the forward code multiplies or adds up in the module that the message names"
        " first."
    ),
    # reasons for UNCLEAR, and notes
    "too-few-sizes": (
        "With two sizes, a slope cannot be told from a bend, so no line can pass. Pass at least"
        " three widths or depths; four or five are better."
    ),
    "noisy-exponents": (
        "The confidence interval of an exponent contains more than one exponent of theory. Use more"
        " seeds, sizes that are further apart, or larger sizes."
    ),
    "nothing-fitted": (
        "No exponent could be fitted, for example because all runs ended at once. An exponent needs"
        " three finished runs of at least two sizes."
    ),
    "run-failed": (
        "One run raised an error, which the message quotes. The other runs are judged without it,"
        " and the check does not pass."
    ),
    "run-diverged": (
        "The loss of one run became infinite or NaN, and the run ended early. Use a smaller"
        " learning rate."
    ),
    "check-interrupted": (
        "You interrupted the check. The runs that had finished are judged, but the check does not"
        " pass."
    ),
    "too-few-batches": (
        "There are fewer batches than steps, so training ended early. Pass one batch for each step,"
        " or one batch for all steps."
    ),
    "no-predictions": (
        "The model could not be planned, for the reason in the message, so there is no prediction"
        " for its tensors. Only activations are judged, as if all were of order one. Mend the"
        " reason to get a full check."
    ),
    "optimizer-judged-as": (
        "The class of your optimizer is unknown, so its updates are judged by the law of a known"
        " optimizer. If another law fits, pass `optimizer=` or register the class with"
        " `orderone.optimizers.register`."
    ),
    "law-begins-later": (
        "The first steps of your optimizer follow another law than later ones (those of RAdam are"
        " steps of SGD), and the check has only such steps. Pass the number of `steps` that the"
        " message names."
    ),
    "decay-not-measured": (
        "Weight decay is measured on a copy of model and optimizer, and the copy failed for the"
        " reason in the message. Everything else is judged. Make both accept `copy.deepcopy` to"
        " have the decay judged, too."
    ),
    "untrained-tensor": (
        "A tensor did not change in training, for a harmless reason: it is not used, it is a"
        " constant table, or its updates are below its precision. No action is needed if you expect"
        " this."
    ),
    "updates-shrink": (
        "Updates of these modules get smaller with size than the rule permits: wide models learn"
        " less there. Weights, updates and inputs are then less aligned than the rule assumes. This"
        " is no mistake; `orderone.alignment` measures it, and `rules.from_alignment` makes a rule"
        " from it."
    ),
    "no-held-out-tokens": (
        "Alignment was measured on training tokens only, as there was no other batch. Pass"
        " `held_out=`, or one more batch than steps."
    ),
    "layers-not-measured": (
        "Alignment can be measured only for matrices that one module applies alone, and that the"
        " module applies linearly. Register the type of your module if it does that:"
        " `orderone.register(MyLinear, weight=orderone.matrix(into=1, out=0))`."
    ),
    "ratios-left-out": (
        "Some ratios are 0 or not finite, since a factor did not change in that step. They have no"
        " logarithm, and are not part of the fit."
    ),
    "no-saved-verdicts": (
        "A file of records contains measured sizes, but no verdicts, since these need the model's"
        " plan. Run the check again to get verdicts."
    ),
    "vmap-failed": (
        "These networks cannot run together under `torch.func.vmap`, for the reason in the message."
        " They are measured one by one, which is slower; the results are the same."
    ),
    # errors
    "detached-loss": (
        "The loss has no gradient. Do not detach it, compute it inside `torch.enable_grad()`, and"
        " train at least one tensor."
    ),
    "batch-not-accepted": (
        "The fixed batch of a probe is passed to the model's forward, which does not accept it."
        " Pass the inputs alone, without targets: a tensor, a tuple of positional arguments, or a"
        " dict of keyword arguments."
    ),
    "too-few-tokens": (
        "Alignment is an average over tokens. With fewer than 8 of them its exponent is noise. Use"
        " a larger batch or longer sequences."
    ),
    "not-records": (
        "The file is not a table of records. Pass a file that `check.save`, `orderone check --save`"
        " or `orderone.measure.write` wrote."
    ),
    "needs-pyarrow": (
        "Parquet files need the package pyarrow. Install it with `pip install 'orderone[parquet]'`,"
        " or use a name that ends in .jsonl."
    ),
    "signals-lost": (
        "Deep in these random networks, signals overflow, become zero or become equal. Use fewer"
        " layers, wider networks or a smaller variance of the weights."
    ),
    "unsupported-networks": (
        "The networks cannot be compared layer by layer. Return networks of one architecture, with"
        " linear or convolutional layers whose weights are parameters."
    ),
    "equal-networks": (
        "Two calls of `build` returned networks with the same weights, so there is nothing to"
        " average over. Build the network inside the function, and do not set a seed there."
    ),
}
SWEEP: dict[str, str] = {}
TRAIN: dict[str, str] = {}
THEORY: dict[str, str] = {}
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
