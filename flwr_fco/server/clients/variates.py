"""How long a gradient may be that a client's answers imply, where answers add up in what is remembered.

A client's variate stays in the mean of all variates while the client is silent, and a lie that is said again in every
round makes it longer and longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flwr_fco.algorithms.contract import Algorithm
from flwr_fco.server.clients.memory import Member, Said
from flwr_fco.server.clients.remembering import told, told_on_graph
from flwr_fco.server.replies.checks import Reply, Round
from flwr_fco.wire.protocol import Uplink

#: Largest length of a gradient, as a multiple of the median of all clients' first ones, of the client's own first one,
#: and of the median of the round. Lies that build on each other drive the others' gradients too, so that the first ones
#: say what is usual; where all of them grow, none is a lie.
_USUAL, _OWN, _NOW = 10.0, 3.0, 3.0
#: Inner products of changes are negative beyond what inexact minimisations leave, as a share of what they could be.
_INEXACT = 1e-2


def variate_objections(algorithm: Algorithm, current: Round, good: Sequence[Reply[Uplink]]) -> dict[int, str]:
    """Return the replies that imply far too long a gradient, by position, with reasons.

    One honest loss may be sharper than all others, with a minimum far from theirs. So, where a reply implies the point
    of its gradient as well, it must have turned back too, as the gradients of no convex loss do; or, if the method
    needs strongly convex losses, have risen by less than those do.

    Parameters
    ----------
    algorithm : Algorithm
        The method.
    current : Round
        The round, which keeps what was computed.
    good : sequence of Reply
        The replies that passed all other checks.
    """
    if type(algorithm).implied is Algorithm.implied or not good:
        return {}
    problem, state = current.problem, current.state
    assert problem is not None
    memories: Any = problem.memories
    members: dict[Any, Member]
    if memories is None:
        if problem.graph is None:
            return {}
        members = {key: Member(first=first) for key, first in problem.graph.firsts.items()}
        found = [told_on_graph(algorithm, problem, state, node, uplink) for node, uplink, _ in good]
    else:
        if not memories.ledger:
            return {}
        members, message = memories.members, algorithm.downlink(problem, state, None)
        for node, uplink, _ in good:
            begins = memories.member(node).accepted < 0
            before = None if begins else memories.memory(node.key)
            current.told[node.key] = told(type(algorithm), message, before, uplink)
        found = [current.told[node.key][1] for node, _, _ in good]
    firsts = [member.first for member in members.values() if member.first > 0.0]
    lengths = [said.length for said in found if said is not None]
    if not firsts or len(lengths) < len(good):
        return {}
    usual, now, reasons = float(np.median(firsts)), sorted(lengths)[(len(lengths) - 1) // 2], dict[int, str]()
    for i, ((node, _, _), said) in enumerate(zip(good, found, strict=True)):
        member = members.get(node.key)
        assert said is not None
        if member is None or not member.first:
            continue
        if said.length > max(_USUAL * usual, _OWN * member.first, _NOW * now) and _turned(member, said):
            reasons[i] = (
                f"its control variate would be {said.length:.3g} long; expected at most {_USUAL:g} times {usual:.3g}, "
                f"the median of the clients' first ones, or {_OWN:g} times {member.first:.3g}, its own first one"
            )
    return reasons


def _turned(member: Member, said: Said) -> bool:
    """Whether a gradient has turned back, on the whole; or nothing is known of its points."""
    product, most = member.product + said.product, member.most + said.most
    return not most or product < -_INEXACT * most
