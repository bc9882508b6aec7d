"""`coord_check`: train small models of several sizes for a few steps, fit exponents to everything,
and judge them.

Every size and seed is one short training under a probe. Exponents of the size are fitted to each
quantity of each module and tensor, and compared with what the rule predicts there.
"""

from typing import Any

from orderone.core.errors import function, one_of
from orderone.core.exact import count
from orderone.measure.check import Check
from orderone.measure.judging import Judge
from orderone.measure.sizes import read_seeds, read_sizes
from orderone.measure.study import Study
from orderone.observe.batches import read_batches
from orderone.planning.options import OPTION_NAMES
from orderone.seeding import preserved

PLAN_OPTIONS = tuple(name for name in OPTION_NAMES if name not in ("C", "Lambda"))


def coord_check(
    build: Any,
    widths: Any = None,
    *,
    depths: Any = None,
    rule: Any = None,
    optimizer: Any = "adamw",
    lr: Any = None,
    batches: Any = None,
    loss: Any = None,
    steps: Any = 4,
    seeds: Any = 3,
    base: Any = None,
    scheduler: Any = None,
    frozen: Any = (),
    confidence: Any = 0.99,
    progress: Any = None,
    **plan_options: Any,
) -> Check:
    """Does everything stay of order one as the model grows? A verdict for every module, and a
    likely cause.

    Args:
        build: A function of the width (or depth) that returns an nn.Module, to which `rule` is
            applied; or a plan; or (module, optimizer), with a scheduler as a third, for a model
            that is scaled already: it is judged as it is.
        widths: At least two sizes, better four or five.
        depths: The same for `build(depth)`; give `depth="sqrt"` or `"completep"` with it.
        rule, optimizer, lr: As in `plan`. `rule` is also what the model is judged by; by default
            mup, or that of a plan.
        batches: One batch (tensor, dict of keyword arguments, or pair of inputs and targets), used
            at every step, or a sequence with one for each step.
        loss: `loss(output, target)` for pairs, `loss(output, batch)` otherwise; by default the
            model's own, or cross entropy (mean squares) of a pair with whole (real) targets.
        steps: Updates.
        seeds: How many, or which.
        base: The size that was tuned, or a module of it; by default the smallest.
        scheduler: A function of the optimizer that returns a learning-rate scheduler.
        frozen: Patterns of tensors that are not trained on purpose.
        confidence: Of the intervals.
        progress: Called with the number of runs done, of all, and what runs now.
        plan_options: weight_decay, depth, gauge, decay, overrides, ... of `plan`.
    """
    steps = count(steps, "steps")
    for name in plan_options:
        one_of(name, PLAN_OPTIONS, "option of coord_check or plan")
    if not 0 < float(confidence) < 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence}")
    function(loss, "loss", "of output and target")
    function(scheduler, "scheduler", "of the optimizer that returns a scheduler")
    function(progress, "progress", "of the number of runs done, of all, and what runs now")
    axis, sizes = read_sizes(widths, depths)
    with preserved():  # the check sets seeds of its own
        study = Study(
            build=build,
            axis=axis,
            sizes=sizes,
            asked={"rule": rule, "optimizer": optimizer, "lr": lr, **plan_options},
            batches=read_batches(batches, steps),
            loss=loss,
            seeds=read_seeds(seeds),
            steps=steps,
            base=base,
            scheduler=scheduler,
            frozen=frozen,
        )
        study.run(progress)
    return Judge(study, float(confidence)).judge()
