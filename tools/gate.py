"""``python -m tools.gate``: lets SuperNodes through to a SuperLink on this machine, and nobody who would start runs.

Since flwr 1.40 a SuperLink answers SuperNodes, users and its own processes on one port, and the open releases know no
users: whoever reaches the port starts runs. So the SuperLink listens on loopback, and this listens for the network: it
passes ``/v1/fleet/`` on, the part for SuperNodes, which sign what they send. A web server such as nginx does the same
(docs/tutorials/deployment.md).
"""

from __future__ import annotations

import re
import ssl
from http.client import HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

#: What SuperNodes call. Anything else, such as a path with dots, is refused unread.
_FLEET = re.compile(r"/v1/fleet/[a-z-]+")
#: Headers that are about one connection and not about what is said.
_OWN = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "date", "server"}
#: Seconds for an answer, and for a connection that says nothing.
_PATIENCE = 300.0


class Gate(ThreadingHTTPServer):
    """A TLS server that passes the calls of SuperNodes on.

    Parameters
    ----------
    address : (str, int)
        Host and port to listen on.
    superlink : str
        Host and port of the SuperLink.
    ca, certificate, key : Path
        Of the CA; of the SuperLink, which the gate speaks for.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], superlink: str, ca: Path, certificate: Path, key: Path) -> None:
        self.superlink = superlink
        self.trusted = ssl.create_default_context(cafile=ca)
        super().__init__(address, _Passing)
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(certificate, key)
        # Each connection shakes hands in its own thread, so that one that does not holds up nobody.
        self.socket = own.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)


class _Passing(BaseHTTPRequestHandler):
    """One connection."""

    server: Gate
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE

    def do_POST(self) -> None:
        """Pass a call on, if it is one of a SuperNode."""
        length = self.headers.get("Content-Length", "")
        if not _FLEET.fullmatch(self.path) or not length.isdecimal():
            self.close_connection = True
            self.send_error(403, "This address is for SuperNodes")
            # Who is still sending reads the answer only afterwards.
            left = int(length) if length.isdecimal() else 0
            while left > 0 and (part := self.rfile.read(min(left, 2**16))):
                left -= len(part)
            return
        body = self.rfile.read(int(length))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        connection = HTTPSConnection(self.server.superlink, context=self.server.trusted, timeout=_PATIENCE)
        try:
            connection.request("POST", self.path, body, headers)
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, HTTPException) as error:
            self.send_error(502, f"The SuperLink does not answer: {type(error).__name__}")
            return
        finally:
            connection.close()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _OWN:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


def main(
    host: Annotated[str, typer.Option(help="Where SuperNodes connect.")],
    port: Annotated[int, typer.Option()],
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The SuperLink, on loopback.")],
    ssl_ca_certfile: Annotated[Path, typer.Option()],
    ssl_certfile: Annotated[Path, typer.Option()],
    ssl_keyfile: Annotated[Path, typer.Option()],
) -> None:
    """Pass the calls of SuperNodes on to a SuperLink, and refuse all others."""
    Gate((host, port), superlink, ssl_ca_certfile, ssl_certfile, ssl_keyfile).serve_forever()


if __name__ == "__main__":
    typer.run(main)
