"""All that a reply must be to count: every check of what clients send.

:func:`collect` asks whose reply it is, :func:`read` whether it can be, and :func:`objections` whether it would
move a mean too far, or has been sent before. The first reason counts; a reply with a reason is left out, logged and
counted, and nothing else changes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from statistics import median_high, median_low
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from flwr_fco.algorithms.contract import AtMost
from flwr_fco.algorithms.contract.replies import LARGEST_CLAIM
from flwr_fco.algorithms.primal_averaging import PrimalAveraging
from flwr_fco.core.computing import logger
from flwr_fco.core.layout import Layout, SparseVector, Vector, dense, euclidean_norm
from flwr_fco.core.schema import listed
from flwr_fco.core.validation import printable
from flwr_fco.errors import FOR_A_MODEL, FormError, ProtocolError, advice_on
from flwr_fco.messages import records
from flwr_fco.messages.protocol import MemoryLostError, Node, Uplink
from flwr_fco.messages.records import ELAPSED, EXAMPLES, FLOATS, NOT_FINITE, STEPS, Inbox, check_array, is_number, only
from flwr_fco.messages.short import Form, Mask, read_reply
from flwr_fco.work import FirstOrder, Minimise, Work

#: Rows of the table of what was left out, and characters of a reason: clients choose parts of it.
MOST_ROWS, _MOST_CHARACTERS = 100_000, 500
#: Metrics of a reply, characters of a name, and numbers in lists: they go into every table.
MOST_METRICS, LONGEST_NAME, MOST_NUMBERS = 1_000, 200, 100_000
#: Largest number of examples.
_MOST_EXAMPLES = 1e12
#: Replies of the first rounds that say what length is usual.
_FIRST_REPLIES = 3
#: How much more, and in steps of how different a size, a client with a training loop of its own may do; if the others
#: do so too.
_OWN_LOOPS = 1_000.0
#: How far a sum of step sizes may be from steps times rate, in the solvers of this package.
_ROUNDING = 1e-9
#: What is rounding of a length, and of a round's step, relative to the model.
_NO_LENGTH, _NO_STEP = 1e-12, 1e-8
#: What is rounding of a memory, also of single precision, relative to the reply per unit of elapsed.
_NO_NEWS = 1e-6
#: How far a minimisation may move predictions whatever the others do: where one column decides all classes of most
#: sites, these hardly move, and a site with both classes moves about so far on the scale of log odds.
_MOVE = 4.0
#: The reason of a client that has not replied at all.
NO_REPLY = "no reply"
#: The reason of one whose reply has come, and is not among those that `aggregate_train` was given.
DROPPED = "a hook of the strategy has left it out"
#: Part of the reason where a reply is too long.
TOO_LONG = "more than max_ratio="
#: What its owner may do about it.
HONEST = "; if it is honest, lower the rates or scale the features"
Numbers = Sequence[float]
#: Whose reply does not count, and why.
Bad = list[tuple[Node, ProtocolError]]
_FLOAT64 = np.dtype(np.float64)
_WHOLE = ("float64", "float32")
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit|Warning)\b.*")
#: A client's exception as a SuperNode of Flower sends it.
_SENT = re.compile(r"^<class '(?:[\w.]*\.)?(\w+)'>:<'(.*)'>$", re.DOTALL)
#: What Flower and Ray put around a client's exception.
_WRAPPER = re.compile(r"^([\w.]*\.)?(ClientAppException|RayTaskError)\b|^Exception ClientAppException occurred")


class LeftOut(NamedTuple):
    """A reply that did not count: a row of the result's ``left_out``.

    Parameters
    ----------
    round : int
        Flower's round, from 1.
    node_id : int
        Of the node that was asked, or that replied without being asked.
    partition_id : int or None
        Its partition, if it is known.
    reason : str
        Why, with the value and what was expected.
    kind : {"train", "evaluate", "question"}
        What was asked.

    Examples
    --------
    >>> LeftOut(3, 7, 2, "error 2: ValueError: no rows").kind
    'train'
    """

    round: int
    node_id: int
    partition_id: int | None
    reason: str
    kind: str = "train"


class Reply(NamedTuple):
    """A reply that counts: who sent it, what was read, and the content of its message (the uplink without one)."""

    node: Node
    value: Any
    content: Any


class Round:
    """An exchange: who was asked, and what was left out of the replies.

    Parameters
    ----------
    number : int
        Flower's round, from 1.
    nodes : sequence of Node
        Who is asked, in the order in which replies are summed.
    table : list of LeftOut
        Of the run.
    kind : {"train", "evaluate", "question"}
        What is asked.

    Attributes
    ----------
    left_out, malformed : int
        Number of replies of this round that did not count, and of those that no round could count.
    foreign : set of int
        Ids of nodes whose ClientApp knows nothing of this package.
    short : bool
        Whether nodes were sent short messages, and none has answered one yet.
    form : (Form, ndarray) or None
        Their form, and where the model in them is not 0.
    shapes : dict of str to tuple of int
        The vectors that clients are to send.
    works : dict of int to Work
        What nodes do, where it is not the plan's work.
    dtype : str
        Precision of what they are sent.
    bytes_down : int
        Of the arrays that they are sent.
    possible : tuple or None
        What the last reply that can be says that it did: most of a round say the same.
    """

    def __init__(self, number: int, nodes: Sequence[Node], table: list[LeftOut], kind: str = "train") -> None:
        self.number = number
        self.kind = kind
        self.table = table
        self.foreign = set[int]()
        self.short = False
        self.form: tuple[Form, Mask] | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.works: dict[int, Work] = {}
        self.dtype = "float64"
        self.possible: Any = None
        self.nodes = {node.node_id: node for node in nodes}
        self.bytes_down = self.left_out = self.malformed = 0
        #: Who has replied, as far as this package has sent the messages.
        self.answered = set[int]()
        #: By a message's id whom it has asked, where a SuperLink answers for a node that has died.
        self.asked = dict[str, int]()

    def sender(self, message: Message) -> Node:
        """Return whose reply a message is, also if it says that this node has died."""
        node_id = message.metadata.src_node_id
        if node_id not in self.nodes and message.has_error():
            node_id = self.asked.get(message.metadata.reply_to_message_id, node_id)
        return self.nodes.get(node_id) or Node(node_id, None)

    def leave_out(self, bad: Iterable[tuple[Node, str | ProtocolError]], *, quiet: bool = False) -> None:
        """Record that replies do not count, and log it: those of one reason in one line."""
        alike = dict[str, list[Node]]()
        for node, why in bad:
            reason = f"{why}"
            # The advice is at the end.
            reason = printable(reason if len(reason) <= _MOST_CHARACTERS else f"{reason[:300]} ... {reason[-195:]}")
            alike.setdefault(reason, []).append(node)
            self.left_out += 1
            self.malformed += isinstance(why, FormError)
            if len(self.table) == MOST_ROWS:
                reason = f"there is more than fits into a table of {MOST_ROWS} rows; num-left-out counts on"
            if len(self.table) <= MOST_ROWS:
                self.table.append(LeftOut(self.number, *node, reason, self.kind))
        for reason, nodes in () if quiet else alike.items():
            logger.warning("round %s (%s): left out the reply of %s: %s", self.number, self.kind, listed(nodes), reason)

    def settle(self, good: Mapping[Node, Reply], bad: Bad) -> list[Reply]:
        """Return the good replies in the order of who was asked; leave out the bad ones, and who has not replied."""
        replied = {*good, *dict(bad)}
        silent = [node for node in self.nodes.values() if node not in replied]
        self.leave_out([*bad, *((node, NO_REPLY) for node in silent if node.node_id not in self.answered)])
        self.leave_out([(node, DROPPED) for node in silent if node.node_id in self.answered], quiet=True)
        return [good[node] for node in self.nodes.values() if node in good]

    def without(self, good: list[Reply], reasons: Mapping[int, str]) -> list[Reply]:
        """Return the good replies but for some, by position, which are left out."""
        self.leave_out((good[i].node, reason) for i, reason in sorted(reasons.items()))
        return [reply for i, reply in enumerate(good) if i not in reasons]


# --- whose reply is it ------------------------------------------------------------------------------------------------


def collect(current: Round, said: Iterable[Message], read: Callable[[Node, Any], Any]) -> tuple[dict[Node, Reply], Bad]:
    """Return the good replies by who sent them, and why others do not count.

    Parameters
    ----------
    current : Round
        Who was asked.
    said : iterable of Message
        The replies as they came; of an unopened inbox the replies themselves.
    read : callable
        ``(node, uplink or content)``: what was read of it; a :class:`ProtocolError` says why it does not count.
    """
    good = dict[Node, Reply]()
    bad = Bad()
    unread = said.replies if isinstance(said, Inbox) and not said.opened else None
    for node, own in ((current.sender(message), message) for message in said) if unread is None else unread:
        try:
            content = _content(current, node, own, good) if isinstance(own, Message) else own
            good[node] = Reply(node, read(node, content), content)
        except ProtocolError as error:
            bad.append((node, error))
    return good, bad


def _content(current: Round, node: Node, message: Message, good: Container[Node]) -> Any:
    if message.has_error():
        reason = message.error.reason or ""
        advice = advice_on(reason, foreign=node.node_id in current.foreign, short=current.short)
        cause = cause_of(reason)
        # Whose cause is known fails in every round, as what cannot work, or a site's owner refuses.
        refused = cause.partition(":")[0].endswith(("ConfigurationError", "PublicError", "ModuleNotFoundError"))
        kind = FormError if refused or advice else ProtocolError
        raise kind(f"error {message.error.code}: {cause}{advice}")
    if node.node_id not in current.nodes:
        raise ProtocolError("this node was not asked")
    if (group := message.metadata.group_id) != str(current.number):
        text = f"it answers round {group or 'without a stamp'}, this is {current.number}"
        if group:
            raise ProtocolError(text)
        raise FormError(f"{text}: a hook's own message has none; change those of super().configure_{current.kind}")
    if node in good:
        raise ProtocolError("it answered twice; the first answer counts")
    return message.content


def cause_of(reason: str) -> str:
    r"""Return the line of a client's error that names the exception: what a runtime puts around it is cut.

    Examples
    --------
    >>> cause_of("<class 'ray.exceptions.RayTaskError'>: Traceback ...\n  File ...\nValueError: no rows\n")
    'ValueError: no rows'
    >>> cause_of("<class 'flwr_fco.errors.PublicError'>:<'this site lacks the column 'age''>")
    "PublicError: this site lacks the column 'age'"
    >>> cause_of("disk full"), cause_of("ValueError: no rows\n Traceback ...\nmine.ValueError: no rows")
    ('disk full', 'ValueError: no rows')
    """
    lines = [line.strip() for line in _SENT.sub(r"\1: \2", reason).splitlines() if line.strip()]
    named = [line for line in lines if _EXCEPTION.match(line)]
    named = [line for line in named if not _WRAPPER.match(line)] or named
    # A grid of this package begins with it; a traceback ends with it.
    first = not named or named[0] == lines[0]
    return (named or lines or ["no reason"])[0 if first else -1]


# --- can it be --------------------------------------------------------------------------------------------------------


def check_form(up: Uplink, shapes: Mapping[str, tuple[int, ...]], layout: Layout, half: bool) -> dict[str, float]:
    """Return the norms of a reply's vectors, which are those that the method sends, and finite.

    Parameters
    ----------
    up : Uplink
        As it was read.
    shapes : mapping of str to tuple of int
        Names and shapes of the vectors that a client sends.
    layout : Layout
        Of the model.
    half : bool
        Whether vectors may be in half precision, whose errors the method bounds.

    Raises
    ------
    ProtocolError
        If it is not so.
    """
    if up.vectors.keys() != shapes.keys():
        # Clients of this package say how many steps they have taken.
        advice = f". {FOR_A_MODEL}" if up.steps is None or up.vectors.keys() == set(layout.names) else ""
        raise FormError(f"the arrays are {sorted(up.vectors)}, expected {sorted(shapes)}{advice}")
    norms = {}
    for name, vector in up.vectors.items():
        shape = shapes[name]
        held = vector.values if isinstance(vector, SparseVector) else vector
        if held.dtype is not _FLOAT64 or vector.shape != shape:
            shorter = isinstance(shape, AtMost) and len(vector.shape) == 1 and vector.shape < shape
            check_array(name, vector, FLOATS if half else _WHOLE, vector.shape if shorter else shape, finite=False)
        # A finite norm has finite entries only: one pass for both.
        norm = math.sqrt(np.vdot(held, held)) if held.dtype is _FLOAT64 else euclidean_norm(held)
        if not math.isfinite(norm):
            bad = int(held.size - np.isfinite(held).sum())
            raise ProtocolError(f"array {name!r} holds {bad} {NOT_FINITE}" if bad else f"array {name!r} overflows")
        norms[name] = norm
    if up.pass_through:
        records.check_passed(layout, up.pass_through)
    return norms


def check_metrics(metrics: Mapping[str, Any], needed: Container[str], node: Node) -> dict[str, Any]:
    """Return a client's metrics without those that are no finite numbers, or lists of them: a warning names them.

    Of a site with one class there is no AUC: that costs this number, and neither the site's training nor its loss.

    Parameters
    ----------
    metrics : mapping of str to number or list
        What the client reports.
    needed : container of str
        Names of metrics without which its reply does not count.
    node : Node
        The client.

    Raises
    ------
    ProtocolError
        If such a one is no number, a name is no short text, or they are too many.
    """
    lists = sum(len(value) for value in metrics.values() if type(value) is list)
    if len(metrics) > MOST_METRICS or lists > MOST_NUMBERS:
        most = f"expected at most {MOST_METRICS} and {MOST_NUMBERS}"
        raise ProtocolError(f"it reports {len(metrics)} metrics, and {lists} numbers in lists; {most}")
    kept = dict[str, Any]()
    for name, value in metrics.items():
        if not isinstance(name, str) or len(name) > LONGEST_NAME or not name.isprintable():
            expected = f"expected a name of at most {LONGEST_NAME} printable characters"
            raise ProtocolError(f"it reports a metric {name!r:.100}, {expected}")
        if all(map(is_number, value if isinstance(value, list) else [value])):
            kept[name] = value
        elif name in needed:
            raise ProtocolError(f"the metric {name!r:.100} is {value!r:.100}, expected finite numbers")
    if dropped := [name for name in metrics if name not in kept]:
        logger.warning("no finite numbers at %s, not in the means of metrics: %.200r", node, dropped)
    return kept


def check_work(up: Uplink, work: Work, rate: float, *, own_loops: bool) -> None:
    """Raise a ProtocolError if a client says that it has done what the plan does not ask for.

    Parameters
    ----------
    up : Uplink
        Of the client.
    work : Work
        What it was asked for.
    rate : float
        The size of its steps; NaN for a method without rates, whose steps count 1.
    own_loops : bool
        Whether the client has a training loop of its own.
    """
    first = isinstance(work, FirstOrder)
    most = max(1, work.num_draws(max(1, int(up.examples)))) if isinstance(work, FirstOrder) else work.max_iterations
    advice = "" if own_loops or not first else _LOOPS_ADVICE
    if up.steps is None or not is_number(up.steps) or up.steps != int(up.steps) or up.steps < 1:
        raise ProtocolError(f"it reports {up.steps!r} local steps, expected a whole number >= 1")
    if up.steps > most * (_OWN_LOOPS if own_loops and first else 1.0):
        raise FormError(f"it reports {up.steps} local steps, the plan asks for {most}{advice}")
    if not first and up.elapsed is not None:
        # Lengths are compared per unit of it.
        raise ProtocolError(f"the metric 'elapsed' is {up.elapsed!r:.50}, expected none after a minimisation")
    if first and (not is_number(up.elapsed) or up.step_sizes <= 0.0):
        raise ProtocolError(f"the metric 'elapsed' is {up.elapsed!r}, expected a finite number > 0")
    expected = up.steps * (1.0 if math.isnan(rate) else rate)
    factor = _OWN_LOOPS if own_loops else 1.0 + _ROUNDING
    if first and not expected / factor <= up.step_sizes <= expected * factor:
        raise FormError(f"it reports elapsed={up.elapsed:g} after {up.steps} steps of size {rate:g}{advice}")


_LOOPS_ADVICE = "; clients that train with flwr_fco.torch.local_training need bounds=Bounds(own_loops=True)"


def check_examples(run: Any, node: Node, examples: Any, key: str = EXAMPLES, *, trains: bool = True) -> float:
    """Return a client's number of examples, or its weight under another key.

    Parameters
    ----------
    run : Run
        Of the strategy, with what is known of its clients' rows.
    node : Node
        The client.
    examples : float or None
        What it says.
    key : str, default "num-examples"
        The metric's name.
    trains : bool, default True
        Whether it is about the rows that train.

    Raises
    ------
    ProtocolError
        If it is no number from 0 to 1e12, or another one than ``Bounds(rows=...)`` says of the rows that train.
    """
    if examples is None:
        raise FormError(f"it lacks the metric {key!r}, its weight; under another name give weighted_by_key=")
    if not is_number(examples) or not 0.0 <= examples <= _MOST_EXAMPLES:
        said = f"{examples!r:.50} {key.removeprefix('num-')}"
        raise ProtocolError(f"it reports {said}; expected a number from 0 to {_MOST_EXAMPLES:g}")
    known = run.options.bounds.rows
    expected = examples if known is None else known.get(node.site)
    if expected is None or (trains and expected != examples):
        own = "none: it is not in Bounds(rows=...)" if expected is None else f"{expected:g}, of Bounds(rows=...)"
        raise ProtocolError(f"it reports {examples:g} examples; expected {own}")
    return float(examples)


def check_weight(run: Any, node: Node, weight: float, rows: float) -> None:
    """Raise a ProtocolError if a client has another weight than its first, in a method whose sums keep it."""
    keeps = "this method's sums keep a client's weight"
    said = run.tables.rows_of(node)
    if run.options.weighted_by_key == EXAMPLES and said not in (None, rows):
        raise ProtocolError(f"it reports {rows:g} examples, with its columns it was {said:g}; {keeps}")
    first = run.roll.member(node.key).examples
    if weight <= 0.0 or first not in (None, weight):
        before = "" if first is None else f", in its first reply that counted it was {first:g}"
        raise ProtocolError(f"it reports {weight:g} examples{before}; {keeps}")


def read(run: Any, node: Node, said: Any) -> Uplink:
    """Return a reply that can be by itself.

    Parameters
    ----------
    run : Run
        Of the strategy, with the exchange.
    node : Node
        The client.
    said : Uplink, RecordDict or None
        The reply, or the content of its message.

    Raises
    ------
    ProtocolError
        If it cannot be, or the client has lost its memory.
    """
    options = run.options
    up = _uplink(run, said)
    if up is None:
        raise MemoryLostError("it has lost its memory")
    if up.metrics:
        needed = {options.weighted_by_key} if options._unmodified else {options.weighted_by_key, "loss"}
        up = up._replace(metrics=check_metrics(up.metrics, needed, node))
    current: Round = run.current
    norms = check_form(up, current.shapes, run.problem.layout, half="held_out" in run.method.discloses)
    longest = options.bounds.max_increment_norm
    for name, norm in norms.items() if longest is not None and not run.method.discloses else ():
        if norm > longest:
            raise ProtocolError(f"the norm of its {name} is {norm:.3g}, more than max_increment_norm={longest:g}")
    work = FirstOrder(steps=1) if current.number == 0 else current.works.get(node.node_id, run.problem.plan.work)
    claims = up.examples, up.steps, up.elapsed, work
    if claims != current.possible or options.bounds.rows is not None:
        up = up._replace(examples=check_examples(run, node, up.examples))
        if up.steps is not None or not options._unmodified:
            check_work(up, work, run.problem.client_lr, own_loops=options._unmodified or options.bounds.own_loops)
        current.possible = claims
    examples = up.examples
    if (key := options.weighted_by_key) != EXAMPLES:
        weight = {STEPS: up.steps, ELAPSED: up.elapsed, **up.metrics}.get(key)
        examples = check_examples(run, node, weight, key, trains=False)
    if options.site_weights is not None:
        examples = run.weight(node, examples)
    if run.roll is not None and not run.roll.uniform:
        check_weight(run, node, examples, up.examples)
    digest = up.digest if up.digest or run.ledger is None else records.digest_of(up.vectors, up.elapsed)
    return up._replace(node=node, examples=examples, digest=digest, norms=norms)


def _uplink(run: Any, said: Any) -> Uplink | None:
    if said is None or isinstance(said, Uplink):
        return said
    increment = None
    if run.current.form is not None:
        form, support = run.current.form
        increment, said = read_reply(form, support, said)
    if run.options._unmodified:
        return _model_of(run, said, increment)
    up = records.decode_uplink(said, run.problem.layout.size, run.current.shapes)
    return up if increment is None or up is None else up._replace(vectors={"increment": increment})


def _model_of(run: Any, content: RecordDict, increment: Vector | None = None) -> Uplink:
    """Return the client's model minus the one that it was sent, as an uplink.

    The clients' own learning rate is as the user says it; what a client reports takes precedence.

    Parameters
    ----------
    run : Run
        Of the strategy.
    content : RecordDict
        Of the reply.
    increment : ndarray of float64, shape (d,), optional
        Of a short message, whose arrays are those that pass through.
    """
    options, layout = run.options, run.problem.layout
    arrays = only(ArrayRecord, content)
    if increment is None:
        sent: Vector = run.last()[0]
        increment, passed = records.model_vector(layout, arrays)
        for entry in layout.optimized:
            # A client that works in less precision than the server has got a rounded model.
            increment[entry.block] -= sent[entry.block].astype(arrays[entry.name].dtype)
        if all(arrays[entry.name].dtype == entry.dtype == "float32" for entry in layout.optimized):
            # This loses less than the models have lost already, and halves the size.
            increment = increment.astype(np.float32)
    else:
        passed = records.model_vector(Layout(layout.passed_through), arrays)[1]
    metrics: dict[str, Any] = dict(only(MetricRecord, content))
    # As with FedAvg, a client need not say more than its weight.
    examples = metrics.pop(EXAMPLES, metrics.get(options.weighted_by_key))
    # Where nothing depends on their steps, these names are theirs: seconds are no sizes of steps.
    steps, elapsed = None, 1.0
    if options.work.steps is not None:
        steps = metrics.pop(STEPS, options.work.steps)
        elapsed = metrics.pop(ELAPSED, run.problem.client_lr * steps if is_number(steps) else None)
    return Uplink({"increment": increment}, elapsed, steps, examples=examples, metrics=metrics, pass_through=passed)


# --- does it move a mean too far, and is it new ----------------------------------------------------------------------


class Cap:
    """How far one reply may move a mean: its share of the weight times its length.

    What is usual is, for each vector, the median length of the first round, or the largest of those that it takes for
    three replies. Lengths of 0 are of no median: a site without an event in its rows sends nothing else. A reply may
    move the mean as far as a usual one alone, and up to `ratio` times as far as the median of its own round, as long as
    that is no more than what is usual. So nothing that is accepted later widens a bound: a lie makes the model worse
    and honest replies longer, but not the next lie.

    Parameters
    ----------
    ratio : float or None
        Largest multiple; None for no bound.

    Attributes
    ----------
    usual : dict of str to (float, int)
        By vector the length, and the number of replies that it is of.
    far : (Node or None, float)
        Who has moved the mean furthest in the last round, and how many times as far as the median client.
    """

    saved = ("usual",)

    def __init__(self, ratio: float | None) -> None:
        self.ratio = ratio
        self.usual: dict[str, tuple[float, int]] = {}
        self.far: tuple[Node | None, float] = (None, 1.0)

    def length(self, name: str, lengths: Numbers, rounding: float = 0.0) -> float:
        """Return the length that the bound of a round's replies is a multiple of; 0 if there is none yet."""
        usual, count = self.usual.get(name, (0.0, 0))
        median = _median(lengths)
        # Steps of rounding, as after a tracker's first full batch, say nothing.
        if median > rounding and count < _FIRST_REPLIES:
            usual = max(usual, median)
            self.usual[name] = usual, count + len(lengths)
        return min(max(median, usual / (self.ratio or math.inf)), usual)

    def too_long(self, name: str, lengths: Numbers, shares: Numbers, usual: float, advice: str = "") -> dict[int, str]:
        """Return why replies are too long, by index."""
        if self.ratio is None or not usual > 0.0:
            return {}
        text = f"{TOO_LONG}{self.ratio:g} times {usual:.3g}, as others are or were at first{advice}"
        pairs = enumerate(zip(lengths, shares, strict=True))
        beyond = [(i, length, share) for i, (length, share) in pairs if not share * length <= self.ratio * usual]
        return {i: f"its {name} is {length:.3g} at {share:.2g} of the weight, {text}" for i, length, share in beyond}


