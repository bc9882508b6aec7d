"""Exit codes of all verbs. `orderone --help` and docs/command-line.md print this table."""

OK = 0
NEGATIVE = 1
WRONG_INPUT = 2
INCONCLUSIVE = 3
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
CLOSED_PIPE = 141  # 128 + SIGPIPE, as shells report it

EXIT_CODES = {
    OK: "done; a check passed; the learning rate transfers",
    NEGATIVE: (
        "a check failed; the learning rate does not transfer; the constraints contradict each"
        " other; an experiment broke"
    ),
    WRONG_INPUT: "wrong usage or input, a missing package, an unreadable or unwritable file",
    INCONCLUSIVE: (
        "a check or sweep is inconclusive: it needs more sizes, seeds or learning rates, or it lost"
        " its Ray cluster"
    ),
    INTERRUPTED: "interrupted by Ctrl-C; finished work was printed or saved",
    CLOSED_PIPE: "the program that reads the output ended first, for example `head`",
}
