"""What the server asks about the clients' losses: before round 1 for rates, after rounds for certificates."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Container, Sequence
from itertools import accumulate
from typing import Any, cast

import numpy as np

from flwr_fco.algorithms.contract.replies import LARGEST_CLAIM, Mean
from flwr_fco.certificates import Certificate, Request, certificate
from flwr_fco.core.computing import logger
from flwr_fco.core.layout import Vector, all_finite, dense
from flwr_fco.errors import ConfigurationError, NoAnswerError, ProtocolError
from flwr_fco.messages.protocol import Answer, Node, Question, Uplink
from flwr_fco.messages.records import QUESTIONS, addressed, decode_answer, encode_question, is_number
from flwr_fco.strategies import replies
from flwr_fco.strategies.nodes import ASKING
from flwr_fco.strategies.run import Run
from flwr_fco.work import FirstOrder, Minimise

#: A claim of strong convexity counts as at least this part of the clients' upper median.
_SMALLEST_CLAIM = 0.01
#: Part of the increments' mean square below which their mean has no direction but rounding.
_ROUNDING = 1e-6


def prepared(strategy: Any, grid: Any, arrays: Any, timeout: float) -> Run:
    """Return a run of a strategy's clients, of whom questions are asked before it starts, or instead.

    Parameters
    ----------
    strategy : CompositeStrategy
        The strategy.
    grid : Grid
        Who connects the clients.
    arrays : ArrayRecord
        The model.
    timeout : float
        Seconds to wait for an answer.
    """
    run: Run = strategy.prepare(arrays)
    run.grid = grid
    run.timeout = timeout
    return run


def ask(run: Run, request: Request, w: Vector, about: Container[int] | None = None) -> list[Answer]:
    """Ask all connected clients about their losses; return the good answers with weights that sum to 1.

    Parameters
    ----------
    run : Run
        Of the strategy.
    request : Request
        What is asked, and what an answer must be.
    w : ndarray of float64, shape (d,)
        The point.
    about : container of int, optional
        Ids of the only nodes that are asked.

    Raises
    ------
    ConfigurationError
        In a private run: answers have no noise.
    """
    options = run.options
    layout = run.problem.layout
    if run.privacy is not None:
        raise ConfigurationError(f"a private run asks no {request.kind!r}: answers have no noise; leave privacy out")
    nodes = run.nodes.sample(run.grid, run.number, ASKING, 1.0, options.min_train_nodes, run.needed)
    nodes = nodes if about is None else [node for node in nodes if node.node_id in about]
    run.tables.look(run, nodes)
    current = replies.Round(run.number, nodes, run.left_out, "question")
    content = encode_question(Question(request.kind, layout, {"primal": w}, request.numbers, run.passed))
    contents = ((node.node_id, content.copy()) for node in nodes)

    def read(node: Node, said: Any) -> Answer:
        answer = decode_answer(said, layout.size)
        examples = replies.check_examples(run, node, answer.examples, trains=request.kind != "validation")
        wrong = [name for name in request.wanted if not is_number(answer.numbers.get(name))]
        form = {name: vector.shape for name, vector in answer.vectors.items()}
        finite = all(isinstance(vector, np.ndarray) and all_finite(vector) for vector in answer.vectors.values())
        if wrong or form != dict(request.shapes) or not finite:
            prefix = f"it answers {sorted(answer.numbers)} and vectors {form}"
            raise ProtocolError(f"{prefix}, expected finite {list(request.wanted)} and {dict(request.shapes)}")
        # Of whole numbers beyond 64 bits NumPy makes arrays of objects.
        numbers = {**answer.numbers, **{name: float(answer.numbers[name]) for name in request.wanted}}
        answer = answer._replace(numbers=numbers, examples=examples, partition=node.site, node_id=node.node_id)
        if request.check is not None:
            request.check(answer)
        return answer

    answered = run.nodes.exchange(run, addressed(run.grid, contents, QUESTIONS, run.number), current)
    good = current.settle(*replies.collect(current, answered, read))
    each = [tuple(reply.value.numbers[name] for name in request.agreed) for reply in good]
    usual, count = Counter(each).most_common(1)[0] if each else ((), 0)
    text = f"that of {count} of {len(each)} clients is {usual}"
    odd = {i: own for i, own in enumerate(each) if own != usual and 2 * count > len(each)}
    good = current.without(good, {i: f"its {', '.join(request.agreed)} is {own}, {text}" for i, own in odd.items()})
    said = ((reply.value.numbers if request.kind == "validation" else {}, reply.value.examples) for reply in good)
    claims = [Uplink({}, None, 1, metrics=own, examples=examples) for own, examples in said]
    good = current.without(good, replies.objections(run, claims, lengths=False))
    shares = [run.weight(reply.node, reply.value.examples) for reply in good]
    weights = replies.weights_of(shares, options.weighting == "uniform")
    return [reply.value._replace(weight=weight) for reply, weight in zip(good, weights, strict=bool(weights))]


# --- rates ------------------------------------------------------------------------------------------------------------


def choose(run: Run, names: Sequence[str]) -> dict[str, float]:
    """Return the theory's values of options that are ``"auto"``, for these clients' losses.

    Parameters
    ----------
    run : Run
        Of the strategy.
    names : sequence of str
        The options.

    Raises
    ------
    ConfigurationError
        If no client answers, or theory has no value for this geometry or these losses.
    """
    work = run.problem.plan.work
    batch = (work.batch_size or 0) if isinstance(work, FirstOrder) else 0
    request = Request("smoothness", {"batch-size": float(batch)}, ("l2", "l1", "convexity", "probed"))
    answers = ask(run, request, run.method.retrieve(run.problem, run.state))
    if not answers:
        prefix = f"{' and '.join(names)} cannot be chosen: no client has said how smooth its loss is"
        raise ConfigurationError(f"{prefix}. The reasons are in `left_out`; give the rates by hand")
    weights = [answer.weight for answer in answers]
    l2, clipped = bounded_largest([answer.numbers["l2"] for answer in answers], weights)
    l1, _ = bounded_largest([answer.numbers["l1"] for answer in answers], weights)
    claims = sorted(max(0.0, answer.numbers["convexity"]) for answer in answers)
    convexity = max(claims[0], _SMALLEST_CLAIM * claims[len(claims) // 2])
    smoothness, norm = run.problem.h.smoothness(l2, l1)
    draws = [work.num_draws(max(1, int(own.examples))) if isinstance(work, FirstOrder) else 1 for own in answers]
    steps = int(bounded_largest(draws, [1.0] * len(draws))[0])
    probed = any(answer.numbers["probed"] for answer in answers)
    said = f"L = {smoothness:.4g} ({norm} norm)" + (f", mu = {convexity:.4g}" if convexity > 0.0 else "")
    said += f", K = {steps}, as {len(answers)} clients say" + ", probed at the start point" * probed
    said += f"; {clipped} said more than {LARGEST_CLAIM:g} times the median, as which it counts" * (clipped > 0)
    if run.graph is not None:
        # Theory depends on the graph, which depends on who is there.
        run.follow()
    if hasattr(run.options, "nu"):
        theory = _of_dual_fl(run, smoothness, convexity, probed=probed)
    else:
        theory = {"client_lr": _of_steps(run, smoothness, steps)}
    for name in names:
        run.reasons[name] = f"{theory[name][1]}, {said}"
        logger.info("\t├──> %s=%.4g: %s", name, theory[name][0], run.reasons[name])
    return {name: theory[name][0] for name in names}


def _of_steps(run: Run, smoothness: float, steps: int) -> tuple[float, str]:
    """Return the clients' rate, and its formula: 1 over a product of numbers, L, K and a graph's mixing time tau."""
    formula = run.options.theory
    time = 1.0
    if run.graph is not None:
        time = run.graph.of_size(len(run.nodes.ordered)).theorem_time(8 if "^2" in formula else 4)
    factors = formula.removeprefix("1/").strip("()").split()
    known = {"L": _above_zero(smoothness), "K": steps, "tau": time, "tau^2": time**2, "sqrt(5)": math.sqrt(5.0)}
    rate = 1.0 / math.prod(known[factor] if factor in known else float(factor) for factor in factors)
    return rate, formula + (f", tau = {time:.4g}" if "tau" in formula else "")


def _of_dual_fl(run: Run, smoothness: float, convexity: float, *, probed: bool) -> dict[str, tuple[float, str]]:
    """Return DualFL's nu = mu + alpha and rho = nu / (L + alpha), each with its formula.

    Raises
    ------
    ConfigurationError
        If some loss is not strongly convex and alpha is 0.
    """
    options: Any = run.options
    work = run.problem.plan.work
    whole = convexity + options.alpha
    if options.nu == "auto" and not whole > 0.0:
        raise ConfigurationError("nu='auto': the losses are not known to be strongly convex; give alpha > 0, or nu")
    gap = isinstance(work, Minimise) and work.rule == "gap"
    nu = (0.9 * whole if gap else whole) if options.nu == "auto" else float(options.nu)
    largest = options.smoothness or (math.inf if probed else smoothness)
    # If all report 0, which contradicts strong convexity, this is an error.
    rho = min(nu / (largest + options.alpha or _above_zero(smoothness)), 0.999)
    return {"nu": (nu, "0.9 (mu + alpha)" if gap else "mu + alpha"), "rho": (rho, "nu / (L + alpha)")}


def _above_zero(smoothness: float) -> float:
    if not smoothness > 0.0:
        prefix = "the clients' gradients do not change, or jump as those of a loss with kinks do"
        raise ConfigurationError(f"{prefix}: no rate follows from their smoothness; give the rates by hand")
    return smoothness


def bounded_largest(claims: Sequence[float], weights: Sequence[float]) -> tuple[float, int]:
    """Return the largest claim, clipped to ten times the median, and the number of clipped claims.

    What half of the clients say, or those with half of the weight, is not clipped; of two alike, the larger one is.

    Examples
    --------
    >>> bounded_largest([1.0, 2.0, 4.0], [0.3, 0.3, 0.4]), bounded_largest([1.0, 2.0, 1e9], [0.3, 0.3, 0.4])
    ((4.0, 0), (20.0, 1))
    """
    pairs = sorted((max(0.0, claim), weight) for claim, weight in zip(claims, weights, strict=True))
    ordered = [claim for claim, _ in pairs]
    below = [*accumulate(weight for _, weight in pairs)]
    half = (0.5 - _ROUNDING) * below[-1]
    by_weight = next(claim for claim, weight in zip(ordered, below, strict=True) if weight >= half)
    by_number = ordered[len(ordered) // 2 if len(ordered) > 2 else 0]
    limit = LARGEST_CLAIM * max(by_weight, by_number) or math.inf
    return min(ordered[-1], limit), sum(claim > limit for claim in ordered)


def extrapolation(uplinks: Sequence[Uplink]) -> float:
    """Return the server rate of FedExP: max(1, S / (2 (||sum_m p_m x_m||^2 + 1e-6 S))), S = sum_m p_m ||x_m||^2.

    Parameters
    ----------
    uplinks : sequence of Uplink
        With weights, and the increments x_m.

    References
    ----------
    Jhunjhunwala, Wang, Joshi: FedExP, speeding up federated averaging via extrapolation (ICLR 2023), equation (4), with
    equal weights and a small constant in the denominator. Here that constant is proportional to the increments: clients
    that pull in opposite directions leave a mean of pure rounding error, which no rate may amplify.

    Examples
    --------
    >>> def increments(*vectors):
    ...     return [Uplink({"increment": np.array(x)}, 1.0, 1, weight=0.5) for x in vectors]
    >>> extrapolation(increments([4.0, 0.0], [0.0, 4.0]))
    1.0
    >>> round(extrapolation(increments([4.0, 1.0], [-4.0, 1.0])), 3)
    8.5
    """
    weights, vectors = zip(*((up.weight, up.vectors["increment"]) for up in uplinks), strict=True)
    mean = Mean().of(vectors, weights)
    whole = (np.asarray(dense(vector), np.float64) for vector in vectors)
    squares = sum(weight * float(vector @ vector) for weight, vector in zip(weights, whole, strict=True))
    size = float(mean @ mean) + _ROUNDING * squares
    return max(1.0, squares / (2.0 * size)) if size > 0.0 else 1.0


# --- certificates -----------------------------------------------------------------------------------------------------


#: Names of a certificate's numbers, which no client reports in a round without one.
CERTIFIED = {"objective", "certificate", "duality-gap", "residual", "certificate-clients", "certificate-of"}


def certify(run: Run, w: Vector) -> Certificate:
    """Return how far a point is from the optimum of the data of the clients that answer.

    Parameters
    ----------
    run : Run
        Of the strategy.
    w : ndarray of float64, shape (d,)
        The point.

    Raises
    ------
    NoAnswerError
        If no client answers, or the answers contradict each other, or are so large that nothing finite follows.
    """
    asking = certificate(run.problem.psi, w)
    answers: list[Answer] | None = None
    # Those that have answered so far: others would add data that the first answers do not cover.
    about: Any = None
    while True:
        try:
            request = asking.send(cast(Any, answers))
        except StopIteration as stop:
            found: Certificate = stop.value._replace(clients=len(answers or ()))
            break
        except OverflowError as error:
            raise NoAnswerError(f"the clients' answers are too large for numbers: {error}") from error
        answers = ask(run, request, w, about)
        here = {answer.node_id for answer in answers}
        if about is not None and here != about:
            # Who is silent by now, or absurd, voids no certificate of the others.
            text = "The certificate of this round restarts: %s clients have answered the first question alone"
            logger.warning(text, len(about - here))
            asking = certificate(run.problem.psi, w)
            answers = None
        about = here
    if not (math.isfinite(found.objective) and math.isfinite(found.value)):
        psi = run.problem.psi
        whose = f"a model outside of {type(psi.regularizer).__name__}" if psi.value(w) == math.inf else "the answers"
        raise NoAnswerError(f"objective={found.objective:g}, {found.kind}={found.value:g}, of {whose}")
    return found


def certified(run: Run, w: Vector) -> dict[str, float]:
    """Return the numbers of a certificate for a round's metrics; none, with a warning, if there is none.

    Parameters
    ----------
    run : Run
        Of the strategy.
    w : ndarray of float64, shape (d,)
        The point.

    Returns
    -------
    dict of str to float
        ``objective``, ``certificate`` (also under its own name, ``duality-gap`` or ``residual``), and of how many
        clients' data, ``certificate-clients`` of ``certificate-of``.
    """
    try:
        found = certify(run, w)
    except NoAnswerError as error:
        logger.warning("There is no certificate of this round: %s.", error)
        return {}
    connected = len(run.nodes.ordered) + len(run.missing)
    if found.clients < connected:
        prefix = f"The certificate of round {run.number} is of the data of {found.clients} of {connected} clients"
        warnings.warn(f"{prefix}: the others did not answer. It ends no run", UserWarning, stacklevel=2)
    numbers = {"objective": found.objective, "certificate": found.value, found.kind: found.value}
    return {**numbers, "certificate-clients": float(found.clients), "certificate-of": float(connected)}
