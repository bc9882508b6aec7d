"""The server without a browser: which requests it answers, and when it cancels a calculation."""

import json
import os
import signal
import socket
import sys
import time
from io import StringIO
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refuses
from support.explorer import DEPTH, QUERIES, ask, get, running

from orderone.core.errors import code_of
from orderone.explore import HOST, Explorer, server
from orderone.explore.server import CACHED_ANSWERS
from orderone.explore.views import VIEWS
from orderone.explore.worker import Clock
from orderone.explore.workers import AbandonedError, Workers
from orderone.theory import MeanField

SLOW = {"width": 1024, "depth": 1500, "activation": "gelu", "skips": "scaled"}  # seconds of work


@pytest.fixture(scope="module")
def explorer():
    with running() as explorer:
        yield explorer


# --- which requests are answered ------------------------------------------------------------------


def test_only_this_machine_can_reach_it(explorer):
    assert explorer.socket.getsockname()[0] == "127.0.0.1"
    assert explorer.socket.family == socket.AF_INET
    others = {
        info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    } - {HOST}
    for address in others:
        with socket.socket() as caller:
            caller.settimeout(5)
            assert caller.connect_ex((address, explorer.server_port)) != 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_requests_with_the_name_of_this_server_are_answered(explorer, host):
    assert get(explorer, "/", Host=f"{host}:{explorer.server_port}")[0] == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1", "localhost:1", "127.0.0.1:80@evil.example"]
)
@pytest.mark.parametrize("path", ["/", "/api/choices", "/nothing"])
def test_requests_with_another_host_name_are_refused(explorer, host, path):
    status, body, _ = get(explorer, path, Host=host)
    assert status == 403
    assert b"Host" in body


def test_requests_with_two_host_names_are_refused(explorer):
    with socket.create_connection((HOST, explorer.server_port), timeout=10) as caller:
        name = f"Host: {HOST}:{explorer.server_port}\r\n"
        caller.sendall(f"GET / HTTP/1.1\r\n{name}Host: evil.example\r\n\r\n".encode())
        assert caller.recv(100).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_get_no_answers(explorer, site):
    assert get(explorer, "/api/choices", Sec_Fetch_Site=site)[0] == 403
    assert get(explorer, "/", Sec_Fetch_Site=site)[0] == 200  # any site may link to the page


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_only_get_is_answered(explorer, method):
    assert get(explorer, "/", method)[0] == 405
    assert get(explorer, "/", "BREW")[0] == 501


@pytest.mark.parametrize(
    "path",
    [
        "/x",
        "/api",
        "/api/",
        "/api/x",
        "/api/network/",
        "/page/index.html",
        "/../server.py",
        "/%2e%2e/server.py",
        "//etc/passwd",
        "//[x",
        "/server.py",
        "/choices",
    ],
)
def test_unknown_paths(explorer, path):
    assert get(explorer, path)[0] == 404


def test_long_addresses_are_refused(explorer):
    assert get(explorer, "/?" + "x" * 3000)[0] == 414
    assert get(explorer, "/?" + "x" * 70_000)[0] == 414


def test_headers_forbid_foreign_content(explorer):
    for path in ("/", "/main.js", "/style.css", "/plotly.js", "/api/choices", "/x"):
        headers = get(explorer, path)[2]
        assert "default-src 'none'; script-src 'self';" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert not [name for name in headers if name.lower().startswith("access-control")]
        assert headers["Server"].strip() == "orderone"


def test_the_page_needs_no_other_server(explorer):
    status, body, headers = get(explorer, "/?tab=depth&anything=1")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"http://" not in body.replace(b"http://www.w3.org/", b"")
    assert b"https://" not in body
    assert b"<script>" not in body
    assert len(get(explorer, "/plotly.js")[1]) > 10**6


def test_a_browser_that_has_the_file_gets_status_304(explorer):
    _, body, headers = get(explorer, "/main.js")
    assert get(explorer, "/main.js", If_None_Match=headers["ETag"])[:2] == (304, b"")
    assert get(explorer, "/main.js", If_None_Match='"another"')[:2] == (200, body)


# --- answers --------------------------------------------------------------------------------------


def test_answers_equal_the_librarys(explorer):
    status, body = ask(explorer, "network")
    assert (status, body["q_star"]) == (200, MeanField("tanh", 1.4, 0.1, 0.9).q_star)
    assert ask(explorer, "network", activation="relu", weight_var=3)[1]["q_star"] == "Infinity"


def test_every_view_has_a_path():
    assert set(server.VIEWS) == set(VIEWS)


@pytest.mark.parametrize("view", QUERIES)
def test_every_view_answers(explorer, view):
    assert ask(explorer, view)[0] == 200


