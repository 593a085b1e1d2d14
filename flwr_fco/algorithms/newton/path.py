"""A path of strengths, and the folds of a cross-validation, in the rounds of its hardest problem.

A problem is a strength of psi and a fold that is left out, or none. A message carries as many open problems as it may,
each with its own point and working set. Each is solved by the steps of :mod:`.method`, and closes at its own gap::

    null models       psi so strong that only what it leaves alone moves, of all data and without each fold
    strengths         from the gradient at the first of these, as in glmnet: s_max (1, ..., ratio)
    problems          each opens at the point of the next stronger one, with the derivatives that came for it
    validation        one message: each model's loss on the rows of its fold, at every client

What is sent is what the steps need. A gradient is sent in full on the working set; elsewhere it is only compared with
psi's threshold, so that half precision is enough: the bound of its rounding error is
added to its size, and what is then above the threshold is in the next working set. A Hessian stays at the server, and
is asked for again when a coordinate outside of it violates optimality, or when its steps have become slow. That of
squares is the same for all problems of a fold, and only its new rows are sent, in single precision as long as that is
enough for the steps. It also says how far a point is from others of its fold whose gradients are known, which bounds
its own: where the bound is below psi's threshold a coordinate is not asked about. Of more columns than rows a Hessian
travels as a factor that has as many rows.

A client's folds follow from the run's seed and its number of rows, with the same shares of each class; or its objective
has ``folds``.

Friedman, Hastie, Tibshirani: Regularization paths for generalized linear models via coordinate descent (J. Stat.
Softw. 2010) has the strengths and the one-standard-error rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import AtMost, Client, Downlink, Memory, Moved, Problem, Replies, Sent, To
from flwr_fco.algorithms.contract.choices import Strengths
from flwr_fco.algorithms.contract.replies import Mean
from flwr_fco.algorithms.newton import asking
from flwr_fco.algorithms.newton.asking import NOTHING, UNKNOWN, Known, Restart, finished
from flwr_fco.algorithms.newton.method import Block, NewtonState, ProximalNewton
from flwr_fco.algorithms.newton.model import LEAST, Flags, Indices, unpacked, violations
from flwr_fco.certificates import LINKS, NUMBERS, check_folds, check_held_out, check_hessian, least_of
from flwr_fco.core.computing import logger
from flwr_fco.core.layout import Vector, dense
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.messages.protocol import FOLDS, POINTS, Uplink
from flwr_fco.objectives.base import Objective, num_intercepts
from flwr_fco.regularizers.base import with_strength

#: A strength at which all that psi acts on is 0, and more than a loss can be.
_HUGE = 1e100
#: What a run is about, in this order.
NULL, SOLVING, VALIDATING, DONE = 0.0, 1.0, 2.0, 3.0
#: What is known of a problem.
WAITING, OPEN, CLOSED = 0.0, 1.0, 2.0
#: Smallest size of a working set on the path, which has many.
_SMALLEST = 10


class PathState(NewtonState):
    """The server's state: that of each problem, in rows; row i (folds + 1) + f is strength i without fold f.

    Strength 0 stands for the null models, and fold 0 for all data. What a problem's own state has is here in rows, one
    for each problem, or for each fold where all strengths share it.

    Parameters
    ----------
    point, trial, mask : ndarray, shape (P, d)
    objective, lower, residual, slope, step, curvature, since, stalled : ndarray of float64, shape (P,)
        Of each problem.
    columns, targets, facts, references, square, population, units : ndarray of float64, shape (folds + 1, ...)
        Of each fold.
    round : int
        Number of exchanges that counted.
    strengths : ndarray of float64, shape (L,)
        From the largest to the smallest; -1 before they are known.
    status : ndarray of float64, shape (P,)
        0.0 for a problem that waits, 1.0 for one that is open, 2.0 for one that is solved.
    wanted, held : ndarray of bool, shape (P, d)
        On which coordinates a Hessian is asked for next, and on which there is one.
    hessians : ndarray of float64
        Those of the problems that own one, as triangles, one after the other.
    precise : ndarray of bool, shape (folds + 1,)
        Whether the Hessian of squares is asked for in double precision.
    gradients : ndarray of float64, shape (folds + 1, 3, count, d)
        Of squares, the last points whose whole gradients are known, these, and bounds of their errors; UNKNOWN before.
    shares : ndarray of float64, shape (P, count + 1)
        Of these gradients in that of a trial point, and by how much its entries may differ; 0 where it is asked for.
    held_out : ndarray of float64, shape (3, L)
        What :meth:`Mean.errors` returns of the losses on the left-out folds; -1 before.
    """

    #: What changes its size in a run.
    grows = ("hessians",)

    @property
    def folds(self) -> int:
        """Number of folds that are left out, with none as one of them."""
        return len(self.population)

    @property
    def stage(self) -> float:
        """What comes next: strengths from the null models, their problems, the validation, or nothing."""
        if self.strengths[0] < 0.0:
            return NULL
        if (self.status != CLOSED).any():
            return SOLVING
        return VALIDATING if self.folds > 1 and self.held_out[1, 0] < 0.0 else DONE

    @property
    def asked(self) -> list[int]:
        """The rows that a message is about, by their folds."""
        rows = np.arange(len(self.status))
        stages = {NULL: rows < self.folds, VALIDATING: (rows >= self.folds) & (rows % self.folds > 0)}
        asked = np.flatnonzero(stages.get(self.stage, self.status == OPEN))
        return sorted(asked.tolist(), key=lambda row: row % self.folds)

    def rows(self, *status: float) -> list[int]:
        """Return the rows of the problems of which so much is known."""
        return [row for row, own in enumerate(self.status.tolist()) if own in status]

    def squares(self, row: int) -> bool:
        """Whether the Hessian of a problem is that of all problems of its fold."""
        return bool(self.facts[row % self.folds, 0] == LINKS.index("identity"))

    def owner(self, row: int) -> int:
        """Return the problem whose Hessian a problem's steps take."""
        return row % self.folds if self.squares(row) else row

    def sets(self, row: int) -> Flags:
        """Return on which coordinates a problem's Hessian is asked for, with those that are known."""
        wanted = self.wanted[row]
        return np.asarray(wanted | (self.held[row % self.folds] & wanted.any()) if self.squares(row) else wanted)

    def new(self, row: int) -> Flags:
        """Return which of these coordinates are new."""
        return np.asarray(self.wanted[row][self.sets(row)])

    def problem(self, row: int) -> NewtonState:
        """Return a problem's state."""
        each = ((name, getattr(self, name)) for name in _ROWS)
        return NewtonState(*self)._replace(**{name: own[row % len(own)] for name, own in each})

    def write(self, row: int, own: NewtonState, status: float) -> None:
        """Write a problem's state into its row."""
        self.status[row] = status
        for name in _ROWS:
            values = getattr(self, name)
            values[row % len(values)] = getattr(own, name)
        # A point travels at the coordinates of its working set.
        self.mask[row] |= own.trial != 0.0

    def bytes_of(self, row: int) -> int:
        """Return about the size of an answer about a problem."""
        size = int(self.mask[row].sum())
        block = asking.length_of_block(0.0, self.new(row))
        return 2 * int(self.mask.shape[1]) + 8 * (size + block + NUMBERS)

    def blocks(self) -> list[Block]:
        """Return the Hessians of all problems; an empty one where it has none of its own."""
        sizes = self.held.sum(axis=1)
        each = zip(self.held, np.split(self.hessians, np.cumsum(sizes * (sizes + 1) // 2)[:-1]), strict=True)
        return [Block(np.flatnonzero(on), unpacked(own) if own.size else own.reshape(0, 0)) for on, own in each]

    def inside(self, row: int) -> Flags:
        """Return where a problem's gradient is asked for in full: the strengths follow from those of null models."""
        return np.ones_like(self.mask[row]) if self.stage == NULL else self.mask[row]

    def nearest(self, fold: int, w: Vector, block: Block) -> Vector:
        """Return the shares of a fold's gradients in that of squares at a point, and how far its entries are from it.

        At the nearest point of the others' affine hull it is known. Any entry differs from that by at most the distance
        in predictions, times the root of the largest mean square of a column.
        """
        found, square, (on, hessian) = np.zeros(_GRADIENTS + 1), float(self.square[fold]), block
        points, _, errors = self.gradients[fold]
        # Those whose distance the Hessian says.
        known = np.flatnonzero((errors < UNKNOWN).all(axis=1) & ~np.delete(points - w, on, axis=1).any(axis=1))
        if not known.size or square == UNKNOWN or self.facts[fold, 2] > 0.0:
            return found
        points = points[np.ix_(known, on)]
        moves = points[:-1] - points[-1]
        rest = w[on] - points[-1]
        shares = np.linalg.lstsq(moves @ hessian @ moves.T, moves @ (hessian @ rest), rcond=1e-12)[0]
        rest -= shares @ moves
        # Of a Hessian in single precision.
        rounding = _SINGLE_ROUNDING * square * float(np.abs(rest).sum()) ** 2
        found[known] = np.append(shares, 1.0 - shares.sum())
        found[-1] = math.sqrt(square * (max(float(rest @ hessian @ rest), 0.0) + rounding))
        return found

    def estimated(self, fold: int, shares: Vector) -> tuple[Vector, Vector]:
        """Return a gradient by :meth:`nearest`, and a bound of its error; 0 and infinity without shares."""
        if not shares.any():
            return np.zeros(self.point.shape[1]), np.full(self.point.shape[1], np.inf)
        _, gradients, errors = self.gradients[fold]
        return shares[:-1] @ gradients, np.abs(shares[:-1]) @ errors + shares[-1]


#: What has a row for each problem, and for each fold.
_OF_A_PROBLEM = ["point", "trial", "mask", "objective", "lower", "residual", "slope", "step", "curvature", "since"]
_OF_A_PROBLEM += ["stalled"]
_OF_A_FOLD = ["columns", "targets", "facts", "references", "square", "population", "units"]
_ROWS = _OF_A_PROBLEM + _OF_A_FOLD
#: A Hessian is asked for again when a step leaves more than this share of the gap.
_SLOW = 0.1
#: About how many gradients a problem of squares takes; others take twice as many (``benchmarks/path.py``).
_OFTEN = 3.5
#: Gradients that are kept of each fold of squares, rounding error of a Hessian in single precision, and which part of
#: the coordinates is asked about in full where these gradients bound all others.
_GRADIENTS = 6
_SINGLE_ROUNDING = 1e-7
_FEW = 16
#: Which part of the coordinates that a Hessian of squares lacks is not asked for yet, those that violate least.
_LATER = 0.35


class Exchange(NamedTuple):
    """An exchange, and what the server makes of it.

    Parameters
    ----------
    problems : callable
        The problem by the number of its strength.
    old, state : PathState
        The states before it, and after it as far as it is made.
    replies : dict of int to Replies
        What has come about each problem, by its row.
    blocks : list of Block
        The Hessians by the rows that own them.
    """

    problems: Callable[[int], Problem]
    old: PathState
    state: PathState
    replies: dict[int, Replies]
    blocks: list[Block]


@dataclass(frozen=True, kw_only=True)
class NewtonPath(ProximalNewton):
    """A federated proximal Newton method for all strengths of a path, and all folds, in the same rounds.

    Parameters
    ----------
    tolerance : float, default 1e-8
        Duality gap at which a problem is solved.
    strengths : Strengths
        The path.
    """

    name = "newton_path"
    discloses: ClassVar[Mapping[str, Any]] = {**ProximalNewton.discloses, "held_out": "losses"}

    strengths: Strengths = field(default_factory=Strengths)

    # --- a client -------------------------------------------------------------------------------------------------

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Return the answers about all points, one after the other, each on the rows of its fold."""
        vectors, numbers, objective = downlink.vectors, downlink.numbers, client.objective
        points, wanted = (asking.parted(vectors, name, objective.layout.size) for name in ("primal", "wanted"))
        counts = [int(numbers[f"fold-{fold}"]) for fold in range(int(numbers[FOLDS]) + 1)]
        if min(counts, default=-1) < 0 or sum(counts) != len(points):
            raise ProtocolError(f"the server sends {len(points)} points, of folds with {counts} of them")
        left_out = [np.zeros(0, dtype=np.int64), *asking.folds_of(objective, len(counts) - 1, client.seed)]
        shares = []
        answers: list[dict[str, Any]] = []
        # Rows are copied, so they are those of one fold at a time.
        for fold, rows in enumerate(left_out):
            rest, share = _on_rows(objective, np.delete(np.arange(objective.num_examples), rows))
            shares.append(share)
            about = range(sum(counts[:fold]), sum(counts[: fold + 1]))
            if numbers["validate"]:
                part, known = _on_rows(objective, rows)
                answers += [{"held_out": np.array([part.value(points[k][0]) if known else 0.0])} for k in about]
                continue
            for k in about:
                (w, inside), (bits, on) = points[k], wanted[k]
                own = asking.answer(rest, w, bool(numbers["first"]), on if on.size else None)
                if not share:
                    # A client without a row outside of a fold says nothing.
                    own = {name: np.zeros(vector.size) for name, vector in own.items()}
                answers.append(asking.short_answer(own, inside, bits[on], numbers[f"bits-{k}"]))
        names = dict.fromkeys(name for own in answers for name in own)
        sent = {name: np.concatenate([own[name] for own in answers if name in own]) for name in names}
        return asking.shortened(sent) | {"shares": np.array(shares)}, Moved(None, 1)

    # --- the server -----------------------------------------------------------------------------------------------

    def init(self, problem: Problem, primal: Vector) -> PathState:
        """Return the state before round 1: the null models are open."""
        folds = 1 + (self.strengths.folds or 0)
        problems = (self.strengths.count + 1) * folds
        start = np.where(problem.layout.regularized_mask(), 0.0, primal)
        own = ProximalNewton().init(self._problems(problem, np.zeros(0))(0), start)
        counts = dict.fromkeys(_OF_A_PROBLEM, problems) | dict.fromkeys(_OF_A_FOLD, folds)
        rows: Any = {name: np.repeat(np.array([getattr(own, name)]), count, 0) for name, count in counts.items()}
        wanted = np.zeros((problems, primal.size), dtype=np.bool_)
        wanted[:folds] = own.mask
        return PathState(*own)._replace(
            **rows,
            strengths=np.full(self.strengths.count, -1.0),
            status=np.repeat([OPEN, WAITING], [folds, problems - folds]),
            wanted=wanted,
            held=np.zeros_like(wanted),
            precise=np.zeros(folds, dtype=np.bool_),
            gradients=np.full((folds, 3, _GRADIENTS, primal.size), UNKNOWN),
            shares=np.zeros((problems, _GRADIENTS + 1)),
            held_out=np.full((3, self.strengths.count), -1.0),
        )

    def downlink(self, problem: Problem, state: PathState, to: To | None) -> Downlink:
        """Return the points of all open problems, each at the coordinates of its working set."""
        folds, asked = state.folds, state.asked
        validates = state.stage == VALIDATING
        points, masks = (state.point, state.point != 0.0) if validates else (state.trial, state.mask)
        rounded = [state.squares(row) and not state.precise[row % folds] for row in asked]
        bits = np.where(rounded, asking.SINGLE, asking.DOUBLE)[:, None]
        vectors: dict[str, Any] = {"primal": asking.laid_out(masks[asked], points[asked])}
        vectors["wanted"] = asking.laid_out(np.array([state.sets(row) for row in asked]), bits * state.wanted[asked])
        elsewhere = asking.DOUBLE if state.stage == NULL else asking.HALF
        counts = np.bincount([row % folds for row in asked], minlength=folds)
        numbers = {f"fold-{fold}": float(count) for fold, count in enumerate(counts)}
        numbers |= {f"bits-{k}": elsewhere * (not state.shares[row].any()) for k, row in enumerate(asked)}
        numbers |= {FOLDS: folds - 1.0, POINTS: float(len(asked))}
        numbers |= {"first": float(state.population[0] < 0.0), "validate": float(validates)}
        return Downlink(problem.plan, vectors, numbers=numbers)

    def shapes(self, problem: Problem, state: PathState) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what is asked about all open problems, one after the other."""
        sizes = Counter(shares=state.folds)
        for row in state.asked:
            sizes.update(self._sizes(problem, state, row))
        return {name: (AtMost if name == "block" else tuple)((size,)) for name, size in sizes.items()}

    def _sizes(self, problem: Problem, state: PathState, row: int) -> dict[str, int]:
        """Return the lengths of what is asked about a problem; a Hessian may take fewer numbers."""
        if state.stage == VALIDATING:
            return {"held_out": 1}
        d, inside = state.mask.shape[1], int(state.inside(row).sum())
        sizes = {"terms": NUMBERS, "gradient": inside}
        if state.population[0] < 0.0:
            once = asking.shapes_of_first(problem.layout, not state.trial[row].any())
            sizes |= {name: size for name, (size,) in once.items()}
        if not state.shares[row].any():
            sizes |= {"elsewhere": d - inside, "scales": 1}
        new = state.new(row)
        return sizes | ({"block": asking.length_of_block(0.0, new), "ranks": 1} if new.any() else {})

    def _read(self, problem: Problem, state: PathState, uplink: Uplink) -> list[Uplink]:
        """Return a reply apart for each problem, with its weight there; in the validation for each fold.

        A ProtocolError says why it cannot be.
        """
        vectors = {name: dense(vector) for name, vector in uplink.vectors.items()}
        check_folds(vectors["shares"])
        weights = (uplink.weight * vectors["shares"]).tolist()
        if state.stage == VALIDATING:
            check_held_out(vectors["held_out"], least_of(float(state.facts[0, 0])))
            return [uplink._replace(weight=weight) for weight in weights]
        at = Counter[str]()
        parts = list[dict[str, Any]]()
        for row in state.asked:
            sizes = self._sizes(problem, state, row)
            if "ranks" in sizes:
                sizes["block"] = asking.length_of_block(vectors["ranks"][at["ranks"]], state.new(row))
            parts.append({name: vectors[name][at[name] : at[name] + size] for name, size in sizes.items()})
            at.update(sizes)
        if any(own != vectors[name].size for name, own in at.items()):
            raise ProtocolError(f"its blocks have {vectors['block'].size} numbers, and by their ranks {at['block']}")
        apart = []
        for row, own in zip(state.asked, parts, strict=True):
            part = uplink._replace(vectors=_whole(own, state, row), weight=weights[row % state.folds])
            apart.append(part)
            if part.weight > 0.0:
                asking.checked(problem.layout, state.problem(row), part, self.tolerance)
                if "block" in own:
                    # Its new rows alone: of the others it says nothing here.
                    new, count = state.new(row), state.mask.shape[1] - num_intercepts(problem.layout)
                    check_hessian(own["block"][np.ix_(new, new)], np.flatnonzero(state.wanted[row]), own, count)
        return apart

    def _after(self, problem: Problem, state: PathState, answers: list[list[Uplink]]) -> PathState:
        """Return the state after a step of each problem; solved ones close, and others open."""
        if state.stage == VALIDATING:
            return self._validated(state, answers)
        exchanges = {row: _weighted(own, row % state.folds) for row, *own in zip(state.asked, *answers, strict=True)}
        changed = deepcopy(state)._replace(round=state.round + 1)
        blocks = state.blocks()
        for row, about in exchanges.items():
            if state.wanted[row].any():
                new, owner, hessian = state.new(row), state.owner(row), about.sum("block")
                if not new.all():
                    hessian[np.ix_(~new, ~new)] = blocks[owner].hessian
                blocks[owner] = Block(np.flatnonzero(state.sets(row)), hessian)
            if state.squares(row) and not state.shares[row].any():
                # In the place of the first.
                kept = changed.gradients[row % state.folds]
                kept[:, :-1] = kept[:, 1:].copy()
                kept[:, -1] = state.trial[row], about.sum("gradient"), about.sum("errors")
        changed.wanted[:] = False
        this = Exchange(self._problems(problem, changed.strengths), state, changed, exchanges, blocks)
        for row, about in exchanges.items():
            self._advance(this, row, state.problem(row), about)
        if state.stage == NULL and (changed.status[: state.folds] == CLOSED).all():
            free = this.problems(0).psi.free_coordinates()
            gradient = np.where(free, 0.0, exchanges[0].sum("gradient"))
            largest = 0.0 if self.strengths.values is not None else problem.psi.strength_max(gradient)
            acted = int(np.count_nonzero(~free))
            rows = sum(own.examples for own in exchanges[0])
            changed.strengths[:] = self.strengths.from_largest(largest, acted >= rows)
            self._say_bytes(state, min(acted, rows), rows / len(answers))
        if changed.stage == SOLVING:
            self._opens(this)
        return _with_blocks(changed, blocks)

    def _advance(self, this: Exchange, row: int, own: NewtonState, about: Replies) -> None:
        """Take a step of a problem into its row: it closes, or goes on, perhaps with another Hessian.

        Where others answer now, or answers contradict each other, all problems restart, for they share the clients.
        """
        state = this.state
        fold = row % state.folds
        problem = this.problems(row // state.folds)
        block = this.blocks[state.owner(row)]
        began = own.left[1]
        # Null models are few, and have larger working sets.
        rule = ProximalNewton(tolerance=self.tolerance, smallest=LEAST if state.stage == NULL else _SMALLEST)
        try:
            own = rule._step(problem, own, about, block)
        except ConfigurationError as error:
            if fold:
                error.args = (f"without fold {fold} of {self.strengths.folds}: {error}",)
            raise
        squares = bool(own.facts[0] == LINKS.index("identity"))
        fresh = this.old.wanted[fold :: state.folds].any() if squares else this.old.wanted[row].any()
        left = own.left[1]
        slow = left > self.tolerance and not fresh and (own.stalled or own.step < 1.0 or left > _SLOW * began)
        # The strengths follow from the gradients of null models, which are asked for.
        shares = state.nearest(fold, own.trial, block) * (state.stage != NULL)
        gradient, errors = state.estimated(fold, shares)
        most = violations(np.abs(gradient) + errors, problem.psi)
        scores = violations(gradient if shares.any() else Known.gradient_of(about), problem.psi)
        if shares.any() and this.old.stage != NULL:
            # As it will be at the trial point, and where it is known exactly, as it is.
            exact = about.sum("errors") == 0.0
            scores[exact] = np.maximum(scores, violations(about.sum("gradient"), problem.psi))[exact]
        missing = (own.trial != 0.0) | (scores > 1.0)
        missing[block.on] = False
        if squares and missing.any():
            # With those that violate most the others may not.
            missing &= scores >= np.sort(scores[missing])[int(_LATER * np.count_nonzero(missing))]
        # A number that travels rounded is not read as a slope of the next step.
        working = missing | (own.mask & (not squares))
        working[block.on] = True
        wanted = missing
        if slow and squares and not missing.any() and not state.precise[fold]:
            # Rounded to single precision it is not good enough.
            state.precise[fold], wanted = True, working
        elif not squares and (slow or missing.any()):
            wanted = own.mask | missing
        outside = ~working & (most >= 1.0)
        # Where they are more, a gradient of all coordinates bounds the next ones.
        few = _FEW * np.count_nonzero(outside) < np.count_nonzero(~working)
        own = own._replace(mask=working | (outside & few), stalled=own.stalled * (not wanted.any()))
        goes_on = state.status[row] != CLOSED and not finished(own, self.tolerance)
        state.write(row, own, OPEN if goes_on else CLOSED)
        if goes_on:
            state.wanted[row] = wanted
            state.shares[row] = shares * few

    def retrieve(self, problem: Problem, state: PathState) -> Vector:
        """Return the model of the chosen strength; before it is chosen, that of the smallest one so far."""
        folds = state.folds
        number = int(np.flatnonzero(state.status[::folds] != WAITING)[-1])
        if state.stage == DONE and folds > 1:
            number = 1 + chosen(state.held_out[0], state.held_out[2], self.strengths.rule)
        return np.asarray(state.point[number * folds])

    def metrics(self, problem: Problem, state: PathState) -> dict[str, Any]:
        """Return how many problems are open and solved, the largest gap or residual, and if all is done."""
        numbers: dict[str, Any] = {"open-problems": len(state.rows(OPEN)), "solved-problems": len(state.rows(CLOSED))}
        known = [state.problem(row) for row in state.rows(OPEN, CLOSED)]
        for name, left in (own.left for own in known if own.objective < UNKNOWN):
            numbers[name] = max(left, numbers.get(name, 0.0))
        if state.stage >= DONE:
            missed = sum(own.left[1] > self.tolerance for own in known)
            text = f"all {len(known)} problems of the path are solved to tolerance={self.tolerance:g}"
            numbers["finished"] = text + f", but {missed}, whose steps no longer change the objective" * bool(missed)
        return numbers

    def _say_bytes(self, state: PathState, support: float, rows: float) -> None:
        """Log about how many bytes a client will send, from the largest support that there may be and its rows.

        Raises
        ------
        ConfigurationError
            If they are more than is allowed.
        """
        folds, squares, d = state.folds, state.squares(0), state.mask.shape[1]
        problems = len(state.status) - folds
        if squares:
            about = problems * _OFTEN * (0.5 * d + 4.0 * support) + folds * 4.0 * support**2
        else:
            block = 8.0 * min(0.5 * support * rows, 0.125 * support**2)
            about = problems * (2.0 * _OFTEN * (2.0 * d + 4.0 * support) + 1.5 * block)
        size, limit = f"about {about / 1e6:.3g} MB", self.strengths.total_bytes
        if about > limit:
            prefix = f"a path of {problems} problems with {d} parameters takes {size} of each client, above"
            advice = f"larger ratio, or allow more: Strengths(total_bytes={math.ceil(about)})"
            raise ConfigurationError(f"{prefix} total_bytes={limit}; take fewer strengths or folds, a {advice}")
        logger.info("The path takes %s of each client", size)

    # --- problems -------------------------------------------------------------------------------------------------

    def _problems(self, problem: Problem, strengths: Vector) -> Callable[[int], Problem]:
        """Return the problem of a strength by its number, made where it is asked for; 0 is that of the null models."""

        def own(number: int) -> Problem:
            psi = with_strength(problem.psi.regularizer, float([_HUGE, *strengths][number]))
            return problem._replace(psi=psi.bind(problem.layout, scope=problem.psi.scope))

        return cache(own)

    def _opens(self, this: Exchange) -> None:
        """Open as many further problems as a message may carry, and one of each fold."""
        state, folds = this.state, this.state.folds
        used = sum(state.bytes_of(row) for row in state.rows(OPEN))
        alone = set(range(folds)) - {row % folds for row in state.rows(OPEN)}
        for row in range(folds, len(state.status)):
            fold, before = row % folds, row - folds
            if state.status[row] != WAITING or state.status[before] == WAITING:
                continue
            if fold not in alone and used + state.bytes_of(before) > self.strengths.max_bytes:
                continue
            near = max(other for other in this.replies if other % folds == fold and other < row)
            start = this.old.trial[near]
            this.blocks[state.owner(row)] = this.blocks[state.owner(near)]
            own = state.problem(row)._replace(point=start, trial=start, mask=this.old.mask[near])
            own = own._replace(objective=UNKNOWN, lower=-UNKNOWN, residual=UNKNOWN, step=1.0)
            self._advance(this, row, own, this.replies[near])
            if state.status[row] == OPEN:
                used += state.bytes_of(row)
                alone.discard(fold)

    def _validated(self, state: PathState, answers: list[list[Uplink]]) -> PathState:
        """Return the state with the losses on the left-out folds; each client's part of a fold is one of them."""
        who = [asking.population_of(_weighted(own, fold)) for fold, own in enumerate(zip(*answers, strict=True))]
        if who != state.population.tolist():
            raise Restart("Of models of all clients only all of them can say how good they are, and others answer")
        losses = np.concatenate([own[0].vectors["held_out"].reshape(state.folds - 1, -1) for own in answers])
        weights = np.array([own[0].weight - part.weight for own in answers for part in own[1:]])
        held_out = Mean().errors(losses[weights > 0.0], weights[weights > 0.0])
        return state._replace(held_out=held_out, round=state.round + 1)


def models_of(state: PathState) -> tuple[list[Vector], list[float]]:
    """Return the model of all data at each strength that is open or solved, and its duality gap; NaN without one."""
    rows = [row for row in state.rows(OPEN, CLOSED) if row and row % state.folds == 0]
    gaps = [dict([state.problem(row).left]).get("duality-gap", math.nan) for row in rows]
    return [np.array(state.point[row]) for row in rows], gaps


def _on_rows(objective: Objective, rows: Indices) -> tuple[Objective, float]:
    """Return the loss on some rows, and their share; without a row 0, and the loss as it is."""
    if rows.size == objective.num_examples:
        return objective, 1.0
    return objective.subset(rows) if rows.size else (objective, 0.0)


def _whole(answer: dict[str, Any], state: PathState, row: int) -> dict[str, Any]:
    """Return an answer as it was before it travelled, with a bound of the error of its gradient; its block whole."""
    inside = state.inside(row)
    gradient, errors = state.estimated(row % state.folds, state.shares[row])
    if "elsewhere" in answer:
        scale = float(answer.pop("scales")[0])
        rounded = scale * answer.pop("elsewhere")
        if not scale >= 0.0 or np.abs(rounded).max(initial=0.0) > scale:
            raise ProtocolError(f"the scale of its gradient is {scale:.3g}, which is not that of its entries")
        gradient[~inside] = rounded
        # Rounding to the nearest is off by half of these at most.
        kind = np.finfo(np.float16)
        errors[~inside] = float(kind.eps) * np.abs(rounded) + float(kind.smallest_subnormal) * scale
    gradient[inside] = answer["gradient"]
    errors[inside] = 0.0
    answer |= {"gradient": gradient, "errors": errors}
    if "block" in answer:
        rank, new, block = int(answer.pop("ranks")[0]), state.new(row), answer["block"]
        factor = block.reshape(rank, -1) if rank else block
        answer["block"] = factor.T @ factor if rank else unpacked(block, new)
    return answer


def _with_blocks(state: PathState, blocks: list[Block]) -> PathState:
    """Return the state with the Hessians that open problems take; one of squares is asked for by one problem."""
    opened = state.asked if state.stage < VALIDATING else []
    for row in opened:
        if state.squares(row) and state.wanted[row].any() and state.wanted[row % state.folds : row : state.folds].any():
            # It opens again at another point, when there is the Hessian that the other one asks for.
            state.wanted[row] = False
            state.status[row] = WAITING
    state.held[:] = False
    triangles = [NOTHING]
    for owner in sorted({state.owner(row) for row in opened}):
        on, hessian = blocks[owner]
        state.held[owner, on] = True
        triangles.append(hessian[np.triu_indices(on.size)])
    return state._replace(hessians=np.concatenate(triangles))


def _weighted(parts: Sequence[Uplink], fold: int) -> Replies:
    """Return the replies about a problem, whose weights are by the rows outside its fold, with a sum of 1."""
    total = math.fsum(own.weight for own in parts)
    if total == 0.0:
        raise ConfigurationError(f"no client has a row outside of fold {fold}; take fewer folds, or smaller clusters")
    return Replies([own._replace(weight=own.weight / total) for own in parts if own.weight > 0.0])


# --- folds, and what losses on them say of strengths -------------------------------------------------------------


def chosen(held_out: Vector, difference_error: Vector, rule: str) -> int:
    """Return the number of the strength that a rule chooses; ties go to the larger one.

    Parameters
    ----------
    held_out, difference_error : ndarray of float64, shape (L,)
        Mean losses, and the standard errors of their differences to the smallest one.
    rule : {"best", "one-standard-error"}
        The smallest loss; or the largest strength whose loss is above it by at most one standard error.

    Examples
    --------
    >>> [chosen(np.array([5.3, 5.2, 5.25]), np.array([0.2, 0.0, 0.1]), rule) for rule in ("best", "one-standard-error")]
    [1, 0]
    """
    best = int(np.argmin(held_out))
    return best if rule == "best" else int(np.argmax(held_out - held_out[best] <= difference_error))
