"""Flower's strategy: its hooks around a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from logging import INFO
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from flwr_fco.algorithms.contract import Algorithm
from flwr_fco.core.logs import log
from flwr_fco.core.validation import checked, kinds_of
from flwr_fco.errors import ConfigurationError
from flwr_fco.results import Result
from flwr_fco.server import options
from flwr_fco.server.clients.memory import ClientMemories
from flwr_fco.server.method import Method
from flwr_fco.server.replies.checks import Round
from flwr_fco.server.replies.private import refuse_privacy_wrappers
from flwr_fco.server.rounds.hooks import Callback, RoundHooks
from flwr_fco.server.rounds.loop import EvaluateFunction, run_rounds
from flwr_fco.server.rounds.subclass import check_configured, has_own_hooks, take
from flwr_fco.server.run import Run
from flwr_fco.wire.arrays import config_of_round, primal_request
from flwr_fco.wire.envelope import addressed
from flwr_fco.wire.keys import SCHEMA
from flwr_fco.work import FirstOrder, Work

_EVALUATE_SAMPLE = 3
#: Options that are Flower's, but for the fractions.
_OF_FLOWER = (
    *("min_train_nodes", "min_evaluate_nodes", "min_available_nodes", "weighted_by_key", "arrayrecord_key"),
    *("configrecord_key", "train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"),
)
#: Methods of the strategies of Flower's earlier interface.
_EARLIER = ("initialize_parameters", "configure_fit", "aggregate_fit", "evaluate")


@dataclass(repr=False, eq=False)
class CompositeStrategy(options.CommonOptions, FedAvg):
    """Base class of strategies: minimises sum_m p_m F_m(w) + psi(w) by running an algorithm through Flower.

    A subclass is a dataclass of options, and names its algorithm::

        class FedDAGT(TrackerOptions, MemoryOptions, RateOptions, WorkOptions, CompositeStrategy, algorithm=...)

    This class has Flower's hooks. Everything else is behind one private attribute, which
    :func:`flwr_fco.strategies.run_of` returns. ``aggregate_train`` always returns the primal arrays under the user's
    names and in the user's dtypes.

    Examples
    --------
    >>> from flwr_fco.strategies import FedDualAvg
    >>> isinstance(FedDualAvg(), CompositeStrategy), FedDualAvg(client_lr=0.5).client_lr
    (True, 0.5)
    """

    __method__ = Method()

    def __init_subclass__(cls, algorithm: Any = None, choose: Callable[[Any], type[Algorithm]] | None = None) -> None:
        super().__init_subclass__()
        if algorithm is None:
            return
        if not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm)):
            what = f"class {cls.__name__}(..., algorithm={algorithm!r})"
            raise ConfigurationError(f"{what}: expected a subclass of flwr_fco.algorithms.Algorithm")
        cls.__method__ = Method(algorithm, choose)

    def __post_init__(self) -> None:
        options.check_options(self)
        fractions = self.fraction_train, self.fraction_evaluate
        # Flower warns about a fraction of 0.0, which is deliberate here, so it is set afterwards.
        FedAvg.__init__(self, **{name: getattr(self, name) for name in _OF_FLOWER})
        self.fraction_train, self.fraction_evaluate = fractions
        self._fco = Run(self)

    def __setattr__(self, name: str, value: Any) -> None:
        # A subclass's own attribute may have the name of an option, or of what a strategy says.
        if name in ("state", "memories", "result"):
            what = f"self.{name} = {value!r}: `{name}` is what a {type(self).__name__} says of its run"
            raise ConfigurationError(f"{what}; take another name, such as `my_{name}`")
        option = type(self).__dataclass_fields__.get(name)
        if option is not None and option.init and "_fco" in self.__dict__:
            try:
                value = options.checked_option(option, value, kinds_of(type(self)))
            except ConfigurationError as error:
                what = f"self.{name} = {value!r}: `{name}` is an option of {type(self).__name__}"
                raise ConfigurationError(f"{what}; take another name for an attribute of your own: {error}") from error
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in _EARLIER:
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}, which Flower's earlier interface calls (flwr.server.Server, "
                "start_server, start_simulation): run it in a ServerApp, `strategy.start(grid, initial_arrays, "
                "num_rounds)`, or in one process with flwr_fco.simulate (docs/how-to/subclasses.md)"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __copy__(self) -> Self:
        """Return a strategy with the same options and a run of its own, as :func:`copy.deepcopy` does."""
        return deepcopy(self)

    # --- what a user reads ----------------------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The server's state, a NamedTuple of float64 arrays and numbers; None before the first round."""
        return self._fco.state

    @property
    def memories(self) -> ClientMemories | None:
        """The server's record of clients with memories; None if clients have none."""
        return self._fco.memories

    @property
    def result(self) -> Result | None:
        """Result so far of the last run begun by `start`, also if an error ended it."""
        return self._fco.result

    def describe(self) -> list[tuple[str, str]]:
        """Return the settings as pairs of a title and a text: the lines of :meth:`summary`."""
        run = self._fco
        where = "" if run.layout is None else f" on {', '.join(run.layout.regularized_names) or 'nothing'}"
        normalized = ", local work normalised" if getattr(self, "normalize_local_work", False) else ""
        weights = "given by partition" if options.weights_of(self) else self.weighting
        return [
            ("Regularizer", f"{self.regularizer}{where} (scope: {options.scope_of(self)})"),
            ("Mirror map", f"{self.mirror_map}"),
            *_lines_of_work(self, run.work),
            ("Weights", f"{weights}{normalized}"),
            ("Output", f"{run.average}"),
            ("Seed", f"{self.seed}"),
            *run.algorithm.describe(run.state),
            *(line for part in run.parts.values() for line in part.describe()),
            ("Minimum replies", f"{self.participation.min_replies}"),
        ]

    def summary(self) -> None:
        """Log the settings as a tree."""
        lines = self.describe()
        log(INFO, "\t├──> %s settings:", type(self).__name__)
        for i, (title, text) in enumerate(lines):
            log(INFO, "\t│\t%s %s: %s", "└──" if i == len(lines) - 1 else "├──", title, text)
        super().summary()

    # --- Flower's hooks -------------------------------------------------------------------------------------------

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
        checked("resume", resume, str | os.PathLike | None)
        self._fco.begin(num_rounds, timeout, resumes=resume is not None)
        try:
            configs = train_config, evaluate_config
            return run_rounds(
                self._fco, grid, initial_arrays, num_rounds, timeout, *configs, evaluate_fn, callbacks, resume
            )
        finally:
            self._fco.running = False

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a training round, as in ``FedAvg``, with separate records for every node."""
        run = self._fco
        if run.state is None or server_round == 1:
            unmodified = options.serves_unmodified(self)
            refuse_privacy_wrappers(sys._getframe(1).f_globals.get("__name__", ""), unmodified=unmodified)
        # Hooks of a subclass, or a loop of its own, may have changed the model since `aggregate_train`.
        hooked = has_own_hooks(self) or type(self).start is not CompositeStrategy.start
        if arrays and hooked and run.state is not None and (server_round > 1 or run.current.number == 0):
            take(run, arrays, f"{type(self).__name__}.configure_train got")
        letters = run.open_round(server_round, arrays, config, grid)
        return run.mail.post(letters)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, update the state, return the primal arrays and the round's metrics.

        Replies with errors, NaN, wrong shapes, dtypes or keys, another round's stamp or impossible numbers are left
        out, logged and counted; the result's ``left_out`` gives the reasons. With fewer than ``min_replies`` good
        replies, the state does not change and ``skipped`` is 1.

        Raises
        ------
        ConfigurationError
            If :meth:`configure_train` was not called for this round, or no reply has the stamp of a round.
        """
        run, replies = self._fco, list(replies)
        current = run.current
        check_configured(run, server_round)
        stamps = [reply.metadata.group_id for reply in replies]
        # In a run this is the fault of a client, and its reply is left out.
        if run.progress is None and stamps and not any(isinstance(stamp, str) and stamp for stamp in stamps):
            raise ConfigurationError(
                f"none of {len(replies)} replies has a group_id, which says what round it answers; make each of them "
                "with Message(content, reply_to=message) of a message that configure_train has returned"
            )
        return run.close_round(run.mail.collect(replies) if current.nodes else [])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Return the messages of a federated evaluation: the primal arrays, as ``FedAvg`` sends them."""
        run = self._fco
        if self.fraction_evaluate == 0.0 or run.private_mean is not None:
            return []
        nodes = run.sample(grid, server_round, _EVALUATE_SAMPLE, self.fraction_evaluate, self.min_evaluate_nodes)
        log(INFO, "configure_evaluate: Sampled %s nodes (out of %s)", len(nodes), len(run.nodes.ordered))
        about: dict[str, Any] = {"left_out": run.left_out, "kind": "evaluate", "caller": "aggregate_evaluate"}
        run.mail.current = current = Round(server_round, {node.node_id: node for node in nodes}, **about)
        config = config_of_round(config, server_round)
        if not options.serves_unmodified(self):
            # Sites that only evaluate say what their columns are, too.
            config[SCHEMA] = 1
        keys = {"arrayrecord_key": self.arrayrecord_key, "configrecord_key": self.configrecord_key}
        contents = ((node.node_id, primal_request(arrays, config, **keys)) for node in nodes)
        current.messages = addressed(grid, contents, "evaluate", str(server_round))
        return current.messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the good replies' metrics; bad ones are left out, logged and counted."""
        mail = self._fco.mail
        if mail.current.kind != "evaluate" or mail.current.number != server_round:
            what = f"aggregate_evaluate was called for round {server_round}, but super().configure_evaluate was not"
            advice = "the server knows whom it asks only from that. Leave messages out of what it returns"
            raise ConfigurationError(f"{what}: {advice}, or change them; an empty list skips the evaluation of a round")
        asked = len(mail.current.messages)
        if not asked:
            return None
        contents = mail.collect_metrics(replies)
        metrics = self._fco.averaged(self.evaluate_metrics_aggr_fn, contents)
        return self._fco.joined(metrics, {"num-replies": len(contents), "num-left-out": asked - len(contents)})


