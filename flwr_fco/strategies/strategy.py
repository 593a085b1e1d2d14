"""Flower's strategy: the hooks that Flower calls, around a run.

``configure_train`` opens a round and returns its messages, made when somebody looks at them; a grid takes them to the
clients; ``aggregate_train`` reads and checks the replies, takes the method's step, and returns the primal model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import field
from inspect import currentframe
from types import FrameType
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from flwr_fco.algorithms.decentralized import Graph
from flwr_fco.core.computing import logger
from flwr_fco.core.validation import NATURAL, NON_NEGATIVE, POSITIVE, checked, of_type, short
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.messages.protocol import Node, Uplink
from flwr_fco.messages.records import STEPS, Messages, encode_uplink, metric_record, only
from flwr_fco.messages.short import Short
from flwr_fco.regularizers import Zero
from flwr_fco.results import Result, traffic_of
from flwr_fco.strategies import questions, replies, training
from flwr_fco.strategies.nodes import EVALUATION, Ledger
from flwr_fco.strategies.options import AUTO, MetricsFunction, Options, Rate, strategy, text_of
from flwr_fco.strategies.rounds import Callbacks, Saved, metrics_of, run_rounds
from flwr_fco.strategies.run import Run, average_metrics, structure
from flwr_fco.work import Epochs, FirstOrder, Minimise

#: ``(round, arrays) -> metrics or None``: evaluation on the server.
EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | Mapping[str, Any] | None]
#: The model and the metrics of a round.
Trained = tuple[ArrayRecord | None, MetricRecord | None]


class CompositeStrategy(Options):
    """Base class of strategies: minimises sum_m p_m F_m(w) + psi(w) by running a method through Flower.

    A subclass names its method, and is a dataclass of the options that it adds::

        @strategy
        class FedMine(StepStrategy):
            algorithm = Mine
            strength: float = 1.0

    ``aggregate_train`` always returns the primal arrays under the user's names and in the user's dtypes.

    Examples
    --------
    >>> from flwr_fco.strategies import FedDualAvg
    >>> isinstance(FedDualAvg(), CompositeStrategy), FedDualAvg(client_lr=0.5).client_lr
    (True, 0.5)
    """

    _run: Run | None = None
    _saved: Saved | None = None
    #: Whether `start` has not returned; None while it prepares the run, and a subclass may still set options.
    _running: bool | None = False
    #: Rounds that a private strategy has released, in whichever run.
    _released = 0

    def __post_init__(self) -> None:
        self._check()
        # Flower's has defaults of its own, and warns about a fraction of 0.0, which is deliberate here.
        own = {name: value for name, value in vars(self).items() if value is not None}
        FedAvg.__init__(self)
        self.__dict__.update(own)

    def __setattr__(self, name: str, value: Any) -> None:
        own = {"_run": Run, "_saved": Saved}.get(name, object)
        if isinstance(getattr(type(self), name, None), property) or not isinstance(value, own):
            raise ConfigurationError(f"self.{name} = {short(value)}: users read it of a run; take another name")
        if self._running and name in type(self).__dataclass_fields__:
            raise ConfigurationError(f"{name}={short(value)} was set while a run goes on; set options before `start`")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in ("initialize_parameters", "configure_fit", "aggregate_fit", "evaluate"):
            prefix = f"{type(self).__name__} has no {name!r}, which Flower's earlier interface calls (start_simulation)"
            advice = "take `strategy.start(grid, initial_arrays, num_rounds)` in a ServerApp, or flwr_fco.simulate"
            raise AttributeError(f"{prefix}: {advice} (docs/how-to/subclasses.md)")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle holds: no run, whose grid is a connection."""
        return {name: value for name, value in vars(self).items() if name not in ("_run", "_saved", "_running")}

    # --- what a user reads ----------------------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The server's state, a NamedTuple of float64 arrays and numbers; None before the first round."""
        return None if self._run is None else self._run.state

    @property
    def memories(self) -> Ledger | None:
        """The clients' memories, of a method whose clients remember something."""
        return None if self._run is None else self._run.ledger

    @property
    def result(self) -> Result | None:
        """The result so far of the last run that `start` began, also if an error ended it."""
        return None if self._run is None else self._run.result

    @property
    def saved(self) -> Saved | None:
        """The run that `start` has begun, as a file."""
        return self._saved

    def describe(self) -> list[tuple[str, str]]:
        """Return the settings as pairs of a title and a text: the lines of :meth:`summary`."""
        run, wire, theirs = self._run, self.wire, "the clients' own"
        if run is None:
            # Options may have been set since.
            self._check()
        where = "" if run is None else f" on {', '.join(run.problem.layout.regularized_names) or 'nothing'}"
        planned: Any = getattr(self, "work", None) if run is None else run.setting.work
        lines = [("Density", f"{self._density}{where}")] if self._density else []
        if not lines or not isinstance(self.regularizer, Zero):
            lines.append(("Regularizer", f"{self.regularizer}{where} (scope: {self._scope})"))
        lines.append(("Mirror map", f"{self.mirror_map}"))
        if hasattr(self, "client_lr"):
            own = theirs if self._unmodified and planned.steps is None else _rate(self.client_lr)
            lines.append(("Learning rates", f"client ({own}) | server ({_rate(getattr(self, 'server_lr', None))})"))
        lines.append(("Local work", theirs if self._unmodified else str(planned or "the method's")))
        normalized = ", local work normalised" if getattr(self, "normalize_local_work", False) else ""
        weights = self.weighting if self.site_weights is None else "given by partition"
        lines += [("Weights", f"{weights}{normalized}"), ("Output", f"{self.output}"), ("Seed", f"{self.seed}")]
        lines.append(("Minimum replies", f"{self.participation.min_replies}"))
        mixing = getattr(self, "mixing", None)
        lines += [] if mixing is None else [("Graph", f"{Graph(mixing) if run is None else run.graph}")]
        if run is None:
            return [*lines, ("Method", text_of(self._method()))]
        lines += [(f"Chosen {k}", f"{own:.4g} = {run.reasons.get(k, 'as saved')}") for k, own in run.chosen.items()]
        lines.append(("Method", text_of(run.method)))
        if isinstance(wire, Short):
            said = f"{wire.down} down, {wire.up} up; clients need ClientApp(mods=[short_mod()])"
            lines.append(("Short messages", said + (f"; {traffic}" if (traffic := traffic_of(run.result)) else "")))
        if run.ledger is not None:
            most = f"{run.ledger.max_bytes / 2**20:.0f} MiB"
            lines.append(("Clients' memories", f"a copy on the server, above {most} in a temporary file"))
        return lines + ([] if run.privacy is None else run.privacy.describe(run.num_rounds))

    def summary(self) -> None:
        """Log the settings as a tree."""
        lines = self.describe()
        logger.info("\t├──> %s settings:", type(self).__name__)
        for i, (title, text) in enumerate(lines):
            logger.info("\t│\t%s %s: %s", "└──" if i == len(lines) - 1 else "├──", title, " ".join(text.split()))
        super().summary()

    # --- a run ----------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
        *,
        callbacks: Sequence[Any] = (),
        resume: str | os.PathLike[str] | None = None,
    ) -> Result:
        """Run the method, like ``FedAvg.start`` with callbacks.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            The grid that connects the nodes.
        initial_arrays : ArrayRecord
            The start point.
        num_rounds : int, default 3
            Number of rounds.
        timeout : float or None, default 3600
            Seconds to wait for the replies of a round; None: as long as they take.
        train_config, evaluate_config : ConfigRecord, optional
            Sent to the clients together with the round number; not modified.
        evaluate_fn : callable, optional
            ``(round, arrays) -> MetricRecord or None``: evaluation on the server, before round 1 and after each round.
        callbacks : sequence of callable or callback, optional
            Functions ``(round, arrays, metrics) -> bool or None``, called after each round; True ends the run. Or
            objects with methods of :class:`flwr_fco.callbacks.Callback`.
        resume : path-like, optional
            A file of :class:`flwr_fco.callbacks.Checkpoint`: the run in it goes on. `num_rounds` is the total, and the
            result has the bits of an uninterrupted run. Give the other arguments of that run.

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
            If an argument is of another kind, a run is under way, or `resume` is no checkpoint of this strategy.
        """
        checked("initial_arrays", initial_arrays, ArrayRecord, {"example": "ArrayRecord({{name: Array(array), ...}})"})
        if not hasattr(grid, "send_and_receive") or isinstance(grid, type):
            raise ConfigurationError(f"grid is {of_type(grid)}; expected the Grid that a ServerApp gets")
        checked("num_rounds", num_rounds, int, NATURAL)
        checked("timeout", timeout, float | None, NON_NEGATIVE)
        checked("evaluate_fn", evaluate_fn, EvaluateFunction | None)
        checked("train_config", train_config, ConfigRecord | None)
        checked("evaluate_config", evaluate_config, ConfigRecord | None)
        checked("resume", resume, str | os.PathLike | None)
        if self._running is not False:
            prefix = f"this {type(self).__name__} is in a run that has not ended"
            raise ConfigurationError(f"{prefix}: take another one for a second run, such as `copy.copy(strategy)`")
        self._running = None
        try:
            hooks = Callbacks(callbacks)
            last = self._run
            run = self.prepare(initial_arrays, num_rounds)
            # Of a path the next strength is another psi.
            if last and last.number and last.arrays == initial_arrays and last.given.regularizer is self.regularizer:
                text = "this run goes on from the last one's model without its state, with the same draws (seed=%d): "
                logger.warning(text + "give one `start` all rounds, and callbacks= what you do after each", self.seed)
            run.grid = grid
            run.timeout = float("inf") if timeout is None else timeout
            self._running = True
            configs = {"train": train_config or ConfigRecord(), "evaluate": evaluate_config or ConfigRecord()}
            return run_rounds(run, hooks, num_rounds, configs, evaluate_fn, resume)
        finally:
            self._running = False

    def prepare(self, initial_arrays: ArrayRecord, num_rounds: int | None = None) -> Run:
        """Begin a run from a model: check the options, derive the layout, set the state.

        Parameters
        ----------
        initial_arrays : ArrayRecord
            The start point, in the user's names, shapes and dtypes.
        num_rounds : int, optional
            Number of rounds, if it is known.

        Returns
        -------
        Run
            The run.

        Raises
        ------
        ConfigurationError
            If an option is wrong, psi cannot act on an array, or h and psi cannot be combined.
        """
        if "fraction_train" not in self.__dict__:
            name = type(self).__name__
            raise ConfigurationError(f"{name}.__init__ does not call super().__init__(...), which sets its options")
        self._check()
        self._run = run = Run(self, initial_arrays, num_rounds)
        return run

    # --- Flower's hooks -------------------------------------------------------------------------------------------

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Open a round; return its messages, which are made when somebody looks at them.

        The model in `arrays` is what is sent: if it is not the one that :meth:`aggregate_train` returned, the state
        becomes the one whose point it is, or there is an error.
        """
        private = self._refuse_wrappers(currentframe())
        run = self._run
        name = type(self).__name__
        if server_round < 1 and not self._unmodified:
            raise ConfigurationError(f"server_round={server_round}: {name} counts rounds from 1, as `start` does")
        if run is None or (server_round == 1 and run.number > 0):
            run = self.prepare(arrays)
        elif arrays and arrays != run.arrays:
            run.take(arrays, f"{name}.configure_train got")
        compares = run.privacy is None and not private
        vars(run).update(grid=grid, compares=compares, closed=False, overflowed=False, earlier={})
        run.config = ConfigRecord({**config, "server-round": server_round})
        if self.fraction_train == 0.0:
            if server_round == 1:
                logger.warning("configure_train: fraction_train=0.0, so no client trains and the model stays as it is")
            run.current = replies.Round(server_round, [], run.left_out)
            return []
        wanted = [name for name in run.rates if name not in {"server_lr", *run.chosen} and getattr(self, name) == AUTO]
        if wanted:
            run.chosen = run.chosen | questions.choose(run, wanted)
        run.open(server_round)
        nodes = training.choose_nodes(run, server_round)
        training.first_gradients(run)
        outbox = training.post(run, server_round, nodes)
        for node_id, first in run.nodes.refused.items():
            reason = f"it claims the partition id {first.partition_id}, which node {first.node_id} had first"
            run.current.leave_out([(Node(node_id, first.partition_id), reason)])
        run.current.leave_out([(node, "it is not connected any more") for node in run.missing], quiet=True)
        return outbox

    def _refuse_wrappers(self, frame: FrameType | None) -> bool:
        """Whether a strategy of Flower for differential privacy is around this one; refuse those whose claim is void.

        They clip what clients reply and leave no trace in what they pass on: nothing but the caller shows them. Other
        strategies around this one, and loops that call it, are as good as `start`. Their noise is that of the mean of
        the clients' models, which nothing may make larger.
        """
        own: Any = self
        slow = self._unmodified and isinstance(own.server_lr, float) and own.server_lr <= 1.0
        fits = slow and not own.server_momentum and self.aggregation == "mean"
        while frame is not None and frame.f_code.co_name == "configure_train":
            for kind in type(frame.f_locals.get("self")).__mro__:
                if kind.__module__.startswith("flwr.") and kind.__name__.startswith("DifferentialPrivacy"):
                    if fits:
                        return True
                    why = f"{kind.__name__} clips differences of models and adds the noise of their mean: around"
                    advice = 'privacy=GaussianDP(...), or clients of FedAvg, client="unmodified", aggregation="mean", '
                    advice += "server_momentum=0.0 and a server_lr of at most 1.0"
                    claim = f"{type(self).__name__} its differential-privacy claim would be void"
                    raise ConfigurationError(f"{why} {claim}. Give it {advice}")
            frame = frame.f_back
        return False

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Trained:
        """Check the replies, take the method's step, return the primal arrays and the round's metrics.

        Replies with errors, NaN, wrong shapes, dtypes or keys, another round's stamp or impossible numbers are left
        out, logged and counted; the result's ``left_out`` gives the reasons. With fewer than ``min_replies`` good
        replies, the state does not change and ``skipped`` is 1.
        """
        run = self._run
        if run is None or run.current.number != server_round or run.current.kind != "train" or run.closed:
            prefix = f"aggregate_train was called for round {server_round}, which configure_train has not opened"
            raise ConfigurationError(f"{prefix}: call super()'s in turn; Participation(choose_nodes=...) chooses nodes")
        run.closed = True
        if not (run.current.nodes or run.everyone) and run.privacy is None:
            run.number = server_round
            return run.arrays.copy(), None
        good = training.good_replies(run, replies)
        # A method that needs everyone also misses who has left, however many are connected.
        least = len(run.roll.present) if run.roll and run.everyone else self.participation.min_replies
        if run.privacy is None:
            good, uplinks, done = training.step(run, good, least)
            left_out = len(run.current.nodes) - len(good) + len(run.nodes.refused) + len(run.missing)
            counts: dict[str, Any] = {"num-replies": len(good), "num-left-out": left_out, **training.traffic(run, good)}
        else:
            # The noisy mean is all that is known of the replies, and no round is skipped.
            uplinks = [run.privacy.release(training.weighted(run, good))]
            counts = run.privacy.metrics()
            done = training.update(run, uplinks)
        if skipped := not done:
            why = "" if uplinks or not good else f", whose {self.weighted_by_key!r} are all 0"
            text = "aggregate_train: round %s is skipped: %s of %s good replies%s"
            logger.warning(text, server_round, len(good), least, why)
        run.number = server_round
        who = f"{type(run.method).__name__}.metrics(problem, state)"
        own = run.method.metrics(run.problem, run.state)
        metrics = {**(own if isinstance(own, dict) else checked(who, own, Mapping)), "skipped": int(skipped), **counts}
        run.over = str(metrics.pop("finished", ""))
        metrics |= structure(run.problem.psi, run.point, run.given.layout)
        theirs = {} if skipped or run.privacy is not None else self._averaged(run, self.train_metrics_aggr_fn, good)
        run.watch.look(server_round, len(good), skipped=skipped, metrics=_joined(theirs, metrics))
        if run.roll is not None and (run.everyone or not skipped):
            training.give_up(run, uplinks)
        if self.certificate_every and server_round % self.certificate_every == 0:
            metrics |= questions.certified(run, run.point)
        before = run.result.train_metrics_clientapp.get(server_round - 1)
        kept = questions.CERTIFIED if self.certificate_every else ()
        with in_words(f"{who} holds what is no number", ConfigurationError):
            return run.arrays.copy(), metric_record(_joined(theirs, metrics, kept), before)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Messages:
        """Return the messages of a federated evaluation: the primal arrays, as ``FedAvg`` sends them."""
        run = self._run or self.prepare(arrays)
        asks = self.fraction_evaluate > 0.0 and run.privacy is None
        sampled = self.fraction_evaluate, self.min_evaluate_nodes, run.needed
        nodes = run.nodes.sample(grid, server_round, EVALUATION, *sampled) if asks else []
        run.current = replies.Round(server_round, nodes, run.left_out, "evaluate")
        if not asks:
            return []
        run.grid = grid
        run.tables.look(run, nodes)
        logger.info("configure_evaluate: Sampled %s nodes (out of %s)", len(nodes), len(run.nodes.ordered))
        config = ConfigRecord({**config, "server-round": server_round})
        return training.to_all(run, nodes, run.model_message(arrays, config))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the good replies' metrics; bad ones are left out, logged and counted."""
        run = self._run
        if run is None or run.current.kind != "evaluate" or run.current.number != server_round:
            prefix = f"aggregate_evaluate was called for round {server_round}, but super().configure_evaluate was not"
            raise ConfigurationError(f"{prefix}: call it, and change what it returns; an empty list skips the round's")
        if not run.current.nodes:
            return None
        good = _evaluations(self, run, replies)
        counts = {"num-replies": len(good), "num-left-out": len(run.current.nodes) - len(good)}
        return MetricRecord(_joined(self._averaged(run, self.evaluate_metrics_aggr_fn, good), counts))

    def _averaged(self, run: Run, function: MetricsFunction | None, good: Sequence[replies.Reply]) -> dict[str, Any]:
        """Return the clients' metrics of a round, by the user's function or as weighted means."""
        if not good:
            return {}
        if function and function not in self._means:
            contents = [encode_uplink(c) if isinstance(c, Uplink) else c for c in (reply.content for reply in good)]
            who = f"{getattr(function, '__name__', repr(function))}, which averages the clients' metrics,"
            return {**metrics_of(function(contents, self.weighted_by_key), who, " or a dict of numbers")}
        uplinks = [reply.value for reply in good]
        reports = [({} if up.steps is None else {STEPS: up.steps}) | dict(up.metrics) for up in uplinks]
        for report, up in zip(reports, uplinks, strict=True):
            report.pop(self.weighted_by_key, None)
            report |= {} if up.elapsed is None or up.steps is None else {"sum-of-step-sizes": up.elapsed}
        weights = [1.0 if self.weighting == "uniform" else up.examples for up in uplinks]
        return average_metrics(reports, weights, run.mean)


