"""Questions to all clients: whom to ask, which answers are valid, the options chosen from them; and round 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Algorithm, LossFacts
from flwr_fco.algorithms.contract.problem import LARGEST_CLAIM
from flwr_fco.certificates import Request
from flwr_fco.core.layout import Vector
from flwr_fco.core.logs import log
from flwr_fco.core.schema import ABOUT_COLUMNS
from flwr_fco.core.sparse import dense
from flwr_fco.core.validation import saved_array
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, MirrorMap, PNorm, SimplexEntropy
from flwr_fco.mirror_maps.product import BoundProduct
from flwr_fco.server.clients.remembering import Remembering
from flwr_fco.server.options import AUTO, AUTOMATIC, CommonOptions, max_ratio_of
from flwr_fco.server.parts import Host, Part
from flwr_fco.server.replies import checks
from flwr_fco.server.replies.bounds import IncrementBounds, check_examples
from flwr_fco.server.replies.checks import Round
from flwr_fco.server.replies.mail import Mail
from flwr_fco.server.replies.metrics import EVALUATION, metric_objections, others_than_most
from flwr_fco.wire.envelope import QUESTION, addressed, send_and_receive
from flwr_fco.wire.protocol import Node, Uplink
from flwr_fco.wire.queries import question_records, read_answer
from flwr_fco.wire.questions import Answer, Question
from flwr_fco.work import FirstOrder

_ASK_SAMPLE = 4


class Inquiry(Part):
    """The questions that a strategy asks all clients outside training, and the options chosen from the answers.

    Parameters
    ----------
    options : CommonOptions
        The strategy, whose options these are.
    kind : type of Algorithm
        The class of the strategy's algorithm.
    mail : Mail
        The messages of the run.

    Attributes
    ----------
    chosen : dict of str to float
        The values chosen for options that are ``"auto"``.
    reasons : dict of str to str
        The reasons for these values.
    """

    def __init__(self, options: CommonOptions, kind: type[Algorithm], mail: Mail) -> None:
        self._options, self._mail = options, mail
        self._names = [name for name in AUTOMATIC if getattr(options, name, None) == AUTO]
        self.extrapolates = "server_lr" in self._names
        if self.extrapolates and not _has_rule(kind, options.aggregation):
            raise ConfigurationError(
                f"server_lr='auto': {type(options).__name__} with aggregation={options.aggregation!r} takes something "
                "else than the plain mean of increments, for which there is no such rule; give a number. FedDualAvg, "
                "FedMid, FedAvgSubgradient and LocalSGD have it"
            )
        self.forget()

    def forget(self) -> None:
        self.chosen: dict[str, float] = {}
        self.reasons: dict[str, str] = {}
        #: The replies of the run that did not count, with reasons.
        self.left_out = self._mail.left_out
        #: Whether there are options to choose from the clients' answers.
        self.due = bool(set(self._names) - {"server_lr"})

    def ask(self, grid: Grid, question: Question, **about: Any) -> list[Answer]:
        """Ask all connected nodes; neither the clients nor the state change.

        An answer is checked like a training reply: exactly the required content, finite numbers, the round's stamp, one
        answer per node, numbers of examples, norms of vectors and losses within ``max_ratio`` of the median. Rejected
        answers are listed in ``left_out``.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            Flower's connection to the nodes.
        question : Question
            What the nodes are asked.
        **about
            What an answer must hold, and what is checked of it: `wanted`, `shapes`, `agreed` and `check` of
            :class:`flwr_fco.certificates.Request`.

        Returns
        -------
        list of Answer
            Sorted by partition id, with the weights of training, which sum to 1; empty if no answer is valid.
        """
        mail, options, request = self._mail, self._options, Request(question.kind, **about)
        if getattr(options, "privacy", None) is not None:
            raise ConfigurationError(
                f"a question about {question.kind!r}: clients answer it with numbers to which no noise is added, which "
                "a private run must not hear; work out on the server's own data what is asked, or leave out privacy"
            )
        number = mail.current.number
        nodes = mail.nodes.sample(grid, number, _ASK_SAMPLE, 1.0, options.min_train_nodes, mail.num_needed)
        current = Round(number, left_out=mail.left_out, kind="question", caller=f"question ({question.kind})")
        current.nodes = {node.node_id: node for node in nodes}
        content = question_records(question)
        contents = ((node.node_id, content.copy()) for node in nodes)
        current.messages = addressed(grid, contents, QUESTION, str(number))

        def read(node: Node, content: RecordDict) -> Answer:
            answer = read_answer(content, numbers=request.wanted, shapes=request.shapes)
            check_examples(answer.examples, options.bounds.max_examples)
            mail.given_weight(node)
            answer = answer._replace(partition=node.partition_id, node_id=node.node_id)
            if request.check is not None:
                request.check(answer)
            return answer

        with mail.explained(grid, current):
            good = current.good(send_and_receive(grid, current.messages, mail.timeout), read)
        reasons = mail.schemas.compare(grid, {reply.node: reply.value.schema for reply in good})
        good = current.without_nodes(good, reasons)
        good = current.without(good, others_than_most([reply.value.numbers for reply in good], request.agreed))
        bounds = IncrementBounds(max_ratio_of(options), None)
        # Deviations in other units are no lie, but what a warning is about.
        vectors = [{name: v for name, v in r.value.vectors.items() if name not in ABOUT_COLUMNS} for r in good]
        claims = [Uplink(v, None, 1, examples=r.value.examples) for v, r in zip(vectors, good, strict=True)]
        objections = bounds.objections(claims)
        losses = [{n: number for n, number in r.value.numbers.items() if n == "loss"} for r in good]
        # Losses of squares are in squares of the units, in which gradients may differ.
        ratio = bounds.ratio and (EVALUATION * bounds.ratio if question.kind == "validation" else bounds.ratio**2)
        good = current.without(good, metric_objections(losses, ratio, bounds, least=0.0) | objections)
        by_claim = options.weighting == "examples"
        shares = [reply.value.examples if by_claim else mail.given_weight(reply.node) for reply in good]
        weights = checks.weights_of(shares, uniform=False)
        if not weights:
            return []
        return [reply.value._replace(weight=weight) for reply, weight in zip(good, weights, strict=True)]

    def question(self, kind: str, primal: Vector, numbers: Mapping[str, float] | None = None) -> Question:
        """Return a question about a point of the run's model.

        Parameters
        ----------
        kind : str
            What is asked, as in the wire's list of questions.
        primal : ndarray of float64, shape (d,)
            The model, flat.
        numbers : mapping of str to float, optional
            Numbers that the question needs.
        """
        mail = self._mail
        return Question(kind, mail.plan.layout, {"primal": primal}, numbers or {}, mail.pass_through_arrays)

    # --- what is "auto" -----------------------------------------------------------------------------------------

    def choose(self, host: Host, grid: Grid) -> None:
        """Choose the ``"auto"`` options by asking the clients about their losses, once per run.

        Parameters
        ----------
        host : Host
            The run.
        grid : flwr.serverapp.Grid
            Flower's connection to the nodes.

        Raises
        ------
        ConfigurationError
            If no client answers, or theory gives no value for this geometry or these losses.
        """
        facts = self._facts(host, grid)
        problem = host.problem._replace(asked=self._mail.nodes.ordered)
        rates = host.algorithm.theory(problem, facts)
        for name in self._names:
            if name != "server_lr":
                self.chosen[name], formula = rates[name]
                self.reasons[name] = f"{formula}, {facts}"
                log(INFO, "\t├──> %s=%.4g: %s", name, self.chosen[name], self.reasons[name])
        self.due = False

    def _facts(self, host: Host, grid: Grid) -> LossFacts:
        work = host.plan.work
        batch_size = (work.batch_size or 0) if isinstance(work, FirstOrder) else 0
        primal = host.algorithm.retrieve(host.problem, host.state)
        question = self.question("smoothness", primal, {"batch-size": float(batch_size)})
        answers = self.ask(grid, question, wanted=("l2", "l1", "convexity", "probed"))
        if not answers:
            what = f"{' and '.join(self._names)} cannot be chosen: no client has said how smooth its loss is."
            raise ConfigurationError(f"{what} The reasons are in `left_out`; give the rates by hand")
        l2, clipped = bounded_largest([answer.numbers["l2"] for answer in answers])
        l1, _ = bounded_largest([answer.numbers["l1"] for answer in answers])
        convexity = bounded_smallest([answer.numbers["convexity"] for answer in answers])
        smoothness, norm = smoothness_for(host.problem.h, l2, l1)
        steps = 1
        if isinstance(work, FirstOrder):
            steps = max(work.num_draws(max(1, int(answer.examples))) for answer in answers)
        probed = any(answer.numbers["probed"] for answer in answers)
        return LossFacts(smoothness, norm, convexity, steps, probed, len(answers), clipped)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the chosen values: a resumed run keeps its rates."""
        return {name: np.array(value) for name, value in self.chosen.items()}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        unknown = arrays.keys() - set(self._names)
        if unknown:
            raise ValueError(f"it has chosen {sorted(unknown)}, which are not 'auto' here")
        chosen = {name: float(saved_array(arrays, name, np.float64, (), smallest=0.0)) for name in arrays}
        same = {name: reason for name, reason in self.reasons.items() if chosen.get(name) == self.chosen.get(name)}
        self.chosen.clear()
        self.chosen.update(chosen)
        self.reasons.clear()
        self.reasons.update(dict.fromkeys(chosen, "as the run began that is resumed") | same)
        self.due = not set(self._names) - {"server_lr"} <= self.chosen.keys()

    def describe(self) -> list[tuple[str, str]]:
        """Return a line for each chosen option."""
        return [(f"Chosen {name}", f"{self.chosen[name]:.4g} = {reason}") for name, reason in self.reasons.items()]


