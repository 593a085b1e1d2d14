"""The parts of a strategy: each group of options in a strategy selects a part."""

from __future__ import annotations

from typing import NamedTuple

from flwr_fco.algorithms.contract import ClientHalf
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.algorithm import Algorithm
from flwr_fco.server.clients.capped import CappedMinimisations
from flwr_fco.server.clients.first_gradients import FirstGradients
from flwr_fco.server.clients.graph import Graph, uniform_weighting
from flwr_fco.server.clients.memory import ClientMemories
from flwr_fco.server.clients.participation import Everyone
from flwr_fco.server.clients.remembering import Gossip, Remembering
from flwr_fco.server.clients.unmodified import UnmodifiedClients, check_unmodified
from flwr_fco.server.options import (
    CommonOptions,
    EveryoneOptions,
    GraphOptions,
    MemoryOptions,
    MinimiseOptions,
    MomentumOptions,
    PrivacyOptions,
    TrackerOptions,
    UnmodifiedOptions,
)
from flwr_fco.server.parts import Part
from flwr_fco.server.questions.certifying import Certifier
from flwr_fco.server.questions.inquiry import Inquiry
from flwr_fco.server.replies.centres import Centre
from flwr_fco.server.replies.mail import Mail
from flwr_fco.server.replies.momentum import Momentum
from flwr_fco.server.replies.private import PrivateMean
from flwr_fco.server.rounds.averaging import PointAverage


class Assembly(NamedTuple):
    """The parts of a strategy.

    Parameters
    ----------
    parts : dict of str to Part
        All parts by the names under which they are saved, in the order in which they act before a round. After a round
        they act in the opposite order.
    mail, inquiry, average, certifier, everyone : Part
        Parts that the strategy calls by name; None if it does not have them.
    centre : Centre or Momentum
        The direction of the server's step.
    privacy : PrivateMean or None
        The part that makes one noisy mean of the replies.
    memories, graph : ClientMemories, Graph
        The algorithms' information on the clients; None if the method has none.
    """

    parts: dict[str, Part]
    mail: Mail
    inquiry: Inquiry
    average: PointAverage
    certifier: Certifier | None
    everyone: Everyone | None
    centre: Centre | Momentum
    privacy: PrivateMean | None
    memories: ClientMemories | None
    graph: Graph | None


def assemble(options: CommonOptions, algorithm: Algorithm) -> Assembly:
    """Return the parts that a strategy's options select.

    Parameters
    ----------
    options : CommonOptions
    algorithm : Algorithm

    Raises
    ------
    ConfigurationError
        If options cannot be combined.
    """
    own: object = options
    name = type(options).__name__
    privacy = None
    if isinstance(own, PrivacyOptions) and own.privacy is not None:
        privacy = PrivateMean(own.privacy, options)
    mail = Mail(options, algorithm)
    inquiry = Inquiry(options, algorithm, mail)
    kept = options.sparsity if algorithm.sparse_last or options.output != "last" else None
    average = PointAverage(options.output, options.window, kept)
    plain = Centre(bool(getattr(options, "normalize_local_work", True)), options.aggregation, options.trim)
    centre: Centre | Momentum = plain
    parts: dict[str, Part] = {"bounds": mail, "chosen": inquiry, "average": average}
    if privacy is not None:
        parts["privacy"] = privacy
    if isinstance(own, MomentumOptions) and own.server_momentum:
        centre = parts["momentum"] = Momentum(own.server_momentum, plain)
    if isinstance(own, UnmodifiedOptions):
        check_unmodified(own)
        if own.client == "unmodified":
            mail.language = parts["unmodified"] = UnmodifiedClients(own)
            mail.nodes.asks = mail.asks = False
    if isinstance(own, MinimiseOptions):
        parts["capped"] = CappedMinimisations()
    certifier = None
    if options.certificate_every is not None:
        certifier = parts["certificate"] = Certifier(inquiry, options.certificate_every)
    graph = None
    if isinstance(own, GraphOptions) and own.mixing is not None:
        uniform_weighting(name, options.weighting)
        graph = Graph(own.mixing)
        parts["graph"] = Gossip(graph)
    memories = everyone = remembering = None
    half = algorithm.client_half()
    _check_memory(name, isinstance(own, MemoryOptions), half)
    if isinstance(own, MemoryOptions):
        memories = ClientMemories(
            half.memory if half is not None else (),
            client_state=own.client_state,
            ledger_bytes=own.ledger_bytes,
            weighting=options.weighting,
            client_weights=options.client_weights,
            may_be_sparse=half is not None
            and half.sparse is not None
            and getattr(own, "sparse_wire", False) is not False,
        )
        remembering = Remembering(memories, everyone=isinstance(own, EveryoneOptions))
        if isinstance(own, EveryoneOptions):
            everyone = parts["participation"] = Everyone(
                name,
                remembering,
                evict_after=own.evict_after,
                on_missing=own.on_missing,
                node_timeout=options.node_timeout,
            )
        parts["memories"] = remembering
    if isinstance(own, TrackerOptions) and own.tracker_start == "gradient":
        parts["first gradients"] = FirstGradients(remembering)
    return Assembly(parts, mail, inquiry, average, certifier, everyone, centre, privacy, memories, graph)


def _check_memory(name: str, has_options: bool, half: type[ClientHalf] | None) -> None:
    """Reject a user-defined strategy that declares only a part of its clients' memory."""
    remembers = half is not None and bool(half.memory)
    if has_options == remembers:
        return
    if remembers:
        assert half is not None
        raise ConfigurationError(
            f"{name}: its clients remember {', '.join(half.memory)} ({half.__name__}.memory), so its options need "
            "MemoryOptions among its base classes"
        )
    raise ConfigurationError(
        f"{name} takes MemoryOptions, but its clients remember nothing: give the client half of {name} a `memory`, the "
        "names of what it remembers, and `remember`; or leave MemoryOptions out"
    )
