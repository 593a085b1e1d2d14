"""A run as a file. What changes are the attributes that its parts name in `saved`, and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from numpy.typing import NDArray

from flwr_fco.algorithms.density import rounds_of
from flwr_fco.core.files import FilePath, json_object, read_npz, shown, write_npz
from flwr_fco.core.layout import all_finite
from flwr_fco.core.spec import decode, encode
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.strategies.ledger import Member
from flwr_fco.strategies.replies import LeftOut
from flwr_fco.strategies.run import Run
from flwr_fco.strategies.training import check_forms

_VERSION = 7
#: Entries of arrays that one array of the file holds as rows, with others like them: each costs time.
_SHORT = 2**14
_damaged = partial(in_words, kind=ConfigurationError, passing=ConfigurationError)
#: Begins the names of arrays in a file.
_TREE = "tree"
#: Options that may differ between a run and its resumption.
MAY_CHANGE = {"fraction_evaluate", "min_train_nodes", "min_evaluate_nodes", "min_available_nodes", "bounds"}
MAY_CHANGE |= {"train_metrics_aggr_fn", "evaluate_metrics_aggr_fn", "on_divergence", "certificate_every"}
#: What is compared by what it means in a run of so many rounds.
MAY_CHANGE |= {"participation", "density"}


def save(path: FilePath, about: str, tree: Any, *, secret: bool = False) -> None:
    """Write a tree of dicts, lists, tuples, sets, texts, bytes, numbers, arrays and sparse vectors.

    Parameters
    ----------
    path : path-like
        Ends in ``.npz``; the file is replaced as a whole.
    about : str
        Whose it is: the settings that a resumed run must share.
    tree : Any
        The values.
    secret : bool, default False
        Whether only its owner may read the file.

    Examples
    --------
    Memories of 60,000 clients are one array, as a file of so many would not be read again:

    >>> from flwr_fco.core.files import read_npz
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(f"{folder}/run.npz", "a run", {number: np.array([number, 1.0]) for number in range(60_000)})
    ...     sorted(read_npz(f"{folder}/run.npz")), load(f"{folder}/run.npz", "a run")[59_999]
    (['0', 'checksum', 'tree'], array([5.9999e+04, 1.0000e+00]))
    """
    arrays: dict[str, NDArray[Any]] = {}
    saved = {"about": about, "version": _VERSION, "tree": encode(tree, _TREE, arrays)}
    alike: dict[Any, list[str]] = {}
    for name, array in arrays.items():
        if array.ndim and array.size <= _SHORT:
            alike.setdefault((array.dtype.str, array.shape), []).append(name)
    arrays |= {f"{i}": np.stack([arrays.pop(name) for name in names]) for i, names in enumerate(alike.values())}
    text = json.dumps({**saved, "rows": [*alike.values()]})
    arrays["tree"] = np.frombuffer(text.encode(), np.uint8)
    arrays["checksum"] = np.array(_checksum(arrays))
    write_npz(path, arrays, secret=secret)


def load(path: FilePath, about: str) -> Any:
    """Return the tree of a file.

    Raises
    ------
    ConfigurationError
        If the file is damaged, or of a run with other settings.
    """
    arrays = read_npz(path)
    checksum = arrays.pop("checksum", np.array(""))
    if "tree" not in arrays or str(checksum) != _checksum(arrays):
        raise ConfigurationError(f"{shown(path)} is no saved run, or is damaged; take an earlier copy")
    with _damaged(f"{shown(path)} is damaged", advice="; take an earlier copy"):
        saved = json_object(arrays["tree"].tobytes())
        version, whose = saved["version"], saved["about"]
        for i, names in enumerate(saved.get("rows", ())):
            arrays |= zip(names, arrays.pop(f"{i}"), strict=True)
        tree = decode(saved["tree"], _TREE, arrays, math.inf)
    if version != _VERSION or whose != about:
        raise ConfigurationError(f"{shown(path)} was saved with other settings{_difference(str(whose), about)}")
    return tree


def _difference(there: str, here: str) -> str:
    pairs = zip(there.splitlines(), here.splitlines(), strict=False)
    apart = [f"{a[:150]}, here {b[:150]}" for a, b in pairs if a != b]
    return f": {'; '.join(apart[:3])}" if apart else " by another version of flwr-fco"


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]}"
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({', '.join(_text(getattr(value, f.name)) for f in fields(value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return "a function" if callable(value) else repr(value)


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {arrays[name].shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.dtype.kind != "U" else array.tobytes())
    return digest.hexdigest()


# --- a run as a file --------------------------------------------------------------------------------------------------


class Saved:
    """A run as a file: its parts, the metrics so far, the callbacks, and in one process the clients' contexts.

    Parameters
    ----------
    run : Run
        The run.
    callbacks : Callbacks
        Of the run.

    Attributes
    ----------
    private : bool
        Whether no round may be released again, with other noise.
    stopped : bool
        Whether the run is over after its last round.
    unfinished : bool
        Whether the last round has been trained, and not yet evaluated.
    """

    saved = ("stopped", "unfinished")

    def __init__(self, run: Run, callbacks: Any) -> None:
        self._run = run
        self._callbacks = callbacks
        self.private = run.privacy is not None
        self.stopped = False
        self.unfinished = False
        self._of_callbacks: Mapping[str, Any] = {}
        #: Of each history the last round of its lines, and the lines.
        self._texts: dict[str, tuple[int, bytes]] = {}

    @cached_property
    def _about(self) -> str:
        """The settings that a resumed run must share, one a line."""
        run = self._run
        h = run.method.setting(run.given, None).mirror_map
        around = "" if h is run.given.mirror_map else f"\nmap around the initial arrays: {_text(h)}"
        kind, model = type(run.options), f"{run.problem.plan.solver} {run.given.layout!r}{around}"
        kept = [option.name for option in fields(run.options) if option.init and option.name not in MAY_CHANGE]
        lines = [f"{name}={_text(getattr(run.options, name))}" for name in kept]
        lines += [f"density={density.share!r} of {density.scope}"] if (density := run.options._density) else []
        return "\n".join([f"{kind.__module__}.{kind.__qualname__}", model, *lines])

    @property
    def _parts(self) -> dict[str, Any]:
        """All that changes, by name."""
        run = self._run
        parts = {"run": run, "cap": run.cap, "ledger": run.roll, "graph": run.graph, "nodes": run.nodes, "saved": self}
        parts |= {"momentum": run.momentum, "untrained": run.untrained, "watch": run.watch, "privacy": run.privacy}
        parts["noise"] = run.privacy and run.privacy.stream
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def _histories(self) -> dict[str, dict[int, Any]]:
        return {**self._run.result.histories, "callbacks": self._run.result.callback_metrics}

    def save(self, path: FilePath) -> None:
        """Write the file.

        Parameters
        ----------
        path : path-like
            Ends in ``.npz``.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        run = self._run
        # A private run's last round may be no result yet, where an error has ended it.
        sent = {} if self.private or run.result.arrays == run.arrays else run.result.arrays
        tree = {
            "parts": {name: {key: getattr(part, key) for key in part.saved} for name, part in self._parts.items()},
            "histories": {name: self._lines(name, history) for name, history in self._histories.items()},
            # What a hook or a callback has made of the model is sent, and trained, in the next round.
            "sent": {name: own.numpy() for name, own in sent.items()},
            "left out": run.left_out,
            "callbacks": {name: dict(each.to_arrays()) for name, each in self._callbacks.savers().items()},
            "num nodes": getattr(run.grid, "num_nodes", None),
            "nodes": run.grid.states() if hasattr(run.grid, "states") else {},
            "density rounds": run.options._density and rounds_of(run.options._density, run.num_rounds),
        }
        save(path, self._about, tree, secret=self.private)

    def _lines(self, name: str, history: Mapping[int, Any]) -> bytes:
        """Return a history as lines of JSON: those of earlier rounds are made once, however often a run is saved."""
        done, text = self._texts.get(name, (-1, b""))
        for number in [number for number in history if number > done]:
            text += f"{json.dumps([number, dict(history[number])])}\n".encode()
            done = number
        self._texts[name] = done, text
        return text

    def read(self, path: FilePath) -> Any:
        """Return the tree of a file of this strategy and model.

        Raises
        ------
        ConfigurationError
            If it is none.
        """
        return load(path, self._about)

    def load(self, path: FilePath, num_rounds: int) -> None:
        """Go on from a file.

        Parameters
        ----------
        path : path-like
            Of :meth:`save`.
        num_rounds : int
            The total, with the rounds before the run was stopped.

        Raises
        ------
        ConfigurationError
            If it is no file of this strategy and model, or of other nodes, or the rest of the run depends on a number
            of rounds that is not its own.
        """
        tree = self.read(path)
        with _damaged(f"{shown(path)} is damaged", advice="; take an earlier copy"):
            self._check_rest(path, tree, num_rounds)
            self._restore(tree)

    def _check_rest(self, path: FilePath, tree: Mapping[str, Any], num_rounds: int) -> None:
        """Refuse a file that is whole, and that this run cannot go on from."""
        density = self._run.options._density
        private = tree["parts"].get("privacy")
        done = tree["parts"]["run"]["number"]
        nodes, here = tree["num nodes"], getattr(self._run.grid, "num_nodes", None)
        wrong = ""
        if density is not None and rounds_of(density, num_rounds) != (before := tree["density rounds"]):
            wrong = f"is of a run whose density falls otherwise: give density={replace(density, rounds=before)!r}"
        elif private is not None and 0 < private["rounds"] < num_rounds:
            wrong = f"is accounted for {private['rounds']} rounds, and this run is to have {num_rounds}"
        elif done > num_rounds:
            wrong = f"is of round {done}, and num_rounds={num_rounds}: it is the total, with the rounds before the stop"
        elif None not in (nodes, here) and nodes != here:
            wrong = f"is of a run of {nodes} nodes, and there are {here}: resume with the nodes that the run had"
        elif self.private and not self._callbacks.saves_to(path):
            wrong = "is of a private run, which goes on only where it saves itself, or its next rounds could be "
            wrong += f"released again, with other noise: add Checkpoint({os.fspath(path)!r}) to callbacks"
        if wrong:
            raise ConfigurationError(f"{shown(path)} {wrong}")

    def _restore(self, tree: Mapping[str, Any]) -> None:
        run = self._run
        parts = tree["parts"]
        state = type(run.state)(*parts["run"]["state"])
        good = parts["watch"]["good"][0]
        rows = None if run.graph is None else sorted(parts["graph"]["rows"].values())
        check_forms(run.state, state, None if rows is None else len(rows) or 1)
        if rows and rows != [*range(len(rows))]:
            raise ValueError(f"its graph has the rows {rows}")
        if (good.shape, good.dtype) != (run.point.shape, run.point.dtype) or not all(map(all_finite, (good, *state))):
            raise ValueError("the state or the last good model is not finite, or of another model")
        parts["run"]["state"] = state
        if run.roll is not None:
            parts["ledger"]["members"] = known = {k: Member(*own) for k, own in parts["ledger"]["members"].items()}
            for key, member in known.items():
                memory = [] if member.memory is None else [member.memory[name] for name in run.roll.names]
                sound = all(own.shape == (run.roll.size,) and all_finite(getattr(own, "values", own)) for own in memory)
                sound = sound and isinstance(member.sent, tuple) and isinstance(member.digest, str)
                if not sound or not 0.0 <= (member.examples or 0.0) < np.inf:
                    raise ValueError(f"the memory of {key} is not finite, or not of {run.roll.size} numbers")
        if not all(0.0 <= length < np.inf and count >= 0 for length, count in parts["cap"]["usual"].values()):
            raise ValueError("a usual length is none")
        for name, part in self._parts.items():
            for key in part.saved:
                held, here = parts[name][key], getattr(part, key)
                if here is not None and not isinstance(held, int | float if isinstance(here, float) else type(here)):
                    raise ValueError(f"its {key} is a {type(held).__name__}, expected a {type(here).__name__}")
                setattr(part, key, held)
        if run.graph is not None and run.graph.rows:
            run.graph.topology = run.graph.of_size(len(run.graph.rows))
        given = run.given if run.untrained is None else run.given_without(run.untrained)
        setting = run.method.setting(given, run.state)
        run.problem = run.problem_of(setting)
        run.setting = setting
        run.show(run.seen(run.problem, run.state, run.average) if run.state.round else run.point, run.passed)
        changed = {name: Array(value) for name, value in tree["sent"].items()}
        run.result.arrays = ArrayRecord(changed) if changed else run.arrays.copy()
        run.left_out.extend(LeftOut(*row) for row in tree["left out"])
        for name, history in self._histories.items():
            kind: Any = dict if name == "callbacks" else MetricRecord
            lines = map(json.loads, tree["histories"][name].splitlines())
            history.update({int(number): kind(row) for number, row in lines})
        if tree["nodes"] and hasattr(run.grid, "restore"):
            run.grid.restore(tree["nodes"])
        self._of_callbacks = tree["callbacks"]

    def load_callbacks(self) -> None:
        """Restore the callbacks' states, after they were called at the beginning of the run.

        Raises
        ------
        ConfigurationError
            If they are other callbacks' states.
        """
        for name, callback in self._callbacks.savers().items():
            problem = f"the saved state of {name} is not this callback's"
            with _damaged(problem, advice="; resume with the callbacks that the run had"):
                if name in self._of_callbacks:
                    callback.from_arrays(self._of_callbacks[name])
