"""The server half of every algorithm: sampling, records, checks, state and summary around plain mathematics."""

from __future__ import annotations

import math
import os
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from numpy.typing import NDArray

from flwr_fco import records
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.mirror_maps import Euclidean, MirrorMap
from flwr_fco.parameters import PASS_THROUGH, Layout, Vector, all_finite
from flwr_fco.protocol import Downlink, Node, Option, Plan, Uplink
from flwr_fco.randomness import random_generator
from flwr_fco.regularizers import Regularizer, Zero
from flwr_fco.regularizers.base import BoundRegularizer, Scope
from flwr_fco.spec import Spec
from flwr_fco.work import FirstOrder

# Flower's names among them are for the other modules of this package: none of them imports Flower itself.
__all__ = [
    "ArrayRecord",
    "Callback",
    "CompositeOptions",
    "CompositeStrategy",
    "ConfigRecord",
    "Grid",
    "MetricRecord",
    "Rate",
    "RecordDict",
    "log",
    "mean_increment",
]

#: A number, or a function of Flower's round (from 1).
Rate = float | Callable[[int], float]
#: Called after each round with the round, the primal arrays and the round's metrics; True ends the run.
Callback = Callable[[int, ArrayRecord, MetricRecord | None], bool | None]

_TRAIN_SAMPLE, _EVALUATE_SAMPLE = 2, 3


class CompositeOptions(TypedDict, total=False):
    """Keyword arguments that every strategy of this package takes; see :class:`CompositeStrategy`."""

    regularizer: Regularizer
    mirror_map: MirrorMap
    client_lr: Rate
    server_lr: Rate
    local_epochs: int | None
    local_steps: int | None
    batch_size: int | None
    weighting: Literal["examples", "uniform"]
    normalize_local_work: bool
    seed: int
    min_replies: int
    apply_to: str | Sequence[str] | None
    pass_through: str | Sequence[str]
    scope: Scope
    output: str
    wire_dtype: Literal["float64", "float32"]
    node_timeout: float
    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None
    evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None


@dataclass
class _Round:
    """What the server remembers between asking and aggregating."""

    number: int
    nodes: dict[int, Node] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    config: ConfigRecord = field(default_factory=ConfigRecord)
    bytes_down: int = 0
    downlink: tuple[Any, Downlink] | None = None
    #: Nodes that have lost what they knew.
    restoring: set[int] = field(default_factory=set)


