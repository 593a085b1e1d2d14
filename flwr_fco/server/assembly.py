"""The parts of a strategy: each group of options in a strategy selects a part."""

from __future__ import annotations

from typing import NamedTuple

from flwr_fco.algorithms.contract import Algorithm, choices, named
from flwr_fco.algorithms.contract.choices import Average, Last, Trimmed
from flwr_fco.algorithms.contract.graph import Graph
from flwr_fco.algorithms.contract.replies import Mean
from flwr_fco.algorithms.newton.exchange import CertifiedMethod
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.certifying import Certifier
from flwr_fco.server.clients.first_gradients import FirstGradients
from flwr_fco.server.clients.kept_back import CappedMinimisations, KeptBack, OtherLosses
from flwr_fco.server.clients.memory import ClientMemories
from flwr_fco.server.clients.participation import Everyone
from flwr_fco.server.clients.remembering import Gossip, Remembering
from flwr_fco.server.clients.unmodified import UnmodifiedClients, Untrained, check_unmodified
from flwr_fco.server.inquiry import Inquiry
from flwr_fco.server.options import (
    ClientOptions,
    CommonOptions,
    EveryoneOptions,
    GraphOptions,
    MemoryOptions,
    MinimiseOptions,
    MomentumOptions,
    PrivacyOptions,
    TrackerOptions,
    UnmodifiedOptions,
    serves_unmodified,
)
from flwr_fco.server.parts import Host, Part
from flwr_fco.server.replies.mail import Mail
from flwr_fco.server.replies.private import PrivateMean
from flwr_fco.server.rounds.output import Momentum, PointAverage


class Assembly(NamedTuple):
    """The parts of a strategy.

    Parameters
    ----------
    parts : dict of str to Part
        All parts by the names under which they are saved, in the order in which they act before a round. After a round
        they act in the opposite order.
    mail, inquiry, average, certifier, everyone : Part
        Parts that the strategy calls by name; None if it does not have them.
    mean : Mean
        Of the increments, or what ``aggregation=`` has in its place.
    direction : Mean or Momentum
        The direction of the server's step.
    privacy : PrivateMean or None
        The part that makes one noisy mean of the replies.
    memories, graph : ClientMemories, Graph
        The algorithms' information on the clients; None if the method has none.
    untrained : Untrained or None
        What unmodified clients do not train.
    """

    parts: dict[str, Part]
    mail: Mail
    inquiry: Inquiry
    average: PointAverage
    certifier: Certifier | None
    everyone: Everyone | None
    mean: Mean
    direction: Mean | Momentum
    privacy: PrivateMean | None
    memories: ClientMemories | None
    graph: Graph | None
    untrained: Untrained | None


def assemble(options: CommonOptions, kind: type[Algorithm], host: Host) -> Assembly:
    """Return the parts that a strategy's options select.

    Parameters
    ----------
    options : CommonOptions
        The strategy, whose options these are.
    kind : type of Algorithm
        The class of the strategy's algorithm.
    host : Host
        The run that they are parts of.

    Raises
    ------
    ConfigurationError
        If options cannot be combined.
    """
    strategy: object = options
    name = type(options).__name__
    privacy = None
    if isinstance(strategy, PrivacyOptions) and strategy.privacy is not None:
        privacy = PrivateMean(strategy.privacy, options, host)
    mail = Mail(options, kind)
    inquiry = Inquiry(options, kind, mail)
    average = PointAverage(*_named(options.output))
    mean = _mean(options)
    direction: Mean | Momentum = mean
    parts: dict[str, Part] = {"bounds": mail, "chosen": inquiry, "average": average}
    if privacy is not None:
        parts["privacy"] = privacy
    if isinstance(strategy, MomentumOptions) and strategy.server_momentum:
        direction = parts["momentum"] = Momentum(strategy.server_momentum, mean)
    untrained = None
    if isinstance(strategy, ClientOptions):
        check_unmodified(strategy)
        if serves_unmodified(strategy):
            mail.language = parts["unmodified"] = unmodified = UnmodifiedClients(strategy)
            if isinstance(strategy, UnmodifiedOptions):
                parts["untrained"] = untrained = Untrained(unmodified)
            mail.nodes.asks = mail.asks = False
    if isinstance(strategy, MinimiseOptions):
        parts["capped"] = CappedMinimisations()
    if named(kind, "columns"):
        parts["kept back"] = KeptBack()
    if issubclass(kind, CertifiedMethod) and not named(kind, "losses"):
        parts["other losses"] = OtherLosses()
    certifier = None
    if options.certificate_every is not None:
        certifier = parts["certificate"] = Certifier(inquiry, options.certificate_every)
    graph = None
    if isinstance(strategy, GraphOptions) and strategy.mixing is not None:
        _check_weighting(name, options.weighting)
        graph = Graph(strategy.mixing)
        parts["graph"] = Gossip(graph, options.participation.evict_after)
    memories = everyone = remembering = None
    _check_memory(name, isinstance(strategy, MemoryOptions), kind)
    if isinstance(strategy, MemoryOptions):
        memories = ClientMemories(
            kind.memory,
            client_state=strategy.client_state,
            weighting=options.weighting,
            may_be_sparse=kind.sparse and options.wire.sparse,
        )
        everybody, patience = isinstance(strategy, EveryoneOptions), options.participation.evict_after
        remembering = Remembering(memories, everyone=everybody, patience=patience)
    if isinstance(options.participation, choices.Everyone):
        everyone = parts["participation"] = Everyone(name, remembering, options.participation)
    if remembering is not None:
        parts["memories"] = remembering
    if isinstance(strategy, TrackerOptions) and strategy.tracker_start == "gradient":
        parts["first gradients"] = FirstGradients(mail, remembering)
    called = (mail, inquiry, average, certifier, everyone, mean, direction)
    return Assembly(parts, *called, privacy, memories, graph, untrained)


def _check_memory(name: str, has_options: bool, kind: type[Algorithm]) -> None:
    """Reject a user-defined strategy that declares only a part of its clients' memory."""
    if has_options == bool(kind.memory):
        return
    if kind.memory:
        raise ConfigurationError(
            f"{name}: its clients remember {', '.join(kind.memory)} ({kind.__name__}.memory), so its options need "
            "MemoryOptions among its base classes"
        )
    raise ConfigurationError(
        f"{name} takes MemoryOptions, but its clients remember nothing: give {kind.__name__} a `memory`, the names of "
        "what a client remembers, and `remember`; or leave MemoryOptions out"
    )


def _mean(options: CommonOptions) -> Mean:
    """Return the mean of increments, or the robust centre that stands for it."""
    normalize, rule = bool(getattr(options, "normalize_local_work", True)), options.aggregation
    return Mean(normalize, "trimmed", rule.share) if isinstance(rule, Trimmed) else Mean(normalize, rule)


def _named(output: str | Last | Average) -> tuple[str, int, int | None]:
    """Return the kind of an output, its window, and how many entries of it are kept."""
    if isinstance(output, str):
        return output, 1, None
    if isinstance(output, Last):
        return "last", 1, output.nonzeros
    kind, window = ("average", 1) if output.window is None else ("moving-average", output.window)
    return kind, window, output.nonzeros


def _check_weighting(name: str, weighting: object) -> None:
    """Reject weights that gossip cannot produce."""
    if weighting != "uniform":
        raise ConfigurationError(
            f"weighting={weighting!r}: gossip with a symmetric matrix agrees on the plain mean of the nodes, so "
            f'{name} needs weighting="uniform", or let a centralised strategy weigh by examples'
        )
