"""What goes to the nodes in a training round and what of their answers counts; base.py has Flower's hooks around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from logging import INFO
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.core.spec import Spec
from flwr_fco.errors import ProtocolError
from flwr_fco.server.algorithm import ServerHalf
from flwr_fco.server.replies import checks as reading
from flwr_fco.server.replies.bounds import IncrementBounds
from flwr_fco.server.replies.checks import GoodReply, LeftOut, Round
from flwr_fco.wire import records
from flwr_fco.wire.protocol import Node, Uplink
from flwr_fco.work import FirstOrder

__all__ = ["Messaging"]

#: How often the silent nodes of a round are asked again where everyone must take part.
_REPEATS = 2


class Messaging(ServerHalf):
    """Messages of a training round: made, sent again where something was lost, checked when they come back.

    Attributes
    ----------
    left_out : list of LeftOut
        Which replies did not count, and why.
    bounds : IncrementBounds
        How long an increment may be.
    """

    left_out: list[LeftOut]
    bounds: IncrementBounds
    _spec: Spec | None
    _digest: str
    pass_through_arrays: dict[str, NDArray[Any]]
    _grid: Grid | None
    _timeout: float
    _wire_dtype: str

    def open_round(self, server_round: int, nodes: Sequence[Node], config: ConfigRecord) -> list[Message]:
        """Return the training messages to these nodes, and remember whom was told what."""
        asked = {node.node_id: node for node in nodes}
        config = records.config_of_round(config, server_round)
        self.current = current = Round(server_round, asked, config=config, left_out=self.left_out)
        if self.wire_dtype == "auto":
            current.wire_dtype = "float32" if self.short_wire(self.state) else "float64"
            if current.wire_dtype != self._wire_dtype:
                log(
                    INFO,
                    "configure_train: the messages' vectors are %s from round %s on",
                    current.wire_dtype,
                    server_round,
                )
                self._wire_dtype = current.wire_dtype
        current.messages = self._training_messages(nodes)
        return current.messages

    def _training_messages(self, nodes: Sequence[Node]) -> list[Message]:
        cache = records.RoundCache()
        contents = ((node.node_id, self.content_for(node, cache)) for node in nodes)
        messages = records.messages(self._grid, contents, "train", str(self.current.number))
        self.current.bytes_down += records.count_bytes([message.content for message in messages])
        return messages

    def ask_everybody(self, grid: Grid, config: ConfigRecord) -> tuple[list[Uplink], int, int]:
        """Run a training round 0 with all nodes; return the good uplinks and the bytes sent and received."""
        messages = self.open_round(0, self.nodes.ordered, config)
        answers = self.with_second_chances(grid.send_and_receive(messages, timeout=self._timeout))
        good = self.uplinks("round 0", answers)
        bytes_up = records.count_bytes([reply.content for reply in good])
        self.nodes.informed.update(reply.node.node_id for reply in good)
        weights = reading.weights_of([reply.value.examples for reply in good], self.weighting)
        text = "Round 0: %s of %s nodes answered, %s bytes down, %s up"
        log(INFO, text, len(good), len(messages), self.current.bytes_down, bytes_up)
        return reading.weighted(good, weights) if weights else [], self.current.bytes_down, bytes_up

    def content_for(self, node: Node, serialised: records.RoundCache) -> RecordDict:
        """Return what a node is sent in the round under way, with the plan if it is the first time."""
        downlink = self.downlink(self.state, node)
        self.current.jobs[node.node_id] = downlink.local_work
        informed = node.node_id in self.nodes.informed
        known = serialised.content(downlink, informed)
        if known is None:
            known = records.downlink_records(
                downlink._replace(pass_through=self.pass_through_arrays) if self.pass_through_arrays else downlink,
                digest=self._digest,
                arrayrecord_key=self.arrayrecord_key,
                configrecord_key=self.configrecord_key,
                config=self.current.config,
                plan=None if informed else self._spec,
                serialised=serialised,
                wire_dtype=self.current.wire_dtype if self.wire_dtype == "auto" else "float64",
            )
            serialised.keep(downlink, informed, known)
        return known

    def read_reply(self, content: RecordDict) -> Uplink:
        """Return the checked uplink of a reply.

        Raises
        ------
        ProtocolError
            With the reason for which the reply is left out.
        """
        plan = self.plan
        return records.read_uplink(
            content,
            plan.layout,
            shapes=self.uplink_shapes(),
            wire_dtype=self.current.wire_dtype if self.wire_dtype == "auto" else self.wire_dtype,
            weighted_by_key=self.weighted_by_key,
            timed=isinstance(plan.work, FirstOrder),
        )

    def _checked_reply(self, node: Node, content: RecordDict) -> Uplink:
        """Return the uplink of a reply whose claims are possible."""
        uplink = self.read_reply(content)
        known = self.weighted_by_key == "num-examples"
        self.check_claims(node, uplink, uplink.examples if known else records.num_examples(content))
        if self.client_weights is not None and node.partition_id not in self.client_weights:
            raise ProtocolError("its partition is not one of those in client_weights")
        return uplink if self.memories is None else uplink._replace(digest=records.uplink_digest(content))

    def uplinks(self, caller: str, replies: Iterable[Message]) -> list[GoodReply[Uplink]]:
        """Return the replies that count, with the weights with which they do."""
        current = self.current
        good = current.good(caller, replies, self._checked_reply)
        objections = self.bounds.objections([reply.value for reply in good], remember=current.number > 0)
        if objections:
            good = current.without(caller, good, objections)
        if self.client_weights is None and self.memories is None:
            return good
        return [reply._replace(value=reply.value._replace(examples=self._weight(reply))) for reply in good]

    def _weight(self, reply: GoodReply[Uplink]) -> float:
        examples = reply.value.examples
        if self.client_weights is not None and reply.node.partition_id is not None:
            examples = self.client_weights[reply.node.partition_id]
        return examples if self.memories is None else self.memories.admitted(reply.node, examples)

    def with_second_chances(self, replies: Iterable[Message]) -> list[Message]:
        """Ask again the nodes that have lost the plan or their state (both die with a SuperNode), and send it.

        Where everyone must take part, nodes that are silent, or whose answer is an error or cannot count, are asked
        again as well.
        """
        kept = list(replies)
        everyone = self.participation == "everyone"
        # At most twice: a node may find out about its state only once it has the plan.
        for _ in range(_REPEATS if self._grid is not None else 0):
            if everyone:
                # One that gave a bad answer is as good as silent, and what it said must not stand beside its next word.
                kept, _ = self.current.bad("aggregate_train", kept, self._checked_reply)
            kept, again = self.current.to_ask_again(kept, state_lost=self._state_lost, silent=everyone)
            if not again:
                break
            for node, missing in again:
                if missing == "plan":
                    self.nodes.informed.discard(node.node_id)
                log(INFO, "aggregate_train: %s is asked again%s", node, f", with its {missing}" if missing else "")
            self.current.restoring.update(node.node_id for node, missing in again if missing)
            messages = self._training_messages([node for node, _ in again])
            self.current.repeats += messages
            assert self._grid is not None
            kept.extend(self._grid.send_and_receive(messages, timeout=self._timeout))
        return kept

    def _state_lost(self, node: Node, altered: bool) -> bool:
        """Whether a node that has lost its state, or whose answer was altered, can be sent it again."""
        if altered and self.memories is not None:
            self.memories.altered(node)
        return self.state_lost(node)