def test_error_messages_name_the_value(explorer):
    status, body = ask(explorer, "network", keep=2)
    assert status == 400
    assert body["error"].startswith("keep: ")
    assert "(0, 1]" in body["error"]
    assert ask(explorer, "network", keep=None)[0] == 400
    assert ask(explorer, "network", activation="<script>alert(1)</script>")[0] == 400


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([*QUERIES, "choices"]), st.binary(max_size=60))
def test_any_bytes_as_a_query(explorer, view, query):
    text = query.hex(" ").replace(" ", "%")
    status, body, _ = get(
        explorer, f"/api/{view}?activation=%{text or '00'}", Sec_Fetch_Site="same-origin"
    )
    assert status == 400
    assert json.loads(body)["error"]


def test_the_cache_of_answers_is_limited(explorer):
    assert ask(explorer, "rule") == ask(explorer, "rule")
    for k in range(CACHED_ANSWERS + 5):
        get(explorer, f"/api/choices?x={k}")
    assert len(explorer._answers) == CACHED_ANSWERS


def test_garbage_ends_its_connection_only(explorer):
    for garbage in (
        b"\x00" * 100 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01 hello",
    ):
        with socket.create_connection((HOST, explorer.server_port), timeout=10) as caller:
            caller.sendall(garbage)
    assert ask(explorer, "choices")[0] == 200


# --- calculations that are cancelled or take too long --------------------------------------------


def idle(workers: Workers, number: int, within: float = 10.0) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end and len(workers._idle) < number:
        time.sleep(0.02)
    return len(workers._idle) >= number


def test_a_cancelled_request_is_not_computed(explorer):
    assert idle(explorer.workers, 3)
    with socket.create_connection((HOST, explorer.server_port), timeout=10) as caller:
        host = f"Host: {HOST}:{explorer.server_port}"
        caller.sendall(
            f"GET /api/depth?{urlencode(DEPTH | SLOW)} HTTP/1.1\r\n{host}\r\n\r\n".encode()
        )
        time.sleep(0.2)
        assert len(explorer.workers._idle) == 2
    assert idle(explorer.workers, 3, within=2)  # long before the calculation would end
    assert ask(explorer, "network", weight_var=1.234)[0] == 200


def test_a_calculation_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr("orderone.explore.workers.PATIENCE", 100.0)
    workers = Workers(number=1, limit=0.5)
    try:
        status, body = workers.ask("depth", urlencode(DEPTH | SLOW), lambda: False)
        message = json.loads(body)["error"]
        assert (status, code_of(message)) == (503, "too-slow")
        assert "0.5 seconds" in message
        assert workers.ask("choices", "", lambda: False)[0] == 200
        assert len(workers._idle) == 1
    finally:
        workers.close()


@pytest.mark.parametrize("computes", [False, True])
def test_a_calculation_is_limited_in_processor_time(monkeypatch, computes):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    out = StringIO()
    clock = Clock(0.2, out)
    clock.start()
    end = time.monotonic() + (20.0 if computes else 0.5)
    while time.monotonic() < end and not ended:
        if not computes:
            time.sleep(0.05)
    clock.stop()
    assert bool(ended) == computes
    assert out.getvalue().startswith("503 " * computes)


@pytest.mark.skipif(os.name == "nt", reason="needs a signal")
@pytest.mark.parametrize("seconds", [1.5, 3600.0])
def test_a_busy_machine_does_not_end_a_calculation(monkeypatch, seconds):
    """A process that gets no processor time, here because it is stopped, is waited for."""
    patience = 100.0 if seconds < 100.0 else 2.0
    monkeypatch.setattr("orderone.explore.workers.PATIENCE", patience)
    workers = Workers(number=1, limit=1.0)
    ends = time.monotonic() + seconds
    process = workers._all[0]._process
    process.send_signal(signal.SIGSTOP)

    def released() -> bool:
        if time.monotonic() > ends and process.poll() is None:
            process.send_signal(signal.SIGCONT)
        return False

    try:
        status, body = workers.ask("choices", "", released)
        if seconds < patience:
            assert status == 200
        else:  # there is a limit in the time of day, too
            assert (status, code_of(json.loads(body)["error"])) == (503, "too-slow")
            assert workers._all[0]._process is not process
    finally:
        workers.close()


def test_a_worker_that_died_while_idle_is_replaced_unnoticed():
    workers = Workers(number=1)
    try:
        first = workers._all[0]
        first._process.kill()
        first._process.wait()
        assert workers.ask("choices", "", lambda: False)[0] == 200
        assert workers._all[0] is not first
    finally:
        workers.close()


def test_a_worker_that_dies_during_a_calculation_is_replaced():
    workers = Workers(number=1)

    def kill_once() -> bool:
        """Kill the worker as soon as it has the question; a caller polls this function."""
        first._process.kill()
        return False

    try:
        first = workers._all[0]
        status, body = workers.ask("depth", urlencode(DEPTH | SLOW), kill_once)
        assert (status, code_of(json.loads(body)["error"])) == (500, "stopped-unexpectedly")
        assert workers.ask("choices", "", lambda: False)[0] == 200
    finally:
        workers.close()


