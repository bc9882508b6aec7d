"""`orderone`: run a verb and end with its status.

    0 done, 1 no answer exists, 2 wrong input, 130 interrupted

A check that ends with 0 has passed; 1 means FAIL and 3 UNCLEAR. A sweep that ends with 0 has found
that the learning rate transfers; 1 means that it does not, and 3 that there is not enough data.
"""

import io
import os
import sys
from collections.abc import Sequence

from orderone import __version__


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the verb of the command line."""
    for stream in (sys.stdout, sys.stderr):  # Δ must not crash a terminal that cannot show it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    words = sys.argv[1:] if arguments is None else arguments
    if list(words) == ["--version"]:
        print(f"orderone {__version__}")
        return
    try:
        from orderone.cli.verbs import run  # within `try`: Ctrl-C may come while it loads

        run(arguments)
        sys.stdout.flush()
    except ValueError as error:
        print(f"orderone: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader has gone, as in `orderone ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # as a shell reports it for any program that a closed pipe ends
    except (ImportError, OSError) as error:  # an optional package, a full disk
        print(f"orderone: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("orderone: interrupted", file=sys.stderr)
        sys.exit(130)
