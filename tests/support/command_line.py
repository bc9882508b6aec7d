"""Run a verb in this process, as a user would on the command line."""

import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import wraps

from orderone.cli.exit_codes import WRONG_INPUT
from orderone.cli.main import main
from orderone.cli.options import parse
from orderone.cli.verbs import split
from orderone.core.codes import EXPLANATIONS
from orderone.core.errors import InputError, code_of


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command."""

    status: int
    out: str
    err: str

    @property
    def code(self) -> str | None:
        """Return the code at the end of the error message; None if it has none."""
        return code_of(self.err.strip())


def orderone(*words: object) -> Ended:
    """Run `orderone WORDS...`; return how it ended."""
    out = io.StringIO()
    err = io.StringIO()
    status = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as ended:
            status = int(ended.code or 0)
    return Ended(status, out.getvalue(), err.getvalue())


def accept(words: Sequence[str]) -> None:
    """Parse a command without running it; raise SystemExit if it is wrong."""
    if not {"--help", "--version"}.isdisjoint(words):
        return
    try:
        verb, options = split(words)
    except InputError as error:
        raise SystemExit(WRONG_INPUT) from error
    function, _ = verb.load()

    @wraps(function)
    def do_nothing(*arguments: object, **options: object) -> None:
        pass

    parse(verb.name, do_nothing, options)


def assert_refused(ended: Ended, code: str | None, *words: str) -> None:
    """Assert that wrong input was refused in one line with this code, which names `words`.

    None: a message that is complete in itself and has no code.
    """
    assert ended.status == 2, ended
    assert ended.out == ""
    assert "Traceback" not in ended.err
    assert ended.err.startswith("orderone: ")
    assert ended.code == code, ended.err
    assert code is None or code in EXPLANATIONS
    for word in words:
        assert word in ended.err, ended.err
