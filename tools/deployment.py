"""A deployment on this machine: SuperLink and SuperNodes with TLS and authentication that outlive the command.

Everything is done with the commands that an operator would type, and each is printed before it runs.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.models import json_object, read_json, read_text, write_file
from tools.local_superlink import (
    beginning_of,
    command,
    command_line,
    end,
    end_of,
    environment_of,
    exists,
    settings_of,
    spawned,
    variable_of,
)

#: The connection in Flower's configuration, and the SuperLink's name among the processes.
CONNECTION = "local"
SUPERLINK = "superlink"
#: What stands between the network and the SuperLink.
GATE = "gate"
#: Seconds for the SuperLink to answer, and for a killed node's key to be free.
READY = 120.0
TAKEN = 180.0
#: What the logs of an accepted and of a refused SuperNode say, and the seconds within which a busy machine gets there.
_ANSWERS = ("SuperNode ID:", "Exit Code")
_ANSWERED = 30.0
_FILE = "deployment.json"
#: Maximum number of SuperNodes of a deployment: each has a port between 20000 and 32000.
_MOST = 12_000


def _read(path: Path) -> dict[str, Any]:
    """Return what a deployment's file says."""
    kinds = {"nodes": int, "node_config": str, "ports": list[int], "node_ids": dict, "pids": dict, "began": dict}
    kinds["trusted"] = str
    saved = read_json(path, kinds)
    own = {"node_ids": str, "pids": int, "began": str}
    names = {SUPERLINK, GATE, *(f"node-{i}" for i in range(min(saved["nodes"], _MOST)))}
    whole = 1 <= saved["nodes"] <= _MOST and len(saved["ports"]) == 2 + saved["nodes"]
    for field, kind in own.items():
        whole = whole and all(name in names and type(value) is kind for name, value in saved[field].items())
    if not whole or not all(0 < pid < 2**31 for pid in saved["pids"].values()):
        raise ConfigurationError(
            f"{path} is damaged: its nodes, ports and processes do not fit each other. Make a new deployment "
            "in another folder, and end the processes of this one by hand"
        )
    return saved


def free_ports(number: int) -> list[int]:
    """Return unused ports below those that systems give to connections, so that a restart can have the same ones.

    Parameters
    ----------
    number : int
    """
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 4_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == number:
            return found
    raise FlwrFcoError(f"{number} free ports are not to be had between 20000 and 32000")


def listens(port: int) -> bool:
    """Whether something on this machine takes connections at a port.

    Parameters
    ----------
    port : int
    """
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