def test_a_cancelled_request_leaves_the_queue():
    workers = Workers(number=0)
    with pytest.raises(AbandonedError):
        workers.ask("choices", "", lambda: True)
    workers.close()


# --- start and end --------------------------------------------------------------------------------


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "https://127.0.0.1:1"])
@pytest.mark.parametrize("path", ["/", "/api/choices"])
def test_pages_of_another_origin_get_no_answers(explorer, origin, path):
    assert get(explorer, path, Origin=origin)[0] == 403
    own = f"http://{HOST}:{explorer.server_port}"
    assert get(explorer, path, Origin=own)[0] == 200


@pytest.mark.parametrize("site", [None, "cross-site", "same-site"])
def test_code_runs_only_for_the_page(explorer, site):
    """The view of a model imports what the query names."""
    path = "/api/model?architecture=antigravity:geohash&examples=2&input_correlation=0"
    headers = {} if site is None else {"Sec_Fetch_Site": site}
    assert get(explorer, path, **headers)[0] == 403


def test_a_request_that_arrives_too_slowly_is_ended(explorer, monkeypatch):
    """Every byte restarts the time limit of a socket; the whole request has one too."""
    monkeypatch.setattr(server._Handler, "request_seconds", 0.3)
    with socket.create_connection((HOST, explorer.server_port), timeout=10) as client:
        ended = False
        sent = 0
        for byte in b"GET / HTTP/1.1\r\nHost: " + b"x" * 200:
            sent += 1
            try:
                client.send(bytes([byte]))
                client.settimeout(0.05)
                ended = client.recv(100) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
            if ended:
                break
        assert ended
        assert sent < 100  # bytes, one in 0.05 s


def test_the_number_of_connections_is_limited(monkeypatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 3)
    with running() as explorer:
        place = (HOST, explorer.server_port)
        idle_clients = [socket.create_connection(place) for _ in range(3)]
        for client in idle_clients:  # each is accepted: its request is answered
            client.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}:{place[1]}\r\n\r\n".encode())
            assert client.recv(12) == b"HTTP/1.1 200"
            client.settimeout(1)
        with socket.create_connection(place, timeout=0.5) as waiting:
            close = "Connection: close\r\n"
            waiting.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}:{place[1]}\r\n{close}\r\n".encode())
            with pytest.raises(TimeoutError):
                waiting.recv(12)
            for client in idle_clients:
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):  # until the server has closed it
                    pass
                client.close()
            waiting.settimeout(10)
            answer = b""
            while part := waiting.recv(1 << 16):
                answer += part
            assert answer.startswith(b"HTTP/1.1 200")


def test_two_hundred_clients_at_once(explorer):
    place = (HOST, explorer.server_port)
    request = f"GET /explore.css HTTP/1.1\r\nHost: {HOST}:{place[1]}\r\nConnection: close\r\n\r\n"
    clients = [socket.create_connection(place, timeout=20) for _ in range(200)]
    for client in clients:
        client.sendall(request.encode())
    answers = [client.recv(9) for client in clients]
    for client in clients:
        client.close()
    assert answers == [b"HTTP/1.1 "] * 200


def test_workers_are_restarted_when_all_have_died():
    workers = Workers(2)
    try:
        for worker in list(workers._all):
            worker._process.kill()
            worker._process.wait()
        assert workers.ask("choices", "", lambda: False)[0] == 200
    finally:
        workers.close()


def test_a_port_that_is_in_use(explorer):
    with refuses("port-in-use", argument="port") as caught:
        Explorer(explorer.server_port)
    assert str(explorer.server_port) in str(caught.value)
    with pytest.raises(ValueError, match=r"^port: .*65535"):
        Explorer(70000)


def test_the_explorer_takes_the_next_free_port(monkeypatch, explorer):
    monkeypatch.setattr("orderone.explore.server.PORTS", (explorer.server_port,))
    with Explorer() as other:
        assert other.server_port != explorer.server_port


@pytest.fixture
def command(start):
    def run(*words: str, code: str = "from orderone.cli.main import main; main()"):
        return start([sys.executable, "-c", code, "explore", *words])

    return run


@pytest.mark.skipif(os.name == "nt", reason="needs a signal")
def test_ctrl_c_ends_the_explorer_without_a_traceback(command):
    process = command("--no-browser", "--port", "0")
    line = process.stdout.readline()
    port = int(line.rpartition(":")[2].split("/")[0])
    assert f"http://127.0.0.1:{port}/" in line
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors.strip()) == (0, "stopped")
    with socket.socket() as caller:
        assert caller.connect_ex((HOST, port)) != 0


def test_a_port_in_use_on_the_command_line(explorer, command):
    process = command("--no-browser", "--port", str(explorer.server_port))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("orderone: port: ")
    assert "[port-in-use]" in errors
