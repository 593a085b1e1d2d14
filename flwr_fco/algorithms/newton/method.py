"""A federated proximal Newton method on a working set.

For Phi(w) = F(w) + psi(w), F = sum_m p_m F_m, with w the point, W the working set (a set of coordinates)::

    server: w = trial = the user's start
    each round, every client, at the trial point and with W: loss, gradient, the Hessian's block on W (a triangle) and
        two numbers of the conjugate; in the first round also its column means, the largest mean square of a column and,
        unless w = 0, A'y/n
    server: sums of all of these with the clients' weights
        lower <- max(lower, the dual's value at a point made of the same sums);  gap = Phi(trial) - lower
        if Phi(trial) > Phi(w) + 1e-4 step slope:  shorten the step, by half at least, with the gradient at its end
        w <- trial, step <- 1
        x = argmin over the coordinates of W of <gradient, x - w> + 1/2 (x - w)' block (x - w) + psi(x)
        trial <- x,  slope <- <gradient, x - w> + psi(x) - psi(w)
        W <- the non-zeros of x, all coordinates that psi leaves alone, and those that violate optimality at x most

A round is one exchange: gradient and block ride in one message, because W is chosen from the gradient before. The
iterates are those of the centralised method on the pooled data, whatever the clients' data are.

Squares need no line search, because the model is the loss. The null model: if all coefficients begin at 0, the best
intercept b and the gradient there are known from the first round; of two classes also the Hessian, which is that at
b = 0 times 4 q (1 - q). Then the first step begins there.

``hessian="none"`` asks for no block: what gradients have shown of the Hessian takes its place (:class:`QuasiNewton`).

Differs from the paper in: 1. the subproblem is solved on a working set, which grows with the number of non-zeros, and
to rounding instead of to an adaptive tolerance, because a sweep on the server costs nothing next to a round; 2. each
trial of the line search is an exchange, whose gradient says by how much to shorten a step that is too long.

References: Lee, Sun, Saunders: Proximal Newton-type methods for minimizing composite functions (SIAM J. Optim. 2014),
algorithm 1. Massias, Gramfort, Salmon: Celer, a fast solver for the lasso with dual extrapolation (ICML 2018), the
working sets. Ndiaye, Fercoq, Gramfort, Salmon: Gap safe screening rules for sparsity enforcing penalties (JMLR 2017),
the dual points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import Algorithm, Client, Memory, Moved, Problem, Rejected, Replies, Sent, Setting, To
from flwr_fco.algorithms.newton import asking, model
from flwr_fco.algorithms.newton.asking import NOTHING, UNKNOWN, Known, Restart, handed_out
from flwr_fco.algorithms.newton.model import SINGULAR, Flags, Indices, Matrix, unpacked, whole_groups
from flwr_fco.certificates import FACTORS, FACTS, NUMBERS, check_hessian, free_intercepts
from flwr_fco.core.computing import logger
from flwr_fco.core.layout import Layout, NonZeros, Vector
from flwr_fco.errors import ConfigurationError, ProtocolError, SeparableError
from flwr_fco.messages.protocol import Downlink, Uplink
from flwr_fco.objectives.base import num_intercepts
from flwr_fco.work import Evaluation

#: Fraction of the predicted decrease that a step must reach, and what is left of a step at least.
_SUFFICIENT = 1e-4
_SHORTENED = 1e-9
#: By how much an objective may be below a bound of it, relative.
_CONTRADICTION = 1e-11
#: Rounding error of an objective, relative to its size.
_EPSILON = 1e-15
#: By how much a step must lower the gap where it lowers the objective by rounding only.
_LESS = 0.5
#: Ratio of events to expected ones that is rounding.
_NO_EVENTS = 1e-12
#: Ratio to its start below which the unpenalised block's smallest eigenvalue says that the classes are separable.
_SEPARABLE = 1e-6
#: Share of the largest effect on predictions above which a coefficient is named, and so many are.
_PART = 0.1
_SHOWN = 10


class Block(NamedTuple):
    """The Hessian on some coordinates.

    Parameters
    ----------
    on : ndarray of int64, shape (k,)
        The coordinates, ascending.
    hessian : ndarray of float64, shape (k, k)
        The Hessian on them.
    """

    on: Indices
    hessian: Matrix


class NewtonState(NamedTuple):
    """State of the proximal Newton method; of a path, that of each problem in rows, and more.

    Parameters
    ----------
    point : ndarray of float64, shape (d,)
        w, the best point whose objective is known.
    trial : ndarray of float64, shape (d,)
        The point that the clients are asked about next.
    mask : ndarray of bool, shape (d,)
        Which coordinates are in the working set.
    columns, targets : ndarray of float64, shape (d,)
        A'1/n and A'y/n of the pooled data.
    facts : ndarray of float64, shape (5,)
        What the clients' losses agree on; -1 each if they do not.
    proved : ndarray of float64, shape (d,)
        1.0 for each coefficient that is proved zero in every optimum; not of a path's.
    references : ndarray of float64
        Further dual points of losses that need them for their intercepts.
    square : float
        The weighted mean of each client's largest mean square of a column.
    objective : float
        Phi(point).
    lower : float
        The largest lower bound of min Phi so far.
    residual : float
        ||w - prox(w - gradient)|| at the point.
    slope : float
        Predicted decrease of a whole step, at most 0.
    step : float
        Step size of the trial point.
    curvature : float
        Smallest eigenvalue of the Hessian on the coordinates that psi leaves alone, at the first point, in `units`.
    population : float
        A digest of the clients and their weights, whose sums the bounds are about; -1 before the first round.
    since : float
        Steps since the gap, or the residual, was last halved.
    stalled : float
        1.0 if no step decreases the objective by more than its rounding error.
    round : int
        Number of successful rounds.
    pairs, gradient : ndarray of float64, shapes (2, k, d) and (d,)
        Of :class:`QuasiNewton`: moves and changes of the gradient, and the gradient at the point.
    units : ndarray of float64, shape (d,)
        Roots of the first point's curvatures of the coordinates of `curvature`; 0 of all others, and of those that
        depend on them.
    strengths, status, wanted, held, hessians, precise, gradients, shares, held_out : ndarray
        Of :class:`~flwr_fco.algorithms.newton.path.PathState`.
    """

    point: Vector
    trial: Vector
    mask: Flags
    columns: Vector
    targets: Vector
    facts: Vector
    proved: Vector
    references: Vector
    square: Any = UNKNOWN
    objective: Any = UNKNOWN
    lower: Any = -UNKNOWN
    residual: Any = UNKNOWN
    slope: Any = 0.0
    step: Any = 1.0
    curvature: Any = 0.0
    population: Any = -1.0
    since: Any = 0.0
    stalled: Any = 0.0
    round: int = 0
    pairs: Matrix = NOTHING
    gradient: Vector = NOTHING
    units: Vector = NOTHING
    strengths: Vector = NOTHING
    status: Vector = NOTHING
    wanted: Any = NOTHING
    held: Any = NOTHING
    hessians: Vector = NOTHING
    precise: Any = NOTHING
    gradients: Matrix = NOTHING
    shares: Matrix = NOTHING
    held_out: Matrix = NOTHING

    @property
    def left(self) -> tuple[str, float]:
        """What is left to the optimum, by its name: the duality gap, or else the residual; at first UNKNOWN."""
        gap = max(0.0, float(self.objective - self.lower))
        return ("duality-gap", gap) if self.lower > -UNKNOWN else ("residual", float(self.residual))


@dataclass(frozen=True, kw_only=True)
class ProximalNewton(Algorithm):
    """Proximal Newton steps on a working set, from sums of the clients' gradients and Hessian blocks.

    Parameters
    ----------
    tolerance : float, default 1e-8
        Duality gap at which the run ends.
    smallest : int, default 100
        The smallest size of a working set.

    References
    ----------
    Lee, Sun, Saunders: Proximal Newton-type methods for minimizing composite functions (SIAM J. Optim. 2014).

    Examples
    --------
    >>> ProximalNewton.reads, dict(ProximalNewton.discloses)
    ('everyone', {'gradient': 'derivatives', 'block': 'derivatives'})
    """

    name, reads = "proximal_newton", "everyone"
    refuses: ClassVar[Mapping[str, str]] = {"mirror_map": "takes steps in the metric of the Hessian"}
    discloses: ClassVar[Mapping[str, Any]] = {"gradient": "derivatives", "block": "derivatives"}
    #: Steps in a row that neither lower the objective's digits nor halve the gap, after which none will.
    patience: ClassVar[int] = 1

    tolerance: float = 1e-8
    smallest: int = model.LEAST

    # --- a client -------------------------------------------------------------------------------------------------

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Return loss, gradient and the Hessian's block at the server's point; at first also what never changes."""
        vectors, objective = downlink.vectors, client.objective
        ((w, on),) = asking.parted(vectors, "primal", objective.layout.size)
        if "working-set" in vectors:
            ((_, on),) = asking.parted(vectors, "working-set", objective.layout.size)
        return asking.shortened(asking.answer(objective, w, bool(downlink.numbers["first"]), on)), Moved(None, 1)

    # --- the server -----------------------------------------------------------------------------------------------

    def setting(self, given: Setting, state: Any) -> Setting:
        """Return the user's, with one evaluation as the work."""
        return given._replace(work=Evaluation())

    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before round 1, at the user's start or the point of psi's domain next to it."""
        psi, zeros = problem.psi, np.zeros(primal.size)
        if psi.sums.others:
            needs = "a proximal Newton step needs l1, elastic net, l2, boxes, group lasso or none"
            advice = "alone or by PerParameter; take FedDAGT, which needs psi's proximal map only"
            raise ConfigurationError(f"regularizer={psi.regularizer!r}: {needs}, {advice}")
        start = handed_out(problem.layout, primal if math.isfinite(psi.value(primal)) else psi.prox(primal, 0.0))
        mask = whole_groups((start != 0.0) | psi.free_coordinates() | (primal.size <= self.smallest), psi)
        rows = np.zeros(asking.shapes_of_first(problem.layout, True).get("references", 0))
        return NewtonState(start, start, mask, zeros, zeros, np.full(FACTS, -1.0), zeros, rows, units=zeros)

    def downlink(self, problem: Problem, state: Any, to: To | None) -> Downlink:
        """Return the trial point at the coordinates of the working set; where it is not 0 elsewhere, both apart."""
        vectors: dict[str, Any] = {"primal": asking.laid_out(state.mask, state.trial)}
        if state.trial[~state.mask].any():
            vectors = {"primal": NonZeros.of(state.trial)}
            vectors["working-set"] = asking.laid_out(state.mask, np.ones_like(state.trial))
        return Downlink(problem.plan, vectors, numbers={"first": float(state.population < 0.0)})

    def shapes(self, problem: Problem, state: Any) -> dict[str, tuple[int, ...]]:
        """Return the shapes of gradient, block and terms; of the first round also of what never changes."""
        k = int(state.mask.sum())
        once = asking.shapes_of_first(problem.layout, not state.trial.any()) if state.population < 0.0 else {}
        return {"gradient": state.trial.shape, "terms": (NUMBERS,), "block": (k * (k + 1) // 2,), **once}

    def aggregate(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state after what the clients say is checked by its meaning, and the method's step taken.

        Raises
        ------
        Rejected
            If a reply cannot be.
        """
        answers = []
        for uplink in replies:
            try:
                answers.append(self._read(problem, state, uplink))
            except ProtocolError as error:
                raise Rejected(uplink, str(error)) from error
        try:
            return self._after(problem, state, answers)
        except Restart as error:
            logger.warning("%s", error)
            return self.init(problem, self.retrieve(problem, state))._replace(round=state.round + 1)

    def _read(self, problem: Problem, state: Any, uplink: Uplink) -> Any:
        """Return a reply; a ProtocolError says why it cannot be, by its conjugates or a Hessian's entries."""
        vectors = asking.checked(problem.layout, state, uplink, self.tolerance)
        if "block" in vectors:
            count = state.trial.size - num_intercepts(problem.layout)
            check_hessian(unpacked(vectors["block"]), np.flatnonzero(state.mask), vectors, count)
        return uplink

    def _after(self, problem: Problem, state: Any, answers: list[Any]) -> Any:
        """Return the state after a step with the mean of the clients' Hessians on the working set."""
        replies = Replies(answers)
        return self._step(problem, state, replies, Block(np.flatnonzero(state.mask), unpacked(replies.sum("block"))))

    def _step(self, problem: Problem, state: Any, replies: Replies, block: Block) -> Any:
        """Return the state after the trial point is known: a shorter step, or the next Newton step with a Hessian."""
        state, known = asking.opened(state, problem.psi, replies)
        before, psi, w = state, problem.psi, state.trial
        objective = known.reported.loss + psi.value(w)
        rounding = _EPSILON * (1.0 + abs(objective))
        if objective > state.objective + _SUFFICIENT * state.step * state.slope + rounding:
            return self._shortened(problem, state, known, objective)
        found, slopes = known.dual(state)
        lower = max(state.lower, found)
        self._check_bound(objective, lower)
        proved = np.maximum(state.proved, known.zeros(objective, found, slopes, state))
        residual = float(np.linalg.norm(w - psi.prox(w - known.gradient, 1.0)))
        state = state._replace(point=w, objective=objective, lower=lower, proved=proved, residual=residual)
        # Near the optimum a step that no longer lowers the objective's digits still lowers the gap.
        since = 0.0 if state.left[1] < _LESS * before.left[1] else before.since + 1.0
        state = state._replace(since=since, stalled=0.0, step=1.0, round=state.round + 1)
        if since >= self.patience and before.step < 1.0 and objective >= before.objective - rounding:
            # Nor does any shorter one: the next search would end as this one did.
            return state._replace(trial=w, stalled=1.0)
        x, gradient, share = w.copy(), known.gradient.copy(), 1.0
        if before.objective == UNKNOWN and state.facts[0] >= 0.0 and free_intercepts(psi):
            share = _null_model(known, state, x, gradient)
        if block.hessian.size:
            state = _watched(state, known, block, self.tolerance)
        self._minimised(state, known, block, x, gradient, share)
        x = handed_out(problem.layout, x)
        mask = model.working_set(x, gradient, psi, self.smallest, known.outputs)
        slope = min(0.0, float(known.gradient @ (x - w)) + psi.value(x) - psi.value(w))
        nothing = np.array_equal(mask, state.mask) and -slope <= 0.1 * _EPSILON * abs(objective)
        stalled = nothing and (since >= self.patience or np.array_equal(x, w))
        return state._replace(trial=x, mask=mask, slope=slope, stalled=float(stalled))

    def _check_bound(self, objective: float, lower: float) -> None:
        """Raise a Restart if an objective is below a bound of it."""
        # What is below the tolerance is none: the bound of an exact fit is rounding, however small the objective.
        if objective < lower - _CONTRADICTION * (abs(objective) + abs(lower)) - self.tolerance:
            prefix = f"The objective, {objective:.9g}, is below a lower bound of it from another exchange, {lower:.9g}"
            why = "a client's answers contradict each other. What is known is dropped, and clients are asked again"
            raise Restart(f"{prefix}: {why}")

    def _shortened(self, problem: Problem, state: Any, known: Known, objective: float) -> Any:
        """Return the state with a trial point nearer to the best one.

        The tangents at both ends meet where a piecewise linear function would have its minimum: half of the step, or
        there if that is less. A whole step from where all probabilities are 0 or 1 can be many powers of ten too long.
        """
        psi = problem.psi
        move = state.trial - state.point
        begin = state.step * state.slope
        end = float(known.gradient @ move) + psi.value(state.trial) - psi.value(state.point)
        if state.facts[0] > 0.0:
            # A convex function is above its tangents.
            self._check_bound(state.objective, objective - end)
        meet = (objective - state.objective - end) / (begin - end) if end > begin else 0.5
        factor = min(max(meet, _SHORTENED), 0.5)
        trial = handed_out(problem.layout, state.point + factor * move)
        same = np.array_equal(trial, state.point) or np.array_equal(trial, state.trial)
        state = state._replace(mask=whole_groups(state.mask | (trial != 0.0), psi), round=state.round + 1)
        return state._replace(trial=trial, step=factor * state.step, stalled=float(same))

    def _minimised(self, state: Any, known: Known, block: Block, x: Vector, gradient: Vector, share: float) -> None:
        """Make x the minimiser of the model at x, and the gradient that there as far as it is known.

        The clients' block is that of a point at which it is `share` times as small as at x; 0 if it says nothing of x.
        """
        on, hessian = block
        if on.size and share:
            ridge = known.reported.l2 * (on < x.size - num_intercepts(known.psi.layout))
            hessian = share * hessian + np.diag((1.0 - share) * ridge)
            own = model.minimise_model(hessian, gradient[on], x[on], known.psi.sums.at(on))
            gradient[on] += hessian @ (own - x[on])
            x[on] = own

    # --- what else it says ----------------------------------------------------------------------------------------

    def retrieve(self, problem: Problem, state: Any) -> Vector:
        """Return the best point whose objective is known."""
        return np.asarray(state.point)

    def metrics(self, problem: Problem, state: Any) -> dict[str, Any]:
        """Return the objective, the duality gap or else the residual, the size of the working set, and why it ends."""
        count = len(problem.asked)
        over = asking.finished(state, self.tolerance, f"the data of {count} clients" if count else "all clients' data")
        known = {"objective": state.objective, **dict([state.left])} if state.objective < UNKNOWN else {}
        own = {"working-set": int(state.mask.sum()), "step": state.step}
        return known | own | ({"finished": over} if over else {})


