"""`orderone explore`: the theory with sliders, in a browser on this machine."""

import sys
import webbrowser
from threading import Thread


def explore(port: int | None = None, browser: bool = True) -> None:
    """Open a page with sliders: phase diagrams, parameterizations, depth reports, computed while
    you move them.

    The page is served on this machine only, at 127.0.0.1. Ctrl-C ends it.

    Args:
        port: Where to listen; without it, the first free one from 8765 on.
        browser: A browser is opened; --no-browser leaves that to you.
    """
    from orderone.explore import Explorer

    try:
        explorer = Explorer(port)
    except ImportError as error:
        raise ValueError(error) from error
    try:
        with explorer:
            print(f"exploring at {explorer.url} (Ctrl-C ends it)", flush=True)
            if browser:  # some browsers return only when they are closed
                Thread(target=webbrowser.open, args=[explorer.url], daemon=True).start()
            explorer.serve_forever()
    except KeyboardInterrupt:  # the usual way to end it
        print("\nended", file=sys.stderr)
