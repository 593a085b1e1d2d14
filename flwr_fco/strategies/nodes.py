"""The connected nodes: known by partition, drawn with the run's seed; what their tables are, and what they remember.

Before its first task a client is asked whether its table is the others', by names, order, classes and scales.

The server has a copy of what every client remembers: a lost reply, or a client that restarts, corrupts nothing. A
memory is named by the digest and the round of the reply that it follows from, and by a check sum of its own. A task's
stamp says which one counts; a client that does not have it says so, and is sent the ledger's. What a round does to a
memory is the method's ``remember``, called by the client and here, with the same bits.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flwr_fco.algorithms.contract import Algorithm, Change
from flwr_fco.algorithms.contract.choices import ChooseNodes
from flwr_fco.algorithms.contract.replies import weighted_sum
from flwr_fco.core.computing import logger, random_generator
from flwr_fco.core.layout import SparseVector, Vector
from flwr_fco.core.schema import Names, Scales, difference, listed
from flwr_fco.core.validation import short
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.messages import records
from flwr_fco.messages.protocol import Described, Downlink, Node, Uplink
from flwr_fco.messages.records import NAMES_ONLY, PARTITION, TABLE, Inbox, addressed, decode_described, decode_partition
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.strategies.replies import NO_REPLY, Round, collect

#: A client from round to round: :attr:`Node.key`.
Key = tuple[int, int]
#: Times that a client is waited for in vain before it is asked and no longer waited for; and the seconds that it then
#: has if the others do not say how long an answer takes.
_PATIENCE, _MOMENT = 2, 6.0
#: Seconds to wait for the nodes' answers to the question about their partition, which may start with an installation.
_HANDSHAKE_TIMEOUT = 300.0
#: What a draw is for: rounds of training, evaluations and questions are drawn apart from each other.
TRAINING, EVALUATION, ASKING = 2, 3, 4


class Nodes:
    """The connected nodes of a run.

    Parameters
    ----------
    seed : int
        Seed of the samples.
    timeout : float
        Seconds to wait for enough nodes to connect.
    asks : bool
        Whether nodes can be asked for their partition id: an unmodified client has no answer.

    Attributes
    ----------
    ordered : list of Node
        The nodes, sorted by partition id.
    refused : dict of int to Node
        Ids of nodes that claim the partition of another node, with that node; they are not asked.
    seen : dict of int to int
        By partition the last node that has been there.
    gone : dict of (int, int) to Node
        Those of them that are not connected any more, by key.
    foreign : set of int
        Ids of nodes that were asked for their partition, and whose ClientApp has no answer to that.
    """

    saved = ("seen",)

    def __init__(self, seed: int, timeout: float, asks: bool) -> None:
        self.seed = seed
        self.timeout = timeout
        self.asks = asks
        self.ordered: list[Node] = []
        self.refused: dict[int, Node] = {}
        self.seen: dict[int, int] = {}
        self.gone: dict[Key, Node] = {}
        self.foreign: set[int] = set()
        self._known: dict[int, Node] = {}
        #: Exchanges in a row in which a node has not answered at all: any ("" for a kind), and of a kind of messages.
        self.silences = Counter[tuple[int, str]]()
        #: Seconds of the last exchange that everybody has answered, by kind of messages.
        self._took: dict[str, float] = {}

    def exchange(self, run: Any, messages: Sequence[Message], current: Round | None = None) -> Sequence[Message]:
        """Send messages and return the replies, waiting for them up to the timeout of a run.

        A client that has been waited for in vain twice in a row, in messages of any kind or of this one, is asked after
        all others, and has as long as they took, or all together when all last answered: a site that hangs costs two
        timeouts and not one a round. Where there are no others, they have the timeout: they may be slow to begin.

        Parameters
        ----------
        run : Run
            Of the strategy.
        messages : sequence of Message
            One for each client.
        current : Round, optional
            Whom they ask; by default the round of the run.
        """
        current = current or run.current
        kinds = ("", messages[0].metadata.message_type) if self.silences and len(messages) else ("",)
        silent = {node_id for (node_id, kind), times in self.silences.items() if times >= _PATIENCE and kind in kinds}
        silent = set() if silent.issuperset(node.node_id for node in self.ordered) else silent
        waited_for = [each for each in messages if each.metadata.dst_node_id not in silent] if silent else messages
        began = time.monotonic()
        found = run.grid.send_and_receive(waited_for, timeout=run.timeout)
        if isinstance(found, Inbox) and not found.opened:
            current.answered |= {node.node_id for node, _ in found.replies}
            return found
        found = list(found)
        took = time.monotonic() - began if len(found) >= len(waited_for) else 0.0
        if len(waited_for) < len(messages):
            others = [each for each in messages if each.metadata.dst_node_id in silent]
            most = max(took, self._took.get(kinds[-1], 0.0), _MOMENT)
            found += run.grid.send_and_receive(others, timeout=min(run.timeout, most))
        elif took and len(messages):
            self._took[messages[0].metadata.message_type] = took
        answered = {each.metadata.src_node_id for each in found}
        current.answered |= answered
        if not answered <= {each.metadata.dst_node_id for each in messages}:
            current.asked = {each.metadata.message_id: each.metadata.dst_node_id for each in messages}
            # A SuperLink takes no message for a node that has left, and then says that it knows of none.
            found = [each for each in found if each.metadata.reply_to_message_id or not each.has_error()]
        for about in [each.metadata for each in messages] if len(answered) < len(messages) or self.silences else ():
            for key in ((about.dst_node_id, ""), (about.dst_node_id, about.message_type)):
                self.silences[key] = 0 if about.dst_node_id in answered else self.silences[key] + 1
        return found

    def sample(self, grid: Grid, number: int, purpose: int, fraction: float, minimum: int, needed: int) -> list[Node]:
        """Wait until enough nodes are connected, and draw some with the bits of (seed, round, purpose).

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            Flower's connection to the nodes.
        number, purpose : int
            The round, and what the draw is for.
        fraction : float
            Of the connected nodes.
        minimum, needed : int
            Nodes to draw at least, and nodes to wait for.

        Raises
        ------
        ConfigurationError
            If there are too few nodes after the timeout.
        """
        deadline = time.monotonic() + self.timeout
        said = -1
        while True:
            available = list(grid.get_node_ids())
            # 1e-9: 0.29 of 100 nodes is 29, not 28; and of few nodes a small part is one.
            size = max(int(fraction * len(available) + 1e-9), minimum, 1)
            enough = max(size, needed)
            if len(available) >= enough:
                break
            # A grid in this process has all of its nodes from the first.
            never = getattr(grid, "num_nodes", enough) < enough
            if never or time.monotonic() > deadline:
                within = "" if never else f" connected within node_timeout={self.timeout} seconds"
                lower = "min_available_nodes, min_train_nodes and min_evaluate_nodes (of an estimator, num_clients)"
                few = f"only {len(available)} nodes{within}, {enough} are needed"
                raise ConfigurationError(f"{few}; start more, or lower {lower}")
            if said != (said := len(available)):
                text = "Waiting for nodes to connect: %d connected, %d needed; gives up after node_timeout=%g seconds"
                logger.info(text, said, enough, self.timeout)
            time.sleep(max(0.0, min(1.0, deadline - time.monotonic())))
        self._meet(grid, available)
        if size >= len(self.ordered):
            return self.ordered
        chosen = random_generator(self.seed, number, 0, purpose).choice(len(self.ordered), size, replace=False)
        return [self.ordered[i] for i in sorted(chosen.tolist())]

    def chosen(self, choose: ChooseNodes, number: int) -> list[Node]:
        """Return the user's choice of nodes for a round, sorted by partition id.

        Raises
        ------
        ConfigurationError
            If the function returns no nodes, a node that is not connected, or a node twice.
        """
        answer: Any = choose(number, tuple(self.ordered))
        nodes = list(answer) if isinstance(answer, Iterable) and not isinstance(answer, Node) else []
        known = all(isinstance(node, Node) for node in nodes) and {*nodes} <= {*self.ordered}
        if not nodes or not known or len({*nodes}) < len(nodes):
            expected = "expected a list of some of the nodes that it is given, none of them twice, such as nodes[:1]"
            raise ConfigurationError(f"choose_nodes returned {short(answer)} in round {number}; {expected}")
        return sorted(nodes, key=lambda node: node.key)

    def _meet(self, grid: Grid, available: list[int]) -> None:
        """Learn the partitions of new nodes, and forget those that have gone."""
        present = set(available)
        if present == self._known.keys():
            return
        self._known = {node_id: node for node_id, node in self._known.items() if node_id in present}
        new = [node_id for node_id in available if node_id not in self._known]
        partitions = self._partitions(grid, present, new)
        self._known |= {node_id: Node(node_id, partitions.get(node_id)) for node_id in new}
        first = {node.key: node for node in reversed(self._known.values())}
        twins = {i: first[node.key] for i, node in self._known.items() if first[node.key] is not node}
        for node_id in twins.keys() - self.refused.keys():
            logger.warning("node %s left out: another node has the same partition id", node_id)
        self.refused = twins
        self.ordered = sorted(first.values(), key=lambda node: node.key)
        # Who comes back, if as another node, has the same key.
        self.seen = self.seen | {own.partition_id: own.node_id for own in self.ordered if own.partition_id is not None}
        self.gone = {own.key: own for own in (Node(i, p) for p, i in self.seen.items()) if own.key not in first}
        if new and (without := sum(node.partition_id is None for node in self.ordered)):
            text = "%s of %s nodes have no partition id: another run with the same seed may differ, as node ids do"
            logger.info(text, without, len(self.ordered))

    def _partitions(self, grid: Grid, present: set[int], new: Sequence[int]) -> dict[int, int]:
        if (known := getattr(grid, "partition_ids", None)) is not None:
            self.foreign |= set(new) if self.asks and getattr(grid, "foreign", False) else set()
            return {node_id: known[node_id] for node_id in new if node_id in known}
        # Kept with the grid: each run of a fit, or of a path, would ask all of them again.
        said = {node_id: own for node_id, own in vars(grid).get("_fco_partitions", {}).items() if node_id in present}
        asked = [Node(node_id, None) for node_id in new if self.asks and node_id not in said]
        found, failed = _answers(grid, asked, PARTITION, _HANDSHAKE_TIMEOUT) if asked else ({}, {})
        # Another error is of an app that cannot be loaded, or of a node that has died.
        self.foreign |= {node.node_id for node, reason in failed.items() if "No query function registered" in reason}
        vars(grid)["_fco_partitions"] = said = said | {node.node_id: partition for node, partition in found.items()}
        return {i: own for i in new if self.asks and (own := said.get(i)) is not None}


def _answers(grid: Any, nodes: Sequence[Node], kind: str, timeout: float) -> tuple[dict[Node, Any], dict[Node, str]]:
    """Return what clients say of themselves, and why others' answers do not count, which is not logged."""
    logger.info("Asking %d nodes (%s), for up to %g seconds", len(nodes), kind, timeout)
    read = decode_partition if kind == PARTITION else decode_described
    questions = addressed(grid, ((node.node_id, RecordDict()) for node in nodes), kind, 0)
    answered = grid.send_and_receive(questions, timeout=timeout)
    good, bad = collect(Round(0, nodes, [], kind), answered, lambda _, content: read(content))
    reasons = dict.fromkeys(nodes, NO_REPLY) | {node: f"{why}" for node, why in bad}
    said = {node: reply.value for node, reply in good.items()}
    return said, {node: reason for node, reason in reasons.items() if node not in said}