class LocalDeployment:
    """SuperLink and SuperNodes by name, in a folder with their keys, logs and FLWR_HOME.

    Parameters
    ----------
    home : Path
        The folder.
    tell : callable, optional
        Called with every command before it runs.

    Raises
    ------
    ConfigurationError
        If the folder holds no deployment; :meth:`create` makes one.
    """

    def __init__(self, home: Path, tell: Callable[[str], None] = lambda text: None) -> None:
        self.home = home.resolve()
        self._tell = tell
        path = self.home / _FILE
        if not path.is_file():
            raise ConfigurationError(
                f"{home} holds no deployment; make one with `python -m tools.deploy local {home}`, or give "
                "the folder of one"
            )
        saved = _read(path)
        self.nodes: int = saved["nodes"]
        self.node_config: str = saved["node_config"]
        #: The file of the keys whose signature an app must have; "" for any app.
        self.trusted: str = saved["trusted"]
        self._ports: list[int] = saved["ports"]
        self.pids: dict[str, int] = saved["pids"]
        #: When each of them began, which distinguishes it from another process that has its number now.
        self._began: dict[str, str] = saved["began"]
        #: Node ids in the SuperLink by SuperNode name.
        self.node_ids: dict[str, str] = saved["node_ids"]

    def _save(self) -> None:
        own = {"nodes": self.nodes, "node_config": self.node_config, "ports": self._ports, "trusted": self.trusted}
        own |= {"pids": self.pids, "began": self._began, "node_ids": self.node_ids}
        write_file(self.home / _FILE, json.dumps(own))

    @classmethod
    def create(
        cls,
        home: Path,
        nodes: int,
        *,
        node_config: str = "",
        trusted: str = "",
        tell: Callable[[str], None] = lambda text: None,
    ) -> LocalDeployment:
        """Create the folder, certificates and configuration without starting anything.

        Parameters
        ----------
        home : Path
            Must be missing or empty: keys are never overwritten.
        nodes : int
            Number of SuperNodes.
        node_config : str, default ""
            Added to each SuperNode's ``--node-config``, with its number in place of ``{partition-id}``.
        trusted : str, default ""
            Absolute path of each SuperNode's ``--trusted-entities``; "" for none.
        tell : callable, optional

        Raises
        ------
        ConfigurationError
            If the folder is not empty.
        """
        if nodes < 1:
            raise ConfigurationError(f"nodes={nodes}; expected a whole number >= 1")
        if home.exists() and any(home.iterdir()):
            raise ConfigurationError(
                f"{home} is not empty, and keys are not overwritten. `python -m tools.deploy restart {home}` starts "
                "the deployment in it again; for a new one give another folder"
            )
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
        ports = free_ports(2 + nodes)
        saved = {"nodes": nodes, "node_config": node_config, "ports": ports, "pids": {}, "began": {}, "node_ids": {}}
        write_file(home / _FILE, json.dumps({**saved, "trusted": trusted}))
        made = cls(home, tell)
        tell(f"mkdir -p -m 700 {shlex.quote(str(made.home))} && cd {shlex.quote(str(made.home))}")
        for key, value in made.settings.items():
            tell(f"export {key}={shlex.quote(value)}")
        made._write(
            "config.toml",
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{made.users_address}"\n'
            # JSON's strings are TOML's.
            f"root-certificates = {json.dumps(str(made.home / 'ca.crt'))}\n",
        )
        made._certify()
        return made

    def _write(self, name: str, text: str) -> None:
        self._tell(f"cat > {name} <<'END'\n{text}END")
        write_file(self.home / name, text)

    # --- keys -------------------------------------------------------------------------------------------------------

    def _certify(self) -> None:
        """Create a CA, and a certificate signed by it for the SuperLink."""
        self.make_ca("ca")
        self._write("server.ext", "subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        request = "req -newkey rsa:3072 -nodes -subj /CN=localhost -keyout server.key -out server.csr"
        self._run("openssl", *request.split())
        sign = "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile server.ext"
        self._run("openssl", *sign.split(), "-out", "server.pem")

    def make_ca(self, name: str) -> None:
        """Create a certification authority, NAME.key and NAME.crt.

        Parameters
        ----------
        name : str
        """
        options = f"req -x509 -newkey rsa:3072 -nodes -days 365 -subj /CN={name} -keyout {name}.key -out {name}.crt"
        # Python 3.13 and later trust no CA without it.
        self._run("openssl", *options.split(), "-addext", "keyUsage=critical,keyCertSign,cRLSign")

    def make_key(self, i: int, *, register: bool = True) -> None:
        """Create the key by which the SuperLink identifies a SuperNode.

        Parameters
        ----------
        i : int
        register : bool, default True
            Whether to register it with the SuperLink, which must be running.
        """
        self._run("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", f"node-{i}")
        if register:
            saved = self._run("flwr", "supernode", "register", f"node-{i}.pub", CONNECTION, "--format", "json")
            with suppress(ValueError, KeyError):
                self.node_ids[f"node-{i}"] = str(json_object(saved)["node-id"])
            self._save()

    # --- commands ---------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The address that SuperNodes are given: the gate's."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def users_address(self) -> str:
        """The address of the SuperLink itself, on which runs are started: of this machine only."""
        return f"127.0.0.1:{self._ports[-1]}"

    @property
    def settings(self) -> dict[str, str]:
        """The variables that are set for every command."""
        return settings_of(self.home)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every command."""
        return environment_of(self.home)

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Flower's command line for this deployment, whatever its exit code.

        Parameters
        ----------
        *arguments : str

        Raises
        ------
        ConfigurationError
            If the folder has lost its connection's configuration: Flower would start a SuperLink of its own.
        """
        self._require_connection()
        return self._call(command("flwr"), arguments)

    def _call(self, program: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        where: dict[str, Any] = {"env": self.environment, "cwd": self.home, "stdin": subprocess.DEVNULL}
        how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": READY, "check": False}
        return subprocess.run([program, *arguments], **where, **how)

    def _require_connection(self) -> None:
        try:
            address = tomllib.loads(read_text(self.home / "config.toml"))["superlink"][CONNECTION]["address"]
        except (FileNotFoundError, ValueError, RecursionError, LookupError, TypeError) as error:
            raise ConfigurationError(
                f"{self.home / 'config.toml'} does not say where the SuperLink is: {error!r}; expected the file that "
                "`python -m tools.deploy local` made. Put it back, or make a new deployment"
            ) from error
        if address != self.users_address:
            raise ConfigurationError(
                f"{self.home / 'config.toml'} names the SuperLink at {address!r}, this deployment's is at "
                f"{self.users_address}. Put the file back that `python -m tools.deploy local` made"
            )

    def _run(self, program: str, *arguments: str) -> str:
        """Print and run a command; return its output."""
        if program == "flwr":
            self._require_connection()
        self._tell(shlex.join([program, *arguments]))
        path = command(program) if program.startswith("fl") else shutil.which(program)
        if path is None:
            raise FlwrFcoError(f"{program} is not installed, which makes keys and certificates; install it, and again")
        done = self._call(path, arguments)
        if done.returncode != 0:
            raise FlwrFcoError(f"`{shlex.join([program, *arguments])}` failed: {(done.stderr + done.stdout)[-2000:]}")
        return done.stdout

    # --- processes --------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of all processes that should be running."""
        return [SUPERLINK, GATE, *(f"node-{i}" for i in range(self.nodes))]

    def _command(self, name: str) -> list[str]:
        keys = ["--ssl-ca-certfile", str(self.home / "ca.crt")]
        keys += ["--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        if name == SUPERLINK:
            return [
                "flower-superlink", "--host", "127.0.0.1", "--port", str(self._ports[-1]), *keys,
                "--enable-supernode-auth", "--database", "state.db",
            ]  # fmt: skip
        if name == GATE:
            return [
                sys.executable, str(Path(__file__).with_name("gate.py")), "--host", "127.0.0.1",
                "--port", str(self._ports[0]), "--superlink", self.users_address, *keys,
            ]  # fmt: skip
        i = int(name.removeprefix("node-"))
        return self.node_command(i, self._ports[1 + i])

    def node_command(self, i: int, port: int, ca: str = "ca.crt") -> list[str]:
        """Return the command that starts a SuperNode.

        Parameters
        ----------
        i : int
        port : int
            Port for its own processes.
        ca : str, default "ca.crt"
            CA certificate of the SuperLink.
        """
        own = self.node_config.replace("{partition-id}", str(i))
        config = f"partition-id={i} num-partitions={self.nodes} {own}".strip()
        return [
            "flower-supernode", "--superlink", self.address, "--root-certificates", str(self.home / ca),
            "--auth-supernode-private-key", f"node-{i}", "--host", "127.0.0.1", "--port", str(port),
            "--node-config", config, *(["--trusted-entities", self.trusted] if self.trusted else []),
        ]  # fmt: skip

    def log(self, name: str, since: int = 0) -> str:
        """Return the log of a process, at most its last 16 MiB.

        Parameters
        ----------
        name : str
        since : int, default 0
            Byte at which it begins.
        """
        return end_of(self.home / f"{name}.log", since)

    def spawn(self, name: str, program: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process that outlives this one; its output goes into NAME.log.

        Parameters
        ----------
        name : str
        program : sequence of str
        """
        self._tell(f"{shlex.join(program)} >> {name}.log 2>&1 &")
        process = spawned(program, self.home, self.environment, self.home / f"{name}.log")
        self._note(name, process.pid)
        return process

    def _note(self, name: str, pid: int | None) -> None:
        self.pids.pop(name, None)
        self._began.pop(name, None)
        if pid is not None:
            self.pids[name] = pid
            self._began[name] = beginning_of(pid)
        self._save()

    def pid(self, name: str) -> int | None:
        """Return the pid of a live process of this deployment; a number that another process has now is none.

        Parameters
        ----------
        name : str
        """
        pid = self.pids.get(name)
        if pid is None:
            return None
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        same = command_line(pid) and beginning_of(pid) == self._began.get(name)
        return pid if same and self._is_ours(pid) else None

    def _is_ours(self, pid: int) -> bool:
        """Whether a process has this deployment's FLWR_HOME, which all that is started here inherits."""
        return variable_of(pid, "FLWR_HOME") == str(self.home)

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers; then the gate."""
        self._require_connection()
        process = self.spawn(SUPERLINK, self._command(SUPERLINK))
        deadline = time.monotonic() + READY
        while time.monotonic() < deadline and process.poll() is None:
            # Flower's command takes seconds to find that nobody listens.
            if listens(self._ports[-1]) and self.flwr("supernode", "list", CONNECTION).returncode == 0:
                if self.pid(GATE) is None:
                    self.spawn(GATE, self._command(GATE))
                return
            time.sleep(0.2)
        raise FlwrFcoError(f"the SuperLink did not start; the end of its log:\n{self.log(SUPERLINK)[-2000:]}")

    def start_node(self, i: int, *, again: bool = False) -> None:
        """Start a SuperNode.

        Parameters
        ----------
        i : int
        again : bool, default False
            Whether its key may still be in use: the SuperLink refuses it (412) until it has missed a killed node's
            heartbeats for about a minute. Starting is then retried.
        """
        name = f"node-{i}"
        deadline = time.monotonic() + TAKEN
        reported = False
        while True:
            log = self.home / f"{name}.log"
            before = log.stat().st_size if log.exists() else 0
            process = self.spawn(name, self._command(name))
            wait = time.monotonic() + (_ANSWERED if again else 0.0)
            said = ""
            while process.poll() is None and time.monotonic() < wait and not any(each in said for each in _ANSWERS):
                time.sleep(0.1)
                said = self.log(name, before)
            # A refused SuperNode reports it but may keep running, because its SuperExec waits for it.
            if not again or (process.poll() is None and "Exit Code" not in said):
                return
            self.stop(name)
            if time.monotonic() > deadline:
                raise FlwrFcoError(f"{name} cannot be started again; the end of its log:\n{said[-2000:]}")
            if not reported:
                self._tell(f"# Refused (412): the SuperLink holds {name} for connected for a minute; again every 5 s.")
            reported = True
            time.sleep(5.0)

    def restart(self, name: str) -> None:
        """Restart a process; stop it first if it is alive.

        Parameters
        ----------
        name : str
        """
        self.stop(name)
        if name == SUPERLINK:
            self.start_superlink()
        elif name == GATE:
            self.spawn(GATE, self._command(GATE))
        else:
            self.start_node(int(name.removeprefix("node-")), again=True)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> bool:
        """Stop a process and everything that it started; return whether it was alive.

        Parameters
        ----------
        name : str
        number : signal.Signals, default SIGTERM
        """
        pid = self.pid(name)
        if pid is not None:
            self._tell(f"kill -{number.name.removeprefix('SIG')} {pid}  # {name}")
        known = self.pids.get(name)
        # Children of a dead process may live on, in a session of its number; others may have that number now.
        if known is not None and (pid is not None or not exists(known)):
            end(known, number, self._is_ours)
        self._note(name, None)
        return pid is not None

    # --- the look ---------------------------------------------------------------------------------------------------

    def connected(self) -> dict[str, str] | None:
        """Return the SuperLink's status of each SuperNode ("online", ...) by name; None if it does not answer."""
        if self.pid(SUPERLINK) is None:
            # Without a configuration Flower's command would start a SuperLink of its own, and ask that.
            return None
        done = self.flwr("supernode", "list", CONNECTION, "--format", "json")
        try:
            status = {str(row["node-id"]): str(row["status"]) for row in json_object(done.stdout)["nodes"]}
        except (ValueError, KeyError, TypeError):
            return None
        return {name: status[node] for name, node in self.node_ids.items() if node in status}

    def wait_for_nodes(self) -> None:
        """Wait until the SuperLink lists every SuperNode as online."""
        deadline = time.monotonic() + READY
        while list((self.connected() or {}).values()).count("online") < self.nodes:
            if time.monotonic() > deadline:
                ends = "\n".join(f"{name}: {self.log(name)[-500:]}" for name in self.names[1:])
                raise FlwrFcoError(f"not all of {self.nodes} SuperNodes have connected; their logs end with:\n{ends}")
            time.sleep(0.5)

    def submit(self, app: Path) -> str:
        """Start a run of an app; return Flower's output.

        Parameters
        ----------
        app : Path
            Absolute path.
        """
        return self._run("flwr", "run", str(app), CONNECTION)