def _evaluations(strategy: CompositeStrategy, run: Run, answered: Iterable[Message]) -> list[replies.Reply]:
    """Return the evaluations that count."""
    key = strategy.weighted_by_key

    def read(node: Node, content: RecordDict) -> Uplink:
        said = dict(only(MetricRecord, content))
        examples = replies.check_examples(run, node, said.pop(key, None), key, trains=False)
        # A function of the user's gets all of a record, or none.
        needed = {"loss"} if strategy.evaluate_metrics_aggr_fn in strategy._means else said
        metrics = replies.check_metrics(said, needed, node)
        return Uplink({}, None, None, examples=run.weight(node, examples), metrics=metrics, node=node)

    good = run.current.settle(*replies.collect(run.current, answered, read))
    return run.current.without(good, replies.objections(run, [reply.value for reply in good], lengths=False))


def _joined(theirs: Mapping[str, Any], ours: Mapping[str, Any], kept: Container[str] = ()) -> dict[str, Any]:
    """Return the clients' metrics and the server's; a client's with a name of the server's gets a prefix."""
    named = {f"clients-{name}" if name in ours or name in kept else name: value for name, value in theirs.items()}
    return {**named, **ours}


def _rate(rate: Rate | None) -> str:
    name = str(getattr(rate, "__name__", "a function of the round"))
    return f"{rate:g}" if isinstance(rate, float) else name if callable(rate) else rate or "none"


