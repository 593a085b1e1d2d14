"""The server half of every algorithm: Flower's hooks around plain mathematics."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, Vector, all_finite
from flwr_fco.core.spec import Spec
from flwr_fco.errors import ConfigurationError, MagnitudeError
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.results import Result
from flwr_fco.server.clients.nodes import Nodes
from flwr_fco.server.questions.inquiry import Asking
from flwr_fco.server.questions.strength_path import start_at_chosen
from flwr_fco.server.replies import checks as reading
from flwr_fco.server.replies.bounds import IncrementBounds
from flwr_fco.server.replies.checks import LeftOut, Round
from flwr_fco.server.replies.privacy import refuse_privacy_wrappers
from flwr_fco.server.rounds import saving
from flwr_fco.server.rounds.averaging import PointAverage
from flwr_fco.server.rounds.hooks import Callback, RoundHooks
from flwr_fco.server.rounds.loop import EvaluateFunction, run_rounds, settings_tree
from flwr_fco.server.rounds.output import Output
from flwr_fco.server.rounds.structure import structure
from flwr_fco.wire import records
from flwr_fco.wire.protocol import Plan, Uplink

__all__ = ["CompositeStrategy"]

_TRAIN_SAMPLE, _EVALUATE_SAMPLE = 2, 3


@dataclass(repr=False, eq=False)
class CompositeStrategy(Asking, FedAvg):
    """Minimise sum_m p_m F_m(w) + psi(w); the part that all strategies share.

    A subclass sets :attr:`local_solver` and :attr:`limit` and implements :meth:`init_state`, :meth:`vectors`,
    :meth:`aggregate` and :meth:`retrieve`; this class does the messages, the sampling, the checks and the logs.
    ``aggregate_train`` always returns the primal arrays under the user's names and in the user's dtypes.
    """

    def __post_init__(self) -> None:
        self.check_options()
        if self.aggregation != "mean" and self.needs_mean:
            raise ConfigurationError(
                f"aggregation={self.aggregation!r}: {type(self).__name__} needs the mean: {self.needs_mean}. Take "
                "FedDualAvg, FedMid or FedAvgSubgradient for robust aggregation, or tighter bounds (max_ratio, "
                "max_increment_norm)"
            )
        self.check_choices()
        if self.mirror_map.never_supports(self.regularizer):
            self.mirror_map.require(self.regularizer)
        # Flower warns of a fraction of 0.0, which is a choice here and no accident: it is set afterwards.
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
        if self.participation == "everyone" and self.fraction_train != 1.0:
            raise ConfigurationError(
                f"fraction_train={self.fraction_train}: {type(self).__name__} needs every client in every round; "
                "leave fraction_train=1.0, or take a strategy that samples clients, such as Scaffold"
            )
        self.work()
        self.averaging = PointAverage(self.output, self.window, self.sparsity)
        self.forget()

    def forget(self) -> None:
        """Return to the state before the first round; a subclass with more to forget extends it."""
        self.state: Any = None
        self.layout: Layout | None = None
        self.nodes = Nodes(self.seed, self.node_timeout)
        self.current = Round(0)
        self.left_out: list[LeftOut] = []
        self.bounds = IncrementBounds(self.max_ratio, self.max_increment_norm)
        self._output: Output | None = None
        self._plan: Plan | None = None
        self.chosen, self.reasons, self._rates_known = {}, {}, {}
        self._spec: Spec | None = None
        self._digest = self._settings_digest = ""
        self._initial = ArrayRecord()
        self.pass_through_arrays: dict[str, NDArray[Any]] = {}
        self._grid: Grid | None = None
        self._timeout: float = 3600.0
        self._wire_dtype = "float64"
        self.overflowed = False

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
        self.forget()
        try:
            self.layout = records.layout_of(initial_arrays, apply_to=self.apply_to, pass_through=self.pass_through)
            primal, self.pass_through_arrays = records.primal_vector(self.layout, initial_arrays)
        except ValueError as error:
            raise ConfigurationError(f"these initial arrays cannot be trained: {error}") from error
        self.renew_plan(self.geometry(primal))
        self._settings_digest = self._digest
        self._initial = initial_arrays
        self.state = self.init_state(primal)

    def renew_plan(self, mirror_map: MirrorMap) -> None:
        """Make the plan from the present settings; every node is told of it in its next message."""
        assert self.layout is not None
        self._plan = Plan(
            solver=self.local_solver,
            layout=self.layout,
            regularizer=self.regularizer,
            mirror_map=mirror_map,
            scope=self.scope,
            work=self.work(),
            seed=self.seed,
            wire_dtype=self.wire_dtype,
            options=self.solver_options(),
        )
        self.h.require(self.psi)
        self._spec = self._plan.to_spec()
        self._digest = self._spec.digest()
        self.nodes.informed = set()

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
        callbacks : sequence of callable or callback, optional
            Functions ``(round, arrays, metrics) -> bool or None``, called after each round; True ends the run. Or
            objects with methods of :class:`flwr_fco.callbacks.Callback`.

        Returns
        -------
        Result
            Flower's, with a table of all rounds and ``left_out``, what did not count. ``arrays`` holds the primal
            model, also if no round succeeded.

        Raises
        ------
        DivergedError
            If the model grows beyond all bounds, unless ``on_divergence="warn"``.
        """
        self._timeout = timeout
        run = run_rounds if self.strength is None else start_at_chosen
        return run(
            self,
            grid,
            initial_arrays,
            num_rounds,
            timeout=timeout,
            train_config=ConfigRecord() if train_config is None else train_config,
            evaluate_config=ConfigRecord() if evaluate_config is None else evaluate_config,
            evaluate_fn=evaluate_fn,
            callbacks=callbacks,
        )

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Save the state to an ``.npz`` file; see :mod:`flwr_fco.server.rounds.saving`."""
        if self.state is None:
            raise ConfigurationError("there is no state to save before the first round; call `prepare` or `start`")
        saving.write(path, self._settings_digest, saving.Saved(self.state, self.pass_through_arrays, self._more()))

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Restore a state that :meth:`save_state` wrote; call :meth:`prepare` with the same model first.

        Raises
        ------
        ConfigurationError
            If the file comes from other settings (regularizer, seed, local work, ...) or another model, or is damaged;
            the strategy is as it was then.
        """
        if self.state is None:
            raise ConfigurationError("call `prepare(initial_arrays)` before `load_state`: it sets the model's layout")
        saved = saving.read(path, self._settings_digest, saving.Saved(self.state, self.pass_through_arrays, {}))
        before = saving.Saved(self.state, self.pass_through_arrays, self._more())
        try:
            self._restore(saved)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            self._restore(before)
            raise ConfigurationError(f"{os.fspath(path)} is not a state of this strategy: {error!r}") from error

    def _more(self) -> dict[str, NDArray[Any]]:
        return {**self.saved_arrays(), **self.bounds.to_arrays(), **self.saved_choices()}

    def _restore(self, saved: saving.Saved) -> None:
        self.state, self.pass_through_arrays = saved.state, dict(saved.pass_through)
        self.restore_arrays(saved.more)
        self.bounds.from_arrays(saved.more)
        self.restore_choices(saved.more)

    # --- training rounds ------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a training round; as in ``FedAvg``, with records of its own for every node."""
        if self.state is None or server_round == 1:
            refuse_privacy_wrappers(sys._getframe(1).f_globals.get("__name__", ""))
            if self.state is None or self.current.number > 0:
                self.prepare(arrays)
        self._grid = grid
        self.choose_rates(grid)
        if self.fraction_train == 0.0:
            if server_round == 1:
                log(WARNING, "configure_train: fraction_train=0.0, so no client trains and the model stays as it is")
            self.current = Round(server_round, left_out=self.left_out)
            return []
        size = (self.fraction_train, self.min_train_nodes, self.nodes_needed())
        nodes = self.nodes.sample(grid, server_round, _TRAIN_SAMPLE, *size)
        if self.choose_nodes is not None:
            nodes = self.nodes.chosen(self.choose_nodes, server_round)
        log(INFO, "configure_train: Sampled %s nodes (out of %s)", len(nodes), len(self.nodes.ordered))
        asked = self.before_round(grid, server_round, config, nodes)
        if asked is not nodes:
            asked = sorted(asked, key=lambda node: node.order)
        return self.open_round(server_round, asked, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, update the state, return the primal arrays and the round's metrics.

        Replies with errors, NaN, wrong shapes, dtypes, keys, another round's stamp or numbers that cannot be are left
        out, logged and counted; :attr:`left_out` says why. With fewer than ``min_replies`` good ones, the state stays
        as it is and ``skipped`` is 1.
        """
        current = self.current
        if current.number != server_round:
            raise ConfigurationError(
                f"aggregate_train was called for round {server_round}, but configure_train for {current.number}; "
                "call them in turn, as `start` does"
            )
        if not current.messages:
            return self.primal_arrays(), None
        rows_before = len(self.left_out)
        good = self.uplinks("aggregate_train", self.with_second_chances(replies))
        self.nodes.informed.update(reply.node.node_id for reply in good)
        weights = reading.weights_of([reply.value.examples for reply in good], self.weighting)
        least = len(current.messages) if self.participation == "everyone" else self.min_replies
        skipped = len(good) < least or not weights or not self._update(reading.weighted(good, weights))
        if skipped:
            text = "aggregate_train: round %s is skipped: %s good replies, at least %s needed"
            log(WARNING, text, server_round, len(good), least)
        # Nothing else was wrong: the numbers were too large.
        self.overflowed = skipped and len(good) >= least and bool(weights)
        contents = [reply.content for reply in good]
        missing = len(current.messages) - len(good)
        surplus = len(self.left_out) - rows_before - missing
        own: dict[str, int | float] = {
            "num-replies": len(good),
            "num-left-out": missing,
            **({"num-surplus": surplus} if surplus else {}),
            "skipped": int(skipped),
            "bytes-down": current.bytes_down,
            "bytes-up": records.count_bytes(contents),
        }
        arrays = self.primal_arrays()
        theirs = reading.average_metrics(self.train_metrics_aggr_fn, contents if weights else [], self.weighted_by_key)
        own.update(structure(self.psi, self.plan.layout, self.as_vector(arrays)))
        metrics = records.joined_metrics(theirs, own)
        for name, value in self.round_metrics().items():
            metrics[name] = value
        return arrays, metrics

    def _update(self, uplinks: Sequence[Uplink]) -> bool:
        """Take the server's step; return whether its result is finite, and leave the state as it is if not."""
        self.choose_server_lr(uplinks)
        overflows = "aggregate_train: the update overflows; the state stays as it is. Lower the rates."
        before = self.state
        passed = reading.averaged_pass_through(self.pass_through_arrays, uplinks)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                state = self.aggregate(self.state, uplinks)
                if not all(all_finite(value) for value in state):
                    log(WARNING, overflows)
                    return False
                output = Output.of(state, self.plan, self.output_point(state), passed)
        except MagnitudeError as error:
            log(WARNING, "%s %s", overflows, error)
            return False
        if not output.finite():
            log(WARNING, "%s (The state is finite, its primal point is not.)", overflows)
            return False
        self.state, self.pass_through_arrays, self._output = state, passed, output
        self.after_round(before, uplinks)
        return True

    def primal_arrays(self) -> ArrayRecord:
        """Return the primal model of the present state in the user's names, shapes and dtypes.

        Before the first successful round: the initial arrays as they were given, feasible or not.
        """
        if self.state.round == 0:
            return self._initial
        known = self._output
        # A method may change its state and its geometry after a round: where a client has gone, or a stage begins.
        if known is None or known.state is not self.state or known.plan is not self.plan:
            point = self.output_point(self.state)
            known = self._output = Output.of(self.state, self.plan, point, self.pass_through_arrays)
        return records.shared_arrays(known.arrays)

    def as_vector(self, arrays: ArrayRecord) -> Vector:
        """Return a primal model as one vector; at no cost if it is the one that :meth:`primal_arrays` has given."""
        known = self._output
        if known is not None and known.plan is self.plan and records.same_arrays(known.arrays, arrays):
            return known.point
        return records.primal_vector(self.plan.layout, arrays)[0]

    # --- evaluation rounds ----------------------------------------------------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a federated evaluation: the primal arrays, as ``FedAvg`` sends them."""
        if self.fraction_evaluate == 0.0:
            return []
        size = (self.fraction_evaluate, self.min_evaluate_nodes, self.nodes_needed())
        nodes = self.nodes.sample(grid, server_round, _EVALUATE_SAMPLE, *size)
        log(INFO, "configure_evaluate: Sampled %s nodes (out of %s)", len(nodes), len(self.nodes.ordered))
        self.current = current = Round(server_round, left_out=self.left_out, kind="evaluate")
        current.nodes = {node.node_id: node for node in nodes}
        config = config.copy()
        config["server-round"] = server_round
        keys = {"arrayrecord_key": self.arrayrecord_key, "configrecord_key": self.configrecord_key}
        contents = ((node.node_id, records.primal_request(arrays, config, **keys)) for node in nodes)
        current.messages = records.messages(grid, contents, "evaluate", str(server_round))
        return current.messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the good replies' metrics; bad ones are left out, logged and counted."""
        asked = len(self.current.messages)
        if not asked:
            return None
        good = self.current.good(
            "aggregate_evaluate", replies, lambda _, content: records.check_metrics(content, self.weighted_by_key)
        )
        contents = [reply.content for reply in good]
        metrics = reading.average_metrics(self.evaluate_metrics_aggr_fn, contents, self.weighted_by_key)
        metrics["num-replies"] = len(good)
        metrics["num-left-out"] = asked - len(good)
        return metrics

    # --- the look -------------------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log the settings as a tree."""
        settings_tree(self)
        super().summary()
