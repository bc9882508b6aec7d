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
THEORY: dict[str, str] = {}
DATA: dict[str, str] = {}
PAPERS: dict[str, str] = {}
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
