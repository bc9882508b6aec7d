"""`orderone explore`: show the theory with sliders, in a browser on this machine."""

import sys
import webbrowser
from threading import Thread

from orderone.cli.help import Help
from orderone.core.errors import InputError

HELP = Help(
    example="orderone explore --port 9000 --no-browser",
    groups={"Server": ("port", "browser")},
)


def explore(port: int | None = None, browser: bool = True) -> None:
    """Open a page with sliders in a browser: phase diagrams, parameterizations and depth reports.

    The page is served at 127.0.0.1, which other machines cannot reach. Ctrl-C stops the server.

    Args:
        port: Port of the server. Default: the first free port from 8765 on.
        browser: Do not open a browser; print the address only.
    """
    from orderone.explore import Explorer

    try:
        explorer = Explorer(port)
    except ImportError as error:
        raise InputError(str(error), "missing-package") from error
    try:
        with explorer:
            print(f"exploring at {explorer.url} (stop with Ctrl-C)", flush=True)
            if browser:  # in a thread: some browsers return only when they are closed
                Thread(target=webbrowser.open, args=[explorer.url], daemon=True).start()
            explorer.serve_forever()
    except KeyboardInterrupt:  # the normal way to stop
        print("\nstopped", file=sys.stderr)
