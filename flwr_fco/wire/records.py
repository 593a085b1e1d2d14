"""The names of all modules that turn what is said into records; import from those."""

from __future__ import annotations

from flwr_fco.wire.arrays import NOT_FINITE
from flwr_fco.wire.arrays import from_array as _from_array  # noqa: F401
from flwr_fco.wire.client_state import read_state, store_pending, uplink_digest
from flwr_fco.wire.downlink import downlink_records, forget_downlink, read_downlink
from flwr_fco.wire.envelope import (
    HANDSHAKE,
    QUESTION,
    PlanMissingError,
    RoundCache,
    StateAlteredError,
    StateMissingError,
    content_of,
    count_bytes,
    messages,
    partition_of,
    partition_reply,
    reply,
    sender_and_group,
    was_altered,
    what_is_missing,
)
from flwr_fco.wire.flower import bytes_of
from flwr_fco.wire.flower import serialised as _to_array  # noqa: F401
from flwr_fco.wire.metrics import average_metrics, check_metrics, joined_metrics, with_metric
from flwr_fco.wire.model import (
    config_of_round,
    layout_of,
    primal_record,
    primal_request,
    primal_vector,
    read_primal,
    same_arrays,
    shared_arrays,
)
from flwr_fco.wire.queries import answer_records, question_records, read_answer, read_question
from flwr_fco.wire.uplink import num_examples, read_sent, read_unmodified, read_uplink

__all__ = [
    "HANDSHAKE",
    "NOT_FINITE",
    "QUESTION",
    "PlanMissingError",
    "RoundCache",
    "StateAlteredError",
    "StateMissingError",
    "answer_records",
    "average_metrics",
    "bytes_of",
    "check_metrics",
    "config_of_round",
    "content_of",
    "count_bytes",
    "downlink_records",
    "forget_downlink",
    "joined_metrics",
    "layout_of",
    "messages",
    "num_examples",
    "partition_of",
    "partition_reply",
    "primal_record",
    "primal_request",
    "primal_vector",
    "question_records",
    "read_answer",
    "read_downlink",
    "read_primal",
    "read_question",
    "read_sent",
    "read_state",
    "read_unmodified",
    "read_uplink",
    "reply",
    "same_arrays",
    "sender_and_group",
    "shared_arrays",
    "store_pending",
    "uplink_digest",
    "was_altered",
    "what_is_missing",
    "with_metric",
]
