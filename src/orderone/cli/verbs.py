"""All verbs: a table of names, and the one place that reads the command line.

A verb is a file of this package (or of `predict`) with a function of the verb's name and a `HELP`.
Only the file of the verb that runs is imported.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from orderone.cli.exit_codes import EXIT_CODES, WRONG_INPUT
from orderone.cli.help import Help, command, heading, section, verb_page, wrapped
from orderone.core.errors import one_of

PREDICT = "predict"
HELP_OPTIONS = ("-h", "--help")


@dataclass(frozen=True)
class Verb:
    """A verb, and one line about it for the overview."""

    name: str
    summary: str

    @property
    def module(self) -> str:
        """Return the module, which has the verb's name."""
        return f"orderone.cli.{self.name.replace(' ', '.')}"

    def load(self) -> tuple[Callable[..., None], Help]:
        """Import the verb."""
        module = import_module(self.module)
        return getattr(module, self.name.rpartition(" ")[2]), module.HELP


VERBS: dict[str, tuple[Verb, ...]] = {
    "Start here": (Verb("demo", "Run a plan, a check and a sweep in a few minutes."),),
    "Apply, check and transfer": (
        Verb("plan", "Print learning rates and initial sizes of a model."),
        Verb("check", "Train small models and check that a rule (muP) holds."),
        Verb("sweep", "Tune small models; does the learning rate transfer?"),
        Verb("report", "Summarize saved results and write them as an HTML page."),
    ),
    "Theory": (
        Verb("predict exponents", "Powers of the width; largest stable learning rates."),
        Verb("predict meanfield", "Fixed points and trainable depth of wide networks."),
        Verb("predict phase", "Phase diagram over weight and bias variances."),
        Verb("predict limits", "Spread of norms and correlations at a width and depth."),
        Verb("predict strategies", "Initial sizes and learning rates of Transformers."),
        Verb("predict transformer", "Kernels and tangent kernels of a Transformer."),
        Verb("explore", "Open a page with sliders for the theory in a browser."),
    ),
    "Papers": (
        Verb("reproduce", "Run tables and figures of the papers, and judge them."),
        Verb("cite", "Print references for what you used, as BibTeX."),
    ),
    "Errors": (Verb("explain", "Explain the code at the end of an error or note."),),
}
ALL = {verb.name: verb for group in VERBS.values() for verb in group}
EXAMPLES = (
    "orderone demo",
    "orderone plan --hf-config config.json --base hidden_size=256 --lr 3e-3",
    "orderone check --model gpt2 --widths 64:512 --lr 3e-3",
)
COLUMN = 24


def run(arguments: Sequence[str] | None) -> None:
    """Parse the command line and run a verb."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        print(overview(), file=sys.stderr)
        sys.exit(WRONG_INPUT)
    if words[0] in HELP_OPTIONS:
        print(overview())
        return
    if words == [PREDICT]:
        print(predictions_page(), file=sys.stderr)
        sys.exit(WRONG_INPUT)
    if words[0] == PREDICT and words[1] in HELP_OPTIONS:
        print(predictions_page())
        return
    verb, options = split(words)
    function, help = verb.load()
    if any(option in HELP_OPTIONS for option in options):
        print(verb_page(verb.name, function, help))
        return
    from orderone.cli.options import parse  # tyro loads here

    parse(verb.name, function, options)


def split(words: Sequence[str]) -> tuple[Verb, list[str]]:
    """Return the verb of a command, one word or two, and the words after it."""
    top = dict.fromkeys(name.partition(" ")[0] for name in ALL)
    name = one_of(words[0], top, "verb")
    if name != PREDICT:
        return ALL[name], list(words[1:])
    predictions = [verb.removeprefix(f"{PREDICT} ") for verb in ALL if PREDICT in verb]
    prediction = one_of(words[1], predictions, "prediction")
    return ALL[f"{PREDICT} {prediction}"], list(words[2:])


def overview() -> str:
    """Return the page of `orderone --help`."""
    lines = [f"{heading('Usage:')} orderone VERB [OPTIONS]", ""]
    lines += wrapped(
        "muP for any PyTorch model: tune a small model, reuse its hyperparameters on a large one."
        " `orderone VERB --help` shows the options of a verb. Every verb but demo and explore"
        " prints JSON with --json."
    )
    for title, verbs in VERBS.items():
        lines += section(title, [(verb.name, verb.summary) for verb in verbs], COLUMN)
    lines += ["", heading("Examples:")]
    for example in EXAMPLES:
        lines += command(example)
    lines += section("Exit codes", [(str(code), text) for code, text in EXIT_CODES.items()], 7)
    lines += section(
        "Environment variables",
        [
            ("NO_COLOR", "Print without colours and bold letters, if it is set."),
            ("COLUMNS", "Width of tables and help pages. Default: the terminal's, 80 in a pipe."),
        ],
        COLUMN,
    )
    lines += ["", "orderone --version prints the version."]
    return "\n".join(lines)


def predictions_page() -> str:
    """Return the page of `orderone predict --help`."""
    lines = [f"{heading('Usage:')} orderone predict NAME [OPTIONS]", ""]
    lines += wrapped("Print what theory predicts, without training a network.")
    entries = []
    for verb in ALL.values():
        if verb.name.startswith(PREDICT):
            entries.append((verb.name.removeprefix(f"{PREDICT} "), verb.summary))
    lines += section("Predictions", entries, COLUMN)
    lines += ["", heading("Example:")]
    lines += command("orderone predict exponents --rule mup --optimizer adam")
    return "\n".join(lines)