def _watched(state: Any, known: Known, block: Block, tolerance: float) -> Any:
    """Return the state with the curvature at the first point of the coefficients that psi leaves alone.

    Raises
    ------
    ConfigurationError
        If it falls to nothing: these coefficients grow without end, because the classes are separable along them.
    """
    (on, hessian), indices, outputs = block, np.arange(state.point.size), known.outputs
    # A common change of all classes' coefficients has no effect.
    one = (outputs == 1) | (indices % outputs < outputs - 1)
    alone = known.psi.free_coordinates() & (known.reported.l2 == 0.0) & one
    idle = alone & (indices < indices.size - num_intercepts(known.psi.layout))
    here, levels = (np.flatnonzero(own[on]) for own in (idle, alone & ~idle))
    # Of some of them the smallest eigenvalue is another one.
    if not here.size or here.size < np.count_nonzero(idle):
        return state
    # About the levels' best values: a column of 1 and 2 is one of 0 and 1, and dummies of all levels are dependent.
    crossed = hessian[np.ix_(levels, here)]
    spread = hessian[np.ix_(here, here)] - crossed.T @ np.linalg.lstsq(hessian[np.ix_(levels, levels)], crossed)[0]
    if not state.units.any():
        # 0 where there is no curvature of its own beside others.
        units, own = np.zeros(state.units.size), np.sqrt(hessian.diagonal()[here])
        own[model.factor_of(spread, own, SINGULAR)[1]] = 0.0
        units[on[here]] = own
        state = state._replace(units=units)
    units = state.units[on[here]]
    own = units > 0.0
    here, units = here[own], units[own]
    spectrum = np.linalg.eigvalsh(spread[np.ix_(own, own)] / np.outer(units, units))
    smallest, top = (float(spectrum[k]) if here.size else 0.0 for k in (0, -1))
    if state.curvature == 0.0:
        return state._replace(curvature=smallest if smallest > SINGULAR * top else -1.0)
    if state.curvature < 0.0 or not smallest < _SEPARABLE * state.curvature:
        return state
    # What grows without end is what a Newton step still moves; all else has come to rest.
    free, step = np.sort(np.append(here, levels)), np.zeros(on.size)
    at = hessian[np.ix_(free, free)], known.gradient[on[free]], np.zeros(free.size), known.psi.sums.at(on[free])
    step[free] = model.minimise_model(*at)
    if not -float(known.gradient[on] @ step) > tolerance:
        return state
    effects = np.abs(step[here]) * np.sqrt(np.abs(spread.diagonal()[own]))
    along = on[here[effects > _PART * effects.max()]]
    prefix = f"the outcome is separable along coefficients that psi leaves alone, {_named(known.psi.layout, along)}"
    largest = f"the largest of them is {np.abs(state.point[on[here]]).max():.3g} and grows without end (the curvature"
    fallen = f"has fallen from {state.curvature:.3g} to {smallest:.3g}), so the loss has no minimum"
    advice = "Let psi act on them, or add an l2 term to the losses"
    raise SeparableError(f"{prefix}: {largest} {fallen}. {advice}", indices=along.tolist())