class FirstGradients(Part):
    """Runs round 0 before round 1: every client sends one gradient at the start point, from which trackers start.

    Parameters
    ----------
    mail : Mail
        The messages of the run.
    remembering : Remembering or None
        For clients that remember what they send.
    """

    def __init__(self, mail: Mail, remembering: Remembering | None) -> None:
        self._mail, self._remembering = mail, remembering
        self.forget()

    def forget(self) -> None:
        self._bytes: tuple[int, int] | None = None

    def before_round(self, host: Host, nodes: Sequence[Node]) -> Sequence[Node]:
        """Ask all clients for a gradient, unless that has been done."""
        host.answered_start.clear()
        if host.state.round > 0 or host.state.started:
            return nodes
        mail, everybody = self._mail, host.nodes.ordered
        problem = mail.open(0, everybody, mail.config, host.problem._replace(round=0), host.state)
        good = mail.exchange(mail.letters(everybody))
        uplinks, self._bytes = mail.weighted(good), (mail.current.bytes_down, mail.bytes_up(good))
        log(INFO, "Round 0: %s of %s nodes answered, %s bytes down, %s up", len(good), len(everybody), *self._bytes)
        if not uplinks:
            log(WARNING, "No client has sent a gradient that counts: trackers start at 0, if the round counts")
            return nodes
        if self._remembering is not None:
            self._remembering.after_round(host, host.state, uplinks)
        host.state = host.algorithm.aggregate(problem, host.state, host.replies(problem, host.state, uplinks))
        host.answered_start.update(u.node.node_id for u in uplinks if u.node is not None)
        log(INFO, "Trackers start from the gradients of %s clients", len(uplinks))
        return nodes

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the traffic of round 0, if there was one."""
        return {} if self._bytes is None else {"bytes": np.array(self._bytes, dtype=np.int64)}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        known = "bytes" in arrays
        self._bytes = tuple(saved_array(arrays, "bytes", np.int64, (2,), smallest=0).tolist()) if known else None

    def metrics(self, host: Host) -> dict[str, float | int]:
        """Return the traffic of round 0, in the first round that counts."""
        names = ("bytes-down-round-0", "bytes-up-round-0")
        return {} if self._bytes is None or host.state.round != 1 else dict(zip(names, self._bytes, strict=True))


def _has_rule(kind: type[Algorithm], aggregation: object) -> bool:
    """Whether FedExP's rule fits: the server takes the plain mean of increments along gradients."""
    return kind.reads == "mean" and "server_lr" not in kind.refuses and aggregation == "mean"