class CompositeStrategy(FedAvg):
    r"""Minimise sum_m p_m F_m(w) + psi(w); the part that all strategies share.

    A subclass sets :attr:`local_solver` and :attr:`limit` and implements :meth:`init_state`, :meth:`vectors`,
    :meth:`aggregate` and :meth:`retrieve`; this class does the messages, the sampling, the checks and the logs.
    ``aggregate_train`` always returns the primal arrays under the user's names and in the user's dtypes.

    Parameters
    ----------
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes
        As in Flower's ``FedAvg``, with its defaults (1.0, 1.0, 2, 2, 2).
    weighted_by_key : str, default "num-examples"
        Key of the weight in the replies' MetricRecord.
    arrayrecord_key, configrecord_key : str, default "arrays", "config"
        Keys of the records in the messages.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        As in Flower's ``FedAvg``.
    regularizer : Regularizer, default Zero()
        psi.
    mirror_map : MirrorMap, default Euclidean()
        h.
    client_lr : float or callable, default 0.1
        Step size of the local solver, eta_c; or a function of Flower's round (from 1).
    server_lr : float or callable, default 1.0
        Step size of the server, eta_s; or a function of Flower's round (from 1).
    local_epochs : int, optional
        Passes over a client's data per round. Default 1 if `local_steps` is not given.
    local_steps : int, optional
        Minibatches per round, K, instead of `local_epochs`.
    batch_size : int or None, default 32
        Rows of a minibatch; None: full batches, without any randomness.
    weighting : {"examples", "uniform"}, default "examples"
        Weights p_m of the clients: their numbers of examples (the pooled empirical risk) or equal (the papers' 1/M).
    normalize_local_work : bool, default True
        Scale the increment and the elapsed time of each client to the round's mean elapsed time, so that clients
        that take more steps do not count more than their weight. With equal work this changes no bit.
    seed : int, default 0
        Of the samples of nodes and of all minibatches; 0 <= seed < 2**32.
    min_replies : int, default 1
        With fewer good replies a round is skipped: the state stays as it is.
    apply_to : str or sequence of str, optional
        Shell patterns of the arrays that psi acts on; see :meth:`Layout.from_arrays`.
    pass_through : str or sequence of str
        Shell patterns of floating arrays that are averaged but not optimised (default: running statistics).
    scope : {"each", "joint"}, default "each"
        Whether psi acts on each array by itself or on all of them as one vector.
    output : {"last", "average"}, default "last"
        Which primal point the user sees: that of the last state, or the mean over the rounds (not sparse, not of low
        rank: an average never is). FedDualAvg also has ``"shadow"``.
    wire_dtype : {"float64", "float32"}, default "float64"
        Precision of the uplink. float32 halves it and loses: the dual grows with the rounds while the model is its
        small difference from a threshold (1e-4 at t * strength = 5e4).
    node_timeout : float, default 600
        Seconds to wait for enough nodes to connect.

    Attributes
    ----------
    state : NamedTuple or None
        The server's state, float64 arrays and numbers; None before the first round.
    layout : Layout or None
        The model's arrays, from the initial arrays.
    """

    #: Name of the client half in ``flwr_fco.client_apps``.
    local_solver: ClassVar[str]
    #: What the method converges to: 'exact', 'biased', 'doubled strength' or 'zero'. A contract test holds it to that.
    limit: ClassVar[str]
    #: The values that `output` may take.
    outputs: ClassVar[tuple[str, ...]] = ("last", "average")
    state: Any

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
        evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
        *,
        regularizer: Regularizer | None = None,
        mirror_map: MirrorMap | None = None,
        client_lr: Rate = 0.1,
        server_lr: Rate = 1.0,
        local_epochs: int | None = None,
        local_steps: int | None = None,
        batch_size: int | None = 32,
        weighting: Literal["examples", "uniform"] = "examples",
        normalize_local_work: bool = True,
        seed: int = 0,
        min_replies: int = 1,
        apply_to: str | Sequence[str] | None = None,
        pass_through: str | Sequence[str] = PASS_THROUGH,
        scope: Scope = "each",
        output: str = "last",
        wire_dtype: Literal["float64", "float32"] = "float64",
        node_timeout: float = 600.0,
    ) -> None:
        super().__init__(
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_train_nodes=min_train_nodes,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn or records.average_metrics,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn or records.average_metrics,
        )
        self.regularizer = Zero() if regularizer is None else regularizer
        self.mirror_map = Euclidean() if mirror_map is None else mirror_map
        _check_type("regularizer", self.regularizer, Regularizer, "flwr_fco.regularizers.L1(0.01)")
        _check_type("mirror_map", self.mirror_map, MirrorMap, "flwr_fco.mirror_maps.Euclidean()")
        for name, fraction in (("fraction_train", fraction_train), ("fraction_evaluate", fraction_evaluate)):
            if not 0.0 <= fraction <= 1.0:
                raise ConfigurationError(f"{name}={fraction!r}; expected a number from 0 to 1")
        for name, rate in (("client_lr", client_lr), ("server_lr", server_lr)):
            if not callable(rate):
                _check_rate(name, rate)
        self.client_lr, self.server_lr = client_lr, server_lr
        if local_epochs is not None and local_steps is not None:
            raise ConfigurationError(
                f"local_epochs={local_epochs} and local_steps={local_steps}; give one of them: passes over the data, "
                "or a number of minibatches"
            )
        self.local_steps = _count("local_steps", local_steps)
        self.local_epochs = _count("local_epochs", 1 if local_epochs is None else local_epochs)
        if local_steps is not None:
            self.local_epochs = None
        self.batch_size = _count("batch_size", batch_size)
        self.weighting = _choice("weighting", weighting, ("examples", "uniform"))
        self.normalize_local_work = normalize_local_work
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
            raise ConfigurationError(f"seed={seed!r}; expected an integer from 0 to 2**32 - 1")
        self.seed = int(seed)
        self.min_replies = _count("min_replies", min_replies) or 1
        self.apply_to, self.pass_through = apply_to, pass_through
        self.scope = _choice("scope", scope, ("each", "joint"))
        self.output = _choice("output", output, self.outputs)
        self.wire_dtype = _choice("wire_dtype", wire_dtype, ("float64", "float32"))
        self.node_timeout = node_timeout
        self._forget()

    def _forget(self) -> None:
        """Return to the state before the first round."""
        self.state = None
        self.layout: Layout | None = None
        self._plan: Plan | None = None
        self._spec: Spec | None = None
        self._digest = self._settings_digest = ""
        self._initial = ArrayRecord()
        self._pass_through: dict[str, NDArray[Any]] = {}
        self._nodes: dict[int, Node] = {}
        self._ordered: list[Node] = []
        self._informed: set[int] = set()
        self._round = _Round(0)
        self._grid: Grid | None = None
        self._timeout: float = 3600.0

    # --- the mathematics: what a subclass says --------------------------------------------------------------------

    @abstractmethod
    def init_state(self, primal: Vector) -> Any:
        """Return the state before round 1.

        Parameters
        ----------
        primal : ndarray of float64, shape (d,)
            The user's initial model.
        """

    @abstractmethod
    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the vectors that the clients are sent, each of shape (d,)."""

    @abstractmethod
    def aggregate(self, state: Any, uplinks: Sequence[Uplink]) -> Any:
        """Return the next state: the server update of the paper's box.

        Parameters
        ----------
        state : NamedTuple
        uplinks : sequence of Uplink
            Sorted by partition id, their weights summing to 1.
        """

    @abstractmethod
    def retrieve(self, state: Any) -> Vector:
        """Return the primal point of a state."""

    def output_point(self, state: Any) -> Vector:
        """Return the primal point that evaluation and the user see."""
        if self.output == "last" or state.averaged == 0:
            return self.retrieve(state)
        return np.asarray(state.total / state.averaged)

    def downlink(self, state: Any, node: Node) -> Downlink:
        """Return what a node is told in this round (the same for all nodes unless a subclass says otherwise)."""
        shared = self._round.downlink
        if shared is None or shared[0] is not state:
            elapsed = float(getattr(state, "elapsed", 0.0))
            shared = (state, Downlink(self.plan, self.vectors(state), self.rates()[0], elapsed))
            self._round.downlink = shared
        return shared[1]

    def uplink_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of each vector that a client sends."""
        return {"increment": (self.plan.layout.size,)}

    def solver_options(self) -> dict[str, Option]:
        """Return what the local solver must know besides the common settings."""
        return {}

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines that a subclass adds to :meth:`summary`, as pairs of a title and a text."""
        return []

    # --- what the mathematics may use -----------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """What all messages of this run have in common."""
        if self._plan is None:
            raise ConfigurationError(
                f"{type(self).__name__} does not know the model yet; call `prepare(initial_arrays)` or `start(...)`"
            )
        return self._plan

    @property
    def psi(self) -> BoundRegularizer:
        """The regularizer on the flat vector."""
        return self.plan.psi

    @property
    def h(self) -> MirrorMap:
        """The mirror map on the flat vector."""
        return self.plan.h

    @property
    def server_round(self) -> int:
        """The round under way, from 1."""
        return self._round.number

    @property
    def train_config(self) -> ConfigRecord:
        """The user's train config of the round under way, with the round in it."""
        return self._round.config

    def asked_partitions(self) -> list[int | None]:
        """Return the partition ids of the nodes that were asked last, in the order of their sums."""
        return [node.partition_id for node in self._round.nodes.values()]

    def rates(self) -> tuple[float, float]:
        """Return the client's and the server's learning rate of the round under way."""
        number = max(self._round.number, 1)
        values = []
        for name, rate in (("client_lr", self.client_lr), ("server_lr", self.server_lr)):
            values.append(_check_rate(f"{name}({number})", rate(number)) if callable(rate) else float(rate))
        return values[0], values[1]

    # --- life cycle -----------------------------------------------------------------------------------------------

    def prepare(self, initial_arrays: ArrayRecord) -> None:
        """Begin anew from a model: derive the layout, check that psi and h fit it, set the state.

        Parameters
        ----------
        initial_arrays : ArrayRecord
            The start point, in the user's names, shapes and dtypes.

        Raises
        ------
        ConfigurationError
            If psi cannot act on an array, or h and psi cannot be combined.
        """
        self._forget()
        try:
            self.layout = records.layout_of(initial_arrays, apply_to=self.apply_to, pass_through=self.pass_through)
            primal, self._pass_through = records.primal_vector(self.layout, initial_arrays)
        except ValueError as error:
            raise ConfigurationError(f"these initial arrays cannot be trained: {error}") from error
        self._set_plan(self.geometry(primal))
        self._settings_digest = self._digest
        self._initial = initial_arrays
        self.state = self.init_state(primal)

    def geometry(self, primal: Vector) -> MirrorMap:
        """Return the mirror map of a run that starts at this point: the user's, unless a method shifts or cuts it."""
        return self.mirror_map

    def local_work(self) -> tuple[int | None, int | None]:
        """Return the local epochs and the local steps of a round; one of them is None."""
        return self.local_epochs, self.local_steps

    def _set_plan(self, mirror_map: MirrorMap) -> None:
        """Make the plan from the present settings; every node is told of it in its next message."""
        local_epochs, local_steps = self.local_work()
        assert self.layout is not None
        self._plan = Plan(
            solver=self.local_solver,
            layout=self.layout,
            regularizer=self.regularizer,
            mirror_map=mirror_map,
            scope=self.scope,  # type: ignore[arg-type]
            work=FirstOrder(local_steps, local_epochs, self.batch_size),
            seed=self.seed,
            wire_dtype=self.wire_dtype,
            options=self.solver_options(),
        )
        self.h.require(self.psi)
        self._spec = self._plan.to_spec()
        self._digest = self._spec.digest()
        self._informed = set()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        callbacks: Sequence[Callback] = (),
    ) -> Result:
        """Run the algorithm; as ``FedAvg.start``, with callbacks.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            Where the nodes are.
        initial_arrays : ArrayRecord
            The start point.
        num_rounds : int, default 3
            Number of rounds.
        timeout : float, default 3600
            Seconds to wait for the replies of a round.
        train_config, evaluate_config : ConfigRecord, optional
            Sent to the clients beside the round; not changed.
        evaluate_fn : callable, optional
            ``(round, arrays) -> MetricRecord or None``: evaluation on the server, before round 1 and after each round.
        callbacks : sequence of callable, optional
            ``(round, arrays, metrics) -> bool or None``, called after each round; True ends the run.

        Returns
        -------
        flwr.serverapp.strategy.Result
            ``arrays`` holds the primal model, also if no round succeeded.
        """
        self.prepare(initial_arrays)
        self._timeout = timeout
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        log(INFO, "Starting %s strategy:", type(self).__name__)
        log(INFO, "\t├── Number of rounds: %d", num_rounds)
        self.summary()
        result = Result(arrays=initial_arrays)
        began = time.monotonic()
        arrays = initial_arrays
        if evaluate_fn is not None:
            _keep(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, arrays), "Initial global evaluation results")
        for number in range(1, num_rounds + 1):
            log(INFO, "")
            log(INFO, "[ROUND %s/%s]", number, num_rounds)
            messages = self.configure_train(number, arrays, train_config, grid)
            replies = grid.send_and_receive(messages, timeout=timeout)
            aggregated, metrics = self.aggregate_train(number, replies)
            arrays = arrays if aggregated is None else aggregated
            result.arrays = arrays
            _keep(result.train_metrics_clientapp, number, metrics, "Aggregated MetricRecord")
            messages = list(self.configure_evaluate(number, arrays, evaluate_config, grid))
            if messages:
                scores = self.aggregate_evaluate(number, grid.send_and_receive(messages, timeout=timeout))
                _keep(result.evaluate_metrics_clientapp, number, scores, "Aggregated MetricRecord")
            if evaluate_fn is not None:
                _keep(result.evaluate_metrics_serverapp, number, evaluate_fn(number, arrays), "Global evaluation")
            stops = [callback(number, arrays, metrics) for callback in callbacks]
            if any(stops):
                log(INFO, "A callback ended the run after round %s", number)
                break
        log(INFO, "")
        log(INFO, "Strategy execution finished in %.2fs", time.monotonic() - began)
        return result

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Save the state to an ``.npz`` file, written beside it first and renamed: never half a file.

        Parameters
        ----------
        path : path-like
            Ends in ``.npz``.
        """
        if self.state is None:
            raise ConfigurationError("there is no state to save before the first round; call `prepare` or `start`")
        target = Path(path)
        partial = target.with_name(f".{target.name}.partial")
        arrays = {f"state/{name}": np.asarray(value) for name, value in self.state._asdict().items()}
        arrays.update({f"pass/{name}": value for name, value in self._pass_through.items()})
        arrays.update({f"extra/{name}": value for name, value in self.saved_arrays().items()})
        with partial.open("wb") as file:
            np.savez(file, digest=np.array(self._settings_digest), **arrays)  # type: ignore[arg-type]
        partial.replace(target)

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Restore a state that :meth:`save_state` wrote; call :meth:`prepare` with the same model first.

        Raises
        ------
        ConfigurationError
            If the file comes from other settings (regularizer, seed, local work, ...) or another model.
        """
        if self.state is None:
            raise ConfigurationError("call `prepare(initial_arrays)` before `load_state`: it sets the model's layout")
        with np.load(path, allow_pickle=False) as file:
            if str(file["digest"]) != self._settings_digest:
                raise ConfigurationError(
                    f"{os.fspath(path)} was saved with other settings or for another model than this strategy's; "
                    "resume with the strategy that wrote it"
                )
            values = {}
            for name, value in self.state._asdict().items():
                array = file[f"state/{name}"]
                values[name] = array if isinstance(value, np.ndarray) else array.item()
            self.state = type(self.state)(**values)
            self._pass_through = {name: file[f"pass/{name}"] for name in self._pass_through}
            extra = {name.removeprefix("extra/"): file[name] for name in file.files if name.startswith("extra/")}
        self.restore_arrays(extra)

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what :meth:`save_state` stores besides the state and the pass-through arrays."""
        return {}

    def restore_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`saved_arrays` gave, after the state has been restored."""

    # --- training rounds ------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a training round; as in ``FedAvg``, with records of its own for every node."""
        if self.state is None or server_round == 1:
            _refuse_privacy_wrappers(sys._getframe(1).f_globals.get("__name__", ""))
            if self.state is None or self._round.number > 0:
                self.prepare(arrays)
        self._grid = grid
        self._round = _Round(server_round)
        if self.fraction_train == 0.0:
            return []
        nodes = self._sample(grid, self.fraction_train, self.min_train_nodes, _TRAIN_SAMPLE)
        log(INFO, "configure_train: Sampled %s nodes (out of %s)", len(nodes), len(self._nodes))
        return self._open_round(server_round, self.before_round(grid, server_round, config, nodes), config)

    def _open_round(self, server_round: int, nodes: Sequence[Node], config: ConfigRecord) -> list[Message]:
        """Return the training messages to these nodes, and remember whom was told what."""
        self._round = current = _Round(server_round)
        current.config = config.copy()
        current.config["server-round"] = server_round
        current.nodes = {node.node_id: node for node in nodes}
        serialised = records.RoundCache()
        current.messages = self._messages(((node, self.content_for(node, serialised)) for node in nodes), "train")
        current.bytes_down = records.count_bytes(message.content for message in current.messages)
        return current.messages

    def before_round(
        self, grid: Grid, server_round: int, config: ConfigRecord, nodes: Sequence[Node]
    ) -> Sequence[Node]:
        """Do what a method must do once it knows the nodes and before the messages are made; return whom to ask.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
        server_round : int
        config : ConfigRecord
            The user's train config.
        nodes : sequence of Node
            The round's sample.
        """
        return nodes

    def _ask_everybody(self, grid: Grid, config: ConfigRecord) -> tuple[list[Uplink], int, int]:
        """Run a training round 0 with all nodes; return the good uplinks and the bytes sent and received."""
        messages = self._open_round(0, self._ordered, config)
        replies = self._with_resent(grid.send_and_receive(messages, timeout=self._timeout))
        good = self._good_replies("round 0", replies, self.read_reply)
        bytes_down, bytes_up = self._round.bytes_down, records.count_bytes(content for _, content, _ in good)
        weights = self._weights([report.examples for _, _, report in good])
        uplinks = self._uplinks(good, weights) if weights else []
        log(
            INFO,
            "Round 0: %s of %s nodes answered, %s bytes down, %s up",
            len(good),
            len(messages),
            bytes_down,
            bytes_up,
        )
        return uplinks, bytes_down, bytes_up

    def content_for(self, node: Node, serialised: records.RoundCache) -> RecordDict:
        """Return what a node is sent in the round under way, with the plan if it is the first time."""
        downlink = self.downlink(self.state, node)
        informed = node.node_id in self._informed
        return serialised.content(
            downlink,
            informed,
            lambda: records.downlink_records(
                downlink,
                digest=self._digest,
                arrayrecord_key=self.arrayrecord_key,
                configrecord_key=self.configrecord_key,
                config=self.train_config,
                pass_through=self._pass_through,
                plan=None if informed else self._spec,
                serialised=serialised,
            ),
        )

    def read_reply(self, content: RecordDict) -> records.ClientReport:
        """Return the checked uplink of a reply.

        Raises
        ------
        ProtocolError
            With the reason for which the reply is left out.
        """
        return records.read_uplink(
            content,
            self.plan.layout,
            shapes=self.uplink_shapes(),
            wire_dtype=self.wire_dtype,
            weighted_by_key=self.weighted_by_key,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, update the state, return the primal arrays and the round's metrics.

        Replies with errors, NaN, wrong shapes, dtypes, keys or another round's stamp are left out, logged and
        counted. With fewer than ``min_replies`` good ones, the state stays as it is and ``skipped`` is 1.
        """
        current = self._round
        if current.number != server_round:
            raise ConfigurationError(
                f"aggregate_train was called for round {server_round}, but configure_train for {current.number}; "
                "call them in turn, as `start` does"
            )
        if not current.messages:
            return self.primal_arrays(), None
        good = self._good_replies("aggregate_train", self._with_resent(replies), self.read_reply)
        reports = [report for _, _, report in good]
        weights = self._weights([report.examples for report in reports])
        skipped = len(reports) < self.min_replies or not weights
        if not skipped:
            uplinks = self._uplinks(good, weights)
            with np.errstate(over="ignore", invalid="ignore"):
                before, state = self.state, self.aggregate(self.state, uplinks)
            if all(all_finite(value) for value in state):
                self.state = state
                self._average_pass_through(reports, weights)
                self.after_round(before, uplinks)
            else:
                skipped = True
                log(WARNING, "aggregate_train: the update overflows; the state stays as it is. Lower the rates.")
        if skipped:
            log(
                WARNING,
                "aggregate_train: round %s is skipped: %s good replies, at least %s needed",
                server_round,
                len(reports),
                self.min_replies,
            )
        contents = [content for _, content, _ in good]
        metrics = self._aggregate_metrics(self.train_metrics_aggr_fn, contents if weights else [])
        metrics["num-replies"] = len(reports)
        metrics["num-left-out"] = len(current.messages) - len(reports)
        metrics["skipped"] = int(skipped)
        metrics["bytes-down"] = current.bytes_down
        metrics["bytes-up"] = records.count_bytes(contents)
        for name, value in self.round_metrics().items():
            metrics[name] = value
        return self.primal_arrays(), metrics

    def after_round(self, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Do what follows from a successful round besides its new state: these uplinks have counted.

        Parameters
        ----------
        before : NamedTuple
            The state before the round.
        uplinks : sequence of Uplink
            Those that were aggregated.
        """

    def round_metrics(self) -> dict[str, float | int]:
        """Return the numbers that a method adds to the metrics of each training round."""
        return {}

    @staticmethod
    def _uplinks(
        good: Sequence[tuple[Node, RecordDict, records.ClientReport]], weights: Sequence[float]
    ) -> list[Uplink]:
        return [
            report.uplink._replace(weight=weight, node=node, examples=report.examples)
            for (node, _, report), weight in zip(good, weights, strict=True)
        ]

    def primal_arrays(self) -> ArrayRecord:
        """Return the primal model of the present state in the user's names, shapes and dtypes.

        Before the first successful round: the initial arrays as they were given, feasible or not.
        """
        if self.state.round == 0:
            return self._initial
        return records.primal_record(self.plan.layout, self.output_point(self.state), self._pass_through)

    def _weights(self, examples: list[float]) -> list[float]:
        """Return the weights p_m of the replies, summing to 1; nothing if there is nothing to weigh."""
        if not examples:
            return []
        if self.weighting == "uniform":
            return [1.0 / len(examples)] * len(examples)
        total = math.fsum(examples)
        return [number / total for number in examples] if total > 0 else []

    def _average_pass_through(self, reports: Sequence[records.ClientReport], weights: Sequence[float]) -> None:
        """Average floating pass-through arrays, take the others from the first reply."""
        for name, old in self._pass_through.items():
            values = [
                (r.pass_through[name], w) for r, w in zip(reports, weights, strict=True) if name in r.pass_through
            ]
            if not values:
                continue
            if old.dtype.kind == "f":
                share = math.fsum(w for _, w in values)
                mean = sum((value.astype(np.float64) * (w / share) for value, w in values), np.zeros(old.shape))
                self._pass_through[name] = np.asarray(mean).astype(old.dtype)
            else:
                self._pass_through[name] = values[0][0]

    def _with_resent(self, replies: Iterable[Message]) -> list[Message]:
        """Ask again the nodes that have lost the plan or their state (both die with a SuperNode), and send it."""
        kept = list(replies)
        # At most twice: a node may find out about its state only once it has the plan.
        for _ in range(2):
            asking: list[Node] = []
            answers, kept = kept, []
            for reply in answers:
                node = self._round.nodes.get(reply.metadata.src_node_id) if reply.has_content() else None
                missing = None if node is None else records.what_is_missing(reply.content)
                if node is None or missing is None or (missing == "state" and not self.state_lost(node)):
                    kept.append(reply)
                    continue
                if missing == "plan":
                    self._informed.discard(node.node_id)
                log(INFO, "aggregate_train: %s has lost what it knew; it is sent again", node)
                asking.append(node)
            if not asking or self._grid is None:
                break
            self._round.restoring.update(node.node_id for node in asking)
            serialised = records.RoundCache()
            again = self._messages(((node, self.content_for(node, serialised)) for node in asking), "train")
            self._round.bytes_down += records.count_bytes(message.content for message in again)
            kept.extend(self._grid.send_and_receive(again, timeout=self._timeout))
        return kept

    def state_lost(self, node: Node) -> bool:
        """Whether a node that has lost its state can be sent it again."""
        return False

    def _good_replies(
        self, caller: str, replies: Iterable[Message], read: Callable[[RecordDict], Any]
    ) -> list[tuple[Node, RecordDict, Any]]:
        """Return node, content and what `read` makes of it for every good reply, sorted by partition."""
        current = self._round
        good: dict[int, tuple[Node, RecordDict, Any]] = {}
        answered: set[int] = set()
        failures = 0
        for reply in replies:
            node = self._node_of(reply)
            who = str(node) if node is not None else f"node {reply.metadata.src_node_id}"
            try:
                if reply.has_content() and records.what_is_missing(reply.content) == "state":
                    raise ProtocolError("it has lost its state")
                if reply.has_error():
                    raise ProtocolError(f"error {reply.error.code}: {reply.error.reason}")
                if node is None:
                    raise ProtocolError("this node was not asked")
                if reply.metadata.group_id != str(current.number):
                    raise ProtocolError(
                        f"it answers round {reply.metadata.group_id or 'without a stamp'}, this is {current.number}"
                    )
                if node.node_id in answered:
                    raise ProtocolError("it answered twice; the first answer counts")
                answered.add(node.node_id)
                good[node.node_id] = (node, reply.content, read(reply.content))
                self._informed.add(node.node_id)
            except ProtocolError as error:
                failures += 1
                log(WARNING, "%s: left out the reply of %s: %s", caller, who, error)
        log(INFO, "%s: Received %s results and %s failures", caller, len(good), failures)
        return sorted(good.values(), key=lambda item: item[0].order)

    def _node_of(self, reply: Message) -> Node | None:
        """Return who a reply is from; the SuperLink answers for dead nodes under its own id."""
        node = self._round.nodes.get(reply.metadata.src_node_id)
        if node is None:
            for message in self._round.messages:
                if message.metadata.message_id and message.metadata.message_id == reply.metadata.reply_to_message_id:
                    return self._round.nodes.get(message.metadata.dst_node_id)
        return node

    def _aggregate_metrics(
        self, aggregate: Callable[[list[RecordDict], str], MetricRecord], contents: list[RecordDict]
    ) -> MetricRecord:
        if not contents:
            return MetricRecord()
        try:
            return aggregate(contents, self.weighted_by_key)
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            log(WARNING, "the clients' metrics cannot be averaged, so the round reports none of them: %s", error)
            return MetricRecord()

    # --- evaluation rounds ----------------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a federated evaluation: the primal arrays, as ``FedAvg`` sends them."""
        if self.fraction_evaluate == 0.0:
            return []
        nodes = self._sample(grid, self.fraction_evaluate, self.min_evaluate_nodes, _EVALUATE_SAMPLE, server_round)
        log(INFO, "configure_evaluate: Sampled %s nodes (out of %s)", len(nodes), len(self._nodes))
        self._round = current = _Round(server_round)
        current.nodes = {node.node_id: node for node in nodes}
        config = config.copy()
        config["server-round"] = server_round
        keys = {"arrayrecord_key": self.arrayrecord_key, "configrecord_key": self.configrecord_key}
        contents = ((node, records.primal_request(arrays, config, **keys)) for node in nodes)
        current.messages = self._messages(contents, "evaluate")
        return current.messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the good replies' metrics; bad ones are left out, logged and counted."""

        def read(content: RecordDict) -> None:
            records.check_metrics(content, self.weighted_by_key)

        asked = len(self._round.messages)
        if not asked:
            return None
        good = self._good_replies("aggregate_evaluate", replies, read)
        metrics = self._aggregate_metrics(self.evaluate_metrics_aggr_fn, [content for _, content, _ in good])
        metrics["num-replies"] = len(good)
        metrics["num-left-out"] = asked - len(good)
        return metrics

    # --- nodes ----------------------------------------------------------------------------------------------------

    def _messages(self, contents: Iterable[tuple[Node, RecordDict]], message_type: str) -> list[Message]:
        numbered = ((node.node_id, content) for node, content in contents)
        return records.messages(numbered, message_type, str(self._round.number))

    def _sample(
        self, grid: Grid, fraction: float, minimum: int, purpose: int, server_round: int | None = None
    ) -> list[Node]:
        """Draw nodes from (seed, round), sorted by partition id; wait until there are enough of them."""
        number = self._round.number if server_round is None else server_round
        deadline = time.monotonic() + self.node_timeout
        while True:
            available = list(grid.get_node_ids())
            # 1e-9: 0.29 of 100 nodes is 29, not 28.
            size = max(int(fraction * len(available) + 1e-9), minimum)
            needed = max(size, self.nodes_needed())
            if len(available) >= needed:
                break
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"only {len(available)} nodes connected within node_timeout={self.node_timeout} seconds, "
                    f"{needed} are needed; start more SuperNodes, or lower min_available_nodes and min_train_nodes"
                )
            log(INFO, "Waiting for nodes to connect: %d connected (minimum required: %d).", len(available), needed)
            time.sleep(1)
        self._meet(grid, available)
        nodes = self._ordered
        if size == len(nodes):
            return nodes
        chosen = random_generator(self.seed, number, 0, purpose).choice(len(nodes), size, replace=False)
        return [nodes[i] for i in np.sort(chosen)]

    def nodes_needed(self) -> int:
        """Return how many nodes must be connected before a round begins."""
        return int(self.min_available_nodes)

    def _meet(self, grid: Grid, available: Sequence[int]) -> None:
        """Learn the partition ids of new nodes: from the grid if it knows them, else by a question to the nodes."""
        present = set(available)
        if self._nodes.keys() == present:
            return
        self._nodes = {i: node for i, node in self._nodes.items() if i in present}
        new = [i for i in available if i not in self._nodes]
        partitions = self.partitions(grid, new) if new else {}
        for node_id in new:
            self._nodes[node_id] = Node(node_id, partitions.get(node_id))
        self._ordered = sorted(self._nodes.values(), key=lambda node: node.order)
        known = [node.partition_id for node in self._nodes.values() if node.partition_id is not None]
        if new and (len(known) < len(self._nodes) or len(set(known)) < len(known)):
            log(
                WARNING,
                "%s of %s nodes have no partition id of their own: another run with the same seed may differ",
                len(self._nodes) - len(set(known)),
                len(self._nodes),
            )

    def partitions(self, grid: Grid, node_ids: Sequence[int]) -> dict[int, int]:
        """Return the partition ids of nodes, as far as they can be known."""
        known: Mapping[int, int] | None = getattr(grid, "partition_ids", None)
        if known is not None:
            return {i: known[i] for i in node_ids if i in known}
        questions = records.messages(((i, RecordDict()) for i in node_ids), records.HANDSHAKE, "0")
        answers = grid.send_and_receive(questions, timeout=min(self._timeout, 120.0))
        found = {a.metadata.src_node_id: records.partition_of(a.content) for a in answers if a.has_content()}
        return {node_id: partition for node_id, partition in found.items() if partition is not None}

    # --- the look -------------------------------------------------------------------------------------------------

    def output_text(self) -> str:
        """Return what :meth:`summary` says about the output."""
        return self.output

    def summary(self) -> None:
        """Log the settings as a tree."""
        work = f"{self.local_epochs} epoch(s)" if self.local_steps is None else f"{self.local_steps} step(s)"
        batches = "full batches" if self.batch_size is None else f"batches of {self.batch_size}"
        where = "" if self.layout is None else f" on {', '.join(self.layout.regularized_names) or 'nothing'}"
        normalized = ", local work normalised" if self.normalize_local_work else ""
        lines = [
            ("Regularizer", f"{self.regularizer}{where} (scope: {self.scope})"),
            ("Mirror map", f"{self.mirror_map}"),
            ("Learning rates", f"client ({_rate_text(self.client_lr)}) | server ({_rate_text(self.server_lr)})"),
            ("Local work", f"{work} in {batches}"),
            ("Weights", f"{self.weighting}{normalized}"),
            ("Output", self.output_text()),
            ("Seed", f"{self.seed}"),
            *self.settings(),
            ("Minimum replies", f"{self.min_replies}"),
        ]
        log(INFO, "\t├──> %s settings:", type(self).__name__)
        for i, (title, text) in enumerate(lines):
            log(INFO, "\t│\t%s %s: %s", "└──" if i == len(lines) - 1 else "├──", title, text)
        super().summary()


