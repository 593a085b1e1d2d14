"""The gate before a SuperLink: what it passes on, and what it refuses unread."""

import shutil
import ssl
import threading
from contextlib import suppress
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tools.deployment import LocalDeployment, free_ports
from tools.gate import Gate

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


class Recording(BaseHTTPRequestHandler):
    """A SuperLink that says what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls.append((self.path, body, self.headers["X-Signature"]))
        answer = b"said " + body
        self.send_response(418)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("X-Answer", "yes")
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return LocalDeployment.create(tmp_path_factory.mktemp("keys") / "home", 1).home


def gate_before(address, keys):
    """Return a gate before a SuperLink's address that serves, and a way to call it."""
    (port,) = free_ports(1)
    made = Gate(("127.0.0.1", port), address, keys / "ca.crt", keys / "server.pem", keys / "server.key")
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    trusted = ssl.create_default_context(cafile=keys / "ca.crt")

    def call(method, path, body=b"", **headers):
        connection = HTTPSConnection("127.0.0.1", port, context=trusted, timeout=20)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("X-Answer")

    return made, call


@pytest.fixture
def gate(keys):
    """Yield a way to call the gate, and what came to the SuperLink behind it."""
    link = ThreadingHTTPServer(("127.0.0.1", 0), Recording)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(keys / "server.pem", keys / "server.key")
    link.socket = own.wrap_socket(link.socket, server_side=True)
    link.calls = []
    threading.Thread(target=link.serve_forever, args=(0.01,), daemon=True).start()
    made, call = gate_before(f"127.0.0.1:{link.server_address[1]}", keys)
    yield call, link
    for server in (made, link):
        server.shutdown()
        server.server_close()


def test_the_calls_of_a_supernode_pass_as_they_are(gate):
    call, link = gate
    body = bytes(range(256)) * 4_000
    answer = call("POST", "/v1/fleet/pull-messages", body, **{"X-Signature": "mine"})
    assert answer == (418, b"said " + body, "yes")
    assert link.calls == [("/v1/fleet/pull-messages", body, "mine")]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", f"/v1/{path}") for path in ("control/start-run", "control/register-node", "runtime/push-messages")),
        *(("POST", path) for path in ("/", "/v1/fleet", "/v1/fleet/", "/v1//fleet/get-run", "/V1/FLEET/get-run")),
        *(("POST", f"/v1/fleet/{path}") for path in ("../control/start-run", "%2e%2e/control/start-run")),
        *(("POST", f"/v1/fleet/get-run{more}") for more in ("?x=/v1/control", "#x", "/", ";x", "%0a", "\\x")),
        *((method, "/v1/fleet/get-run") for method in ("GET", "PUT", "DELETE", "OPTIONS", "CONNECT", "PATCH")),
    ],
)
def test_nothing_else_reaches_the_superlink(gate, method, path):
    call, link = gate
    status, _, _ = call(method, path)
    assert status in (403, 501)
    assert link.calls == []


def test_a_body_of_unknown_length_and_a_second_request_in_it_stay_outside(gate):
    call, link = gate
    # The connection may be closed before all is sent.
    with suppress(OSError):
        status, _, _ = call("POST", "/v1/fleet/get-run", iter([b"POST /v1/control/start-run HTTP/1.1\r\n\r\n"]))
        assert status == 403
    assert link.calls == []


def test_who_sends_megabytes_is_refused_in_words_too(gate):
    call, link = gate
    status, said, _ = call("POST", "/v1/control/start-run", bytes(20_000_000))
    assert status == 403
    assert b"This address is for SuperNodes" in said
    assert link.calls == []


def test_without_a_superlink_a_node_gets_an_error(keys):
    made, call = gate_before(f"127.0.0.1:{free_ports(1)[0]}", keys)
    assert call("POST", "/v1/fleet/get-run", b"x")[0] == 502
    made.shutdown()
    made.server_close()
