"""A private SuperLink for `flwr run`: free ports, its own FLWR_HOME, stopped with everything that it started.

Otherwise `flwr run` would start one and leave it running, and later find it by its port, even if started by others.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr_fco.errors import FlwrFcoError
from flwr_fco.models import write_file

#: Seconds for the SuperLink to answer, and to stop when it is asked to.
STARTUP = 60.0
SHUTDOWN = 10.0
#: Lines of Flower's log, whole: what a client says may have the same words in the middle of a line.
_START = r"^(?:\x1b\[\d+m)?INFO [\d :,-]*(?:\x1b\[0m)?:\s+"
_ROUND = re.compile(_START + r"\[ROUND (\d+)/(\d+)\]\s*$")
#: Bytes of a log that are read.
_END = 2**24
_FINISHED = re.compile(_START + r"Strategy execution finished in \d+\.\d\ds\s*$")
#: Waits for the end of the process that started it; only then it imports anything.
_WATCH = """import sys
sys.stdin.buffer.read()
sys.path.insert(0, sys.argv[1])
from tools.local_superlink import end, variable_of
end(int(sys.argv[2]), is_ours=lambda pid: variable_of(pid, "FLWR_HOME") == sys.argv[3])
"""


def command(name: str) -> str:
    """Return the path of a command that is installed next to this interpreter.

    Raises
    ------
    FlwrFcoError
        If it is not installed.
    """
    path = Path(sys.executable).with_name(name)
    if not path.is_file():
        raise FlwrFcoError(f"{path} does not exist; install Flower in this environment: pip install 'flwr[simulation]'")
    return str(path)


def settings_of(home: Path) -> dict[str, str]:
    """Return the variables that are set for Flower's commands, beside this process's own environment.

    Parameters
    ----------
    home : Path
        For Flower's configuration and data.
    """
    return {
        "FLWR_HOME": str(home),
        # Everything is installed in this environment; without it every run resolves and installs the app again.
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }


def environment_of(home: Path) -> dict[str, str]:
    """Return the environment of Flower's commands, which start others by their names.

    Parameters
    ----------
    home : Path
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **settings_of(home), "PATH": path}