# --- two families of methods ------------------------------------------------------------------------------------------


@strategy
class StepStrategy(CompositeStrategy):
    """A strategy whose clients take gradient steps, at a rate of theirs and one of the server.

    Beside the options of :class:`Options`:

    Parameters
    ----------
    client_lr : float, callable or "auto", default 0.1
        Step size of the clients, eta_c; or a function of Flower's round (from 1), which is called once a round.
        ``"auto"``: the theory's value for the smoothness of the losses, which the clients report before round 1.
    server_lr : float, callable or "auto", default 1.0
        Step size of the server, eta_s; or a function of Flower's round (from 1), which is called once a round.
        ``"auto"``: the extrapolation of FedExP, computed from the norms of each round's increments; for methods that
        take their plain mean. If the clients disagree at the solution itself, it grows near the solution, and the run
        does not settle there.
    work : FirstOrder, default Epochs(1, batch_size=32)
        What a client does in a round: ``Epochs(5, batch_size=10)``, passes over its data, or
        ``Steps(10, batch_size=None)``, K minibatches; a batch size of None means full batches, without randomness.
    normalize_local_work : bool, default True
        Scale the increment and the elapsed time of each client to the round's mean elapsed time, so that clients that
        take more steps do not count more than their weight. In this mean a client counts as ten times the median at
        most. With equal work the result is bit-identical.
    """

    client_lr: Rate = field(default=0.1, metadata=POSITIVE)
    server_lr: Rate = field(default=1.0, metadata=POSITIVE)
    work: FirstOrder = field(default=Epochs(), metadata={"example": "Steps({0}) or work=Epochs({0})"})
    normalize_local_work: bool = True


@strategy
class MinimiseStrategy(CompositeStrategy):
    """A strategy whose clients minimise their loss plus linear and quadratic terms.

    Beside the options of :class:`Options`:

    Parameters
    ----------
    work : Minimise, default Minimise()
        Tolerance, stopping rule and largest number of iterations of a client's minimisation. Clients that reach this
        number are counted in the round's metric ``num-capped``.
    """

    work: Minimise = field(default=Minimise(), metadata={"example": "Minimise(tolerance=1e-8)"})


def run_of(strategy: CompositeStrategy) -> Run:
    """Return the run behind a strategy: method, state, nodes, replies left out.

    Parameters
    ----------
    strategy : CompositeStrategy
        One that has begun a run.

    Raises
    ------
    ConfigurationError
        Before that.
    """
    if strategy._run is None:
        raise ConfigurationError(f"{type(strategy).__name__} has not begun a run; call `start(...)` or `prepare(...)`")
    return strategy._run
