"""A run of a strategy: its state, and what a round does to it, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property, partial
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Algorithm, Problem, Replies, Setting
from flwr_fco.algorithms.contract.graph import Matrix
from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.core.layout import Layout, Vector, all_finite
from flwr_fco.core.logs import log
from flwr_fco.errors import ConfigurationError, MagnitudeError
from flwr_fco.results import Result
from flwr_fco.server.assembly import Assembly
from flwr_fco.server.clients.nodes import listed
from flwr_fco.server.inquiry import extrapolation
from flwr_fco.server.method import algorithm_class, algorithm_of, check_choices
from flwr_fco.server.options import AUTOMATIC, check_options, number_at, rates_of, scope_of
from flwr_fco.server.parts import Letter, Part
from flwr_fco.server.replies import checks
from flwr_fco.server.replies.checks import Reply, Round
from flwr_fco.server.replies.metrics import OTHERS, averaged
from flwr_fco.server.rounds.output import Output, check_point, check_state, structure
from flwr_fco.server.rounds.saving import Keeping, Saved
from flwr_fco.wire.arrays import layout_of, primal_vector
from flwr_fco.wire.metrics import CLIENTS, joined_metrics
from flwr_fco.wire.protocol import Node, Plan, Uplink
from flwr_fco.work import Work

_TRAIN_SAMPLE = 2
_OVERFLOWS = "aggregate_train: the update overflows; the state stays as it is. Lower the rates."


class Run(Keeping):
    """The run behind a strategy: algorithm, parts, state.

    Parameters
    ----------
    strategy : CompositeStrategy
        Its options and hooks.

    Attributes
    ----------
    state : NamedTuple or None
        The server's state, float64 arrays and numbers; None before the first round.
    parts : dict of str to Part
        The parts that the options select, by name.
    mail, inquiry : Part
        Messages of the rounds, and questions to all clients.
    average : PointAverage
        The output: the last point, or a mean.
    mean : Mean
        The centre of increments, which is also that of metrics.
    memories : ClientMemories or None
        The server's record of clients with memories; None if clients have none.
    graph : Graph or None
        The communication graph; None without a graph.
    private_mean : PrivateMean or None
        The part that makes one noisy mean of a round's replies; None without differential privacy.
    nodes : Nodes
        The connected nodes.
    left_out : list of LeftOut
        The replies of this run that were left out, with round, node, partition and reason.
    chosen, reasons : dict
        The values chosen for options that are ``"auto"``, and the reasons for them.
    result : Result or None
        Result so far of the last run begun by ``start``.
    num_rounds : int or None
        Number of rounds that ``start`` was called with, if it was.
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        #: Number of rounds that `start` was called with, if it was.
        self.num_rounds: int | None = None
        #: Result so far of the last run begun by `start`, also if an error ended it.
        self.result: Result | None = None
        #: Whether `start` has not returned.
        self.running = False
        self._released_rounds = 0
        self._assemble()

    def __getstate__(self) -> dict[str, Any]:
        # What is under way is of the grid and the callbacks, which hold connections, or the clients themselves.
        return {**self.__dict__, "progress": None, "running": False, "claims": self.claims.of_a_copy()}

    def _assemble(self) -> None:
        """Make the parts that the options select."""
        kind = algorithm_class(self.strategy)
        check_choices(self.strategy, kind)
        self._assembly = made = Assembly(self.strategy, kind, self)
        self.parts, self.mail, self.inquiry = made.parts, made.mail, made.inquiry
        self.average, self.private_mean, self.mean = made.average, made.privacy, made.mean
        self.memories, self.graph = made.memories, made.graph
        #: Parts by hook: most parts act in one or two places of a round.
        self._acting = {
            hook: [part for part in self.parts.values() if getattr(type(part), hook) is not getattr(Part, hook)]
            for hook in ("start", "nodes_needed", "before_round", "after_round", "end_round", "metrics")
        }
        self._rates = [name for name in rates_of(self.strategy) if hasattr(self.strategy, name)]
        self._assembled_from = self._options()
        self.forget()

    def renew(self) -> None:
        """Check the options, and act by them, if some were set since the last run: they are attributes."""
        if all(now is before for now, before in zip(self._options(), self._assembled_from, strict=True)):
            return
        check_options(self.strategy)
        timeout = self.mail.timeout
        if self.private_mean is not None:
            self._released_rounds = self.private_mean.released_rounds
        self._assemble()
        self.mail.timeout = timeout
        if self.private_mean is not None:
            # Also after a run without privacy in between.
            self.private_mean.released_rounds = self._released_rounds

    def _options(self) -> list[Any]:
        return [getattr(self.strategy, option.name, None) for option in fields(self.strategy)]

    def forget(self) -> None:
        """Return to the state before the first round."""
        #: The server's state, float64 arrays and numbers; None before the first round.
        self.state: Any = None
        for part in self.parts.values():
            part.forget()
        self.nodes, self.left_out = self.mail.nodes, self.mail.left_out
        self.chosen, self.reasons = self.inquiry.chosen, self.inquiry.reasons
        self.answered_start: set[int] = set()
        self.__dict__.pop("algorithm", None)
        self._problem: Problem | None = None
        self._given: Setting | None = None
        self._setting: Setting | None = None
        self._output: Output | None = None
        self._initial = ArrayRecord()
        self.overflowed = False
        #: What was counted of the last training round; None if nobody was asked.
        self.outcome: Mapping[str, float | int] | None = None
        self._forget_files()
        self._renamed: set[str] = set()

    def begin(self, num_rounds: int, timeout: float, *, resumes: bool) -> None:
        """Prepare for ``start``.

        Parameters
        ----------
        num_rounds : int
            Number of rounds of the run.
        timeout : float
            Seconds to wait for the replies of a round.
        resumes : bool
            Whether a saved run goes on.

        Raises
        ------
        ConfigurationError
            If the strategy runs already, or a state was loaded that ``start`` would forget.
        """
        if self.running:
            raise ConfigurationError(
                f"this {type(self.strategy).__name__} is in a run that has not ended: a strategy has one state; make "
                "another one for another run, such as `copy.copy(strategy)`"
            )
        if not resumes and self._loaded:
            raise ConfigurationError(
                "`start` begins anew and would forget the state that `load` has restored. To go on with a run give "
                "`start` or `simulate` a file of flwr_fco.callbacks.Checkpoint as `resume`; to begin anew call "
                "`prepare(initial_arrays)` first"
            )
        self.renew()
        self.mail.timeout, self.num_rounds, self.running = timeout, num_rounds, True

    # --- what the run is about ------------------------------------------------------------------------------------

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm, with the strategy's options."""
        return algorithm_of(self.strategy)

    @property
    def problem(self) -> Problem:
        """The context of the current round for the algorithm's functions."""
        # Before there is a plan, asking for it raises an error in words.
        plan = self.mail.plan
        assert self._problem is not None, plan
        return self._problem

    @property
    def plan(self) -> Plan:
        """The settings that all messages of this run share."""
        return self.mail.plan

    @property
    def work(self) -> Work | None:
        """A client's work in a round: the options' before a model is known; None if the algorithm says it then."""
        return getattr(self.strategy, "work", None) if self._setting is None else self._setting.work

    @property
    def layout(self) -> Layout | None:
        """The layout of the model's arrays; None before they are known."""
        return None if self._problem is None else self._problem.layout

    @property
    def current(self) -> Round:
        """The current round: the nodes that were asked and the messages sent to them."""
        return self.mail.current

    @property
    def pass_through_arrays(self) -> dict[str, NDArray[Any]]:
        """The model's arrays that are not optimised."""
        return self.mail.pass_through_arrays

    def number(self, name: str, server_round: int = 1) -> float:
        """Return the value of an option that may be ``"auto"``: the chosen value, or the default before the choice.

        Parameters
        ----------
        name : str
            Name of the option.
        server_round : int, default 1
            Where a function of the round is evaluated; :attr:`problem` has the values of the current round.
        """
        return number_at(name, getattr(self.strategy, name), server_round, self.chosen)

    def _numbers(self, server_round: int = 1) -> dict[str, float]:
        return {name: self.number(name, server_round) for name in self._rates}

    def _constants(self) -> dict[str, float]:
        """Return the values of options that may be ``"auto"`` but are no functions, which may keep a count."""
        values = {name: getattr(self.strategy, name, None) for name in AUTOMATIC}
        return {name: self.number(name) for name, value in values.items() if value is not None and not callable(value)}

    def rates(self) -> tuple[float, float]:
        """Return the learning rates of client and server in the current round; NaN for a method without them."""
        if self._problem is not None and self._problem.round > 0:
            return self._problem.client_lr, self._problem.server_lr
        numbers = self._numbers()
        return numbers.get("client_lr", math.nan), numbers.get("server_lr", math.nan)

    def asked_partitions(self) -> list[int | None]:
        """Return the partition ids of the nodes that were asked last, in the order in which replies are summed."""
        return [node.partition_id for node in self.current.nodes.values()]

    def node_primals(self) -> Matrix | None:
        """Return the primal points of all nodes of a graph, shape (M, d); None if all nodes share one model."""
        points: Any = getattr(self.algorithm, "node_points", None)
        return None if points is None or self._problem is None else points(self._problem, self.state)

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
        options = self.strategy
        self.renew()
        self.forget()
        try:
            layout = layout_of(
                initial_arrays, apply_to=options.arrays.apply_to, pass_through=options.arrays.pass_through
            )
            primal, self.mail.pass_through_arrays = primal_vector(layout, initial_arrays)
        except ValueError as error:
            raise ConfigurationError(f"these initial arrays cannot be trained: {error}") from error
        self._given = Setting(layout, primal, self.num_rounds, options.mirror_map, options.regularizer, self.work)
        self._adopt(self.algorithm.setting(self._given, None))
        # Includes the privacy settings: a private run must not resume from another run's state without its noise.
        self._settings_digest = self.mail.digest + (f" {self.private_mean.privacy!r}" if self.private_mean else "")
        self._initial = initial_arrays
        self.mail.algorithm = self.algorithm
        self.mail.bounds.observe(primal)
        self.mail.num_needed = self._nodes_needed()
        for part in self._acting["start"]:
            part.start(primal.size)
        self.state = self.algorithm.init(self.problem, primal)

    def _plan_of(self, setting: Setting) -> Plan:
        options, layout = self.strategy, setting.layout
        if setting.work is None:
            raise ConfigurationError(
                f"{type(options).__name__} does not say what a client does: take WorkOptions or MinimiseOptions among "
                f"its base classes, or return the work from {type(self.algorithm).__name__}.setting"
            )
        return Plan(
            solver=self.algorithm.name,
            layout=layout,
            regularizer=setting.regularizer,
            mirror_map=setting.mirror_map,
            scope=scope_of(options),
            work=setting.work,
            seed=options.seed,
            wire_dtype=options.wire.dtype or ("auto" if layout.single_network else "float64"),
            options=self.algorithm.options(self._constants()),
        )

    def _adopt(self, setting: Setting, plan: Plan | None = None) -> None:
        """Adopt a setting; its plan goes to every node with the next message."""
        self._setting, plan = setting, self._plan_of(setting) if plan is None else plan
        self.mail.announce(plan)
        plan.h.require(plan.psi)
        if self._problem is None:
            self._problem = Problem.of(plan, memories=self.memories, graph=self.graph, given=self._given)
        else:
            self._problem = self._problem.with_plan(plan)._replace(given=self._given_now())

    def _given_now(self) -> Setting:
        """Return the user's setting, in whose layout psi leaves alone what nobody trains."""
        assert self._given is not None
        untrained = self._assembly.untrained
        return self._given if untrained is None else untrained.given(self._given)

    def _setting_of(self, state: Any) -> Setting:
        return self.algorithm.setting(self._given_now(), state)

    def _is_of(self, setting: Setting, plan: Plan) -> bool:
        """Whether psi and the arrays that it acts on are those of a plan."""
        return setting.regularizer is plan.regularizer and setting.layout is plan.layout

    def _open_problem(self, server_round: int) -> Problem:
        """Return the problem of a round; rates are evaluated once, because functions may keep a count."""
        numbers, setting = self._numbers(server_round), self._setting
        assert setting is not None
        self._problem = self.problem._replace(
            round=server_round,
            numbers=numbers,
            client_lr=setting.client_lr or numbers.get("client_lr", math.nan),
            server_lr=setting.server_lr or numbers.get("server_lr", math.nan),
        )
        return self._problem

    def _saved(self) -> Saved:
        parts = {name: part.to_arrays() for name, part in self.parts.items()}
        return Saved(self.state, self.pass_through_arrays, parts)

    def _take(self, saved: Saved) -> None:
        self.state, self.mail.pass_through_arrays = saved.state, saved.pass_through
        for name, part in self.parts.items():
            part.from_arrays(saved.parts[name])
        self._adopt(self._setting_of(self.state))
        self.mail.bounds.observe(self.algorithm.retrieve(self.problem, self.state))

    # --- training rounds ------------------------------------------------------------------------------------------

    def choose_rates(self, grid: Grid) -> None:
        """Choose the ``"auto"`` options by asking the clients about their losses, once per run.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            Flower's connection to the nodes.
        """
        if self.inquiry.due:
            self.inquiry.choose(self, grid)
            self._adopt(self._setting_of(self.state))

    def _nodes_needed(self) -> int:
        needed = int(self.strategy.min_available_nodes)
        for part in self._acting["nodes_needed"]:
            needed = part.nodes_needed(needed)
        return needed

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
            Flower's connection to the nodes.

        Returns
        -------
        ArrayRecord
            The primal model.
        MetricRecord or None
            None if no client was asked.
        """
        letters = self.open_round(server_round, arrays, config, grid)
        return self.close_round(self.mail.exchange(letters) if letters else [])

    def open_round(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Letter]:
        """Begin a training round: choose its nodes and return the message for each of them.

        Parameters
        ----------
        server_round : int
            Flower's round, from 1.
        arrays : ArrayRecord
            The model; the start point if a new run begins.
        config : ConfigRecord
            The user's train config.
        grid : flwr.serverapp.Grid
            Flower's connection to the nodes.
        """
        if self.state is None or (server_round == 1 and self.current.number > 0):
            self.prepare(arrays)
        mail, self.outcome = self.mail, None
        mail.grid, mail.config = grid, config
        self.choose_rates(grid)
        self._open_problem(server_round)
        asked: Sequence[Node] = []
        if self.strategy.fraction_train > 0.0:
            asked = self._choose_nodes(server_round, grid)
        elif server_round == 1:
            log(WARNING, "configure_train: fraction_train=0.0, so no client trains and the model stays as it is")
        self._problem = mail.open(server_round, asked, config, self.problem, self.state, self.answered_start)
        return mail.letters(mail.current.nodes.values()) if asked else []

    def _choose_nodes(self, server_round: int, grid: Grid) -> Sequence[Node]:
        options = self.strategy
        nodes = self.sample(grid, server_round, _TRAIN_SAMPLE, options.fraction_train, options.min_train_nodes)
        if options.participation.choose_nodes is not None:
            nodes = self.nodes.chosen(options.participation.choose_nodes, server_round)
        asked = nodes
        for part in self._acting["before_round"]:
            asked = part.before_round(self, asked)
        if asked is not nodes:
            asked = sorted(asked, key=lambda node: node.order)
        log(INFO, "configure_train: Sampled %s nodes (out of %s)", len(asked), len(self.nodes.ordered))
        return asked

    def sample(self, grid: Grid, server_round: int, purpose: int, fraction: float, minimum: int) -> Sequence[Node]:
        """Return a round's sample of the nodes; the arguments are those of :meth:`Nodes.sample`."""
        self.mail.num_needed = self._nodes_needed()
        return self.nodes.sample(grid, server_round, purpose, fraction, minimum, self.mail.num_needed)

    def refresh_nodes(self) -> None:
        """Update the list of connected nodes."""
        grid = self.mail.grid
        assert grid is not None
        self.nodes.meet(grid, listed(grid))

    def close_round(self, good: Sequence[Reply[Uplink]]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Update the state with the good replies; return the primal arrays and the round's metrics.

        Parameters
        ----------
        good : sequence of Reply
            The replies that passed all checks.
        """
        options, uplinks, everyone = self.strategy, self.mail.weighted(good), self._assembly.everyone
        metrics: MetricRecord | None = None
        if self.private_mean is not None:
            # The noisy mean is all that is known of the replies; no round is skipped.
            self.overflowed = not self._update([self.private_mean.release(uplinks)])
            self.outcome = {"skipped": int(self.overflowed)}
            if not self.running:
                # Rounds by hand, which have no save points.
                self.move_on()
            metrics = self._reported({}, self.outcome)
        elif self.current.nodes:
            self.outcome = counts = self._conclude(good, uplinks)
            contents = [reply.content for reply in good] if uplinks else []
            theirs = self.averaged(options.train_metrics_aggr_fn, contents)
            metrics = self._reported(theirs, counts)
        elif everyone is not None and (missing := everyone.metrics_of_absence()) is not None:
            self.outcome, metrics = missing, MetricRecord(dict(missing))
        arrays = self.primal_arrays()
        for part in reversed(self._acting["end_round"]):
            part.end_round(self)
        return arrays, metrics

    def averaged(self, aggregate: Any, contents: list[RecordDict]) -> dict[str, Any]:
        """Return the averaged metrics of replies, as the strategy takes the centre of increments.

        Parameters
        ----------
        aggregate : callable
            The strategy's function for metrics of training, or of evaluation.
        contents : list of RecordDict
            The replies that count.
        """
        return averaged(aggregate, contents, self.strategy.weighted_by_key, self.mean)

    def _conclude(self, good: Sequence[Reply[Uplink]], uplinks: Sequence[Uplink]) -> dict[str, float | int]:
        """Take the server's step, if there are enough replies; return what is counted of the round."""
        current, options = self.current, self.strategy
        least = len(current.nodes) if self.algorithm.reads == "everyone" else self.strategy.participation.min_replies
        skipped = len(good) < least or not uplinks or not self._update(uplinks)
        if skipped:
            why = f"at least {least} needed"
            if len(good) >= least:
                why = "whose update is not finite" if uplinks else f"whose {options.weighted_by_key!r} are all 0"
            log(WARNING, "aggregate_train: round %s is skipped: %s good replies, %s", current.number, len(good), why)
        # Nothing else was wrong: the numbers were too large.
        self.overflowed = skipped and len(good) >= least and bool(uplinks)
        missing = len(current.nodes) - len(good)
        surplus = current.rows - current.refused - missing
        return {
            "num-replies": len(good),
            "num-left-out": missing + current.refused,
            **({"num-surplus": surplus} if surplus else {}),
            "skipped": int(skipped),
            "bytes-down": current.bytes_down,
            "bytes-up": self.mail.bytes_up(good),
        }

    def _reported(self, theirs: Mapping[str, Any], counts: Mapping[str, float | int]) -> MetricRecord:
        """Return the clients' metrics with a round's counts and, under other names, what model and parts add."""
        problem = self.problem
        promised = structure(problem.psi, problem.layout, self.as_vector(self.primal_arrays()))
        return self.joined(theirs, {**counts, **promised, **self.round_metrics(), **counts})

    def joined(self, theirs: Mapping[str, Any], ours: Mapping[str, float | int]) -> MetricRecord:
        """Return the clients' metrics with the server's own; a clash of names is told once.

        Parameters
        ----------
        theirs : mapping of str to number or list
            The clients', averaged.
        ours : mapping of str to number
            The server's.
        """
        # What a method's own clients say of a number is the server's number.
        theirs = {name: value for name, value in theirs.items() if name not in ours or name not in OTHERS}
        for name in theirs.keys() & ours.keys() - self._renamed:
            text = "the clients' metric %r has the name of one of the server's: it is in the results as %r"
            log(WARNING, text, name, f"{CLIENTS}{name}")
            self._renamed.add(name)
        return joined_metrics(theirs, ours)

    def round_metrics(self) -> dict[str, float | int]:
        """Return the metrics that the method and its parts add to the current round."""
        numbers: dict[str, float | int] = {}
        for part in self._acting["metrics"]:
            numbers |= part.metrics(self)
        return numbers | self.algorithm.metrics(self.problem, self.state)

    def replies(self, problem: Problem, state: Any, uplinks: Sequence[Uplink]) -> Replies:
        """Return a round's replies as the algorithm reads them.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The state of the messages that they answer.
        uplinks : sequence of Uplink
            Those of the round, with weights.
        """
        whole = partial(self.algorithm.downlink, problem, state, None)
        return Replies(uplinks, self._assembly.direction, self.memories, type(self.algorithm), whole)

    def finished(self) -> str:
        """Return why the method needs no further round; an empty string as long as it does."""
        if self._problem is None or self.state.round == 0:
            return ""
        return self.algorithm.finished(self._problem, self.state)

    def _update(self, uplinks: Sequence[Uplink]) -> bool:
        """Take the server's step; return whether its result is finite; otherwise the state does not change."""
        before, problem, average = self.state, self.problem, self.average
        if self.inquiry.extrapolates:
            problem = problem._replace(server_lr=extrapolation(uplinks))
        step = None
        average.begin_round()
        try:
            with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
                step = self._step(problem, uplinks)
        except MagnitudeError as error:
            log(WARNING, "%s %s", _OVERFLOWS, error)
        finally:
            if step is None:
                average.take_back()
        if step is None:
            return False
        setting, last, output = step
        if self.inquiry.extrapolates:
            self.chosen["server_lr"], self._problem = problem.server_lr, problem
        self.mail.bounds.observe(last)
        self.state, self.mail.pass_through_arrays, self._output = output.state, output.passed, output
        self.mail.output = output if average.idle else None
        for part in reversed(self._acting["after_round"]):
            part.after_round(self, before, uplinks)
        if self._begins_stage(setting):
            if self.memories is not None:
                self.memories.new_epoch("a new stage")
            log(INFO, "A new stage begins: %s", output.plan.mirror_map)
        if output.plan is not problem.plan:
            self._adopt(setting, output.plan)
        return True

    def _step(self, problem: Problem, uplinks: Sequence[Uplink]) -> tuple[Setting, Vector, Output] | None:
        """Return the next state's setting, its point, and the model that the user sees of it; None if not finite."""
        algorithm, before, average, mean = self.algorithm, self.state, self.average, self.mean
        passed = checks.averaged_pass_through(
            self.pass_through_arrays, uplinks, aggregation=mean.aggregation, trim=mean.trim
        )
        replies = self.replies(problem, before, uplinks)
        after = algorithm.aggregate(problem, before, replies)
        check_state(algorithm, before, after)
        if not all(all_finite(value) for value in after):
            log(WARNING, _OVERFLOWS)
            return None
        untrained = self._assembly.untrained
        if untrained is not None:
            assert self._given is not None
            values = after.dual if hasattr(after, "dual") else after.primal
            untrained.observe(self._given.layout, self.mail, uplinks)
            untrained.hold(values, self._given.layout)
        setting = self._setting_of(after)
        stage = self._begins_stage(setting)
        if stage:
            average.start(problem.layout.size)
        elif average.averages:
            average.add(algorithm.points(problem, before, after, replies))
        # A new stage has its own geometry and a state may have its own psi; both determine the state's point.
        if stage or not self._is_of(setting, problem.plan):
            problem = problem.with_plan(self._plan_of(setting))
        last = algorithm.retrieve(problem, after)
        if untrained is not None:
            untrained.copy(last, values, problem.layout)
        check_point(algorithm, last, problem.layout.size)
        output = Output.of(after, problem.plan, average.point(lambda: last), passed, takes=average.idle)
        if not output.finite():
            log(WARNING, "%s (The state is finite, its primal point is not.)", _OVERFLOWS)
            return None
        return setting, last, output

    def _begins_stage(self, setting: Setting) -> bool:
        return self._setting is not None and setting.stage != self._setting.stage

    def primal_arrays(self) -> ArrayRecord:
        """Return the primal model of the present state in the user's names, shapes and dtypes.

        Before the first successful round, these are the initial arrays as given, feasible or not.
        """
        if self.state is None:
            raise ConfigurationError("there is no model before `prepare(initial_arrays)` or `start`")
        if self.state.round == 0:
            return self._initial
        output = self._output
        # A method may change its state and geometry after a round, when a client leaves or a stage begins.
        if output is None or output.state is not self.state or output.plan is not self.plan:
            point = self.average.point(partial(self.algorithm.retrieve, self.problem, self.state))
            output = self._output = Output.of(self.state, self.plan, point, self.pass_through_arrays)
        return output.arrays.copy()

    def snapshot(self) -> tuple[Any, dict[str, NDArray[Any]]]:
        """Return what :meth:`move_to` goes back to: the state and the arrays that are not optimised."""
        return self.state, dict(self.pass_through_arrays)

    def move_to(self, state: Any, passed: dict[str, NDArray[Any]], *, initial: ArrayRecord | None = None) -> None:
        """Put another state in the place of the present one.

        Parameters
        ----------
        state : NamedTuple
            The state.
        passed : dict of str to ndarray
            The model's arrays that are not optimised.
        initial : ArrayRecord, optional
            The model, before the first round that counts.
        """
        self.state, self.mail.pass_through_arrays, self._output, self.mail.output = state, passed, None, None
        if initial is not None:
            self._initial = initial
        setting = self._setting_of(state)
        if not self._is_of(setting, self.plan):
            self._adopt(setting)
        self.mail.bounds.observe(self.algorithm.retrieve(self.problem, state))

    def point_of(self, state: Any) -> Vector:
        """Return the primal point of a state, under the psi that is the state's.

        Parameters
        ----------
        state : NamedTuple
            The state.
        """
        setting, problem = self._setting_of(state), self.problem
        if not self._is_of(setting, problem.plan):
            problem = problem.with_plan(self._plan_of(setting))
        return self.algorithm.retrieve(problem, state)

    def as_vector(self, arrays: ArrayRecord) -> Vector:
        """Return a primal model as one vector; free for the model that :meth:`primal_arrays` returned last.

        Parameters
        ----------
        arrays : ArrayRecord
            The model.
        """
        output = self._output
        if output is not None and output.plan is self.plan and output.arrays == arrays:
            return output.point
        return primal_vector(self.plan.layout, arrays)[0]

    def certificate(self, server_round: int, grid: Grid, arrays: ArrayRecord) -> dict[str, float]:
        """Return the metrics of a round's certificate, if one is due.

        Parameters
        ----------
        server_round : int
            Flower's round, from 1.
        grid : flwr.serverapp.Grid
            Flower's connection to the nodes.
        arrays : ArrayRecord
            The round's model.
        """
        certifier = self._assembly.certifier
        if certifier is None or server_round % certifier.every:
            return {}
        return certifier.certified(self, grid, self.as_vector(arrays))