# --- their tables -----------------------------------------------------------------------------------------------------

#: Sites in an error.
_SHOWN = 5


class Tables:
    """What clients have said of their tables.

    Data without names agree with all others.

    Parameters
    ----------
    own : Described
        The server's names, if it has any: clients are compared with these, otherwise with most of them.
    settled : bool, default False
        Whether nobody is asked: whoever begins the run has the rows, and has compared them.
    """

    def __init__(self, own: Described | None = None, *, settled: bool = False) -> None:
        self.own = own or Described()
        self._settled = settled
        self._said: dict[Key, tuple[Node, Described]] = {}
        #: Nodes that need no look, as in most rounds.
        self._looked: set[Node] = set()
        #: How many clients have each of the names of columns, and of classes.
        self._names: dict[str, Counter[Names]] = {"columns": Counter(), "classes": Counter()}
        #: Of the columns; of one of which nothing is known until somebody says how many there are.
        self.scales = Scales(1)

    @property
    def columns(self) -> Names:
        """The names of columns of most clients that have any; None if none has."""
        names = self._names["columns"]
        return max(names, key=names.__getitem__, default=None)

    @property
    def all_named(self) -> bool:
        """Whether all clients have named their columns."""
        return self._names["columns"].total() == len(self._said)

    def rows_of(self, node: Node) -> float | None:
        """Return the number of rows that a client has said with its columns, if it has."""
        said = self._said.get(node.key)
        return None if said is None else said[1].examples

    def look(self, run: Any, nodes: Sequence[Node]) -> None:
        """Ask those of some clients that have not been asked, and compare what they say with the others.

        Parameters
        ----------
        run : Run
            Of the strategy.
        nodes : sequence of Node
            Who is asked something next.
        """
        shape = run.problem.layout.shapes.get("coefficients")
        asks = shape and not self._settled and not self._looked.issuperset(nodes) and not run.options._unmodified
        # Who has been waited for in vain is asked when it has answered something.
        silences = run.nodes.silences
        if asks and (new := [own for own in nodes if own.key not in self._said and not silences[own.node_id, ""]]):
            # Deviations have no noise: a private run asks for names only.
            failed = self.ask(run.grid, new, run.timeout, scales=run.privacy is None)
            silences.update((node.node_id, "") for node, reason in failed.items() if reason == NO_REPLY)
            self.compare(getattr(run.options, "client_lr", None) if isinstance(run.problem.h, Euclidean) else None)
        self._looked |= {node for node in nodes if node.key in self._said} if asks else set()

    def ask(self, grid: Any, nodes: Sequence[Node], timeout: float, *, scales: bool = True) -> dict[Node, str]:
        """Ask clients that have not been asked what their tables are; return who has not said it, and why.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            One of this package answers without messages.
        nodes : sequence of Node
            The clients.
        timeout : float
            Seconds to wait.
        scales : bool, default True
            Whether the scales of their columns are asked for, besides names.
        """
        # As for its other messages: where errors are replies, messages are sent.
        direct = getattr(grid, "direct", None) is not None and grid.raise_errors
        said_now = dict(zip(nodes, grid.described(nodes, scales), strict=True)) if direct else {}
        about = TABLE if scales else NAMES_ONLY
        found, failed = (said_now, {}) if direct else _answers(grid, nodes, about, timeout)
        # Who has not answered is asked again; who answers with an error has no names.
        for node in [node for node in nodes if failed.get(node) != NO_REPLY]:
            said = found.get(node, Described())
            if (own := said.deviations) is not None:
                self.scales = self.scales if self.scales.largest or self.scales.d == own.size else Scales(own.size)
                site = f"{node}" if node.partition_id is None else f"partition {node.partition_id}"
                self.scales.add(site, own, said.size)
            for kind, names in self._names.items():
                names.update([each] if (each := getattr(said, kind)) else ())
            self._said[node.key] = node, said._replace(deviations=None)
        return failed

    def compare(self, rate: Any = None) -> None:
        """Compare what all clients have said, and warn of columns whose scales differ as those of other units do.

        Parameters
        ----------
        rate : float, function or "auto", optional
            Of the clients, if they take steps of one size for all columns.

        Raises
        ------
        ConfigurationError
            If clients have other columns, another order of columns or other classes; it names them.
        """
        for kind, counts in self._names.items():
            own = getattr(self.own, kind)
            # With three sites, one alone does not have those of most.
            theirs = own or max(counts, key=counts.__getitem__, default=None)
            if not counts.keys() - {theirs}:
                continue
            named = [(node, each) for node, said in self._said.values() if (each := getattr(said, kind))]
            odd = [pair for pair in named if pair[1] != theirs]
            right = [node for node, each in named if each == theirs]
            others = "the ServerApp" if own else f"{right[0]}" + f" and {len(right) - 1} more" * (len(right) > 1)
            classes = kind == "classes"
            shown = [difference(f"{node}", each, others, theirs, classes=classes) for node, each in odd[:_SHOWN]]
            more = f"; and {len(odd) - _SHOWN} more sites" if len(odd) > _SHOWN else ""
            advice = f"Take the same columns in the same order at every site, X[[{listed(theirs or ())}]]"
            if classes:
                given = ", and give all of them as classes=[...] to client_app and to fit" if self.own.classes else ""
                advice = f"Code the classes in the same way at every site{given}"
            raise ConfigurationError(f"the sites' data do not fit together: {'; '.join(shown)}{more}. {advice}")
        columns = self.own.columns or self.columns
        known = columns if columns and len(columns) == self.scales.d else [f"column {j}" for j in range(self.scales.d)]
        apart = "" if rate is None else self.scales.apart(known, rate if isinstance(rate, float) else 0.0)
        for text in filter(None, (self.scales.differing(known), apart)):
            warnings.warn(text, UserWarning, stacklevel=2)


