"""The parts of a strategy: each group of options in a strategy selects a part."""

from __future__ import annotations

from flwr_fco.algorithms.contract import Algorithm, choices, named
from flwr_fco.algorithms.contract.choices import Average, Last, Trimmed
from flwr_fco.algorithms.contract.graph import Graph
from flwr_fco.algorithms.contract.replies import Mean
from flwr_fco.algorithms.newton.exchange import CertifiedMethod
from flwr_fco.errors import ConfigurationError
from flwr_fco.server import options as groups
from flwr_fco.server.certifying import Certifier
from flwr_fco.server.clients.memory import ClientMemories
from flwr_fco.server.clients.participation import CappedMinimisations, Everyone, OtherLosses
from flwr_fco.server.clients.remembering import Gossip, Remembering
from flwr_fco.server.clients.unmodified import UnmodifiedClients, Untrained, check_unmodified
from flwr_fco.server.inquiry import FirstGradients, Inquiry
from flwr_fco.server.parts import Host, Part
from flwr_fco.server.replies.mail import Mail
from flwr_fco.server.replies.private import PrivateMean
from flwr_fco.server.rounds.output import Momentum, PointAverage


class Assembly:
    """The parts that a strategy's options select.

    Parameters
    ----------
    options : CommonOptions
        The strategy, whose options these are.
    kind : type of Algorithm
        The class of the strategy's algorithm.
    host : Host
        The run that they are parts of.

    Attributes
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

    Raises
    ------
    ConfigurationError
        If options cannot be combined.
    """

    def __init__(self, options: groups.CommonOptions, kind: type[Algorithm], host: Host) -> None:
        name, patience, every = type(options).__name__, options.participation.evict_after, options.certificate_every
        # By class, not by name: a strategy of somebody's own may have an option that is called so.
        strategy: object = options
        privacy = strategy.privacy if isinstance(strategy, groups.PrivacyOptions) else None
        beta = strategy.server_momentum if isinstance(strategy, groups.MomentumOptions) else 0.0
        starts = isinstance(strategy, groups.TrackerOptions) and strategy.tracker_start == "gradient"
        self.privacy = None if privacy is None else PrivateMean(privacy, options, host)
        self.mail = mail = Mail(options, kind)
        self.inquiry, self.average = Inquiry(options, kind, mail), PointAverage(*_named(options.output))
        self.mean = _mean(options)
        momentum = Momentum(beta, self.mean) if beta else None
        self.direction = momentum or self.mean
        unmodified = self.untrained = self.graph = self.memories = remembering = None
        if isinstance(strategy, groups.UnmodifiedOptions):
            check_unmodified(strategy)
            if groups.serves_unmodified(strategy):
                mail.language = unmodified = UnmodifiedClients(strategy)
                self.untrained = Untrained(unmodified)
                mail.nodes.asks = mail.asks = False
        if isinstance(strategy, groups.GraphOptions) and strategy.mixing is not None:
            _check_weighting(name, options.weighting)
            self.graph = Graph(strategy.mixing)
        _check_memory(name, isinstance(strategy, groups.MemoryOptions), kind)
        if isinstance(strategy, groups.MemoryOptions):
            sparse, state, weighting = kind.sparse and options.wire.sparse, strategy.client_state, options.weighting
            self.memories = ClientMemories(kind.memory, client_state=state, weighting=weighting, may_be_sparse=sparse)
            remembering = Remembering(self.memories, isinstance(strategy, groups.EveryoneOptions), patience)
        waits = options.participation if isinstance(options.participation, choices.Everyone) else None
        self.everyone = None if waits is None else Everyone(name, remembering, waits)
        self.certifier = None if every is None else Certifier(self.inquiry, every)
        # A metric of unmodified clients is what they call it, and no report about a minimisation.
        minimises = isinstance(strategy, groups.MinimiseOptions) and unmodified is None
        certifies = issubclass(kind, CertifiedMethod) and not named(kind, "losses")
        parts: dict[str, Part | None] = {
            "bounds": mail,
            "chosen": self.inquiry,
            "average": self.average,
            "privacy": self.privacy,
            "momentum": momentum,
            "unmodified": unmodified,
            "untrained": self.untrained,
            "capped": CappedMinimisations() if minimises else None,
            "other losses": OtherLosses() if certifies else None,
            "certificate": self.certifier,
            "graph": None if self.graph is None else Gossip(self.graph, patience),
            "participation": self.everyone,
            "memories": remembering,
            "first gradients": FirstGradients(mail, remembering) if starts else None,
        }
        self.parts = {name: part for name, part in parts.items() if part is not None}


def _check_memory(name: str, has_options: bool, kind: type[Algorithm]) -> None:
    """Reject a user-defined strategy that declares only a part of its clients' memory."""
    if has_options == bool(kind.memory):
        return
    if kind.memory:
        what = f"{name}: its clients remember {', '.join(kind.memory)} ({kind.__name__}.memory)"
        raise ConfigurationError(f"{what}, so its options need MemoryOptions among its base classes")
    raise ConfigurationError(
        f"{name} takes MemoryOptions, but its clients remember nothing: give {kind.__name__} a `memory`, the names of "
        "what a client remembers, and `remember`; or leave MemoryOptions out"
    )


def _mean(options: groups.CommonOptions) -> Mean:
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