def _lines_of_work(strategy: Any, planned: Work | None) -> list[tuple[str, str]]:
    unmodified = options.serves_unmodified(strategy)
    work = "the clients' own" if unmodified else "the method's" if planned is None else f"{planned}"
    if not isinstance(strategy, options.RateOptions):
        return [("Local work", work)]
    # Unmodified clients ignore it; with a number of steps it sets how fast the weight of psi grows.
    theirs = unmodified and isinstance(planned, FirstOrder) and planned.steps is None
    client_lr = "the clients' own" if theirs else options.rate_text(strategy.client_lr)
    rates = f"client ({client_lr}) | server ({options.rate_text(strategy.server_lr)})"
    return [("Learning rates", rates), ("Local work", work)]


def run_of(strategy: CompositeStrategy) -> Run:
    """Return the run behind a strategy: its problem, plan and rates, and how to save or prepare it by hand.

    Parameters
    ----------
    strategy : CompositeStrategy
        The strategy of the run.

    Raises
    ------
    ConfigurationError
        If it has none.

    Examples
    --------
    >>> from flwr_fco.strategies import FedDualAvg
    >>> run_of(FedDualAvg(client_lr=0.5)).rates()
    (0.5, 1.0)
    """
    run = getattr(strategy, "_fco", None)
    if not isinstance(run, Run):
        raise ConfigurationError(
            f"{type(strategy).__name__} has no run; expected a strategy of flwr_fco (an object, not its class) whose "
            "`__init__` or `__post_init__`, if it has its own, calls super()'s"
        )
    return run