def objections(run: Any, ups: Sequence[Uplink], *, lengths: bool = True, losses: Sequence[str] = ()) -> dict[int, str]:
    """Return why replies that can be do not count, by index.

    Parameters
    ----------
    run : Run
        Of the strategy.
    ups : sequence of Uplink
        With the norms of their vectors.
    lengths : bool, default True
        Whether the lengths of vectors are bounded: not those of derivatives, which are checked by their meaning.
    losses : sequence of str
        Vectors that hold losses.
    """
    options = run.options
    cap = run.cap
    reasons = dict[int, str]()
    shares = weights_of([up.examples for up in ups], options.weighting == "uniform") or [0.0] * len(ups)
    largest = options.bounds.max_share
    if largest is not None and options.site_weights is None and len(ups) > 1:
        text = "of the round's weight by the examples that it reports, more than max_share="
        reasons |= {i: f"it has {share:.3g} {text}{largest:g}" for i, share in enumerate(shares) if share > largest}
    # Of round 0 the replies are gradients themselves.
    times = [(up.elapsed or 1.0) if run.current.number else 1.0 for up in ups]
    if options.bounds.own_loops or options._unmodified:
        reasons |= _overworked(ups, times)
    least = _natural_length(run) / (cap.ratio or math.inf)
    for name in ups[0].vectors if ups and lengths else ():
        each = [up.norms[name] / time for up, time in zip(ups, times, strict=True)]
        usual = max(cap.length(name, each, _NO_LENGTH * run.size / max(times)), least)
        reasons = cap.too_long(f"{name} per unit of elapsed", each, shares, usual, HONEST) | reasons
        moves = [length * share for length, share in zip(each, shares, strict=True)]
        worst = int(np.argmax(moves))
        cap.far = ups[worst].node, moves[worst] / (_median(moves) or 1.0)
    for name, old in run.passed.items() if ups and lengths else ():
        moved = [np.linalg.norm(up.pass_through.get(name, old).astype(np.float64) - old) for up in ups]
        size = max(1.0, float(np.linalg.norm(old)))
        # What most leave as it is, as a frozen layer, has no usual change: its size is one.
        usual = size if old.dtype.kind == "f" and np.median(moved) <= _NO_LENGTH * size else cap.length(name, moved)
        reasons = cap.too_long(f"change of {name}", moved, shares, usual) | reasons
    # At one model losses are those of one question: of them this round's median is the usual one.
    said = ("loss", *losses) if any("loss" in up.metrics for up in ups) else losses
    # Some clients' loss is a sum over their examples.
    sums = [max(1.0, up.examples / (_median([up.examples for up in ups]) or math.inf)) for up in ups] if said else []
    for name in said:
        own = [dense(up.vectors[name]) if name in losses else up.metrics.get(name, 0.0) for up in ups]
        # The largest number of each, and 1 at least: below that all are small.
        sizes = [max(1.0, float(np.max(np.abs(x), initial=0.0))) / most for x, most in zip(own, sums, strict=True)]
        reasons = cap.too_long(name, sizes, shares, _median(sizes)) | reasons
    return _repeated(run, ups) | reasons


