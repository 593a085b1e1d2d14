"""A SuperLink of one's own for `flwr run`: free ports, its own FLWR_HOME, ended with everything it started.

`flwr run` would start one by itself and leave it running, and find it again by its port alone, whoever started it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from flwr_fco.errors import CompositeError

__all__ = ["command", "local_superlink"]

#: Seconds for the SuperLink to answer, and to end when it is asked to.
STARTUP, SHUTDOWN = 60.0, 10.0


def command(name: str) -> str:
    """Return the path of a command that is installed beside this interpreter.

    Raises
    ------
    CompositeError
        If it is not installed.
    """
    path = Path(sys.executable).with_name(name)
    if not path.is_file():
        raise CompositeError(
            f"{path} does not exist; install Flower in this environment: pip install 'flwr[simulation]'"
        )
    return str(path)


@contextmanager
def local_superlink(home: Path, environment: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Start a SuperLink for simulations, yield the environment in which `flwr run` finds it, end it.

    Parameters
    ----------
    home : Path
        Becomes FLWR_HOME; ``superlink.log`` in it says what happened.
    environment : mapping of str to str, optional
        Added to this process's environment.

    Yields
    ------
    dict of str to str

    Raises
    ------
    CompositeError
        If the SuperLink does not start.

    Notes
    -----
    It runs in a session of its own, so Ctrl-C does not reach it and it can clean up when asked by its pid; whatever of
    its session is left then (ServerApps, Ray) is killed.
    """
    home = home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as reserved:
        http, control = (reserved.enter_context(_free_port()) for _ in range(2))
        ports = [str(holder.getsockname()[1]) for holder in (http, control)]
    # Explicit, so that `flwr run` never starts a SuperLink of its own if this one dies.
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "own"\n\n[superlink.own]\naddress = "127.0.0.1:{ports[0]}"\ninsecure = true\n',
        encoding="utf-8",
    )
    own = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": ports[0],
        "FLWR_LOCAL_CONTROL_API_PORT": ports[1],
        # Everything is installed in this environment; without it every run resolves and installs the app again.
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
        **(environment or {}),
    }
    arguments = ["--insecure", "--simulation", "--isolation", "subprocess", "--host", "127.0.0.1", "--port", ports[0]]
    arguments += ["--control-api-address", f"127.0.0.1:{ports[1]}"]
    with (home / "superlink.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [command("flower-superlink"), *arguments],
            env=own,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(process, ports[0], home / "superlink.log")
        yield own
    finally:
        _end(process)


@contextmanager
def _free_port() -> Iterator[socket.socket]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder


def _wait_until_healthy(process: subprocess.Popen[bytes], port: str, log: Path) -> None:
    deadline = time.monotonic() + STARTUP
    while time.monotonic() < deadline and process.poll() is None:
        with (
            suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1),
        ):
            return
        time.sleep(0.1)
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    raise CompositeError(f"the SuperLink did not start on port {port}; the end of {log}:\n{tail}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the SuperLink by its pid, then what is left of its session."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(SHUTDOWN)
    # The session outlives its leader while a member lives, and its number is not given to others before.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
