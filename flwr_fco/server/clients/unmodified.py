"""Clients whose code cannot be changed: any FedAvg ClientApp, and the arrays that none of them trains."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Setting
from flwr_fco.core.files import json_object
from flwr_fco.core.layout import Entry, Layout, Vector
from flwr_fco.core.logs import log
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import L1, HardSparsity, PerParameter, Zero
from flwr_fco.server.options import AUTO, UnmodifiedOptions, density_of, scope_of, serves_unmodified
from flwr_fco.server.parts import Part
from flwr_fco.server.replies.bounds import check_elapsed, check_examples, check_steps
from flwr_fco.server.replies.mail import Mail
from flwr_fco.wire.arrays import primal_record, primal_request, primal_vector
from flwr_fco.wire.envelope import RoundCache
from flwr_fco.wire.protocol import Downlink, Node, Uplink
from flwr_fco.wire.uplink import read_unmodified
from flwr_fco.work import FirstOrder


def check_unmodified(options: UnmodifiedOptions) -> None:
    """Check that one option, which fits psi, sets how fast the weight of psi or its sparsity grows.

    Parameters
    ----------
    options : UnmodifiedOptions
        Options of a strategy.

    Raises
    ------
    ConfigurationError
        If the options are missing or conflict.
    """
    strategy: Any = options
    if strategy.density is not None:
        _check_density(strategy)
    if not serves_unmodified(options):
        return
    steps, psi = strategy.work.steps, strategy.regularizer
    if strategy.density is not None and steps is not None:
        raise ConfigurationError(
            "density, work=Steps(...): each of them says how fast the weight of psi grows; give one of them"
        )
    if strategy.density is None and steps is None and not (isinstance(psi, Zero) or psi.constraint):
        raise ConfigurationError(
            f"client='unmodified' with {psi!r}: it is not known how fast the weight of psi grows. Give density=0.1 "
            "in its place (the share of weights that are not 0 in the end), or work=Steps(...) with the clients' "
            "learning rate as client_lr (the threshold then grows by strength * client_lr * steps in a round)"
        )
    _check_choices(strategy)


def _check_density(options: Any) -> None:
    """Reject regularizers that cannot be combined with a density, which is a psi of its own."""
    whole = options.regularizer
    for psi in whole.regularizers.values() if isinstance(whole, PerParameter) else [whole]:
        alone = psi is whole
        marks = isinstance(psi, Zero) or (isinstance(psi, L1) and psi.weights is None and psi.strength > 0.0)
        if not marks and (alone or not psi.constraint):
            raise ConfigurationError(
                f"density={options.density} keeps the largest entries as they are, which is a psi of its own; {psi!r} "
                "has another form. Leave it out, or leave density out and give work=Steps(...); in a PerParameter, "
                "Zero(), HardSparsity(...) and constraints say which arrays have no share in it"
            )
    density = density_of(options)
    assert density is not None
    if scope_of(options) == "joint" and isinstance(options.regularizer, PerParameter):
        what = "a density of all arrays together has no place for a regularizer of single arrays"
        raise ConfigurationError(f'{what}; take density=Density(..., scope="layers"), or leave PerParameter out')
    if options.mirror_map.never_supports(HardSparsity(density=density.share)):
        options.mirror_map.require(HardSparsity(density=density.share))


def _check_choices(options: Any) -> None:
    """Reject options that need this package's clients."""
    if not isinstance(options.mirror_map, Euclidean):
        raise ConfigurationError(
            f'client="unmodified" takes differences of models for gradients, which is Euclidean; '
            f"mirror_map={options.mirror_map!r} needs our ClientApp (flwr_fco.client_apps.client_app)"
        )
    if options.certificate_every is not None:
        what = f"certificate_every={options.certificate_every}: client='unmodified' does not answer questions"
        raise ConfigurationError(f"{what}; evaluate on the server, or take our ClientApp")
    if AUTO in (getattr(options, "client_lr", None), getattr(options, "server_lr", None)):
        what = "client='unmodified': such clients take steps of a size of their own, and do not answer questions"
        raise ConfigurationError(f"{what}; give client_lr and server_lr as numbers")