def _natural_length(run: Any) -> float:
    """Return a length that is never too long, per unit of elapsed; 0 if none is known.

    A gradient of a loss of 1 that is nowhere below 0 may be sqrt(2 L) long, and a rate is about 1 / L at most: such a
    step changes predictions little, whatever the units of the columns are.
    """
    rate = run.problem.client_lr
    if isinstance(run.problem.plan.work, Minimise) and isinstance(run.method, PrimalAveraging):
        scale: float = run.tables.scales.largest
        return _MOVE / max(1.0, scale) if scale else 0.0
    return math.sqrt(2.0 / rate) if rate > 0.0 and not run.options._unmodified else 0.0


def _overworked(ups: Sequence[Uplink], times: Numbers) -> dict[int, str]:
    """Return who says to have done far more than others in a loop of its own, by index.

    All are scaled to the mean work: who says 100 times as much makes everybody's step 11 times as long, of ten clients.
    The same loop takes as many more steps as a client has more rows, or fewer.
    """
    rows = _median([up.examples for up in ups])
    usual = _median(times)
    most = [LARGEST_CLAIM * usual * max(1.0, up.examples / (rows or math.inf)) for up in ups]
    text = f"is more than {LARGEST_CLAIM:g} times that of the median client, {usual:.3g}, for its number of examples"
    # A sum of ten times as many step sizes is not ten times the sum to the last digit.
    return {i: f"elapsed={time:.3g} {text}" for i, time in enumerate(times) if time > (1.0 + _ROUNDING) * most[i]}


