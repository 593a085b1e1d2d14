"""How long a client's control variate may be: it stays in the mean of all variates while the client is silent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_fco.algorithms.contract import ClientHalf
from flwr_fco.server.clients.memory import ClientMemories, length_of
from flwr_fco.server.clients.remembering import remembered
from flwr_fco.server.replies.checks import Reply
from flwr_fco.wire.protocol import Downlink, Uplink

#: Largest length of a variate, as a multiple of the median of all clients' first ones, of the client's own first one,
#: and of the median of the round. Lies that build on each other drive the others' variates too, so that the first ones
#: say what is usual; where all of them grow, none is a lie.
_USUAL, _OWN, _NOW = 10.0, 3.0, 3.0


def variate_objections(
    memories: ClientMemories, half: type[ClientHalf], message: Downlink, good: Sequence[Reply[Uplink]]
) -> dict[int, str]:
    """Return the replies after which their clients' variates would be far too long, by position, with reasons.

    Parameters
    ----------
    memories : ClientMemories
        The ledger.
    half : type of ClientHalf
        The class of the method.
    message : Downlink
        The whole message of the round.
    good : sequence of Reply
        The replies that passed all other checks.
    """
    firsts = [member.first for member in memories.members.values() if member.first > 0.0]
    if not firsts or not good:
        return {}
    usual, lengths, own = float(np.median(firsts)), list[float](), list[float]()
    for node, uplink, _ in good:
        member = memories.member(node)
        begins = member.accepted < 0
        before = half.fresh(message) if begins else memories.memory(node.key)
        after = remembered(half, message, before, uplink, begins=begins)
        lengths.append(length_of(after[memories.names[0]]))
        own.append(member.first)
    now, reasons = sorted(lengths)[(len(lengths) - 1) // 2], {}
    for i, (length, first) in enumerate(zip(lengths, own, strict=True)):
        most = max(_USUAL * usual, _OWN * first)
        if first > 0.0 and length > max(most, _NOW * now):
            reasons[i] = (
                f"its control variate would be {length:.3g} long; expected at most {_USUAL:g} times {usual:.3g}, the "
                f"median of the clients' first ones, or {_OWN:g} times {first:.3g}, its own first one"
            )
    return reasons