class UnmodifiedClients(Part):
    """The language of a FedAvg ClientApp: the model down, the new model up; the difference is the increment.

    Parameters
    ----------
    options : UnmodifiedOptions
        The strategy, whose options these are.
    """

    def __init__(self, options: UnmodifiedOptions) -> None:
        self._options: Any = options
        self.forget()

    def forget(self) -> None:
        self._sent: tuple[object, ArrayRecord, Vector] | None = None

    def content(self, mail: Mail, node: Node, downlink: Downlink, serialised: RoundCache) -> RecordDict:
        """Return the model as ``FedAvg`` sends it."""
        options = self._options
        keys = {"arrayrecord_key": options.arrayrecord_key, "configrecord_key": options.configrecord_key}
        return primal_request(self.sent_model(mail)[0], mail.config_of_round, **keys)

    def read(self, mail: Mail, content: RecordDict) -> Uplink:
        """Return the client's model minus the model that it was sent."""
        options, problem, work = self._options, mail.current.problem, mail.plan.work
        assert problem is not None
        assert isinstance(work, FirstOrder)
        key = options.weighted_by_key
        claims = {"client_lr": problem.client_lr, "local_steps": work.steps or 1, "weighted_by_key": key}
        uplink = read_unmodified(content, mail.plan.layout, sent=self.sent_model(mail)[1], **claims)
        return uplink if options.density is None else uplink._replace(elapsed=1.0)

    def check(self, mail: Mail, node: Node, uplink: Uplink, num_examples: float | None) -> None:
        """Check a client's claims against the server's knowledge; the client may have its own schedule.

        It may take a thousand times as many steps as the server's options say, because it does not know them. One step
        also stands for a client that reports only ``elapsed``, so the planned number is used then.
        """
        options, work = self._options, mail.plan.work
        check_examples(uplink.examples, options.bounds.max_examples)
        assert isinstance(work, FirstOrder)
        planned = max(1, work.num_draws(int(uplink.examples)))
        check_steps(uplink.steps, 1_000 * planned)
        steps = uplink.steps if uplink.steps > 1 else planned
        # With a density, the server sets how fast psi's weight grows; of a client that reports nothing `read` has set
        # it, whatever its data.
        claims = uplink.step_sizes != mail.step_size() * uplink.steps
        if claims and options.density is None:
            check_elapsed(uplink.step_sizes, steps, mail.step_size(), exact=False)

    def sent_model(self, mail: Mail) -> tuple[ArrayRecord, Vector]:
        """Return the current model as records, and as a vector rounded to the user's dtypes.

        Parameters
        ----------
        mail : Mail
            The messages of the run.
        """
        current, output = mail.current, mail.output
        if output is not None and output.state is current.state and output.plan is mail.plan:
            return output.arrays, output.point
        if self._sent is None or self._sent[0] is not current.state:
            assert current.problem is not None
            layout, primal = mail.plan.layout, mail.algorithm.retrieve(current.problem, current.state)
            arrays = primal_record(layout, primal, mail.pass_through_arrays)
            self._sent = (current.state, arrays, primal_vector(layout, arrays)[0])
        return self._sent[1], self._sent[2]


#: Rounds in a row in which an increment of exactly 0 from everyone means that nobody trains an array.
_ROUNDS = 2
#: Entries that are looked at first: where an array is trained, one of these has moved.
_FIRST = 256
_SHOWN = 5


