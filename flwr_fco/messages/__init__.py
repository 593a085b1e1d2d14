"""What crosses between server and clients: plain data (:mod:`.protocol`), and Flower's records and messages of it."""

from flwr_fco.messages.protocol import (
    Answer,
    Downlink,
    MemoryLostError,
    Node,
    Plan,
    Question,
    Received,
    ReceivedVectors,
    Uplink,
)

__all__ = [
    "Answer",
    "Downlink",
    "MemoryLostError",
    "Node",
    "Plan",
    "Question",
    "Received",
    "ReceivedVectors",
    "Uplink",
]