@contextmanager
def local_superlink(home: Path, environment: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Start a SuperLink for simulations, yield the environment in which `flwr run` finds it, and end it afterwards.

    Parameters
    ----------
    home : Path
        Directory used as FLWR_HOME; the log is ``superlink.log`` in it.
    environment : mapping of str to str, optional
        Added to this process's environment.

    Yields
    ------
    dict of str to str

    Raises
    ------
    FlwrFcoError
        If the SuperLink does not start.

    Notes
    -----
    The SuperLink runs in its own session, so Ctrl-C does not reach it and it can clean up when it gets a signal by its
    pid. The process that it starts for ServerApps and Ray has another session, and would outlive it in the middle of a
    run: remaining processes of these sessions are killed. If this process is killed itself, another one does that.
    """
    from flwr_fco.simulation import token_settings

    home = home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as reserved:
        http, control = (reserved.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        ports = [str(holder.getsockname()[1]) for holder in (http, control)]
    # Explicit, so that `flwr run` never starts another SuperLink if this one dies.
    write_file(
        home / "config.toml",
        f'[superlink]\ndefault = "own"\n\n[superlink.own]\naddress = "127.0.0.1:{ports[0]}"\ninsecure = true\n',
    )
    given = environment or {}
    own = {
        **environment_of(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": ports[0],
        "FLWR_LOCAL_CONTROL_API_PORT": ports[1],
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray would run anybody's code; a cluster has its own token, or none.
        **({} if {**os.environ, **given}.get("RAY_ADDRESS") else token_settings()),
        **given,
    }
    arguments = ["--insecure", "--simulation", "--isolation", "subprocess", "--host", "127.0.0.1", "--port", ports[0]]
    arguments += ["--control-api-address", f"127.0.0.1:{ports[1]}"]
    write_file(home / "superlink.log", "")
    process = spawned(["flower-superlink", *arguments], home, own, home / "superlink.log")
    watcher, lifeline = watch(process.pid, home)
    try:
        _wait_until_healthy(process, ports[0], home / "superlink.log")
        yield own
    finally:
        end(process.pid)
        process.wait()
        os.kill(watcher, signal.SIGKILL)
        os.waitpid(watcher, 0)
        os.close(lifeline)


def spawned(arguments: Sequence[str], home: Path, environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Return a process of one of Flower's commands, in a session of its own; its output goes into a log."""
    where: dict[str, Any] = {"env": environment, "cwd": home, "stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    with log.open("ab") as output:
        program = arguments[0] if Path(arguments[0]).is_absolute() else command(arguments[0])
        return subprocess.Popen([program, *arguments[1:]], stdout=output, start_new_session=True, **where)


def watch(leader: int, home: Path) -> tuple[int, int]:
    """Start a process that ends a session leader, as :func:`end` does, once this process is gone, however it ended.

    Parameters
    ----------
    leader : int
        Its pid.
    home : Path
        Its FLWR_HOME, by which its processes are known.

    Returns
    -------
    (int, int)
        The pid of the new process, and the file descriptor that it watches: it acts when that is closed.
    """
    theirs, ours = os.pipe()
    arguments = [sys.executable, "-c", _WATCH, str(Path(__file__).resolve().parents[1]), str(leader), str(home)]
    actions = [(os.POSIX_SPAWN_DUP2, theirs, 0)]
    try:
        watcher = os.posix_spawn(sys.executable, arguments, os.environ, file_actions=actions, setsid=True)
    finally:
        os.close(theirs)
    return watcher, ours


def flower_run(
    app: Path,
    environment: Mapping[str, str],
    overrides: Mapping[str, str | float],
    *,
    num_nodes: int,
    log: Path,
    on_round: Callable[[int, int], None] = lambda number, total: None,
) -> None:
    """Run a Flower App with ``flwr run --stream`` and wait for it to finish.

    Parameters
    ----------
    app : Path
        The app's directory.
    environment : mapping of str to str
        From :func:`local_superlink`.
    overrides : mapping of str to str or float
        Run config.
    num_nodes : int
        Number of simulated nodes.
    log : Path
        Where Flower's output goes.
    on_round : callable, optional
        Called with ``(round, number of rounds)`` when a round starts.

    Raises
    ------
    FlwrFcoError
        If the run fails; ``flwr run`` itself returns 0 even then.
    """
    # JSON's strings and numbers are TOML's.
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in overrides.items())
    federation = f"num-supernodes={num_nodes} client-resources-num-cpus=1"
    arguments = [command("flwr"), "run", str(app), "--stream", "-c", config, "--federation-config", federation]
    finished = False
    write_file(log, "")
    output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with log.open("ab") as file, subprocess.Popen(arguments, env=dict(environment), **output) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line.encode())
                file.flush()
                if found := _ROUND.match(line):
                    on_round(int(found[1]), int(found[2]))
                finished = finished or _FINISHED.match(line) is not None
        finally:
            if process.poll() is None and sys.exc_info()[0] is not None:
                process.terminate()
    if process.returncode != 0 or not finished:
        tail = "\n".join(end_of(log).splitlines()[-20:])
        raise FlwrFcoError(
            f"the run did not finish (flwr run returned {process.returncode}); the end of {log}:\n{tail}"
        )


def end_of(log: Path, since: int = 0) -> str:
    """Return the end of a log, at most 16 MiB: after months one has gigabytes.

    Parameters
    ----------
    log : Path
    since : int, default 0
        Byte at which it begins, where it is shorter.
    """
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(since, file.seek(0, os.SEEK_END) - _END))
        return file.read(_END).decode("utf-8", "replace")


def _wait_until_healthy(process: subprocess.Popen[bytes], port: str, log: Path) -> None:
    deadline = time.monotonic() + STARTUP
    while time.monotonic() < deadline and process.poll() is None:
        with (
            suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1),
        ):
            return
        time.sleep(0.1)
    tail = "\n".join(end_of(log).splitlines()[-15:])
    raise FlwrFcoError(f"the SuperLink did not start on port {port}; the end of {log}:\n{tail}")