class Untrained(Part):
    """What psi leaves alone in the models of clients whose code is not known.

    A frozen backbone or a buffer in a ``state_dict`` has an increment of 0: psi would take it apart although no client
    can answer that. After two rounds with increments of exactly 0 from everyone, an array is again what it was in the
    first of them, and stays so until it moves. Arrays that are equal, not constant, and have equal increments are one
    array under two names (tied weights): the second is a copy of the first as long as their increments are equal.

    Parameters
    ----------
    clients : UnmodifiedClients
        Who were sent the model.
    """

    def __init__(self, clients: UnmodifiedClients) -> None:
        self._clients = clients
        self.forget()

    def forget(self) -> None:
        #: By array: rounds in a row without an increment, and the array as it was before them.
        self._still: dict[str, tuple[int, Vector]] = {}
        #: Arrays that were equal from the start, second and first; None before the first round.
        self._pairs: dict[str, str] | None = None
        self._layouts: tuple[Layout, frozenset[str], Layout] | None = None
        #: Rounds in a row in which nothing has moved.
        self._idle = 0

    @property
    def _frozen(self) -> set[str]:
        return {name for name, (rounds, _) in self._still.items() if rounds >= _ROUNDS}

    def given(self, given: Setting) -> Setting:
        """Return the user's setting, in whose layout psi leaves these arrays alone.

        Parameters
        ----------
        given : Setting
            The user's.
        """
        held = frozenset({*self._frozen, *(self._pairs or {})})
        if not held:
            return given
        sizes = {entry.name: entry.size for entry in given.layout.optimized}
        for name, (_, value) in self._still.items():
            if (size := sizes.get(name)) != value.size:
                raise ValueError(f"the untrained array {name!r} has {value.size} entries, expected {size or 'none'}")
        for pair in (self._pairs or {}).items():
            if sizes.get(pair[0], -1) != sizes.get(pair[1]):
                raise ValueError(f"the arrays {pair} are not of one size")
        if self._layouts is None or self._layouts[:2] != (given.layout, held):
            self._layouts = given.layout, held, given.layout.leaving(held)
        return given._replace(layout=self._layouts[2])

    def observe(self, layout: Layout, mail: Mail, uplinks: Sequence[Uplink]) -> None:
        """Observe what the clients of a round have trained.

        Parameters
        ----------
        layout : Layout
            The user's.
        mail : Mail
            The messages of the run, with the model that they got.
        uplinks : sequence of Uplink
            What they sent.
        """
        _, sent = self._clients.sent_model(mail)
        everything = sorted((e for e in layout.optimized if e.size), key=lambda entry: not entry.regularized)
        entries = [entry for entry in everything if entry.regularized]
        increments = [np.asarray(uplink.vectors["increment"]) for uplink in uplinks]
        before, tied = self._frozen, set(self._pairs or {})
        still = {e.name: e for e in entries if not any(_moves(increment[e.block]) for increment in increments)}
        self._idle = self._idle + 1 if len(still) == len(entries) else 0
        if self._idle == _ROUNDS:
            log(WARNING, "the clients return the model that they got: in %s rounds nobody trained any array", _ROUNDS)
        if self._idle:
            return
        self._still = {
            name: (self._still[name][0] + 1, self._still[name][1]) if name in self._still else (1, sent[e.block].copy())
            for name, e in still.items()
        }
        blocks = {entry.name: entry.block for entry in everything}
        # Of two tied arrays the one that psi acts on is the first.
        pairs = _equal_pairs(everything, sent) if self._pairs is None else self._pairs
        self._pairs = {
            second: first
            for second, first in pairs.items()
            if all(np.array_equal(each[blocks[first]], each[blocks[second]]) for each in increments)
        }
        self._tell(before, tied)

    def take(self, layout: Layout, point: Vector, before: Vector) -> None:
        """Hold from now on what a hook of a subclass has made of arrays.

        Parameters
        ----------
        layout : Layout
            Places of the arrays.
        point : ndarray of float64, shape (d,)
            The model of the hook.
        before : ndarray of float64, shape (d,)
            The model that the hook got.
        """
        for name, (rounds, _) in list(self._still.items()):
            block = layout[name].block
            if not np.array_equal(point[block], before[block]):
                self._still[name] = rounds, point[block].copy()

    def hold(self, values: Vector, layout: Layout) -> None:
        """Put frozen arrays back into a dual (Euclidean) or a model, in place.

        Parameters
        ----------
        values : ndarray of float64, shape (d,)
            The dual, or the model.
        layout : Layout
            Places of the arrays.
        """
        blocks = {entry.name: entry.block for entry in layout.optimized} if self._still else {}
        for name in self._frozen:
            values[blocks[name]] = self._still[name][1]

    def copy(self, point: Vector, values: Vector, layout: Layout) -> None:
        """Copy the first of two tied arrays of a model to the second one, in place.

        Parameters
        ----------
        point : ndarray of float64, shape (d,)
            The model.
        values : ndarray of float64, shape (d,)
            The dual, or the model, that it comes from.
        layout : Layout
            Places of the arrays.
        """
        for second, first in (self._pairs or {}).items():
            block = layout[second].block
            point[block] = values[block] = point[layout[first].block]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        rounds = {name: number for name, (number, _) in self._still.items()}
        values = {f"still/{name}": value for name, (_, value) in self._still.items()}
        return {"untrained": np.array(json.dumps({"rounds": rounds, "pairs": self._pairs})), **values}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.forget()
        saved = json_object(str(arrays["untrained"]), {"rounds": dict[str, int], "pairs": dict[str, str] | None})
        self._pairs = saved["pairs"]
        self._still = {name: (number, np.asarray(arrays[f"still/{name}"])) for name, number in saved["rounds"].items()}

    def _tell(self, before: set[str], tied: set[str]) -> None:
        frozen = self._frozen
        if frozen - before:
            text = "nobody has trained %s for %s rounds: psi leaves them as they were until they move"
            log(INFO, text, _listed(frozen - before), _ROUNDS)
        if before - frozen:
            log(INFO, "clients train %s now: psi acts on them", _listed(before - frozen))
        for second, first in (self._pairs or {}).items():
            if second not in tied:
                text = "%r is %r under another name (equal, and trained equally): they move together"
                log(INFO, text, second, first)


def _listed(names: set[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(sorted(names)[:_SHOWN]) + (f" and {more} more arrays" if more > 0 else "")


def _moves(increment: NDArray[Any]) -> bool:
    return bool(increment[:_FIRST].any() or increment.any())


def _equal_pairs(entries: Sequence[Entry], model: Vector) -> dict[str, str]:
    """Return the arrays of several elements that equal an earlier one and are not constant, with that one."""
    firsts: dict[tuple[Any, ...], list[Entry]] = {}
    pairs: dict[str, str] = {}
    for entry in entries:
        array = model[entry.block]
        if entry.size < 2 or (array[0] == array).all():
            continue
        alike = firsts.setdefault((entry.shape, *array[:_FIRST].tolist()), [])
        first = next((each for each in alike if np.array_equal(model[each.block], array)), None)
        if first is None:
            alike.append(entry)
        else:
            pairs[entry.name] = first.name
    return pairs