def _named(layout: Layout, indices: Indices) -> str:
    """Return the first coordinates by their arrays, as a text."""
    pairs = [(layout.entry_at(k), k) for k in indices[:_SHOWN].tolist()]
    names = ", ".join(f"{entry.name}[{k - entry.offset}]" for entry, k in pairs)
    return names + " and more" * (indices.size > _SHOWN)


#: Of losses of predictions that are the same for all examples: the intercept whose mean prediction is q, or whose
#: shares of classes are, and how the Hessian there is to that at 0; 0 if it is none.
_LEVELS: dict[str, Callable[[Vector], tuple[Any, float]]] = {
    "identity": lambda q: (q, 1.0),
    "poisson": lambda q: (math.log(q[0]), float(q[0])),
    "logistic": lambda q: (math.log(q[0] / (1.0 - q[0])), float(4.0 * q[0] * (1.0 - q[0]))),
    "softmax": lambda q: (np.log(q) - np.log(q).mean(), 0.0),
}


def _null_model(known: Known, state: Any, x: Vector, gradient: Vector) -> float:
    """Make x the best point of an intercept alone, and the gradient that there; return its Hessian beside that at 0.

    That is a factor, as far as losses are about predictions that are the same for all examples; 0 if it is none. Of
    other losses, and where a run does not begin at 0, all is as it is.
    """
    size, outputs, name = x.size, known.outputs, known.reported.name
    mean = state.targets[size - outputs :]
    if name in FACTORS:
        mean = known.shares(state.targets)[-outputs:]
    elif name == "poisson":
        mean = mean / state.columns[-1]
        # Wherever it begins, counts that are all 0 have no model.
        if not mean[0] > _NO_EVENTS:
            ratio = f"{max(0.0, mean[0]):.1g} times what the offsets, or exposures, alone expect"
            why = "Without a count above 0 the loss has no minimum: look at the counts, or make psi act on the"
            advice = "intercept (arrays=Arrays(apply_to=...)). Otherwise subtract a constant from all offsets"
            raise ConfigurationError(f"all counts are 0, or as good as 0: {ratio}. {why} {advice}, which it takes up")
    if x.any() or name not in _LEVELS or (name == "softmax" and state.mask.all()):
        return 1.0
    x[size - outputs :], share = _LEVELS[name](mean)
    gradient[:] = (known.reported.scale or 1.0) * (np.tile(mean, size // outputs) * state.columns - state.targets)
    return share


# --- without a block -------------------------------------------------------------------------------------------------

#: Pairs that are kept for a smooth psi and for another one, and for a large model; the numbers that they may take.
_SMOOTH = 20
_MANY = 60
_FEW = 10
_NUMBERS = 2**22
#: Curvature of a pair that is none, relative to the largest.
_FLAT = 1e-14


@dataclass(frozen=True, kw_only=True)
class QuasiNewton(ProximalNewton):
    """Proximal quasi-Newton steps, one exchange each, from sums of the clients' gradients.

    At each point the clients send loss and gradient. With the last pairs of a move s and the change y of the gradient,
    the Hessian is approximated by

        B = sigma I + sum_i y_i y_i' / s_i'y_i - b_i b_i' / s_i'b_i,    b_i = B_i s_i,

    B_i that of the pairs before (BFGS). sigma is at first that of Polyak's step; then s'y / s's of the last pair, or
    where psi has no kink and no bound y'y / s'y, which is larger: with it an l1 norm's coordinates enter slowly (two to
    five times the rounds on wide data), and without it a ridge's steps are too long (four times).

    All else is as with a block: the model with B in its place is minimised on the working set, or of a smooth psi on
    all coordinates, by one solution of a system as small as the pairs are many. A step that is too long is shortened,
    and its exchange is a pair as well.

    Parameters
    ----------
    tolerance : float, default 1e-8
        Duality gap at which the run ends.

    References
    ----------
    Nocedal: Updating quasi-Newton matrices with limited storage (Math. Comp. 1980). Nocedal, Wright: Numerical
    optimization (2006), section 7.2, the sums. Lee, Sun, Saunders: Proximal Newton-type methods for minimizing
    composite functions (SIAM J. Optim. 2014), section 2.1, proximal quasi-Newton steps.
    """

    name = "quasi_newton"
    refuses: ClassVar[Mapping[str, str]] = {"mirror_map": "takes steps in a metric that it finds"}
    discloses: ClassVar[Mapping[str, Any]] = {"gradient": "derivatives"}
    patience: ClassVar[int] = 30

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Return loss and gradient at the server's point; at first also what never changes."""
        sent = asking.answer(client.objective, downlink.vectors["primal"], bool(downlink.numbers["first"]))
        return asking.shortened(sent), Moved(None, 1)

    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before round 1."""
        most = _SMOOTH if problem.psi.sums.smooth else _MANY
        pairs = np.zeros((2, min(max(_NUMBERS // primal.size, _FEW), most), primal.size))
        return super().init(problem, primal)._replace(pairs=pairs, gradient=np.zeros(primal.size))

    def downlink(self, problem: Problem, state: Any, to: To | None) -> Downlink:
        """Return the trial point."""
        return Downlink(problem.plan, {"primal": state.trial}, numbers={"first": float(state.population < 0.0)})

    def shapes(self, problem: Problem, state: Any) -> dict[str, tuple[int, ...]]:
        """Return the shapes of gradient and terms; of the first round also of what never changes."""
        return {name: shape for name, shape in super().shapes(problem, state).items() if name != "block"}

    def _after(self, problem: Problem, state: Any, answers: list[Any]) -> Any:
        """Return the state after a step or a shorter one, with what the exchange has shown of the Hessian."""
        replies = Replies(answers)
        gradient = replies.sum("gradient")
        # At first it is none.
        move, change = state.trial - state.point, gradient - state.gradient
        if move @ change > _FLAT * float(np.linalg.norm(move) * np.linalg.norm(change)):
            # A shorter step has the direction of the one before, and the curvature next to the point.
            kept = state.pairs[:, :-1] if state.step < 1.0 else state.pairs[:, 1:]
            state = state._replace(pairs=np.concatenate([kept, np.stack([move, change])[:, None]], axis=1))
        after = self._step(problem, state, replies, Block(np.flatnonzero(state.mask), NOTHING))
        return after._replace(gradient=gradient) if np.array_equal(after.point, state.trial) else after

    def _minimised(self, state: Any, known: Known, block: Block, x: Vector, gradient: Vector, share: float) -> None:
        """Make x the minimiser of the model with B, and the gradient that there."""
        psi = known.psi.sums
        start = x.copy()
        # Of Polyak's step, if there is no pair: no smaller curvature allows such a slope above the least loss.
        left = known.reported.loss - known.reported.least
        steepest = float(gradient @ gradient) / (2.0 * left) if left > 0.0 else 0.0
        sigma, rows, signs = approximation(state.pairs[0], state.pairs[1], steepest, psi.smooth)
        if psi.smooth:
            diagonal = sigma + psi.table[1]
            slope = gradient + psi.table[1] * x
            inner = np.diag(signs) + (rows / diagonal) @ rows.T
            x -= (slope - rows.T @ np.linalg.lstsq(inner, rows @ (slope / diagonal))[0]) / diagonal
        else:
            on = block.on
            hessian = sigma * np.eye(on.size) + (signs * rows[:, on].T) @ rows[:, on]
            x[on] = model.minimise_model(hessian, gradient[on], x[on], psi.at(on))
        move = x - start
        gradient += sigma * move + rows.T @ (signs * (rows @ move))


def approximation(moves: Matrix, changes: Matrix, largest: float, smooth: bool) -> tuple[float, Matrix, Vector]:
    """Return sigma, the rows y_i / root of s_i'y_i and b_i / root of s_i'b_i in turn, and their signs, 1 and -1.

    Parameters
    ----------
    moves, changes : ndarray of float64, shape (k, d)
        The s_i and y_i, the last ones at the end; 0 where there is none yet.
    largest : float
        sigma without a pair.
    smooth : bool
        Whether it is y'y / s'y of the last pair, or s'y / s's.

    Examples
    --------
    >>> sigma, rows, signs = approximation(np.eye(1, 2), np.array([[2.0, 1.0]]), 1.0, True)
    >>> (sigma * np.eye(2) + signs * rows.T @ rows).round(6).tolist()
    [[2.0, 1.0], [1.0, 3.0]]
    """
    known = moves.any(axis=1)
    moves, changes = moves[known], changes[known]
    sigma = largest or 1.0
    if len(moves):
        move, change = moves[-1], changes[-1]
        sigma = float(change @ change / (move @ change) if smooth else move @ change / (move @ move))
    rows, signs = np.zeros((2 * len(moves), moves.shape[1])), np.tile([1.0, -1.0], len(moves))
    for i, (move, change) in enumerate(zip(moves, changes, strict=True)):
        before = rows[: 2 * i]
        own = sigma * move + (signs[: 2 * i] * (before @ move)) @ before
        # Others are rounding beside the curvature of other pairs.
        if (curved := float(own @ move)) > 0.0:
            rows[2 * i : 2 * i + 2] = change / math.sqrt(change @ move), own / math.sqrt(curved)
    return sigma, rows, signs