def end(
    leader: int, number: signal.Signals = signal.SIGTERM, is_ours: Callable[[int], bool] = lambda pid: True
) -> None:
    """Stop a session leader, then the remaining processes of its session and of the sessions that it started.

    Parameters
    ----------
    leader : int
        Its pid; it may have ended.
    number : signal.Signals, default SIGTERM
        The signal sent to it; the other processes are killed.
    is_ours : callable, optional
        Whether a process may be ended. A session has the number of its leader, which may be dead and its number
        another one's since.
    """
    sessions = {leader}
    for pid in descendants(leader):
        with suppress(ProcessLookupError):
            sessions.add(os.getsid(pid))

    def members(wanted: set[int]) -> list[int]:
        return [pid for pid in _members(wanted) if is_ours(pid)]

    deadline = time.monotonic() + SHUTDOWN
    if leader in members({leader}):
        with suppress(ProcessLookupError):
            os.kill(leader, number)
        while leader in _members({leader}) and time.monotonic() < deadline:
            time.sleep(0.05)
    # A session keeps its id while a member is alive. More than one pass, because a process may be starting another.
    deadline = time.monotonic() + SHUTDOWN
    while (left := members(sessions)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    # If it is a child of ours.
    with suppress(ChildProcessError):
        os.waitpid(leader, os.WNOHANG)


def _members(sessions: set[int]) -> list[int]:
    """Return the live processes of these sessions."""
    members = []
    for pid, (_, zombie) in _processes().items():
        with suppress(ProcessLookupError):
            if not zombie and os.getsid(pid) in sessions:
                members.append(pid)
    return members


def exists(pid: int) -> bool:
    """Whether there is a process of this number, whoever owns it."""
    return pid in _processes()


def command_line(pid: int) -> str:
    """Return the command line of a live process, or nothing."""
    if _processes().get(pid, (0, True))[1]:
        return ""
    path = Path(f"/proc/{pid}/cmdline")
    with suppress(OSError):
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return _output_of("ps", "-ww", "-p", str(pid), "-o", "command=")


def beginning_of(pid: int) -> str:
    """Return when a live process began, with the machine's own start: no two processes have the same; or nothing.

    Parameters
    ----------
    pid : int
    """
    with suppress(OSError, IndexError):
        # The 22nd field of all, the 20th after the name, which may hold anything: ticks since the start.
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {ticks}"
    if Path("/proc/self/stat").exists():
        return ""
    return _output_of("ps", "-p", str(pid), "-o", "lstart=").strip()


def variable_of(pid: int, name: str) -> str | None:
    """Return a variable of the environment that a process was started in; None where that cannot be read.

    Parameters
    ----------
    pid : int
    name : str
    """
    start = f"{name}="
    if Path("/proc/self/environ").exists():
        with suppress(OSError):
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if entry.startswith(start.encode()):
                    return os.fsdecode(entry[len(start) :])
        return None
    words = _output_of("ps", "-E", "-ww", "-p", str(pid), "-o", "command=").split()
    return next((word.removeprefix(start) for word in words if word.startswith(start)), None)


def _output_of(*arguments: str) -> str:
    return subprocess.run(arguments, capture_output=True, text=True, check=False).stdout


def descendants(root: int) -> list[int]:
    """Return children, grandchildren and so on."""
    parents = {pid: parent for pid, (parent, _) in _processes().items()}
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _processes() -> dict[int, tuple[int, bool]]:
    """Return the parent and 'is a zombie' of every process, from /proc, or from `ps` if there is none (macOS)."""
    table = {}
    if Path("/proc/self/stat").exists():
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    # pid (name) state parent ...; the name may hold anything, blanks and brackets too.
                    state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                    table[int(entry.name)] = (int(parent), state == "Z")
    else:
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
        for line in listing.stdout.splitlines():
            pid, parent, state = line.split()[:3]
            table[int(pid)] = (int(parent), state.startswith("Z"))
    return table
