"""The explorer on this machine, and only there.

It listens on 127.0.0.1, answers GET on the paths it knows, and nothing else. A page of another site
cannot read from it: no header invites it, and a name that was made to point here (DNS rebinding) is
not in the Host header that is expected.
"""

import hashlib
import os
import select
import socket
import sys
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from threading import Lock
from typing import Any

from orderone.core.exact import count
from orderone.core.optional import need
from orderone.explore.workers import AbandonedError, Answer, Workers

HOST = "127.0.0.1"
PORTS = range(8765, 8785)  # tried in turn where none is given
LONGEST = 2000  # characters of a path with its query
KEPT = 128  # answers
PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
VIEWS = ("choices", "network", "diagram", "rule", "depth")  # of `views`, which only workers load
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # plotly writes its own
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # kept by the browser, but asked for each time
}


class Explorer(ThreadingHTTPServer):
    """Listens as soon as it is made; `serve_forever` answers, and leaving the context ends it."""

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # there it would share a port that is taken

    def __init__(self, port: int | None = None, workers: Workers | None = None):
        self.files = _files()
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._lock = Lock()
        self._bind(port)
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        self.workers = Workers() if workers is None else workers

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def answer(self, view: str, query: str, gone: Any) -> Answer:
        """From the store of answers, or computed."""
        key = f"{view}?{query}"
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        answer = self.workers.ask(view, query, gone)
        if answer[0] < 500:
            with self._lock:
                self._answers[key] = answer
                while len(self._answers) > KEPT:
                    self._answers.popitem(last=False)
        return answer

    def server_bind(self) -> None:
        """Without the question for this machine's name that `HTTPServer` asks, which may take
        seconds."""
        TCPServer.server_bind(self)
        self.server_name = HOST
        self.server_port = self.server_address[1]

    def server_close(self) -> None:
        super().server_close()
        if hasattr(self, "workers"):
            self.workers.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves in the middle of an answer is no error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def _bind(self, port: int | None) -> None:
        wanted = PORTS if port is None else (count(port, "port", least=0, most=65535),)
        reason: object = ""
        for tried in (*wanted, *([0] if port is None else [])):
            try:
                return super().__init__((HOST, tried), _Handler)
            except OSError as error:
                reason = error.strerror or error
        raise ValueError(
            f"port: expected a free port, got {port} ({reason}); leave out --port to have one found"
        )


class _Handler(BaseHTTPRequestHandler):
    server: Explorer  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"  # one connection for many questions
    server_version = "orderone"
    sys_version = ""
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"
    timeout = 60
    wbufsize = 1 << 16
    disable_nagle_algorithm = True  # an answer in two parts would wait 40 ms for the second

    def do_GET(self) -> None:
        if len(self.path) > LONGEST:
            return self._send(414, b"414 the address is too long\n", "text/plain")
        if self.headers.get_all("Host", []) not in ([host] for host in self.server.hosts):
            return self._send(403, b"403 this server answers to its own name only\n", "text/plain")
        path, _, query = self.path.partition("?")
        if path in self.server.files:
            return self._send_file(*self.server.files[path])
        if path.removeprefix("/api/") in VIEWS and path.startswith("/api/"):
            return self._answer(path.removeprefix("/api/"), query)
        return self._send(404, b"404 there is nothing here\n", "text/plain")

    def _send_file(self, body: bytes, kind: str, tag: str) -> None:
        known = self.headers.get("If-None-Match") == tag
        self._send(304 if known else 200, b"" if known else body, kind, tag)

    def _answer(self, view: str, query: str) -> None:
        if self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return self._send(403, b"403 this server answers to its own page only\n", "text/plain")
        try:
            status, body = self.server.answer(view, query, self._gone)
        except AbandonedError:
            self.close_connection = True
            return None
        return self._send(status, body, "application/json")

    def _gone(self) -> bool:
        """Whether the browser has closed the connection, as it does when a page drops a
        question."""
        try:
            readable = select.select([self.connection], [], [], 0)[0]
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def _send(self, status: int, body: bytes, kind: str, tag: str = "") -> None:
        self.send_response(status)
        if tag:
            self.send_header("ETag", tag)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if status in (403, 405, 414):
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def _refuse(self) -> None:
        self._send(405, b"405 only GET is answered\n", "text/plain")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def log_message(self, format: str, *args: Any) -> None:
        """A slider would fill the terminal."""


def _files() -> dict[str, tuple[bytes, str, str]]:
    """path -> content, type and tag; all of it is in memory, so that no path leads to a disk."""
    plotly = need("plotly.offline", "report", "to draw the explorer")
    found = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.suffix in TYPES}
    found |= {"plotly.js": plotly.get_plotlyjs().encode()}
    files = {
        f"/{name}": (body, TYPES[Path(name).suffix], _tag(body)) for name, body in found.items()
    }
    return files | {"/": files["/index.html"]}


def _tag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'