def mean_increment(uplinks: Sequence[Uplink], *, normalize: bool, name: str = "increment") -> tuple[Vector, float]:
    """Return the weighted mean of the clients' increments and of their elapsed times.

    Parameters
    ----------
    uplinks : sequence of Uplink
        With weights p_m that sum to 1.
    normalize : bool
        Multiply each increment and its elapsed time by mean(elapsed) / elapsed_m first, so that all clients have
        done the same work (FedNova's idea). With equal work: not a bit changes.
    name : str, default "increment"
        Which vector.

    Returns
    -------
    mean : ndarray of float64
    elapsed : float

    Examples
    --------
    >>> import numpy as np
    >>> short = Uplink({"increment": np.array([1.0])}, elapsed=1.0, steps=1, weight=0.5)
    >>> long = Uplink({"increment": np.array([3.0])}, elapsed=3.0, steps=3, weight=0.5)
    >>> mean_increment([short, long], normalize=True)
    (array([2.]), 2.0)
    """
    first = uplinks[0].elapsed
    equal = all(uplink.elapsed == first for uplink in uplinks)
    elapsed = first if equal else math.fsum(uplink.weight * uplink.elapsed for uplink in uplinks)
    mean = np.zeros_like(uplinks[0].vectors[name], dtype=np.float64)
    scaled = np.empty_like(mean)
    for uplink in uplinks:
        factor = uplink.weight if equal or not normalize else uplink.weight * (elapsed / uplink.elapsed)
        np.multiply(uplink.vectors[name], factor, out=scaled)
        mean += scaled
    return mean, elapsed