# --- what they remember -----------------------------------------------------------------------------------------------

#: Replies of a client that are known again.
_SENT = 16


class Member(NamedTuple):
    """A client: the weight of its first reply, what names its memory, and the memory.

    `sent` has the digests of the last replies that counted, also of one that has left.
    """

    examples: float | None = None
    digest: str = ""
    memory: Mapping[str, Any] | None = None
    sent: tuple[str, ...] = ()


_NOBODY = Member()
_MORE = "; set TMPDIR to one on a larger disk, or give more memory: client_state=Ledger(max_bytes=...)"


class Ledger:
    """The clients' memories and weights; methods see it as ``problem.memories``.

    Parameters
    ----------
    names : tuple of str
        Of the vectors that a client remembers.
    uniform : bool
        Whether all clients have the same weight.
    size : int
        Number of the model's entries.
    max_bytes : int
        Size above which memories lie in a temporary file that is mapped into memory.

    Attributes
    ----------
    members : dict of (int, int) to Member
        Clients seen so far.
    present : set of (int, int)
        Clients that the method's sums are over.
    missed : dict of (int, int) to int
        Rounds in a row in which a client was asked in vain.
    """

    saved = ("members", "present", "missed")

    def __init__(self, names: tuple[str, ...], uniform: bool, size: int, max_bytes: int) -> None:
        self.names = names
        self.uniform = uniform
        self.size = size
        self.max_bytes = max_bytes
        self.members: dict[Key, Member] = {}
        self.present: set[Key] = set()
        self.missed: dict[Key, int] = {}
        self._file: Rows | None = None

    def member(self, key: Key) -> Member:
        """Return what is known of a client."""
        return self.members.get(key, _NOBODY)

    # --- what methods ask -----------------------------------------------------------------------------------------

    def memory(self, key: Key) -> Mapping[str, Any]:
        """Return a client's memory, zeros before its first round."""
        held = self.member(key).memory
        return {name: np.zeros(self.size) for name in self.names} if held is None else held

    def weight_of(self, uplink: Uplink) -> float:
        """Return the weight of a reply in sums."""
        return 1.0 if self.uniform else uplink.examples

    def population(self, uplinks: Sequence[Uplink] = ()) -> float:
        """Return the weight of all clients; one without a reply yet counts as the mean of the others."""
        replied = {up.node.key: self.weight_of(up) for up in uplinks if up.node is not None}
        everyone = self.present | replied.keys()
        members = {key: member.examples for key, member in self.members.items() if key in everyone}
        by_key = (dict.fromkeys(members, 1.0) if self.uniform else members) | replied
        weights = [weight for weight in by_key.values() if weight is not None]
        rest = len(everyone) - len(weights)
        return float(sum(weights)) + float(np.mean(weights)) * rest if weights else float(len(everyone))

    def means(self) -> dict[str, Vector]:
        """Return the weighted means of the memories of those who are there."""
        total = self.population()
        here = [self.members[key] for key in sorted(self.members.keys() & self.present)]
        held = [(1.0 if self.uniform else own.examples or 0.0, own.memory) for own in here if own.memory]
        each = {name: [(weight / total, memory[name]) for weight, memory in held] for name in self.names}
        return {name: weighted_sum(pairs, (self.size,)) for name, pairs in each.items()}

    # --- a round --------------------------------------------------------------------------------------------------

    def notice(self, nodes: Iterable[Node], patience: int) -> Change | None:
        """Take note of who is there; return the change of the method's sums, if somebody has come or gone.

        What they remember is dropped who were asked in vain in so many rounds in a row.
        """
        before = self.present
        self.present = {node.key for node in self.there(nodes, patience)}
        if silent := {key for key in before - self.present if self.missed.get(key, 0) >= patience}:
            text = "%s gave no good reply in %s rounds in a row: what they remember is dropped"
            logger.warning(text, named(silent), patience)
            self.members |= {key: self.member(key)._replace(digest="", memory=None) for key in silent}
        return None if before == self.present else Change(self.means() if self.members else None, self.population())

    def note_weights(self, uplinks: Sequence[Uplink]) -> None:
        """Keep the weights of clients that remember nothing."""
        self.members |= {up.node.key: Member(up.examples) for up in uplinks if up.node is not None} | self.members

    def commit(self, method: Algorithm, number: int, message: Downlink, uplinks: Sequence[Uplink]) -> None:
        """Move the memories of those whose replies count.

        Parameters
        ----------
        method : Algorithm
            The method.
        number : int
            The round.
        message : Downlink
            Its whole message.
        uplinks : sequence of Uplink
            The replies.
        """
        for up in uplinks:
            assert up.node is not None
            key = up.node.key
            member = self.member(key)
            after = method.remembered(message, member.memory, up)
            sent = (*member.sent[1 - _SENT :], up.digest)
            stamp = records.stamp_of(up.digest, number, after)
            self.members[key] = Member(up.examples, stamp, self._kept(key, after), sent)
            # One that counted as having left, and is in the sums again.
            self.present.add(key)

    def _kept(self, key: Key, memory: dict[str, Any]) -> dict[str, Any]:
        """Return a memory as it is held: in memory, or in the file."""
        if self._file is None:
            if 8 * self.size * len(self.names) * len(self.members) <= self.max_bytes:
                return memory
            text = "the memories of %s clients lie in a temporary file, as they take more than %.0f MiB"
            logger.info(text, len(self.members), self.max_bytes / 2**20)
            self._file = Rows(self.size)
        if any(isinstance(vector, SparseVector) for vector in memory.values()):
            return memory
        # Copies: a vector may be a row that another one of the client is about to take.
        copies = {name: np.array(vector) for name, vector in memory.items()}
        return {name: self._file.put((key, name), vector) for name, vector in copies.items()}

    def miss(self, asked: Iterable[Key], uplinks: Sequence[Uplink]) -> None:
        """Count in how many rounds in a row clients were asked in vain.

        Parameters
        ----------
        asked : iterable of (int, int)
            In this round.
        uplinks : sequence of Uplink
            The replies that count.
        """
        here = {up.node.key for up in uplinks if up.node is not None}
        again = {key: self.missed.get(key, 0) + 1 for key in asked}
        self.missed = {key: count for key, count in (self.missed | again).items() if key not in here}

    def there(self, nodes: Iterable[Node], patience: int) -> list[Node]:
        """Return the nodes but for those that count as having left."""
        return [node for node in nodes if not self.missed or self.missed.get(node.key, 0) < patience]

    def restart(self) -> None:
        """Drop all memories, as for a new stage: every client begins again, and may send what it sent as it began."""
        logger.warning("a new stage: all clients' memories restart")
        self.members = {key: Member(member.examples) for key, member in self.members.items()}