#: Fraction of the increments' mean square below which their mean has no meaningful direction.
_ROUNDING = 1e-6


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
    mean = np.zeros(uplinks[0].vectors["increment"].shape)
    squares = 0.0
    for uplink in uplinks:
        vector = np.asarray(dense(uplink.vectors["increment"]), np.float64)
        mean += uplink.weight * vector
        squares += uplink.weight * float(vector @ vector)
    size = float(mean @ mean) + _ROUNDING * squares
    return max(1.0, squares / (2.0 * size)) if size > 0.0 else 1.0


#: Lower bound on a claim of strong convexity, as a fraction of the clients' median.
SMALLEST_CLAIM = 0.01


def bounded_largest(claims: Sequence[float]) -> tuple[float, int]:
    """Return the largest claim, clipped to ten times the lower median, and the number of clipped claims.

    Parameters
    ----------
    claims : sequence of float
        At least one; negative claims count as 0.

    Examples
    --------
    >>> bounded_largest([1.0, 2.0, 4.0]), bounded_largest([1.0, 2.0, 1e9])
    ((4.0, 0), (20.0, 1))
    """
    ordered = sorted(max(0.0, claim) for claim in claims)
    median = ordered[(len(ordered) - 1) // 2]
    if median == 0.0:
        return ordered[-1], 0
    limit = LARGEST_CLAIM * median
    return min(ordered[-1], limit), sum(claim > limit for claim in ordered)


def bounded_smallest(claims: Sequence[float]) -> float:
    """Return the smallest claim, raised to at least a hundredth of the upper median.

    Parameters
    ----------
    claims : sequence of float
        At least one; negative claims count as 0.

    Examples
    --------
    >>> bounded_smallest([1.0, 2.0, 4.0]), bounded_smallest([0.0, 2.0, 4.0])
    (1.0, 0.02)
    """
    ordered = sorted(max(0.0, claim) for claim in claims)
    return max(ordered[0], SMALLEST_CLAIM * ordered[len(ordered) // 2])


def smoothness_for(mirror_map: MirrorMap, l2: float, l1: float) -> tuple[float, str]:
    """Return the Lipschitz constant in the norm in which the mirror map is 1-strongly convex, and the norm's name.

    Euclidean: L_2. DiagonalMetric: L_2 / min weight. SimplexEntropy: radius L_1. PNorm, in its q-norm:
    L_1^(1 - 2/p) L_2^(2/p), by the Riesz-Thorin theorem between l1 -> linf and l2 -> l2. A product: L_2, because each
    of these maps is 1-strongly convex in the l2 norm too (up to its weights or radius).

    Parameters
    ----------
    mirror_map : MirrorMap
        Mirror map, bound to the layout or not.
    l2, l1 : float
        ||grad(u) - grad(v)||_2 <= l2 ||u - v||_2, and with the norms linf and l1.

    Raises
    ------
    ConfigurationError
        If the map is not strongly convex on its domain.

    Examples
    --------
    >>> smoothness_for(PNorm(4.0), 9.0, 1.0)
    (3.0, '1.333')
    """
    if isinstance(mirror_map, PNorm):
        p = mirror_map.p
        return l1 ** (1.0 - 2.0 / p) * l2 ** (2.0 / p), f"{p / (p - 1.0):.4g}"
    if isinstance(mirror_map, SimplexEntropy):
        return mirror_map.radius * l1, "l1"
    modulus = _modulus(mirror_map)
    if modulus > 0.0:
        return l2 / modulus, "weighted l2" if isinstance(mirror_map, DiagonalMetric) else "l2"
    what = f"no rate follows from theory for mirror_map={mirror_map!r}, which is not strongly convex everywhere"
    raise ConfigurationError(f"{what}; give client_lr by hand")


def _modulus(mirror_map: MirrorMap) -> float:
    """Return a modulus of strong convexity in the l2 norm; 0 if there is none."""
    if isinstance(mirror_map, Euclidean | PNorm):
        return 1.0
    if isinstance(mirror_map, DiagonalMetric):
        return float(mirror_map.weights.min())
    if isinstance(mirror_map, SimplexEntropy):
        return 1.0 / mirror_map.radius
    if isinstance(mirror_map, BoundProduct):
        return min((_modulus(part.mirror_map) for part in mirror_map.parts), default=1.0)
    return 0.0
