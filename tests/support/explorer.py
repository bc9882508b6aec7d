"""A running explorer, and requests to it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from threading import Thread
from typing import Any
from urllib.parse import urlencode

from orderone.explore import HOST, Explorer

NETWORK = {
    "activation": "tanh",
    "weight_var": 1.4,
    "bias_var": 0.1,
    "keep": 0.9,
    "q0": 1,
    "c0": 0.2,
}
DIAGRAM = {
    "activation": "tanh",
    "keep": 1,
    "most_weight_var": 4,
    "most_bias_var": 0.3,
    "points": 12,
}
RULE = {
    "rule": "sp",
    "optimizer": "adam",
    "alignment": "worst",
    "rates": "",
    "layers": 3,
    "norm": 0,
    "gauge": "paper",
}
DEPTH = {
    "width": 512,
    "depth": 64,
    "activation": "relu",
    "shaped": 0,
    "a": 1,
    "skips": "none",
    "factor": 1,
    "rho0": 0.3,
}
MODEL = {"architecture": "MLP, tanh", "examples": 4, "input_correlation": 0.5}
QUERIES: dict[str, dict[str, Any]] = {
    "network": NETWORK,
    "diagram": DIAGRAM,
    "rule": RULE,
    "depth": DEPTH,
    "model": MODEL,
}


@contextmanager
def running(**options: Any) -> Iterator[Explorer]:
    with Explorer(port=0, **options) as explorer:
        thread = Thread(target=explorer.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield explorer
        finally:
            explorer.shutdown()
            thread.join()


def get(
    explorer: Explorer, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Return status, body and headers."""
    connection = HTTPConnection(HOST, explorer.server_port, timeout=60)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        response = connection.getresponse()
        return response.status, response.read(), dict(response.getheaders())
    finally:
        connection.close()


def ask(explorer: Explorer, view: str, **changes: Any) -> tuple[int, Any]:
    """Return status and answer for the default query of this view with some changes.

    None leaves a value out.
    """
    query = {
        name: value
        for name, value in (QUERIES.get(view, {}) | changes).items()
        if value is not None
    }
    path = f"/api/{view}?{urlencode(query)}"
    status, body, _ = get(explorer, path, Sec_Fetch_Site="same-origin")
    return status, json.loads(body)