class Rows:
    """Vectors in a temporary file that is mapped into memory; the file goes with the last of them.

    Parameters
    ----------
    size : int
        Of a vector.
    """

    def __init__(self, size: int) -> None:
        # Open as long as the ledger: the system removes it then.
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._size = size
        self._numbers: dict[tuple[Key, str], int] = {}
        self._rows: Any = ()

    def put(self, name: tuple[Key, str], vector: Vector) -> Vector:
        """Write a vector into its row, over the one before; return a read-only view of it."""
        number = self._numbers.setdefault(name, len(self._numbers))
        # Not into the map: where a full disk has no place, that is no error, but ends the process.
        with in_words(f"the clients' memories do not fit into {tempfile.gettempdir()}", ConfigurationError, _MORE):
            if number >= len(self._rows):
                # Each map is an open file: there are few, as each has twice as many rows.
                count = 2 * number + 64
                self._file.truncate(8 * self._size * count)
                self._rows = np.memmap(self._file, np.float64, "r", shape=(count, self._size))
            self._file.seek(8 * self._size * number)
            self._file.write(vector.data)
            self._file.flush()
        return cast(Vector, self._rows[number])


def named(keys: Iterable[Key]) -> str:
    """Return clients in words."""
    words = [f"partition {number}" if kind == 0 else f"node {number}" for kind, number in sorted(keys)]
    return ", ".join(words[:20]) + (f" and {len(words) - 20} more" if len(words) > 20 else "")
