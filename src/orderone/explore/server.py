"""The server of the explorer, for this machine only.

It listens on 127.0.0.1 and answers only GET requests for known paths. A page of another site cannot
read from it: no header allows that, the Host header must name this server, which prevents DNS
rebinding, and an Origin header must be that of the page. The number of connections and the time
that a request may take to arrive are limited.
"""

import hashlib
import os
import select
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from threading import BoundedSemaphore, Lock, Timer
from typing import NamedTuple, TypeAlias

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.explore.workers import AbandonedError, Answer, Workers
from orderone.report.plotly_js import plotly_js

Connection: TypeAlias = socket.socket | tuple[bytes, socket.socket]  # of `socketserver`
Address: TypeAlias = tuple[str, int] | str  # of a client
HOST = "127.0.0.1"
PORTS = range(8765, 8785)  # tried in turn if the user names no port
LONGEST = 2000  # characters of a path with its query
CACHED_ANSWERS = 128
MOST_CONNECTIONS = 256  # open at once; others wait in the backlog of the system
BACKLOG = 512  # connections that the system holds until they are accepted
REQUEST_SECONDS = 60.0  # to send one whole request; a browser needs milliseconds
PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
# As in `views`, which workers import
VIEWS = ("choices", "network", "diagram", "rule", "depth", "model")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # plotly inserts styles
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
    "Cache-Control": "no-cache",  # the browser may store files but must ask whether they changed
}


class File(NamedTuple):
    """A file of the page, in memory."""

    body: bytes
    content_type: str
    tag: str


