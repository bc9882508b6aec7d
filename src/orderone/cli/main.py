"""`orderone`: run a verb and end with its exit code; `exit_codes` lists them."""

import io
import os
import sys
from collections.abc import Sequence

from orderone import __version__
from orderone.cli.exit_codes import CLOSED_PIPE, INTERRUPTED, WRONG_INPUT


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the verb of the command line."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode must not crash on Δ
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of tensors stay different
    if arguments is None:
        words = sys.argv[1:]
    else:
        words = arguments
    if list(words) == ["--version"]:
        print(f"orderone {__version__}")
        return
    try:
        from orderone.cli.verbs import run  # inside `try`: Ctrl-C may come during the import

        run(arguments)
        sys.stdout.flush()
    except ValueError as error:
        print(f"orderone: {error}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    except BrokenPipeError:  # the reader ended first, as in `orderone ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED_PIPE)
    except (ImportError, OSError) as error:  # an optional package is missing, the disk is full
        print(f"orderone: {error}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    except KeyboardInterrupt as interruption:  # its message says what was saved
        message = str(interruption).replace("the same call", "the same command")
        print(f"orderone: {message or 'interrupted'}", file=sys.stderr)
        sys.exit(INTERRUPTED)
