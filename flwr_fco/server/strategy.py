"""The server half of every algorithm: Flower's hooks around functions of (problem, state)."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, Vector, all_finite
from flwr_fco.core.logs import log
from flwr_fco.errors import ConfigurationError, MagnitudeError
from flwr_fco.mirror_maps import Euclidean, MirrorMap
from flwr_fco.regularizers import Zero
from flwr_fco.regularizers.base import BoundRegularizer, Regularizer
from flwr_fco.results import Result
from flwr_fco.server.algorithm import Algorithm, Problem
from flwr_fco.server.assembly import assemble
from flwr_fco.server.clients.graph import Graph, Matrix
from flwr_fco.server.clients.memory import ClientMemories
from flwr_fco.server.clients.nodes import Nodes, listed
from flwr_fco.server.options import AUTOMATIC, CommonOptions, RateOptions, number_at, rate_text
from flwr_fco.server.parts import Letter, Part, StartRound
from flwr_fco.server.questions.inquiry import extrapolation
from flwr_fco.server.replies import checks
from flwr_fco.server.replies.checks import LeftOut, Reply, Round
from flwr_fco.server.replies.momentum import Momentum
from flwr_fco.server.replies.privacy import refuse_privacy_wrappers
from flwr_fco.server.replies.private import PrivateMean
from flwr_fco.server.replies.replies import Replies
from flwr_fco.server.rounds import saving
from flwr_fco.server.rounds.hooks import Callback, RoundHooks
from flwr_fco.server.rounds.loop import EvaluateFunction, run_rounds
from flwr_fco.server.rounds.output import Output
from flwr_fco.server.rounds.resuming import Progress
from flwr_fco.server.rounds.structure import structure
from flwr_fco.wire.delivery import send_and_receive
from flwr_fco.wire.envelope import addressed
from flwr_fco.wire.metrics import joined_metrics
from flwr_fco.wire.model import layout_of, primal_request, primal_vector, same_arrays, shared_arrays
from flwr_fco.wire.protocol import Node, Plan, Uplink
from flwr_fco.work import Work

_TRAIN_SAMPLE, _EVALUATE_SAMPLE = 2, 3
#: Key of the current run in a saved state, next to the parts.
_RUN = "run"


@dataclass(repr=False, eq=False)
class CompositeStrategy(Algorithm, CommonOptions, FedAvg):
    """Base class of strategies: minimises sum_m p_m F_m(w) + psi(w) by running an algorithm through Flower.

    A subclass is a dataclass of options that sets :attr:`local_solver` and :attr:`limit` and implements the functions
    of :class:`flwr_fco.server.algorithm.Algorithm`: :meth:`init`, :meth:`downlink`, :meth:`aggregate` and
    :meth:`retrieve`. This class handles messages, sampling, checks and logs, with the parts that the groups of options
    select (:mod:`flwr_fco.server.assembly`). ``aggregate_train`` always returns the primal arrays under the user's
    names and in the user's dtypes.

    Attributes
    ----------
    state : NamedTuple or None
        The server's state, float64 arrays and numbers; None before the first round.
    parts : dict of str to Part
        The strategy's parts, by name.
    """

    def __post_init__(self) -> None:
        self.check_options()
        self._check_choices()
        # Flower warns about a fraction of 0.0, which is deliberate here, so it is set afterwards.
        fractions = {"fraction_train": self.fraction_train, "fraction_evaluate": self.fraction_evaluate}
        FedAvg.__init__(
            self,
            min_train_nodes=self.min_train_nodes,
            min_evaluate_nodes=self.min_evaluate_nodes,
            min_available_nodes=self.min_available_nodes,
            weighted_by_key=self.weighted_by_key,
            arrayrecord_key=self.arrayrecord_key,
            configrecord_key=self.configrecord_key,
            train_metrics_aggr_fn=self.train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=self.evaluate_metrics_aggr_fn,
        )
        self.fraction_train, self.fraction_evaluate = fractions["fraction_train"], fractions["fraction_evaluate"]
        self.work()
        #: Number of rounds that `start` was called with, if it was.
        self.num_rounds: int | None = None
        #: Result so far of the last run begun by `start`, also if an error ended it.
        self.result: Result | None = None
        self._assembly = assemble(self, self)
        self.parts = self._assembly.parts
        #: Parts by hook: most parts act in one or two places of a round.
        self._acting = {
            hook: [part for part in self.parts.values() if getattr(type(part), hook) is not getattr(Part, hook)]
            for hook in ("nodes_needed", "before_round", "after_round", "end_round", "metrics")
        }
        self.mail, self.inquiry = self._assembly.mail, self._assembly.inquiry
        self.forget()

    def _check_choices(self) -> None:
        name = type(self).__name__
        if self.aggregation != "mean" and self.needs_mean:
            raise ConfigurationError(
                f"aggregation={self.aggregation!r}: {name} needs the mean: {self.needs_mean}. Take "
                "FedDualAvg, FedMid or FedAvgSubgradient for robust aggregation, or tighter bounds (max_ratio, "
                "max_increment_norm)"
            )
        if self.no_psi is not None and not isinstance(self.regularizer, Zero):
            raise ConfigurationError(
                f"regularizer={self.regularizer!r}: {name} has no place for psi, because {self.no_psi}. Put a smooth "
                "psi (an l2 term) into the clients' losses, or take FedDR, FedDualAvg or FedDAGT"
            )
        if self.euclidean is not None and not isinstance(self.mirror_map, Euclidean):
            raise ConfigurationError(
                f"mirror_map={self.mirror_map!r}: {name} {self.euclidean}, so it is Euclidean; use Euclidean(), "
                "or FedMid or FedDualAvg for other geometries"
            )
        if self.mirror_map.never_supports(self.regularizer):
            self.mirror_map.require(self.regularizer)
        if self.participation == "everyone" and self.fraction_train != 1.0:
            raise ConfigurationError(
                f"fraction_train={self.fraction_train}: {name} needs every client in every round; "
                "leave fraction_train=1.0, or take a strategy that samples clients, such as Scaffold"
            )

    def forget(self) -> None:
        """Return to the state before the first round."""
        #: The server's state, float64 arrays and numbers; None before the first round.
        self.state: Any = None
        for part in self.parts.values():
            part.forget()
        self.answered_start: set[int] = set()
        self._problem: Problem | None = None
        self._output: Output | None = None
        self._settings_digest = ""
        self._initial = ArrayRecord()
        self.overflowed = self._loaded = False
        self.progress: Progress | None = None
        self._kept: saving.Saved | None = None

    # --- what the strategy is about -------------------------------------------------------------------------------

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm's functions; the strategy itself implements them."""
        return self

    @property
    def problem(self) -> Problem:
        """The context of the current round for the algorithm's functions."""
        if self._problem is None:
            self.mail.plan  # noqa: B018 (raises an error in words)
            raise AssertionError("a plan without a problem")
        return self._problem

    @property
    def plan(self) -> Plan:
        """The settings that all messages of this run share."""
        return self.mail.plan

    @property
    def layout(self) -> Layout | None:
        """The layout of the model's arrays; None before they are known."""
        return None if self._problem is None else self._problem.layout

    @property
    def psi(self) -> BoundRegularizer:
        """The regularizer on the flat vector."""
        return self.problem.psi

    @property
    def h(self) -> MirrorMap:
        """The mirror map on the flat vector."""
        return self.problem.h

    @property
    def nodes(self) -> Nodes:
        """The connected nodes."""
        return self.mail.nodes

    @property
    def current(self) -> Round:
        """The current round: the nodes that were asked and the messages sent to them."""
        return self.mail.current

    @property
    def left_out(self) -> list[LeftOut]:
        """The replies of this run that were left out, with round, node, partition and reason."""
        return self.mail.left_out

    @property
    def pass_through_arrays(self) -> dict[str, NDArray[Any]]:
        """The model's arrays that are not optimised."""
        return self.mail.pass_through_arrays

    @property
    def chosen(self) -> dict[str, float]:
        """The values chosen for options that are ``"auto"``."""
        return self.inquiry.chosen

    @property
    def reasons(self) -> dict[str, str]:
        """The reasons for the values in :attr:`chosen`."""
        return self.inquiry.reasons

    @property
    def memories(self) -> ClientMemories | None:
        """The server's record of clients with memories; None if clients have none."""
        return self._assembly.memories

    @property
    def graph(self) -> Graph | None:
        """The communication graph; None without a graph."""
        return self._assembly.graph

    @property
    def private_mean(self) -> PrivateMean | None:
        """The part that makes one noisy mean of a round's replies; None without differential privacy."""
        return self._assembly.privacy

    def number(self, name: str) -> float:
        """Return the value of an option that may be ``"auto"``: the chosen value, or the default before the choice.

        A function of the round is evaluated at round 1; :attr:`problem` has the values of the current round.

        Parameters
        ----------
        name : str
        """
        return number_at(name, getattr(self, name), 1, self.chosen)

    def asked_partitions(self) -> list[int | None]:
        """Return the partition ids of the nodes that were asked last, in the order in which replies are summed."""
        return [node.partition_id for node in self.current.nodes.values()]

    def node_primals(self) -> Matrix | None:
        """Return the primal points of all nodes of a graph, shape (M, d); None if all nodes share one model."""
        return None if self._problem is None else self.node_points(self._problem, self.state)

    # --- life cycle -----------------------------------------------------------------------------------------------

    def prepare(self, initial_arrays: ArrayRecord) -> None:
        """Start a new run from a model: derive the layout, check that psi and h fit it, set the state.

        Parameters
        ----------
        initial_arrays : ArrayRecord
            The start point, in the user's names, shapes and dtypes.

        Raises
        ------
        ConfigurationError
            If psi cannot act on an array, or h and psi cannot be combined.
        """
        self.forget()
        try:
            layout = layout_of(initial_arrays, apply_to=self.apply_to, pass_through=self.pass_through)
            primal, self.mail.pass_through_arrays = primal_vector(layout, initial_arrays)
        except ValueError as error:
            raise ConfigurationError(f"these initial arrays cannot be trained: {error}") from error
        self._announce(self._plan_for(layout, self.geometry(self.mirror_map, primal), None))
        # Includes the privacy settings: a private run must not resume from another run's state without its noise.
        self._settings_digest = self.mail.digest + (f" {self.private_mean.privacy!r}" if self.private_mean else "")
        self._initial = initial_arrays
        self.mail.take_model(primal)
        self.mail.num_needed = self._nodes_needed()
        self._assembly.average.start(primal.size)
        if isinstance(self._assembly.centre, Momentum):
            self._assembly.centre.size = primal.size
        if self.memories is not None:
            self.memories.forget(primal.size)
        self.state = self.init(self.problem, primal)

    def _plan_for(self, layout: Layout, mirror_map: MirrorMap, state: Any, psi: Regularizer | None = None) -> Plan:
        return Plan(
            solver=self.local_solver,
            layout=layout,
            regularizer=self.psi_at(layout, self.regularizer, state) if psi is None else psi,
            mirror_map=mirror_map,
            scope=self.scope,
            work=self.work_at(state),
            seed=self.seed,
            wire_dtype=self.wire_dtype or ("auto" if layout.single_network else "float64"),
            options=self.solver_options(),
        )

    def _announce(self, plan: Plan) -> None:
        """Adopt a plan, which every node receives in its next message."""
        self.mail.announce(plan)
        plan.h.require(plan.psi)
        if self._problem is None:
            self._problem = Problem.of(
                plan,
                num_rounds=self.num_rounds,
                memories=self.memories,
                graph=self.graph,
                answered_start=self.answered_start,
            )
        else:
            self._problem = self._problem.with_plan(plan)

    def _plan_at(self, state: Any, psi: Regularizer | None = None) -> Plan:
        """Return the plan at a state, which may have its own geometry and psi."""
        plan, stage = self.plan, self.stage_geometry(self.mirror_map, state)
        return self._plan_for(plan.layout, plan.mirror_map if stage is None else stage, state, psi)

    def _open_problem(self, server_round: int) -> Problem:
        """Return the problem of a round; rates are evaluated once, because functions may keep a count."""
        numbers = {
            name: number_at(name, getattr(self, name), server_round, self.chosen)
            for name in (*AUTOMATIC, *self.own_rates)
            if hasattr(self, name)
        }
        opened = self.problem._replace(
            round=server_round,
            numbers=numbers,
            client_lr=numbers.get("client_lr", math.nan),
            server_lr=numbers.get("server_lr", math.nan),
        )
        self._problem = self.at(opened, self.state)
        return self._problem

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
        *,
        callbacks: Sequence[Callback | RoundHooks] = (),
        resume: str | os.PathLike[str] | None = None,
    ) -> Result:
        """Run the algorithm, like ``FedAvg.start`` with callbacks.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            The grid that connects the nodes.
        initial_arrays : ArrayRecord
            The start point.
        num_rounds : int, default 3
            Number of rounds.
        timeout : float, default 3600
            Seconds to wait for the replies of a round.
        train_config, evaluate_config : ConfigRecord, optional
            Sent to the clients together with the round number; not modified.
        evaluate_fn : callable, optional
            ``(round, arrays) -> MetricRecord or None``: evaluation on the server, before round 1 and after each round.
        callbacks : sequence of callable or callback, optional
            Functions ``(round, arrays, metrics) -> bool or None``, called after each round; True ends the run. Or
            objects with methods of :class:`flwr_fco.callbacks.Callback`.
        resume : path-like, optional
            Checkpoint of the run to resume, a file of :class:`flwr_fco.callbacks.Checkpoint`. `num_rounds` is the
            total, and the result is bit-identical to that of an uninterrupted run. Pass the other arguments of that
            run; functions that keep a count restart it.

        Returns
        -------
        Result
            Flower's result with a table of all rounds and ``left_out``, the replies that did not count. ``arrays``
            holds the primal model.

        Raises
        ------
        DivergedError
            If the model diverges, unless ``on_divergence="warn"``.
        NothingTrainedError
            If there were rounds, and all of them were skipped.
        ConfigurationError
            If `resume` is not a checkpoint of this strategy, or is damaged.
        """
        if resume is None and self._loaded:
            raise ConfigurationError(
                "`start` begins anew and would forget the state that `load_state` has restored. To go on with a run "
                "give `start` or `simulate` a file of flwr_fco.callbacks.Checkpoint as `resume`; to begin anew call "
                "`prepare(initial_arrays)` first"
            )
        self.mail.timeout, self.num_rounds = timeout, num_rounds
        return run_rounds(
            self,
            grid,
            initial_arrays,
            num_rounds,
            timeout=timeout,
            train_config=ConfigRecord() if train_config is None else train_config,
            evaluate_config=ConfigRecord() if evaluate_config is None else evaluate_config,
            evaluate_fn=evaluate_fn,
            callbacks=callbacks,
            resume=resume,
        )

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Save the state and the current run to an ``.npz`` file; see :mod:`flwr_fco.server.rounds.saving`."""
        if self.state is None:
            raise ConfigurationError("there is no state to save before the first round; call `prepare` or `start`")
        saved = self._saved()
        if self.progress is not None:
            saved.parts[_RUN] = self.progress.to_arrays()
        secret = self.private_mean is not None
        saving.write(path, self._settings_digest, saved, saving.options_text(self), secret=secret)

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Restore a state that :meth:`save_state` wrote; call :meth:`prepare` with the same model first.

        Use it for evaluation, and for rounds run by hand; to continue a run, use ``start(..., resume=path)``.

        Raises
        ------
        ConfigurationError
            If the file comes from other settings (regularizer, seed, local work, ...) or another model, or is damaged;
            the strategy is then unchanged.
        """
        self._restore(path, self.read_state(path))
        self._loaded = True

    def resume(self, path: str | os.PathLike[str], progress: Progress) -> None:
        """Restore an unfinished run that :meth:`save_state` wrote.

        Parameters
        ----------
        path : path-like
        progress : Progress
            Progress of the resumed run; modified.
        """
        saved = self.read_state(path)
        if not saved.parts[_RUN]:
            raise ConfigurationError(
                f"{os.fspath(path)} holds a state without the run that it is of, so there is nothing to go on with; "
                "expected a file of flwr_fco.callbacks.Checkpoint"
            )
        self._restore(path, saved, progress)

    def read_state(self, path: str | os.PathLike[str]) -> saving.Saved:
        """Read a file that :meth:`save_state` wrote for this strategy and model; nothing changes.

        Parameters
        ----------
        path : path-like

        Raises
        ------
        ConfigurationError
            If the file is damaged, or comes from another strategy or model.
        """
        if self.state is None:
            raise ConfigurationError("call `prepare(initial_arrays)` before `load_state`: it sets the model's layout")
        like = self._saved()
        like.parts[_RUN] = {}
        return saving.read(path, self._settings_digest, like, saving.options_text(self))

    def keep_state(self) -> None:
        """Keep a copy of the state, for :meth:`roll_back`."""
        kept = self._saved()
        parts = {name: {key: np.array(value) for key, value in own.items()} for name, own in kept.parts.items()}
        self._kept = kept._replace(pass_through=dict(kept.pass_through), parts=parts)

    def roll_back(self) -> ArrayRecord:
        """Restore the state that was kept last, and return its model."""
        assert self._kept is not None
        kept = self._kept
        parts = {name: {key: np.array(value) for key, value in own.items()} for name, own in kept.parts.items()}
        self._take(kept._replace(parts=parts))
        return self.primal_arrays()

    def _saved(self) -> saving.Saved:
        parts = {name: part.to_arrays() for name, part in self.parts.items()}
        return saving.Saved(self.state, self.pass_through_arrays, parts)

    def _restore(self, path: str | os.PathLike[str], saved: saving.Saved, progress: Progress | None = None) -> None:
        before = self._saved()
        try:
            self._take(saved)
            if progress is not None:
                progress.from_arrays(saved.parts[_RUN])
        except (KeyError, IndexError, TypeError, ValueError, ArithmeticError) as error:
            self._take(before)
            raise ConfigurationError(f"{os.fspath(path)} is not a state of this strategy: {error!r}") from error

    def _take(self, saved: saving.Saved) -> None:
        self.state, self.mail.pass_through_arrays = saved.state, dict(saved.pass_through)
        for name, part in self.parts.items():
            part.from_arrays(saved.parts[name])
        self._announce(self._plan_at(self.state))
        self.mail.take_model(self.retrieve(self.problem, self.state))

    # --- training rounds ------------------------------------------------------------------------------------------

    def choose_rates(self, grid: Grid) -> None:
        """Choose the ``"auto"`` options by asking the clients about their losses, once per run.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
        """
        if self.inquiry.due:
            self.inquiry.choose(self, grid)
            self._announce(self._plan_at(self.state))

    def _nodes_needed(self) -> int:
        needed = int(self.min_available_nodes)
        for part in self._acting["nodes_needed"]:
            needed = part.nodes_needed(needed)
        return needed

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a training round, as in ``FedAvg``, with separate records for every node."""
        if self.state is None or server_round == 1:
            unmodified = getattr(self, "client", "") == "unmodified"
            refuse_privacy_wrappers(sys._getframe(1).f_globals.get("__name__", ""), unmodified=unmodified)
        return self.mail.post(self.open_round(server_round, arrays, config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, update the state, return the primal arrays and the round's metrics.

        Replies with errors, NaN, wrong shapes, dtypes or keys, another round's stamp or impossible numbers are left
        out, logged and counted; :attr:`left_out` gives the reasons. With fewer than ``min_replies`` good replies, the
        state does not change and ``skipped`` is 1.

        Raises
        ------
        ConfigurationError
            If :meth:`configure_train` was not called for this round, or no reply has the stamp of a round.
        """
        current, replies = self.current, list(replies)
        if current.number != server_round:
            raise ConfigurationError(
                f"aggregate_train was called for round {server_round}, but configure_train for {current.number}; "
                "call them in turn, as `start` does"
            )
        stamps = [own.metadata.group_id for own in replies]
        # In a run this is the fault of a client, and its reply is left out.
        if self.progress is None and stamps and not any(isinstance(stamp, str) and stamp for stamp in stamps):
            raise ConfigurationError(
                f"none of {len(replies)} replies has a group_id, which says what round it answers; make each of them "
                "with Message(content, reply_to=message) of a message that configure_train has returned"
            )
        return self.close_round(self.mail.collect("aggregate_train", replies) if current.nodes else [])

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Run a training round: what ``configure_train``, sending and ``aggregate_train`` do.

        Parameters
        ----------
        server_round : int
            From 1.
        arrays : ArrayRecord
            The model; the start point if a new run begins.
        config : ConfigRecord
            The user's train config.
        grid : flwr.serverapp.Grid

        Returns
        -------
        ArrayRecord
            The primal model.
        MetricRecord or None
            None if no client was asked.
        """
        if self.has_own_hooks:
            # A subclass overrides hooks, which Flower would call.
            messages = self.configure_train(server_round, arrays, config, grid)
            return self.aggregate_train(server_round, send_and_receive(grid, messages, self.mail.timeout))
        letters = self.open_round(server_round, arrays, config, grid)
        return self.close_round(self.mail.exchange(letters, server_round) if letters else [])

    @property
    def has_own_hooks(self) -> bool:
        """Whether a subclass overrides ``configure_train`` or ``aggregate_train``."""
        own, plain = type(self), CompositeStrategy
        return (
            own.configure_train is not plain.configure_train
            or own.aggregate_train is not plain.aggregate_train
            or not self.__dict__.keys().isdisjoint(("configure_train", "aggregate_train"))
        )

    def open_round(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Letter]:
        """Begin a training round: choose its nodes and return the message for each of them.

        Parameters
        ----------
        server_round : int
        arrays : ArrayRecord
            The model; the start point if a new run begins.
        config : ConfigRecord
            The user's train config.
        grid : flwr.serverapp.Grid
        """
        mail = self.mail
        if self.state is None or (server_round == 1 and mail.current.number > 0):
            self.prepare(arrays)
        mail.grid, mail.config = grid, config
        self.choose_rates(grid)
        self._open_problem(server_round)
        if self.fraction_train == 0.0:
            if server_round == 1:
                log(WARNING, "configure_train: fraction_train=0.0, so no client trains and the model stays as it is")
            self._problem = mail.open(server_round, [], config, self.problem, self.state)
            return []
        nodes = self._sample(grid, server_round, _TRAIN_SAMPLE, self.fraction_train, self.min_train_nodes)
        if self.choose_nodes is not None:
            nodes = self.nodes.chosen(self.choose_nodes, server_round)
        asked: Sequence[Node] = nodes
        for part in self._acting["before_round"]:
            asked = part.before_round(self, asked)
        if asked is not nodes:
            asked = sorted(asked, key=lambda node: node.order)
        log(INFO, "configure_train: Sampled %s nodes (out of %s)", len(asked), len(self.nodes.ordered))
        self._problem = mail.open(server_round, asked, config, self.problem, self.state)
        return mail.letters(mail.current.nodes.values())

    def _sample(self, grid: Grid, server_round: int, purpose: int, fraction: float, minimum: int) -> Sequence[Node]:
        self.mail.num_needed = self._nodes_needed()
        return self.nodes.sample(grid, server_round, purpose, fraction, minimum, self.mail.num_needed)

    def look_again(self) -> None:
        """Update the list of connected nodes."""
        grid = self.mail.grid
        assert grid is not None
        self.nodes.meet(grid, listed(grid))

    def run_start_round(self) -> StartRound:
        """Run a training round 0 with all connected nodes; the state does not change."""
        mail = self.mail
        problem = mail.open(0, self.nodes.ordered, mail.config, self.problem._replace(round=0), self.state)
        good = mail.exchange(mail.letters(self.nodes.ordered), 0)
        bytes_down, bytes_up = mail.current.bytes_down, mail.bytes_up(good)
        text = "Round 0: %s of %s nodes answered, %s bytes down, %s up"
        log(INFO, text, len(good), len(mail.current.nodes), bytes_down, bytes_up)
        return StartRound(problem, mail.weighted(good), bytes_down, bytes_up)

    def close_round(self, good: Sequence[Reply[Uplink]]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Update the state with the good replies; return the primal arrays and the round's metrics.

        Parameters
        ----------
        good : sequence of Reply
        """
        current = self.current
        if not current.nodes and self.private_mean is None:
            everyone = self._assembly.everyone
            missing = None if everyone is None else everyone.metrics_of_absence()
            arrays, metrics = self.primal_arrays(), None if missing is None else MetricRecord(dict(missing))
        else:
            arrays, metrics = self._concluded(good)
        for part in reversed(self._acting["end_round"]):
            part.end_round(self)
        return arrays, metrics

    def _concluded(self, good: Sequence[Reply[Uplink]]) -> tuple[ArrayRecord, MetricRecord]:
        current = self.current
        least = len(current.nodes) if self.participation == "everyone" else self.min_replies
        if self.private_mean is not None:
            return self._released(self.private_mean.release(self.mail.weighted(good)))
        uplinks = self.mail.weighted(good)
        skipped = len(good) < least or not uplinks or not self._update(uplinks)
        if skipped:
            text = "aggregate_train: round %s is skipped: %s good replies, at least %s needed"
            log(WARNING, text, current.number, len(good), least)
        # Nothing else was wrong: the numbers were too large.
        self.overflowed = skipped and len(good) >= least and bool(uplinks)
        contents = [reply.content for reply in good]
        missing = len(current.nodes) - len(good)
        surplus = current.rows - current.refused - missing
        own: dict[str, int | float] = {
            "num-replies": len(good),
            "num-left-out": missing + current.refused,
            **({"num-surplus": surplus} if surplus else {}),
            "skipped": int(skipped),
            "bytes-down": current.bytes_down,
            "bytes-up": self.mail.bytes_up(good),
        }
        arrays = self.primal_arrays()
        averaged = contents if uplinks else []
        theirs = checks.average_metrics(self.train_metrics_aggr_fn, averaged, self.weighted_by_key)
        own.update(self._structure(arrays))
        own.update(self.round_metrics())
        return arrays, joined_metrics(theirs, own)

    def _released(self, mean: Uplink) -> tuple[ArrayRecord, MetricRecord]:
        """Take the server's step along a noisy mean, all that is known of the replies; no round is skipped."""
        self.overflowed = not self._update([mean])
        arrays = self.primal_arrays()
        own: dict[str, float | int] = {"skipped": int(self.overflowed)}
        own.update(self._structure(arrays))
        return arrays, MetricRecord(dict(own | self.round_metrics()))

    def replies(self, problem: Problem, state: Any, uplinks: Sequence[Uplink]) -> Replies:
        """Return a round's replies as the algorithm reads them.

        Parameters
        ----------
        problem : Problem
        state : NamedTuple
            The state of the messages that they answer.
        uplinks : sequence of Uplink
        """
        told = partial(self.downlink, problem, state, None)
        return Replies(uplinks, self._assembly.centre, self.memories, self.client_half(), told)

    def _structure(self, arrays: ArrayRecord) -> dict[str, int | float]:
        return structure(self.problem.psi, self.problem.layout, self.as_vector(arrays))

    def round_metrics(self) -> dict[str, float | int]:
        """Return the metrics that the method and its parts add to the current round."""
        found: dict[str, float | int] = {}
        for part in self._acting["metrics"]:
            found.update(part.metrics(self))
        found.update(self.metrics(self.problem, self.state))
        return found

    def _update(self, uplinks: Sequence[Uplink]) -> bool:
        """Take the server's step; return whether its result is finite; otherwise the state does not change."""
        problem, before, average, done = self.problem, self.state, self._assembly.average, False
        if self.inquiry.extrapolates:
            problem = problem._replace(server_lr=extrapolation(uplinks))
        overflows = "aggregate_train: the update overflows; the state stays as it is. Lower the rates."
        average.begin_round()
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                passed = checks.averaged_pass_through(
                    self.pass_through_arrays, uplinks, aggregation=self.aggregation, trim=self.trim
                )
                replies = self.replies(problem, before, uplinks)
                after = self.aggregate(problem, before, replies)
                if not all(all_finite(value) for value in after):
                    log(WARNING, overflows)
                    return False
                stage = self.begins_stage(before, after)
                if stage:
                    average.start(problem.layout.size)
                elif average.averages:
                    average.add(self.averaged_points(problem, before, after, replies))
                # A new stage has its own geometry and a state may have its own psi; both determine the state's point.
                psi = self.psi_at(problem.layout, self.regularizer, after)
                changed = stage or psi is not problem.plan.regularizer
                own = problem.with_plan(self._plan_at(after, psi)) if changed else problem
                last = self.retrieve(own, after)
                point = last if average.idle else average.point(lambda: last)
                output = Output.of(after, own.plan, point, passed, takes=average.idle)
                done = output.finite()
            if not done:
                log(WARNING, "%s (The state is finite, its primal point is not.)", overflows)
                return False
        except MagnitudeError as error:
            log(WARNING, "%s %s", overflows, error)
            return False
        finally:
            if not done:
                average.take_back()
        if self.inquiry.extrapolates:
            self.chosen["server_lr"], self._problem = problem.server_lr, problem
        self.mail.take_model(last)
        self.state, self.mail.pass_through_arrays, self._output = after, passed, output
        self.mail.output = output if average.idle else None
        for part in reversed(self._acting["after_round"]):
            part.after_round(self, before, uplinks)
        if stage:
            if self.memories is not None:
                self.memories.new_epoch("a new stage")
            log(INFO, "A new stage begins: %s", own.plan.mirror_map)
        if changed:
            self._announce(own.plan)
        return True

    def primal_arrays(self) -> ArrayRecord:
        """Return the primal model of the present state in the user's names, shapes and dtypes.

        Before the first successful round, these are the initial arrays as given, feasible or not.
        """
        if self.state.round == 0:
            return self._initial
        known = self._output
        # A method may change its state and geometry after a round, when a client leaves or a stage begins.
        if known is None or known.state is not self.state or known.plan is not self.plan:
            point = self._point(self.problem, self.state)
            known = self._output = Output.of(self.state, self.plan, point, self.pass_through_arrays)
        return shared_arrays(known.arrays)

    def _point(self, problem: Problem, state: Any) -> Vector:
        """Return the point that evaluation and the user see."""
        average = self._assembly.average
        return self.retrieve(problem, state) if average.idle else average.point(lambda: self.retrieve(problem, state))

    def as_vector(self, arrays: ArrayRecord) -> Vector:
        """Return a primal model as one vector; free for the model that :meth:`primal_arrays` returned last.

        Parameters
        ----------
        arrays : ArrayRecord
        """
        known = self._known(arrays)
        return primal_vector(self.plan.layout, arrays)[0] if known is None else known.point

    def _known(self, arrays: ArrayRecord) -> Output | None:
        """Return the output that these arrays come from, if :meth:`primal_arrays` returned them last."""
        known = self._output
        fits = known is not None and known.plan is self.plan and same_arrays(known.arrays, arrays)
        return known if fits else None

    def certificate(self, server_round: int, grid: Grid, arrays: ArrayRecord) -> dict[str, float]:
        """Return the metrics of a round's certificate, if one is due.

        Parameters
        ----------
        server_round : int
        grid : flwr.serverapp.Grid
        arrays : ArrayRecord
            The round's model.
        """
        certifier = self._assembly.certifier
        if certifier is None or server_round % certifier.every:
            return {}
        return certifier.certified(self, grid, self.as_vector(arrays))

    # --- evaluation rounds ----------------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a federated evaluation: the primal arrays, as ``FedAvg`` sends them."""
        if self.fraction_evaluate == 0.0 or self.private_mean is not None:
            return []
        nodes = self._sample(grid, server_round, _EVALUATE_SAMPLE, self.fraction_evaluate, self.min_evaluate_nodes)
        log(INFO, "configure_evaluate: Sampled %s nodes (out of %s)", len(nodes), len(self.nodes.ordered))
        self.mail.current = current = Round(server_round, left_out=self.left_out, kind="evaluate")
        current.nodes = {node.node_id: node for node in nodes}
        config = config.copy()
        config["server-round"] = server_round
        keys = {"arrayrecord_key": self.arrayrecord_key, "configrecord_key": self.configrecord_key}
        contents = ((node.node_id, primal_request(arrays, config, **keys)) for node in nodes)
        current.messages = addressed(grid, contents, "evaluate", str(server_round))
        return current.messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the good replies' metrics; bad ones are left out, logged and counted."""
        asked = len(self.current.messages)
        if not asked:
            return None
        contents = self.mail.collect_metrics("aggregate_evaluate", replies)
        metrics = checks.average_metrics(self.evaluate_metrics_aggr_fn, contents, self.weighted_by_key)
        metrics["num-replies"] = len(contents)
        metrics["num-left-out"] = asked - len(contents)
        return metrics

    def watches(self) -> Sequence[RoundHooks]:
        """Return the strategy's own callbacks, which watch each round and log what is wrong."""
        return ()

    # --- the look -------------------------------------------------------------------------------------------------

    def work(self) -> Work:
        """Return a client's work in a round; the groups of options define it."""
        raise ConfigurationError(f"{type(self).__name__} does not say what a client does; override `work`")

    def work_at(self, state: Any) -> Work:
        """Return a client's work in a round of the state's stage.

        Parameters
        ----------
        state : NamedTuple or None
            None before there is one.
        """
        return self.work()

    def rates(self) -> tuple[float, float]:
        """Return the learning rates of client and server in the current round; NaN for a method without them."""
        known = self._problem
        if known is not None and known.round > 0:
            return known.client_lr, known.server_lr
        client_lr, server_lr = (
            self.number(name) if hasattr(self, name) else math.nan for name in ("client_lr", "server_lr")
        )
        return client_lr, server_lr

    def summary(self) -> None:
        """Log the settings as a tree."""
        where = "" if self.layout is None else f" on {', '.join(self.layout.regularized_names) or 'nothing'}"
        normalized = ", local work normalised" if getattr(self, "normalize_local_work", False) else ""
        lines = [
            ("Regularizer", f"{self.regularizer}{where} (scope: {self.scope})"),
            ("Mirror map", f"{self.mirror_map}"),
            *self._lines_of_work(),
            ("Weights", f"{self.weighting}{normalized}"),
            ("Output", f"{self._assembly.average}"),
            ("Seed", f"{self.seed}"),
            *self.describe(),
            *(line for part in self.parts.values() for line in part.describe()),
            ("Minimum replies", f"{self.min_replies}"),
        ]
        log(INFO, "\t├──> %s settings:", type(self).__name__)
        for i, (title, text) in enumerate(lines):
            log(INFO, "\t│\t%s %s: %s", "└──" if i == len(lines) - 1 else "├──", title, text)
        super().summary()

    def _lines_of_work(self) -> list[tuple[str, str]]:
        own: Any = self
        unmodified = getattr(self, "client", "") == "unmodified"
        work = "the clients' own" if unmodified else f"{self.work_at(self.state)}"
        if not isinstance(own, RateOptions):
            return [("Local work", work)]
        # Unmodified clients ignore it; with `local_steps` it sets how fast the weight of psi grows.
        theirs = unmodified and getattr(self, "local_steps", None) is None
        client_lr = "the clients' own" if theirs else rate_text(own.client_lr)
        rates = f"client ({client_lr}) | server ({rate_text(own.server_lr)})"
        return [("Learning rates", rates), ("Local work", work)]