class Explorer(ThreadingHTTPServer):
    """Server that listens as soon as it is made.

    `serve_forever` answers requests; leaving the context ends the server.
    """

    daemon_threads: bool = True
    request_queue_size: int = BACKLOG
    allow_reuse_address: bool = os.name != "nt"  # Windows would share a port that is in use
    files: dict[str, File]  # by path
    hosts: set[str]  # expected Host headers
    origins: set[str]  # expected Origin headers, where a browser sends one
    workers: Workers
    server_name: str
    server_port: int

    def __init__(self, port: int | None = None, workers: Workers | None = None):
        self.files = _files()
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._lock = Lock()
        self._connections = BoundedSemaphore(MOST_CONNECTIONS)
        self._bind(port)
        self.hosts = {f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"}
        self.origins = {f"http://{host}" for host in self.hosts}
        self.workers = Workers() if workers is None else workers

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def answer(self, view: str, query: str, gone: Callable[[], bool]) -> Answer:
        """Return an answer from the cache, or compute it.

        `gone` returns whether the browser has closed the connection.
        """
        key = f"{view}?{query}"
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        answer = self.workers.ask(view, query, gone)
        if answer[0] < 500:
            with self._lock:
                self._answers[key] = answer
                while len(self._answers) > CACHED_ANSWERS:
                    self._answers.popitem(last=False)
        return answer

    def process_request(self, request: Connection, client_address: Address) -> None:
        """Answer in a thread of its own; wait while too many connections are open."""
        self._connections.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._connections.release()
            raise

    def process_request_thread(self, request: Connection, client_address: Address) -> None:
        """Answer the requests of one connection, then make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def server_bind(self) -> None:
        """Bind without the host name lookup of `HTTPServer`, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name = HOST
        self.server_port = self.server_address[1]

    def server_close(self) -> None:
        """Stop listening and end the workers."""
        super().server_close()
        if hasattr(self, "workers"):
            self.workers.close()

    def handle_error(self, request: Connection, client_address: object) -> None:
        """Print errors, except if a browser closed the connection during an answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def _bind(self, port: int | None) -> None:
        """Listen on the port, or on the first free one."""
        if port is None:
            candidates = [*PORTS, 0]
        else:
            candidates = [count(port, "port", least=0, most=65535)]
        reason: object = ""
        for candidate in candidates:
            try:
                return super().__init__((HOST, candidate), _Handler)
            except OSError as error:
                reason = error.strerror or error
        message = f"port: expected a free port, got {port} ({reason}); leave out --port"
        raise InputError(message, "port-in-use", argument="port")


class _Handler(BaseHTTPRequestHandler):
    server: Explorer  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"  # one connection for many requests
    server_version = "orderone"
    sys_version = ""
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"
    timeout = 60  # seconds between two parts of a request, and between two requests
    request_seconds = REQUEST_SECONDS
    wbufsize = 1 << 16
    disable_nagle_algorithm = True  # otherwise the second part of an answer waits 40 ms

    def handle_one_request(self) -> None:
        """Read and answer a request; close the connection if it takes too long to arrive.

        `timeout` limits each part of it: a client that sends a byte every second would hold a
        thread for ever. The time starts with the first byte.
        """
        try:
            arrived = bool(self.rfile.peek(1))  # type: ignore[attr-defined]
        except OSError:  # nothing arrived in time, or the connection was closed
            arrived = False
        if not arrived:
            self.close_connection = True
            return
        self._clock = Timer(self.request_seconds, self._hang_up)
        self._clock.daemon = True
        self._clock.start()
        try:
            super().handle_one_request()
        finally:
            self._clock.cancel()

    def finish(self) -> None:
        """Close both directions, also if the last bytes cannot be sent."""
        with suppress(OSError, ValueError):
            super().finish()
        self.rfile.close()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self._clock.cancel()  # it has arrived; the workers limit the time of the answer
        if len(self.path) > LONGEST:
            return self._send(414, b"414 the address is too long\n", "text/plain")
        if self.headers.get_all("Host", []) not in ([host] for host in self.server.hosts):
            return self._send(403, b"403 the Host header must name this server\n", "text/plain")
        if not self.server.origins.issuperset(self.headers.get_all("Origin", [])):
            return self._send(403, b"403 only the explorer's page may ask\n", "text/plain")
        path, _, query = self.path.partition("?")
        if path in self.server.files:
            return self._send_file(self.server.files[path])
        view = path.removeprefix("/api/")
        if view != path and view in VIEWS:
            return self._answer(view, query)
        return self._send(404, b"404 unknown path\n", "text/plain")

    def _send_file(self, file: File) -> None:
        if self.headers.get("If-None-Match") == file.tag:
            self._send(304, b"", file.content_type, file.tag)
        else:
            self._send(200, file.body, file.content_type, file.tag)

    def _answer(self, view: str, query: str) -> None:
        # The view of a model imports code that the query names: only the page may ask for it, and a
        # browser that does not say where a request comes from is not answered.
        if view == "model":
            unknown = "cross-site"
        else:
            unknown = "same-origin"
        if self.headers.get("Sec-Fetch-Site", unknown) not in ("same-origin", "none"):
            return self._send(403, b"403 only the explorer's page may ask\n", "text/plain")
        try:
            status, body = self.server.answer(view, query, self._gone)
        except AbandonedError:
            self.close_connection = True
            return None
        return self._send(status, body, "application/json")

    def _gone(self) -> bool:
        """Return whether the browser has closed the connection.

        The browser closes it when the page cancels a request.
        """
        try:
            readable = select.select([self.connection], [], [], 0)[0]
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def _send(self, status: int, body: bytes, content_type: str, tag: str = "") -> None:
        self.send_response(status)
        if tag:
            self.send_header("ETag", tag)
        self.send_header("Content-Type", f"{content_type}; charset=utf-8")
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

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: every move of a slider would print a line."""


def _files() -> dict[str, File]:
    """Read all files of the page; return them by path, so that requests do not read the disk."""
    bodies = {path.name: path.read_bytes() for path in PAGE.iterdir() if path.suffix in TYPES}
    bodies["plotly.js"] = plotly_js().script.encode()
    files = {}
    for name, body in bodies.items():
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        files[f"/{name}"] = File(body, TYPES[Path(name).suffix], tag)
    files["/"] = files["/index.html"]
    return files
