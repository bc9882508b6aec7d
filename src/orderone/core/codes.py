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
SWEEP: dict[str, str] = {
    "unknown-space-key": (
        "The space of a sweep has a key that is neither a setting of a trial (lr, weight_decay,"
        " beta1, seed, ...) nor an argument of build, or a setting that the optimizer does not"
        " have. Correct the name, add the argument to build, or remove the key. Sizes are passed as"
        " widths= and depths=, not in the space."
    ),
    "build-arguments": (
        "The function build cannot be called with the arguments of the sweep: it does not accept"
        " the width or depth, or it requires an argument that gets no value. Pass widths= or"
        " depths=, add the argument to the space, or give it a default value."
    ),
    "build-not-repeatable": (
        "Two calls of build with the same sizes made models with different tensors, so that their"
        " losses cannot be compared. The function build must depend only on its arguments, not on"
        " the seed, a counter or a global variable."
    ),
    "job-not-picklable": (
        "The executor sends the job to other processes, and build, data or loss cannot be pickled"
        " or imported there. Install cloudpickle, or define them as functions at the top level of"
        " an importable module."
    ),
    "no-ray-cluster": (
        "There is no Ray cluster at the address. Start one with `ray start --head` and pass its"
        ' address or "auto", or leave address out to start a local cluster.'
    ),
    "not-a-store": (
        "The path of a store is not a file that orderone.sweep has written: the file is missing,"
        " it is a folder, or it belongs to another program. Pass another file name."
    ),
    "store-of-other-version": (
        "The store was written by a version of orderone with another file format. Pass another"
        " file name, or read the store with the version that wrote it."
    ),
    "store-in-use": (
        "Another process is writing to the store; only one may write at a time. Wait until it has"
        " ended, or pass another file name. Reading with Sweep.load works at any time."
    ),
    "store-not-usable": (
        "SQLite cannot open or write the store: the disk is full, another program has locked the"
        " file, or the folder is read-only. The message has the cause and the remedy."
    ),
    "results-not-saved": (
        "Finished trials could not be written to the store. They are in the result of this call,"
        " but the next call would train them again. Free disk space or unlock the file, then run"
        " the same call again."
    ),
    "several-sweeps-in-store": (
        "The store has several sweeps that differ in more than their space (steps, data, code), so"
        " that their losses cannot be compared. Sweep.load reads the newest one; pass job= with the"
        " name in the note to read another one."
    ),
    "trial-failed": (
        "A trial raised an error; the note has its settings and the error. The other trials are"
        " not affected. Failed trials run again in the next call with the same store."
    ),
    "stack-failed": (
        "Training many trials in one program raised an error, for example because of memory, so the"
        " trials were trained one after another. Losses are the same; only the speed differs. Pass"
        " a smaller together= if memory was the cause."
    ),
    "frame-needs-column": (
        "The table of trainings has no column of this name. A transfer study needs the columns lr,"
        " loss, and width or depth; rule and seed are optional. Rename your columns."
    ),
    "frame-without-rows": (
        "The table has no finished training: it is empty, or all trials failed or were stopped"
        " early. Run the sweep to its end first, without a pruner if all trials were stopped."
    ),
    "frame-has-gaps": (
        "A column that identifies trainings has missing values in some rows. Fill them in, or drop"
        " those rows."
    ),
    "choose-with-where": (
        "The table has trainings that differ in another setting than rule, size, learning rate and"
        " seed, so that there is no single best learning rate. Select one value with"
        " where={'name': value}, and the axis with over= if both width and depth vary."
    ),
    "incomplete-grid": (
        "Some combinations of seed and learning rate are missing at this size. The study uses only"
        " complete seeds, or only complete learning rates. Run the missing trials for a smaller"
        " uncertainty."
    ),
    "needs-more-sizes": (
        "A drift needs at least three sizes. Add widths (or depths) to the sweep; with the same"
        " store only the new ones are trained."
    ),
    "needs-more-rates": (
        "The best learning rate of a size needs at least five learning rates. Add values around the"
        " best one, at ratios of 2 or less."
    ),
    "needs-more-seeds": (
        "With one seed there is no estimate of the variation between seeds, so no interval and no"
        " verdict. Run two seeds or more, better three."
    ),
    "optimum-outside-grid": (
        "The best learning rate of a size is at the end of the grid, or all its learning rates"
        " diverged, so its value is unknown. Add learning rates on the side that the message names."
    ),
    "equal-losses": (
        "All learning rates of a size give the same loss, so none is best. Train for more steps, or"
        " use a wider grid of learning rates."
    ),
    "drift-too-uncertain": (
        "The interval of the drift is too wide for a verdict: it is partly inside and partly"
        " outside the tolerance. Add seeds, refine the grid of learning rates, or use sizes that"
        " are further apart, as the message says."
    ),
    "no-learning-rate": (
        "No learning rate can be recommended for this size, because the trainings contradict every"
        " candidate: the best learning rate of some size is outside the grid, or it seems to move"
        " and the data do not suffice to extrapolate. Follow the remedy in the message, and repeat"
        " the sweep with the same store."
    ),
    "checkpoint-not-written": (
        "The checkpoint of a running trial could not be written, for example because the disk is"
        " full. The training continues. If the process is stopped now, this trial starts again"
        " from its first step or from its last checkpoint."
    ),
}
TRAIN: dict[str, str] = {
    "training-data-expected": (
        "The argument data is none of the accepted forms: a task of orderone.data, a function of"
        " (step, seed) that returns a batch, or one batch that is used at every step. For a"
        " DataLoader, write a function that returns its batches by step."
    ),
    "batch-expected": (
        "The data function returned something that is not a batch. A batch is a tensor, a dict of"
        " keyword arguments of the model, or a pair (inputs, targets). Check that the function has"
        " a return statement."
    ),
    "batch-not-divisible": (
        "Several processes train one model, and the rows of a batch cannot be divided equally among"
        " them. Use a batch size that is a multiple of the number of processes."
    ),
    "train-on-meta": (
        "The model was built on the meta device, where tensors have no values. Build the model on"
        " the CPU or a GPU; only the base of a plan may be on the meta device."
    ),
    "train-needs-optimizer": (
        "A plain nn.Module needs an optimizer. Pass optimizer=..., or pass a plan, which makes the"
        " optimizer with the learning rates of its rule."
    ),
    "fsdp-makes-optimizer": (
        "Sharding with fsdp replaces the parameters of the model, so an optimizer made before"
        " would update tensors that are no longer used. Pass a plan without optimizer=; its"
        " optimizer is made after sharding."
    ),
    "needs-torchrun": (
        "The strategies ddp and fsdp need several processes. Start the script with `torchrun"
        " --nproc-per-node N script.py`, or leave strategy out to train in one process."
    ),
    "not-a-checkpoint": (
        "The file at the checkpoint path was not written by o1.train. Remove it, or pass another"
        " path."
    ),
    "checkpoint-of-other-training": (
        "The checkpoint belongs to a training with another model or other settings; continuing it"
        " would mix the two. The message names the first difference. Restore the old setting to"
        " continue, remove the file to start again, or pass another path."
    ),
    "members-differ": (
        "Models that are trained in one program must have the same modules, shapes and constants."
        " They may differ only in the values of parameters and buffers and in optimizer settings."
        " Make the attribute that the message names equal, or register it as a buffer."
    ),
    "unregistered-parameter": (
        "A module has a parameter in a plain list or another attribute, where it cannot be replaced"
        " by that of each member. Use nn.ParameterList or nn.ParameterDict, or pass stacked=False."
    ),
    "not-vectorizable": (
        "The function torch.vmap cannot run a module for many members at once, usually because its"
        " forward pass reads numbers from tensors (.item(), float(x)) or uses an unsupported"
        " operation. Rewrite it with tensor operations such as torch.where, or pass stacked=False:"
        " the trials are then trained one after another, with the same losses."
    ),
    "changes-before-decision": (
        "Members of a stack take different branches in the forward pass, so it must run once per"
        " group of members, but the pass also changes a buffer or an attribute of the model. Move"
        " that change after the branch, or pass stacked=False."
    ),
    "parametrized-recurrence": (
        "An LSTM, GRU or RNN computes its weights from other tensors (weight_norm or another"
        " parametrization), which a stack does not support. Pass stacked=False."
    ),
    "batch-shapes-differ": (
        "The data function returns batches of different shapes for different seeds at the same"
        " step, so they cannot be stacked. Pad them to one shape, or pass stacked=False."
    ),
    "optimizer-not-stackable": (
        "The optimizer has no stacked form: it is a class that orderone does not know, a subclass,"
        " or it has an option that must be the same in all members or must be off. Change the"
        " option that the message names, or pass stacked=False."
    ),
    "optimizer-of-other-model": (
        "A stack needs one optimizer per model, in the same order, made from the parameters of that"
        " model. Check the order of the two lists."
    ),
}
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