def _keep(history: dict[int, MetricRecord], number: int, metrics: MetricRecord | None, title: str) -> None:
    if metrics is not None:
        log(INFO, "\t└──> %s: %s", title, metrics)
        history[number] = metrics


def _rate_text(rate: Rate) -> str:
    return getattr(rate, "__name__", "a function of the round") if callable(rate) else f"{rate:g}"


def _check_rate(name: str, rate: float) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.number) or not 0 < rate < math.inf:
        raise ConfigurationError(f"{name}={rate!r}; expected a finite number > 0, or a function of the round")
    return float(rate)


def _check_type(name: str, value: object, expected: type, example: str) -> None:
    if not isinstance(value, expected):
        raise ConfigurationError(f"{name}={value!r}; expected a {expected.__name__} such as {example}")


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigurationError(f"{name}={value!r}; expected one of {', '.join(map(repr, allowed))}")
    return value


def _count(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
        raise ConfigurationError(f"{name}={value!r}; expected a whole number >= 1")
    return None if value is None else int(value)


def _refuse_privacy_wrappers(caller: str) -> None:
    """Refuse Flower's differential-privacy wrappers, which call a strategy's hooks from their own modules."""
    if caller.startswith("flwr.serverapp.strategy.dp_"):
        raise ConfigurationError(
            "Flower's differential-privacy wrappers clip (reply - what was sent) and add noise to the aggregated "
            "model. The clients of this strategy reply with increments of a dual vector, and the server keeps the "
            "dual, not the model: the clipping would be meaningless and the noise would be forgotten. "
            "Run the strategy without the wrapper; noise must act on the increments before the server's update."
        )
