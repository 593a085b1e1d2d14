"""A run behind a strategy: method, plan, all that changes from round to round, the model, and the watch over it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Algorithm, Change, Problem, Setting, choices, options_of
from flwr_fco.algorithms.contract.replies import Mean, Momentum
from flwr_fco.algorithms.decentralized import Graph
from flwr_fco.core.computing import logger
from flwr_fco.core.layout import Layout, Vector, all_finite, dense, euclidean_norm
from flwr_fco.core.schema import listed
from flwr_fco.core.validation import POSITIVE, checked, kinds_of, short
from flwr_fco.errors import ConfigurationError, DivergedError, NothingTrainedError, ProtocolError, in_words
from flwr_fco.messages.protocol import Node, Plan, Uplink
from flwr_fco.messages.records import NOT_FINITE, layout_of, model_record, model_vector
from flwr_fco.mirror_maps import SimplexEntropy
from flwr_fco.privacy import PrivateMean
from flwr_fco.regularizers import HardSparsity, PerParameter, Zero
from flwr_fco.regularizers.base import BoundRegularizer
from flwr_fco.results import Result
from flwr_fco.strategies import replies
from flwr_fco.strategies.nodes import Key, Ledger, Nodes, Tables
from flwr_fco.strategies.options import AUTO, AUTOMATIC, Options, Rate
from flwr_fco.work import Work

#: A model with this many times the first models' norm has diverged: with steps that are small enough a run never moves
#: further in a round than in the first ones, so its solution would be a million rounds away.
_TOO_LARGE = 1e6
#: A norm that no units of columns explain, after the first round too: of counts' exponentials nothing comes back.
_ABSURD = 1e30
#: A model with at most this many times the first models' norm is worth keeping.
_GOOD = 10.0
#: Times the median move at which an error names the client.
_MUCH = 10.0
#: Rounds in a row in which all replies are far too long, or none has the method's form, after which a run ends.
_IN_A_ROW = 2
#: Rounds in a row in which nobody's reply counts and somebody's steps overflow: who is asked alone may have bad data.
_MOST_ALONE = 10


class Run:
    """What belongs to one run of a strategy.

    Parameters
    ----------
    options : Options
        The strategy.
    arrays : ArrayRecord
        The start point, under the user's names.
    num_rounds : int or None
        That ``start`` was called with.

    Attributes
    ----------
    method : Algorithm
        Both halves of the method, with the strategy's options.
    state : NamedTuple
        The server's state: float64 arrays and numbers.
    given, setting : Setting
        Geometry, regularizer and work as the user has chosen them, and as the method has them in the present state.
    problem : Problem
        Of the current round: plan, layout, psi, h, rates.
    nodes : Nodes
        The connected nodes.
    ledger : Ledger or None
        The clients' memories, of a method whose clients remember something.
    roll : Ledger or None
        Who must answer, and has not: the ledger, or one without memories on a graph, or where everyone is needed.
    graph : Graph or None
        The communication graph.
    tables : Tables
        What the clients say of their tables before anything else is asked of them.
    privacy : PrivateMean or None
        What stands for a round's replies.
    current : Round
        Whom the last exchange has asked.
    number : int
        The last round that is done.
    chosen, reasons : dict
        Values of the options that are ``"auto"``, and why.
    left_out : list of LeftOut
        The replies that did not count.
    watch : Watch
        Whether the run diverges.
    point, passed : ndarray of float64, shape (d,), and dict of str to ndarray
        The model that the user sees: its optimised arrays as one vector, and those that pass through.
    arrays : ArrayRecord
        The same, under the user's names.
    indices : dict of (int, int) to ndarray of int32
        By client, where its features are not 0, if it has reported that.
    """

    saved = ("state", "passed", "number", "chosen", "indices", "moved", "average")

    def __init__(self, options: Options, arrays: ArrayRecord, num_rounds: int | None) -> None:
        self.options = options
        self.num_rounds = num_rounds
        self.method: Algorithm = options._method()
        self.tables = options.tables or Tables()
        self.grid: Any = None
        self.config = ConfigRecord()
        self.timeout = 3600.0
        self.nodes = Nodes(options.seed, options.participation.node_timeout, not options._unmodified)
        self.needed = options.min_available_nodes
        self.left_out: list[replies.LeftOut] = []
        self.current = replies.Round(0, [], self.left_out)
        self.number = 0
        #: Why no further round is needed, as the method has said after a round of this process.
        self.over: str | None = None
        self.closed = True
        self.chosen: dict[str, float] = {}
        self.reasons: dict[str, str] = {}
        privacy = getattr(options, "privacy", None)
        # Of a private round no reply says whether another one counts, and none is in the result.
        self.result = Result(arrays=arrays, left_out=self.left_out if privacy is None else [])
        self.privacy = None if privacy is None else PrivateMean(privacy, options)
        #: Whether replies are compared: not in a private run, or where a strategy around this one makes it private.
        self.compares = privacy is None
        self.cap = replies.Cap(options.bounds.max_ratio)
        # Options that may be functions of the round, or "auto".
        own = [option.name for option in fields(options) if kinds_of(type(options))[option.name] in (Rate, Rate | None)]
        self.rates = [name for name in dict.fromkeys((*AUTOMATIC, *own)) if hasattr(options, name)]
        rule = options.aggregation
        centre = ("trimmed", rule.share) if isinstance(rule, choices.Trimmed) else (rule,)
        self.mean = Mean(bool(getattr(options, "normalize_local_work", True)), *centre)
        self.momentum = Momentum(beta, self.mean) if (beta := getattr(options, "server_momentum", 0.0)) else None
        self.averages = options.output != "last" and not isinstance(options.output, choices.Last)
        #: The sum of the points whose mean the user sees, and their number.
        self.average: tuple[Vector | None, int] = None, 0
        self.untrained = Untrained() if options._unmodified or options._density else None
        self.graph = None if (mixing := getattr(options, "mixing", None)) is None else Graph(mixing)
        with in_words("these initial arrays cannot be trained", ConfigurationError, passing=()):
            layout = layout_of(arrays, options.arrays.apply_to, options.arrays.pass_through)
            primal, self.passed = model_vector(layout, arrays)
        # A strategy of one's own may do without the option.
        max_bytes = getattr(options, "client_state", choices.Ledger()).max_bytes
        kept = Ledger(self.method.memory, options.weighting == "uniform", layout.size, max_bytes)
        self.ledger = kept if self.method.memory else None
        #: Whether the method needs every client in every round.
        self.everyone = self.method.reads == "everyone"
        self.roll = kept if self.ledger or self.graph or self.everyone else None
        #: Who has connected after the first round of such a method.
        self.late = set[Key]()
        work: Work | None = getattr(options, "work", None)
        self.given = Setting(layout, primal, num_rounds, options.mirror_map, options.regularizer, work)
        self.setting = self.setting_of(self.given, None)
        plan = self.plan_of(self.setting)
        # What is certified is of psi alone: it must know the simplices of h, where twice the start is not.
        maps = getattr(plan.h, "parts", [(slice(None), layout, plan.h)]) if options.certificate_every else []
        for place, alone, h in maps:
            far = primal.copy()
            far[place] *= 2.0
            if isinstance(h, SimplexEntropy) and math.isfinite(plan.psi.value(far)):
                prefix = f"certificate_every={options.certificate_every} beside mirror_map={plan.mirror_map!r}"
                raise ConfigurationError(f"{prefix}: give a Simplex(radius) as psi of {', '.join(alone.names)}")
        self.problem = Problem.of(plan, memories=self.ledger, graph=self.graph, given=self.given)
        self.state: Any = self.method.init(self.problem, primal)
        who = f"{type(self.method).__name__}.init returned"
        if "round" not in getattr(self.state, "_fields", ()):
            raise ConfigurationError(f"{who} {short(self.state)}; expected a NamedTuple with a field `round`")
        for name, value in zip(self.state._fields, self.state, strict=True):
            if name == "dual" and not all_finite(value):
                raise ConfigurationError(f"the start has no finite dual: is it off the domain of {plan.mirror_map!r}?")
            if isinstance(value, np.ndarray) and value.dtype not in (np.float64, np.bool_):
                raise ConfigurationError(f"{who} state.{name} as {value.dtype}; expected float64 or bool")
        self.arrays = arrays
        self.point = primal
        self.watch = Watch(self)
        #: How far the last step of a method with memories has moved the model, relative to its size.
        self.moved = 0.0
        #: Whether the last step has overflowed; whether some parts of the run have followed who has come or gone, and
        #: others have not.
        self.overflowed = self.changing = False
        #: What the last step has replaced, until the next round begins: a hook may take the step back.
        self.earlier: dict[str, Any] = {}
        self.indices: dict[tuple[int, int], NDArray[np.int32]] = {}

    # --- plan and problem -----------------------------------------------------------------------------------------

    def plan_of(self, setting: Setting) -> Plan:
        """Return the plan of a setting.

        Raises
        ------
        ConfigurationError
            If psi and h cannot be combined, or nothing says what a client does.
        """
        options = self.options
        theirs = f"a StepStrategy's, a MinimiseStrategy's or {type(self.method).__name__}.setting's"
        work = checked(f"{type(options).__name__}.work ({theirs})", setting.work, Work)
        dtype = options.wire.dtype or ("auto" if setting.layout.single_network else "float64")
        sent = options_of(self.method) | ({} if options.wire.sparse else {"sparse_wire": False})
        model = self.method.name, setting.layout, setting.regularizer, setting.mirror_map
        plan = Plan(*model, options._scope, work, options.seed, dtype, sent)
        plan.h.require(plan.psi)
        # What cannot travel is an error now, not in the first message.
        assert plan.text
        return plan

    def setting_of(self, given: Setting, state: Any) -> Setting:
        """Return geometry, regularizer, work and rates of a state."""
        found: Any = self.method.setting(given, state)
        who = f"{type(self.method).__name__}.setting(given, state)"
        return found if isinstance(found, Setting) else cast(Setting, checked(who, found, Setting))

    def problem_of(self, setting: Setting) -> Problem:
        """Return the problem of a setting: the present one, unless psi, geometry, layout or work have changed."""
        now = self.setting
        if all(a is b for a, b in zip(setting[:1] + setting[3:6], now[:1] + now[3:6], strict=True)):
            return self.problem
        return self.problem.with_plan(self.plan_of(setting))

    def open(self, number: int) -> None:
        """Settle the numbers of a round.

        Parameters
        ----------
        number : int
            Flower's round, from 1.
        """
        numbers: dict[str, Any] = {name: self._number(name, number) for name in self.rates}
        rates = {key: getattr(self.setting, key) or numbers.get(key, math.nan) for key in ("client_lr", "server_lr")}
        self.problem = self.problem._replace(round=number, numbers=numbers, **rates)

    def _number(self, name: str, number: int) -> float:
        """Return an option that may be ``"auto"`` or a function of the round; NaN for None."""
        value = getattr(self.options, name)
        if value is None:
            return math.nan
        if isinstance(value, str):
            return self.chosen.get(name, AUTOMATIC[name])
        return float(checked(f"{name}({number})", value(number), float, POSITIVE) if callable(value) else value)

    def weight(self, node: Node, examples: float) -> float:
        """Return a client's weight: what it reports, or what the estimators have set for its partition.

        Raises
        ------
        ProtocolError
            If they have set none.
        """
        given: Mapping[int, float] | None = self.options.site_weights
        if given is None:
            return examples
        if node.site not in given:
            raise ProtocolError(f"its partition is {node.partition_id}, which is not one of the fit's")
        return given[node.site]

    @property
    def missing(self) -> list[Node]:
        """Clients that are not connected any more, of a run that asks all in every round."""
        asks_all = self.options.fraction_train == 1.0 and self.options.participation.choose_nodes is None
        return [*self.nodes.gone.values()] if asks_all else []

    @property
    def size(self) -> float:
        """The norm of the model, and 1 at least."""
        return max(1.0, euclidean_norm(self.point))

    def follow(self) -> None:
        """Let the graph or the ledger, and the method, follow who is connected, and answers."""
        roll, patience = self.roll, self.options.participation.evict_after
        changes = list[Change | None]()
        self.changing = True
        if roll is not None and self.graph is not None:
            changes.append(Change(None, math.nan, self.graph.notice(roll.there(self.nodes.ordered, patience))))
        # Who is needed is so from the first round on, also after having left.
        if roll is not None and (not roll.present if self.everyone else self.ledger is not None):
            changes.append(roll.notice(self.nodes.ordered, patience))
        for change in filter(None, changes):
            self.state = self.method.restart(self.problem, self.state, change)
        self.changing = False

    def finished(self) -> str:
        """Return why no further round is needed; an empty string as long as the run goes on."""
        over = self.over
        return str(self.method.metrics(self.problem, self.state).get("finished", "")) if over is None else over

    # --- the model ------------------------------------------------------------------------------------------------

    def given_without(self, untrained: Untrained) -> Setting:
        """Return the user's setting, in whose layout psi leaves alone what nobody trains."""
        given, now = self.given.layout, self.setting.layout
        layout = given.regularizing({*given.regularized_names} - (untrained.names or set()))
        psi = self.given.regularizer
        if isinstance(psi, PerParameter) and untrained.names:
            psi = psi.among(layout.regularized_names)
        return self.given._replace(layout=now if now == layout else layout, regularizer=psi)

    def seen(self, problem: Problem, state: Any, average: tuple[Vector | None, int]) -> Vector:
        """Return the point that the user sees, of a state or a mean of points, rounded to the user's dtypes."""
        found: Any = self.method.retrieve(problem, state)
        if np.shape(found) != (problem.layout.size,):
            who = f"{type(self.method).__name__}.retrieve returned"
            raise ConfigurationError(f"{who} {short(found)}; expected an array of shape ({problem.layout.size},)")
        total, count = average
        output = self.options.output
        if total is not None:
            found = total / count
        elif isinstance(output, choices.Last) and output.nonzeros is not None:
            found = HardSparsity(output.nonzeros).prox(found, 0.0)
        return problem.layout.rounded(found)

    def last(self) -> tuple[Vector, ArrayRecord]:
        """Return the model from which clients train that are sent one: the last point, whatever of it users see."""
        if self.options.output == "last" or self.state.round == 0:
            return self.point, self.arrays
        point = self.problem.layout.rounded(self.method.retrieve(self.problem, self.state))
        return point, model_record(self.problem.layout, point, self.passed)

    def model_message(self, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        """Return the records of a model and of the user's config, as ``FedAvg`` sends them."""
        return RecordDict({self.options.arrayrecord_key: arrays.copy(), self.options.configrecord_key: config.copy()})

    def show(self, point: Vector, passed: Mapping[str, NDArray[Any]]) -> None:
        """Make a point the model that the user sees."""
        self.point, self.arrays = point, model_record(self.problem.layout, point, passed)

    def take(self, arrays: ArrayRecord, who: str) -> None:
        """Go on from a model that somebody has changed: from a state whose point it is.

        Parameters
        ----------
        arrays : ArrayRecord
            What ``configure_train`` was given.
        who : str
            Begins the error.

        Raises
        ------
        ConfigurationError
            If it is no model, or no state has this point.
        """
        if arrays == self.earlier.get("arrays"):
            vars(self).update(self.earlier)
            return
        with in_words(f"{who} arrays that are no model", ConfigurationError, passing=()):
            point, passed = model_vector(self.problem.layout, arrays)
        state = self.method.init(self.problem, point) if self.state.round == 0 else self._state_of(point, who)
        vars(self).update(state=state, passed=passed, point=point, arrays=arrays.copy())

    def _state_of(self, point: Vector, who: str) -> Any:
        """Return the state whose point this is: one with the dual of the entries that have changed moved along."""
        name = next((name for name in ("dual", "primal") if name in self.state._fields), "")
        if not name or self.averages or not (self.ledger is None and self.graph is None and self.privacy is None):
            prefix = f"{who} another model than {type(self.options).__name__} returned, and it cannot go on from one"
            why = "what its clients remember, a graph, noise or an average belongs to the model of before"
            raise ConfigurationError(f"{prefix}: {why}. Change what clients send, or take FedDualAvg without these")
        layout, h = self.problem.layout, self.problem.h
        now = self.method.retrieve(self.problem, self.state)
        changed = point != self.point
        target = np.where(changed, point, now)
        # h and psi are alike on both sides of 0.
        side = np.where(now * target < 0.0, -1.0, 1.0)
        before, now = side * getattr(self.state, name), side * now
        value, dual = before.copy(), h.gradient(target)
        moved = value - h.gradient(now) + dual if name == "dual" else target
        # An entry that becomes 0 lies on the edge of psi's threshold; a dual of 0 is sure to stay there.
        value[changed] = np.where(target == 0.0, 0.0, moved)[changed]
        for attempt in range(3):
            state = self.state._replace(**{name: value})
            found = self.method.retrieve(self.problem, state)
            if np.all(np.abs(found - target) <= 1e-12 * np.maximum(np.abs(target), np.abs(value))):
                return state
            # Along a ridge a point moves by less than its dual: by how much, the last try has shown.
            kept = changed & (found != now) & (found * now != 0.0)
            slope = np.divide(value - before, found - now, out=np.zeros_like(value), where=kept)
            # Where psi keeps so many entries, others come up in the place of those that have become 0.
            before, now, value = value, found, np.where(target == 0.0, 0.0, value + slope * (target - found))
            for place, _, part in self.problem.psi.parts if attempt == 1 else ():
                # What it allows is the point of this dual, whatever the other entries are.
                value[place] = dual[place] if part.constraint else value[place]
        worst = int(np.abs(found - target).argmax())
        name = layout.entry_at(worst).name
        there = f"in {name!r} an entry would be {found[worst]:.6g}, not {target[worst]:.6g}"
        why = "An entry that psi has made 0 must stay 0 (noise on it would vanish, and a privacy claim with it)"
        advice = f"Change others, or what clients reply; or regularizer=PerParameter({{{name!r}: Zero()}})"
        text = f"{who} a model that is the primal point of no dual near the present one: {there}"
        raise ConfigurationError(f"{text}. {why}, and a constraint must hold. {advice}")


# --- the model that the user sees, and what psi promises of it -------------------------------------------------------


class Untrained:
    """Arrays that no client has moved yet: they pass through until one does, as frozen layers of a ``state_dict``.

    psi leaves them alone, and the method does not change what nobody has moved.

    Attributes
    ----------
    names : set of str or None
        None before the first round.
    """

    saved = ("names", "idle")

    def __init__(self) -> None:
        self.names: set[str] | None = None
        #: Rounds in a row in which nothing has moved.
        self.idle = 0

    def observe(self, layout: Layout, uplinks: Sequence[Uplink]) -> None:
        """Take note of what the clients of a round have moved.

        Parameters
        ----------
        layout : Layout
            The user's.
        uplinks : sequence of Uplink
            The replies that count.
        """
        entries = [entry for entry in layout.optimized if entry.size]
        increments = [dense(up.vectors["increment"]) for up in uplinks]
        still = {entry.name for entry in entries if not any(part[entry.block].any() for part in increments)}
        self.idle = self.idle + 1 if len(still) == len(entries) else 0
        if self.idle == 2:
            logger.warning("the clients return the model that they were sent: in 2 rounds nobody trained any array")
        before = self.names
        self.names = still if self.names is None else self.names & still
        if before is None and still:
            logger.info("no client has trained %s: they stay as they are until one does", listed(sorted(still)))
        elif moved := (before or set()) - still:
            logger.info("clients train %s now", listed(sorted(moved)))


def structure(psi: BoundRegularizer, w: Vector, given: Layout) -> dict[str, int | float]:
    """Return density, rank and feasibility of a model, as far as psi is about them.

    Parameters
    ----------
    psi : BoundRegularizer
        On the flat vector.
    w : ndarray of float64, shape (d,)
        The model.
    given : Layout
        The user's: the density is also about arrays that psi is to act on once somebody trains them.
    """
    if isinstance(psi.regularizer, Zero):
        return {}
    acted_on = {*psi.layout.regularized_names}
    still = [w[entry.block] for entry in given.optimized if entry.regularized and entry.name not in acted_on]
    nonzero = sum(int(np.count_nonzero(part)) for part in still)
    size = sum(part.size for part in still)
    numbers: dict[str, int | float] = {"density": nonzero / size} if size and not psi.parts else {}
    for place, shape, regularizer in psi.parts:
        part = w[place]
        if isinstance(regularizer, Zero) or not part.size:
            continue
        array = (part if psi.layout.double else part.astype(np.float32)).reshape(shape)
        if regularizer.of_values() is not None:
            sigma = np.linalg.svd(matrix := regularizer.matrix(array), compute_uv=False)
            # Above the rounding of the largest.
            noise = 64.0 * float(np.finfo(matrix.dtype).eps) * max(matrix.shape) * float(sigma.max(initial=0.0))
            numbers["rank"] = max(numbers.get("rank", 0), int((sigma > noise).sum()))
        else:
            nonzero = nonzero + int(np.count_nonzero(part))
            size = size + part.size
            numbers["density"] = nonzero / size
        if regularizer.constraint:
            numbers["feasible"] = int(bool(numbers.get("feasible", 1)) and math.isfinite(regularizer.value(array)))
    return numbers


def average_metrics(reports: Sequence[Mapping[str, Any]], weights: Sequence[float], mean: Mean) -> dict[str, Any]:
    """Return the weighted means of what more than half of the clients report, in the same form.

    Parameters
    ----------
    reports : sequence of mapping of str to number or list
        One for each client.
    weights : sequence of float
        Of any sum: what some do not report is the mean of the others.
    mean : Mean
        The strategy's centre.
    """
    means: dict[str, Any] = {}
    for name in dict.fromkeys(name for report in reports for name in report):
        pairs = [(report[name], share) for report, share in zip(reports, weights, strict=True) if name in report]
        # None of a number: 0 is an empty list's.
        forms = [len(value) if isinstance(value, list) else None for value, _ in pairs]
        form = Counter(forms).most_common(1)[0][0]
        pairs = [pair for pair, own in zip(pairs, forms, strict=True) if own == form]
        shares = replies.weights_of([share for _, share in pairs], uniform=False)
        if 2 * len(pairs) <= len(reports) or not shares:
            continue
        if all(value == pairs[0][0] for value, _ in pairs):
            means[name] = pairs[0][0]
        elif form is None:
            means[name] = mean.of_numbers([value for value, _ in pairs], shares)
        else:
            means[name] = [mean.of_numbers([value[k] for value, _ in pairs], shares) for k in range(form)]
    if lost := sorted({name for report in reports for name in report} - means.keys()):
        logger.warning("the means lack what few clients, or none with a weight, report in one form: %.200r", lost)
    return means


# --- the watch over the model ----------------------------------------------------------------------------------------


class Watch:
    """Looks at the model after each round.

    The norm is compared with the largest of those of the initial model and of the model after the first round that
    counted, and sqrt(d), coefficients of size 1. That first round may find the model's units: it ends below 1e30.

    Parameters
    ----------
    run : Run
        The run.

    Attributes
    ----------
    good : (ndarray, dict of str to ndarray)
        The last good model, of round `good_round`: its point, and its arrays that pass through.
    """

    saved = ("scale", "good", "good_round", "over")

    def __init__(self, run: Run) -> None:
        self._run = run
        self.scale = max(math.sqrt(run.point.size), euclidean_norm(run.point))
        self.good = run.point, run.passed
        self.over = False
        self.good_round = self._too_long = self._malformed = self._alone = 0

    def look(self, number: int, replied: int, *, skipped: bool, metrics: Mapping[str, Any]) -> None:
        """Look at a round.

        Parameters
        ----------
        number : int
            Flower's round, from 1.
        replied : int
            Number of good replies.
        skipped : bool
            Whether the state stays as it was.
        metrics : mapping of str to number
            Of the round, which belong to the result of a run that ends with it.

        Raises
        ------
        DivergedError
            If the run has diverged, and the strategy does not only warn.
        NothingTrainedError
            If no client's replies can ever count.
        """
        run = self._run
        if self.over:
            return
        end = partial(self._end, number, metrics)
        left_out = run.current.left_out if run.privacy is None else 0
        reasons = [row.reason for row in run.left_out[-left_out:] if row.round == number] if left_out else []
        # One liar is no half of three, and without half of the clients the others go astray.
        half = 2 * sum(replies.TOO_LONG in reason for reason in reasons) >= max(replied + len(reasons), 3)
        self._too_long = self._too_long + 1 if half else 0
        overflows = [NOT_FINITE in own or "overflows" in own for own in reasons if not replied]
        together = all(overflows) and (len(overflows) > 1 or len(run.nodes.ordered) == 1)
        self._alone = (_MOST_ALONE if together else self._alone + 1) if any(overflows) else 0
        if self._too_long >= _IN_A_ROW:
            end("the increments of half of the clients or more are far longer than at first")
        elif not skipped:
            norm = euclidean_norm(run.point)
            if run.state.round == 1 and norm < _ABSURD:
                self.scale = max(self.scale, norm)
            if norm <= _GOOD * self.scale:
                self.good, self.good_round = (run.point, run.passed), number
            # A method whose steps each lower the objective may go far.
            if not norm <= _TOO_LARGE * self.scale and not run.method.discloses:
                end(f"the norm of the model is {norm:.2g}; it was {self.scale:.2g} in the first rounds")
        elif run.overflowed:
            end("the update overflows")
        elif self._alone >= _MOST_ALONE:
            end("the local steps of all clients overflow", locally=True)
        hopeless = not replied and 0 < run.current.malformed == run.current.left_out
        self._malformed = self._malformed + 1 if hopeless and run.state.round == 0 else 0
        if self._malformed >= _IN_A_ROW:
            text = f"no client's reply can count, in {_IN_A_ROW} rounds in a row: {run.left_out[-1].reason}"
            raise NothingTrainedError(f"{type(run.options).__name__}: {text}", result=self._result(number, metrics))

    def _end(self, number: int, metrics: Mapping[str, Any], reason: str, *, locally: bool = False) -> None:
        run = self._run
        text = f"{type(run.options).__name__} diverged in round {number}: {reason}. {advice_on(run, locally)}"
        if locally and run.state.round == 0:
            text += " NaN in the data, or in a loss of one's own, looks the same."
        if run.options.on_divergence == "warn":
            logger.warning('%s The run goes on (on_divergence="warn").', text)
            self.over = True
            return
        result = self._result(number, metrics)
        result.arrays = model_record(run.given.layout, *self.good)
        node, times = run.cap.far
        # Of a private run's replies nothing is said.
        if times >= _MUCH and run.privacy is None:
            text += f" The last reply of {node} moves the model {times:.3g} times as far as the median client's: if it"
            text += " lies, run without it, or with a robust aggregation (docs/how-to/robustness.md)."
        text += f" The last good model, of round {self.good_round}, is the error's `arrays`, the rounds so far are its"
        text += ' `result`; on_divergence="warn" goes on'
        raise DivergedError(text, server_round=number, result=result, good_round=self.good_round)

    def _result(self, number: int, metrics: Mapping[str, Any]) -> Result:
        self._run.result.train_metrics_clientapp[number] = MetricRecord(dict(metrics))
        return self._run.result


def advice_on(run: Run, locally: bool) -> str:
    """Return the rate that was too large, and advice."""
    options: Any = run.options
    client_lr, server_lr = run.problem.client_lr, run.problem.server_lr
    scale, too = "or scale the features and targets", "is too large for these data; try"
    if options._unmodified:
        return "The rate of the clients' own training is too large for these data, or that of the server; lower them."
    if isinstance(nu := getattr(options, "nu", None), float):
        return f"nu={nu:g} {too} {nu / 10:g}, alpha > 0 if a loss is not strongly convex, {scale}."
    if math.isnan(client_lr):
        return f"Its steps are too large for these data: lower its rates, {scale}."
    if getattr(options, "client_lr", None) == AUTO:
        return f"client_lr={client_lr:g} is what theory says of the clients' losses: give a smaller one, {scale}."
    if locally:
        return f"client_lr={client_lr:g} {too} {client_lr / 10:g}, or fewer local steps."
    with_server = "" if math.isnan(server_lr) else f" with server_lr={server_lr:g}"
    first = "server_lr=1 first, then " if server_lr > 1.0 else ""
    return f'client_lr={client_lr:g}{with_server} {too} client_lr="auto", or {first}client_lr={client_lr / 10:g}.'