def _median(values: Numbers) -> float:
    """Return the median of those numbers that are above 0, which half of them bound; 0 without any.

    Between two it is their geometric mean: the lengths of two honest sites may differ by thousands.
    """
    above = [value for value in values if value > 0.0]
    return math.sqrt(median_low(above)) * math.sqrt(median_high(above)) if above else 0.0


def _repeated(run: Any, ups: Sequence[Uplink]) -> dict[int, str]:
    """Return who has sent what it had sent before, to the bit, though the model has moved; of methods with memories.

    Where most do so, as at a solution, it is no lie; nor is it of a client whose slopes are constant or 0, as those of
    Huber's loss far from its targets: what it remembers then stays as it is, or moves as one.
    """
    if run.ledger is None or run.moved <= _NO_STEP:
        return {}
    members = {i: run.ledger.member(up.node.key) for i, up in enumerate(ups) if up.node}
    again = [i for i, member in members.items() if ups[i].digest in member.sent and _is_news(run, member, ups[i])]
    text = "it is what the client has sent in an earlier round, to the bit, and the model has moved since"
    return dict.fromkeys(again, text) if 2 * len(again) <= len(ups) else {}


def _is_news(run: Any, member: Any, up: Uplink) -> bool:
    """Whether a reply changes what its client remembers by more than rounding, or nothing is known of that."""
    length = max(up.norms.values(), default=0.0)
    if length <= _NO_LENGTH * run.size or member.memory is None:
        return bool(length > _NO_LENGTH * run.size)
    after = run.method.remembered(run.method.downlink(run.problem, run.state, None), member.memory, up)
    moves = [dense(vector) - dense(member.memory[name]) for name, vector in after.items()]
    # Points that move together leave the slope between them as it is.
    changes = [euclidean_norm(move - moves[0]) for move in moves[1:]] or [euclidean_norm(moves[0])]
    return bool(max(changes) > _NO_NEWS * length / (up.elapsed or 1.0))


# --- weights ----------------------------------------------------------------------------------------------------------


def weights_of(examples: Numbers, uniform: bool) -> list[float]:
    """Return weights p_m that sum to 1; none if all of them are 0.

    Examples
    --------
    >>> weights_of([30.0, 10.0], uniform=False), weights_of([0.0], uniform=False)
    ([0.75, 0.25], [])
    """
    parts = [1.0] * len(examples) if uniform else examples
    total = math.fsum(parts)
    return [part / total for part in parts] if total > 0.0 else []
