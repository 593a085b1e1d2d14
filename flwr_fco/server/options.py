"""Options shared by strategies, declared once: the text that ``help(FedDualAvg)`` and an editor show.

A strategy is a dataclass. It inherits the groups of options that apply to it and adds its own fields; a field declared
with ``init=False`` removes an inherited option. The documentation of inherited options is added to the docstring of
each strategy, so that a test can compare docstrings with signatures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from inspect import cleandoc, getattr_static, signature
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import WeakKeyDictionary

from flwr.app import MetricRecord, RecordDict

from flwr_fco.algorithms.contract.choices import (
    LARGEST_WEIGHT,
    Arrays,
    Average,
    Bounds,
    Density,
    Everyone,
    Last,
    Ledger,
    Participation,
    Trimmed,
    Wire,
)
from flwr_fco.core.validation import AT_LEAST_ONE, FRACTION, MOMENTUM, NATURAL, POSITIVE, checked, kinds_of
from flwr_fco.errors import ConfigurationError, UnknownOptionError
from flwr_fco.mirror_maps import Euclidean, MirrorMap
from flwr_fco.privacy import GaussianDP
from flwr_fco.regularizers import L1, Regularizer, Zero
from flwr_fco.regularizers.base import Scope
from flwr_fco.topology import Mixing
from flwr_fco.wire.metrics import average_metrics
from flwr_fco.work import Epochs, FirstOrder, Minimise

#: Value of an option that is chosen from the clients' reports about their losses.
AUTO = "auto"
#: Options that theory can choose, with their values before the choice.
AUTOMATIC = {"client_lr": 0.1, "server_lr": 1.0, "nu": 0.01, "rho": 0.0}
#: A number, a function of Flower's round (from 1), or ``"auto"``: the theory's value for these losses.
Rate = float | Callable[[int], float] | Literal["auto"]
#: Averages the metrics of a round's replies; as in Flower's ``FedAvg``.
MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]
_DENSITY = {
    "range": (lambda value: isinstance(value, Density) or 0.0 < value < 1.0, "a number between 0 and 1, or a Density")
}
_NONE_IS_DEFAULT = ("regularizer", "mirror_map", "train_metrics_aggr_fn", "evaluate_metrics_aggr_fn")
_WEIGHT = {"range": (lambda value: 0.0 <= value <= LARGEST_WEIGHT, f"a number from 0 to {LARGEST_WEIGHT:g}")}
_SEED = {"range": (lambda value: 0 <= value < 2**32, "an integer from 0 to 2**32 - 1")}


@dataclass(repr=False, eq=False)
class CommonOptions:
    """Options of every strategy, starting with those of Flower's ``FedAvg`` in its order.

    Parameters
    ----------
    fraction_train, fraction_evaluate, min_train_nodes, min_evaluate_nodes, min_available_nodes
        As in Flower's ``FedAvg``, with its defaults (1.0, 1.0, 2, 2, 2).
    weighted_by_key : str, default "num-examples"
        Key of the weight in the replies' MetricRecord.
    arrayrecord_key, configrecord_key : str, default "arrays", "config"
        Keys of the records in the messages.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        As in Flower's ``FedAvg``.
    regularizer : Regularizer, default Zero()
        psi.
    mirror_map : MirrorMap, default Euclidean()
        h.
    weighting : {"examples", "uniform"} or mapping of int to float, default "examples"
        Client weights p_m: numbers of examples (the pooled empirical risk), equal (1/M, as in the papers), or a weight
        for each partition, in the place of what clients report; a client whose partition is missing is left out.
    seed : int, default 0
        Seed of node sampling and of all minibatches; 0 <= seed < 2**32.
    on_divergence : {"raise", "rollback", "warn"}, default "raise"
        What ``start`` does when the model diverges. ``"raise"``: raise :class:`DivergedError`, which holds the result
        so far and the last good model, and says what to do. ``"rollback"``: keep a copy of the last good state and
        continue from it, without the rounds since then, at most three times in a row without a good round in between.
        ``"warn"``: log one warning and continue.
    certificate_every : int, optional
        Number of rounds between two certificates: ``start`` asks all clients how far the model is from the optimum, and
        adds ``duality-gap``, or ``residual`` if there is no gap, to the round's metrics; see
        :mod:`flwr_fco.certificates`.
    output : "last", Last or Average, default "last"
        The primal point that evaluation and the user see: the last one, or ``Average()`` of all rounds, or
        ``Average(window=100)`` of the last ones. An average is neither sparse nor of low rank; ``Average(nonzeros=16)``
        and ``Last(nonzeros=16)`` keep only the largest entries.
    aggregation : {"mean", "median", "geometric-median"} or Trimmed, default "mean"
        How the server combines the clients' increments. All choices but the mean bound the influence of a minority; see
        :mod:`flwr_fco.algorithms.contract.replies`. Methods that need the mean refuse them.
    bounds : Bounds, default Bounds()
        What the server accepts of a reply: :class:`flwr_fco.strategies.Bounds`.
    arrays : Arrays, default Arrays()
        Which arrays psi acts on, and which are not optimised: :class:`flwr_fco.strategies.Arrays`.
    wire : Wire, default Wire()
        Precision and form of the vectors in messages: :class:`flwr_fco.strategies.Wire`.
    participation : Participation, default Participation()
        Who takes part in a round, and how long the server waits: :class:`flwr_fco.strategies.Participation`.
    """

    fraction_train: float = field(default=1.0, metadata=FRACTION)
    fraction_evaluate: float = field(default=1.0, metadata=FRACTION)
    min_train_nodes: int = field(default=2, metadata=NATURAL)
    min_evaluate_nodes: int = field(default=2, metadata=NATURAL)
    min_available_nodes: int = field(default=2, metadata=NATURAL)
    weighted_by_key: str = "num-examples"
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    train_metrics_aggr_fn: MetricsFunction = average_metrics
    evaluate_metrics_aggr_fn: MetricsFunction = average_metrics
    _: KW_ONLY
    regularizer: Regularizer = Zero()
    mirror_map: MirrorMap = Euclidean()
    weighting: Literal["examples", "uniform"] | Mapping[int, float] = "examples"
    seed: int = field(default=0, metadata=_SEED)
    on_divergence: Literal["raise", "rollback", "warn"] = "raise"
    certificate_every: int | None = field(default=None, metadata=AT_LEAST_ONE)
    output: Literal["last"] | Last | Average = "last"
    aggregation: Literal["mean", "median", "geometric-median"] | Trimmed = "mean"
    bounds: Bounds = field(default=Bounds())
    arrays: Arrays = field(default=Arrays())
    wire: Wire = field(default=Wire())
    participation: Participation | Everyone = field(default=Participation())

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _document_inherited_options(cls)

    if not TYPE_CHECKING:  # the generated `__init__` is the signature, for type checkers too

        def __new__(cls, *values: Any, **options: Any) -> Self:
            """Reject an unknown option, and name a similar one that exists."""
            for name in options:
                option = cls.__dataclass_fields__.get(name)
                if option is None or not option.init:
                    _refuse_unless_taken(cls, name, options)
            return super().__new__(cls)

    def __check__(self) -> None:
        """Check a class's own options together, and set those that follow from others; their types are right.

        It is called before the strategy is complete, and before a run if options were set since the last one.
        """

    def __repr__(self) -> str:
        values = [(option, getattr(self, option.name)) for option in fields(self) if option.init]
        texts = [f"{option.name}={value!r}" for option, value in values if not _is_default(option, value)]
        return f"{type(self).__name__}({', '.join(texts)})"


@dataclass(repr=False, eq=False, kw_only=True)
class WorkOptions:
    """Options of a strategy whose clients take gradient steps.

    Parameters
    ----------
    work : FirstOrder, default Epochs(1, batch_size=32)
        What a client does in a round: ``Epochs(5, batch_size=10)``, passes over its data, or
        ``Steps(10, batch_size=None)``, K minibatches; a batch size of None means full batches, without randomness.
    normalize_local_work : bool, default True
        Scale the increment and the elapsed time of each client to the round's mean elapsed time, so that clients that
        take more steps do not count more than their weight. With equal work the result is bit-identical.

    Examples
    --------
    >>> WorkOptions(work=Epochs(5, batch_size=10)).work.batch_size
    10
    """

    work: FirstOrder = field(default=Epochs())
    normalize_local_work: bool = True


@dataclass(repr=False, eq=False, kw_only=True)
class RateOptions:
    """Options of a strategy with learning rates.

    Parameters
    ----------
    client_lr : float, callable or "auto", default 0.1
        Step size of the local solver, eta_c; or a function of Flower's round (from 1), which is called once a round.
        ``"auto"``: the theory's value for the smoothness of the losses, which the clients report before round 1.
    server_lr : float, callable or "auto", default 1.0
        Step size of the server, eta_s; or a function of Flower's round (from 1), which is called once a round.
        ``"auto"``: the extrapolation of FedExP, computed from the norms of each round's increments; for methods that
        take their plain mean. If the clients disagree at the solution itself, it grows to 500,000 near the solution,
        and the run does not settle there.

    Examples
    --------
    >>> RateOptions(client_lr=0.5).client_lr, RateOptions().server_lr
    (0.5, 1.0)
    """

    client_lr: Rate = field(default=0.1, metadata=POSITIVE)
    server_lr: Rate = field(default=1.0, metadata=POSITIVE)


@dataclass(repr=False, eq=False, kw_only=True)
class StepOptions(RateOptions, WorkOptions):
    """Options of a strategy whose clients take gradient steps, at a rate of theirs and one of the server."""


@dataclass(repr=False, eq=False, kw_only=True)
class MemoryOptions:
    """Options of a strategy whose clients remember vectors between rounds.

    Parameters
    ----------
    client_state : "ledger", "reset" or Ledger, default Ledger()
        ``"ledger"``: the server keeps a copy of every client's memory and restores lost memories. ``"reset"``: a lost
        memory, or a client that leaves for good, starts a new epoch, in which all memories are zero.
        ``Ledger(max_bytes=...)``: a ledger if it fits, else a reset. In all cases a client's weight is the number of
        examples in its first reply that counts, or its entry in `weighting`: a later reply with another number of
        examples, or with none, is left out. Until every client has replied, a client without a reply counts as the mean
        of those with one.

    Examples
    --------
    >>> MemoryOptions(client_state="reset").client_state
    'reset'
    """

    client_state: Literal["ledger", "reset"] | Ledger = field(default=Ledger())


@dataclass(repr=False, eq=False, kw_only=True)
class MinimiseOptions:
    """Options of a strategy whose clients minimise their loss plus linear and quadratic terms.

    Parameters
    ----------
    work : Minimise, default Minimise()
        Engine, tolerance, stopping rule and largest number of iterations of a client's minimisation:
        :class:`flwr_fco.work.Minimise`. Clients that reach this number are counted in the round's metric
        ``num-capped``, and logged.

    Examples
    --------
    >>> MinimiseOptions().work == Minimise()
    True
    """

    work: Minimise = field(default=Minimise())


@dataclass(repr=False, eq=False, kw_only=True)
class EveryoneOptions:
    """Options of a strategy that needs every client in every round.

    Parameters
    ----------
    participation : Everyone, default Everyone()
        How long the server waits for a client, and what happens then: :class:`flwr_fco.strategies.Everyone`.

    Examples
    --------
    >>> EveryoneOptions(participation=Everyone(evict_after=1)).participation.evict_after
    1
    """

    participation: Participation | Everyone = field(default=Everyone())


@dataclass(repr=False, eq=False, kw_only=True)
class TrackerOptions:
    """Options of a strategy with trackers.

    Parameters
    ----------
    tracker_start : {"gradient", "zero"}, default "gradient"
        ``"gradient"``: a round 0 asks every client for one gradient at the start point (one minibatch), as printed.
        ``"zero"``: trackers start at 0, without a round 0.

    Examples
    --------
    >>> TrackerOptions(tracker_start="zero").tracker_start
    'zero'
    """

    tracker_start: Literal["gradient", "zero"] = "gradient"


@dataclass(repr=False, eq=False, kw_only=True)
class GraphOptions:
    """Options of a strategy on a graph.

    Parameters
    ----------
    mixing : Topology, array of shape (M, M), or str, default "complete"
        The gossip matrix U, or the name of a topology (``"chain"``, ``"ring"``, ``"star"``, ``"exponential"``,
        ``"complete"``) for the number of nodes before round 1. Row m belongs to the m-th node in the order of partition
        ids.
    weighting : {"uniform"}
        Only equal weights: gossip with a symmetric matrix agrees on the plain mean.

    Examples
    --------
    >>> GraphOptions(mixing="ring").mixing
    'ring'
    """

    mixing: Mixing = "complete"
    weighting: Literal["examples", "uniform"] | Mapping[int, float] = "uniform"


@dataclass(repr=False, eq=False, kw_only=True)
class MomentumOptions:
    """Options of a strategy whose server can have momentum.

    Parameters
    ----------
    server_momentum : float, default 0.0
        Momentum of the server, beta in [0, 1): velocity <- beta velocity + mean(increment), dual += server_lr velocity,
        and likewise for `elapsed`, so that psi keeps its proportion. It makes the steps up to 1 / (1 - beta) times as
        large. An extension; 0 is the paper's method.
    """

    server_momentum: float = field(default=0.0, metadata=MOMENTUM)


@dataclass(repr=False, eq=False, kw_only=True)
class PrivacyOptions:
    """Options of a strategy whose server can add noise to a running sum of clipped increments.

    Parameters
    ----------
    privacy : GaussianDP, optional
        Differential privacy of the clients: :class:`flwr_fco.GaussianDP`. Replies are then not compared with each other
        (`max_ratio` is None), and metrics and result contain nothing from the clients except the noisy model. Errors
        name the other requirements.
    """

    privacy: GaussianDP | None = None


@dataclass(repr=False, eq=False, kw_only=True)
class UnmodifiedOptions:
    """Options of a strategy whose psi acts on the server for clients whose code cannot be changed.

    Parameters
    ----------
    client : {"composite", "unmodified"}, default "composite"
        ``"composite"``: the clients run :func:`flwr_fco.client_apps.client_app`. ``"unmodified"``: any FedAvg ClientApp
        that returns its new model (Euclidean geometry only). The server then takes dual += server_lr mean(w_K - w) and
        needs to know how fast the weight of psi grows: from `density` or ``work=Steps(...)``; a constraint has no
        weight and needs neither. With ``Steps(K)``, elapsed += client_lr * K, where `client_lr` is the clients' own
        learning rate (``local-steps`` or ``elapsed`` in a client's MetricRecord take precedence). Exact for one local
        step; the error grows with the local work, faster than that of the full method, because local steps ignore psi.
    density : float or Density, optional
        Fraction of the regularized entries that are non-zero in the end, for clients of either kind; a number, or
        :class:`flwr_fco.strategies.Density` with the scope and the number of rounds. psi is then the indicator of a
        maximum number of non-zero entries (:class:`~flwr_fco.regularizers.HardSparsity`): the entries with the largest
        dual are kept unchanged, and the dual of the other entries fades by half in a round. No theory covers it. A
        :class:`~flwr_fco.regularizers.PerParameter` excludes arrays from it: ``Zero()`` keeps an array dense,
        ``HardSparsity(density=...)`` gives it its own density. The strength of an l1 norm has no effect.
    """

    client: Literal["composite", "unmodified"] = "composite"
    density: float | Density | None = field(default=None, metadata=_DENSITY)


def check_options(options: CommonOptions) -> None:
    """Check types and ranges of all options of a strategy.

    Parameters
    ----------
    options : CommonOptions
        The strategy, whose options these are.

    Raises
    ------
    ConfigurationError
        With the option, its value and what was expected.
    """
    kind: Any = type(options)
    kinds = kinds_of(kind)
    for option in fields(options):
        default = getattr_static(kind, option.name, MISSING)
        if option.default is not MISSING and default is not option.default:
            raise ConfigurationError(
                f"class {kind.__name__} has {option.name} = {default!r}, which changes no default; write "
                f"`{option.name}: type = ...` under @dataclass, or {kind.__name__}({option.name}=...)"
            )
        if option.init:
            # Not by the class's own way, which checks.
            object.__setattr__(options, option.name, checked_option(option, getattr(options, option.name), kinds))
    options.__check__()
    check_local_points(options)


def _is_default(option: Field[Any], value: Any) -> bool:
    default = option.default if option.default_factory is MISSING else option.default_factory()
    try:
        return value is default or bool(value == default)
    except ValueError:  # arrays compare element by element
        return False


def checked_option(option: Field[Any], value: Any, kinds: Mapping[str, Any]) -> Any:
    """Return an option's value after checking its type and range; None means the default, as in Flower's strategies.

    Parameters
    ----------
    option : dataclasses.Field
        The option.
    value : Any
        Its value.
    kinds : mapping of str to Any
        The annotations of the class.

    Raises
    ------
    ConfigurationError
        With the option, its value and what was expected.
    """
    if value is None and option.name in _NONE_IS_DEFAULT:
        value = option.default
    value = checked(option.name, value, kinds[option.name])
    # An array, as of a graph, is not compared with a word.
    if "range" in option.metadata and value != AUTO and not callable(value):
        checked(option.name, value, Any, option.metadata)
    return _checked_weights(value) if option.name == "weighting" and isinstance(value, Mapping) else value


def _checked_weights(weighting: Mapping[int, float]) -> dict[int, float]:
    weights: dict[int, float] = {}
    for partition, weight in weighting.items():
        name = f"weighting[{partition!r}]"
        number = checked(f"the partition of {name}", partition, int)
        if number < 0:
            raise ConfigurationError(f"{name}: there is no partition {partition!r}; expected a whole number >= 0")
        weights[number] = checked(name, weight, float, _WEIGHT)
    if not any(weights.values()):
        raise ConfigurationError(f"weighting={dict(weighting)!r}; expected at least one weight > 0")
    return weights


def weights_of(options: CommonOptions) -> Mapping[int, float] | None:
    """Return the user's weight of each partition; None if clients weigh what they report, or the same.

    Parameters
    ----------
    options : CommonOptions
        Of the strategy.
    """
    return options.weighting if isinstance(options.weighting, Mapping) else None


def max_ratio_of(options: CommonOptions) -> float | None:
    """Return the bound of replies by the clients' median; None in a private run, where no reply says if another counts.

    Parameters
    ----------
    options : CommonOptions
        Of the strategy.
    """
    return None if getattr(options, "privacy", None) is not None else options.bounds.max_ratio


def scope_of(options: CommonOptions) -> Scope:
    """Return whether psi acts on each array separately; a density of all arrays together acts on all as one vector.

    Parameters
    ----------
    options : CommonOptions
        Of the strategy.
    """
    density = density_of(options)
    return "joint" if density is not None and density.scope == "global" else options.arrays.scope


def density_of(options: object) -> Density | None:
    """Return the density that a strategy comes to, if it has one.

    Parameters
    ----------
    options : CommonOptions
        Of the strategy.
    """
    density: float | Density | None = getattr(options, "density", None)
    return Density(density) if isinstance(density, int | float) else density


def check_local_points(options: CommonOptions) -> None:
    """Check that the clients' local steps are there to be averaged, if the output averages them.

    Parameters
    ----------
    options : CommonOptions
        The strategy, whose options these are.

    Raises
    ------
    ConfigurationError
        If they are not.
    """
    strategy: Any = options
    if strategy.output not in ("shadow", "ergodic"):
        return
    steps, why = "local" if strategy.output == "shadow" else "half", ""
    if momentum := getattr(strategy, "server_momentum", 0.0):
        why = "is the mean of the clients' duals in each local step, which server_momentum="
        why += f"{momentum:g} leaves; take output=Average(), or no momentum"
    elif serves_unmodified(strategy):
        why = f'needs the clients\' {steps} steps; client="unmodified" has none'
    elif strategy.aggregation != "mean":
        why = f"averages {steps} steps; aggregation={strategy.aggregation!r} has no form for them"
    elif strategy.work.steps is None:
        why = f"averages over the {steps} steps, so all clients must take the same number: work=Steps(...) "
        why += f"instead of {strategy.work!r}"
    if why:
        raise ConfigurationError(f'output="{strategy.output}" {why}')


def serves_unmodified(options: object) -> bool:
    """Whether a strategy's clients are FedAvg ClientApps, which do not know psi.

    Parameters
    ----------
    options : CommonOptions
        Of the strategy.
    """
    return bool(getattr(options, "client", None) == "unmodified")


def rates_of(options: CommonOptions) -> tuple[str, ...]:
    """Return the names of the options that may be functions of the round or ``"auto"``.

    Parameters
    ----------
    options : CommonOptions
        The strategy.
    """
    kind: Any = type(options)
    kinds = kinds_of(kind)
    rates = [option.name for option in fields(kind) if kinds[option.name] in (Rate, Rate | None)]
    return (*AUTOMATIC, *(name for name in rates if name not in AUTOMATIC))


def number_at(name: str, value: Rate | None, server_round: int, chosen: Mapping[str, float]) -> float:
    """Return an option that may be ``"auto"`` or a function of the round as a number.

    Parameters
    ----------
    name : str
        Name of the option.
    value : float, callable, ``"auto"`` or None
        None gives NaN.
    server_round : int
        Flower's round, from 1.
    chosen : mapping of str to float
        Values chosen for options that are ``"auto"``; before the choice they have their defaults.

    Raises
    ------
    ConfigurationError
        If a function of the round returns something other than a finite number > 0.
    """
    if value is None:
        return math.nan
    if value == AUTO:
        return chosen.get(name, AUTOMATIC[name])
    if not callable(value):
        return float(value)
    where = f"{name}({server_round})"
    return float(checked(where, value(server_round), float, POSITIVE))


def rate_text(rate: Rate) -> str:
    """Return the text about a rate in :meth:`CompositeStrategy.summary`."""
    if rate == AUTO:
        return AUTO
    return getattr(rate, "__name__", "a function of the round") if callable(rate) else f"{rate:g}"


# --- the documentation of inherited options -------------------------------------------------------------------------

_SECTION = re.compile(r"^Parameters\n-{10}\n", re.MULTILINE)
_NEXT_SECTION = re.compile(r"^[A-Z]\w+\n-{3,}$", re.MULTILINE)


def _sections(text: str) -> tuple[str, str, str]:
    """Return what comes before the entries of a docstring's parameters, with their title; the entries; and the rest."""
    section = _SECTION.search(text)
    following = _NEXT_SECTION.search(text, section.end() if section else 0)
    end = following.start() if following else len(text)
    if section is None:
        # Before the first other section, or at the end.
        return text[:end].rstrip() + "\n\nParameters\n----------\n", "", text[end:]
    return text[: section.end()], text[section.end() : end], text[end:]


def parameter_entries(text: str | None) -> dict[tuple[str, ...], str]:
    """Return the entries of a numpydoc 'Parameters' section by the names that they document.

    Examples
    --------
    >>> list(parameter_entries(RateOptions.__doc__))
    [('client_lr',), ('server_lr',)]
    """
    entries: dict[tuple[str, ...], str] = {}
    names: tuple[str, ...] = ()
    # Python 3.13 takes the indentation away by itself.
    for line in _sections(cleandoc(text or ""))[1].strip("\n").rstrip().splitlines():
        if line[:1].strip():
            names = tuple(name.strip() for name in line.split(" : ")[0].split(","))
            entries[names] = ""
        entries[names] += line.rstrip() + "\n"
    return entries


_OF_PRIVACY = ("dp", "noise_multiplier", "target_epsilon")
#: Options that some methods cannot have: why not, and which methods have them.
_NOT_IN_EVERY_METHOD = {
    "client": "Its clients send more than a trained model, or train in another way: they run "
    "`flwr_fco.client_apps.client_app`. FedDualAvg, FedDualAvgOSP and FedDA take clients as they are",
    "density": "It keeps the largest entries of one running sum, which FedDualAvg, FedDualAvgOSP and FedDA have",
    "privacy": "Noise belongs into a running sum of increments of clients that remember nothing, which FedDualAvg, "
    "FedDualAvgOSP, FedDA and FeDualEx have; what clients remember (trackers, duals of their own) goes into later "
    "rounds without noise, and averages of models are no sums",
}
_BY_ROUND = (
    "what is the same in all rounds goes to `start`: {0}_config=ConfigRecord({{{{...}}}}); for the rest override "
    "`configure_{0}` and change `config` before super()'s"
)
#: Names that say how much work a client does in a round.
_PER_ROUND = ("local_steps", "steps", "local_epochs", "epochs", "num_epochs")
#: The name of an option, what to write for one, or what to do else; and the names that mean it: of option objects, of
#: Flower's earlier interface and of other libraries, as far as no comparison of letters finds them. Of several, the
#: first counts that a strategy takes.
_INSTEAD = {
    "client_lr": "lr eta learning_rate client_learning_rate",
    "server_lr": "server_learning_rate",
    "regularizer": "penalty regularisation",
    "fraction_train": "fraction_clients",
    "min_train_nodes": "min_fit_clients",
    "min_evaluate_nodes": "min_eval_clients",
    "privacy": "dp",
    "privacy=GaussianDP(..., {name}={value!r})": "noise_multiplier target_epsilon",
    "bounds=Bounds({name}={value!r})": "max_examples max_ratio max_increment_norm own_loops",
    "output=Average(window={value!r})": "window output_window",
    "work=Steps({value!r}, batch_size={batch!r})": "local_steps steps",
    "work=Epochs({value!r}, batch_size={batch!r})": "local_epochs epochs num_epochs",
    "work=Epochs(1, batch_size={value!r})": "batch_size",
    "work=Minimise({name}={value!r})": "engine tolerance rule max_iterations",
    "arrays=Arrays({name}={value!r})": "apply_to pass_through scope",
    "participation=Participation({name}={value!r})": "node_timeout min_replies choose_nodes",
    "participation=Everyone({name}={value!r})": "node_timeout min_replies evict_after on_missing",
    "participation=Participation(choose_nodes=...), which chooses the nodes of a round": "client_manager",
    "it asks every node in every round; leave it out": "choose_nodes client_manager",
    "participation=Participation(min_replies=...), the good replies that a round needs: the others are left out": (
        "accept_failures"
    ),
    "participation=Everyone(min_replies=...), the clients that a run needs: one that keeps failing is given up": (
        "accept_failures"
    ),
    'client="unmodified" and give `start` train_config=ConfigRecord({{"proximal-mu": {value!r}}})': "proximal_mu",
    "regularizer=L1({value!r})": "l1 alpha lambda_ lam l1_strength",
    "reference=Reference(sparsity={value!r})": "sparsity",
    "output=Last(nonzeros={value!r})": "sparsity",
    "wire=Wire(dtype={value!r})": "wire_dtype",
    "wire=Wire(sparse={value!r})": "sparse_wire",
    "client_state=Ledger(max_bytes={value!r})": "ledger_bytes",
    "reference=Reference(window={value!r})": "restart_window",
    "reference=Reference(newest={value!r})": "restart_newest",
    "aggregation=Trimmed({value!r})": "trim",
    "weighting={value!r}": "client_weights",
    "density=Density(..., scope={value!r})": "density_scope",
    "density=Density(..., rounds={value!r})": "density_rounds",
    "give the model to `start` or `simulate`: initial_arrays=": "initial_parameters initial_arrays",
    "give it to `start` or `simulate`: evaluate_fn=": "evaluate_fn eval_fn",
    "give it to `start` or `simulate`: {name}=": "num_rounds callbacks train_config evaluate_config timeout",
    _BY_ROUND.format("train"): "on_fit_config_fn",
    _BY_ROUND.format("evaluate"): "on_evaluate_config_fn",
    "it has no effect on a result; leave it out": "inplace",
    "the grid knows its nodes: give num_nodes= to `simulate`, or min_available_nodes= to wait for them": "num_clients",
}
#: What to write for an option of which strategies take different objects, by the class of its default.
_TAKEN = {"FirstOrder": ("Steps", "Epochs"), **{name: (name,) for name in ("Minimise", "Participation", "Everyone")}}
#: Values of options that some strategies have with their default only.
_TRIED: Mapping[str, Any] = {
    "aggregation": Trimmed(0.1),
    "client": "unmodified",
    "output": Last(nonzeros=1),
    "regularizer": L1(1.0),
    "weighting": {0: 1.0},
}


def _refuse_unless_taken(cls: type[CommonOptions], name: str, options: Mapping[str, Any]) -> None:
    """Reject an option that a strategy does not have; a user-defined `__init__` may accept others."""
    taken = signature(cls).parameters
    if name not in taken and all(parameter.kind is not parameter.VAR_KEYWORD for parameter in taken.values()):
        advice = _advice(cls, name, options, taken)
        raise UnknownOptionError(f"{name}={options[name]!r}: {cls.__name__} has no such option{advice}")


def _advice(cls: type[CommonOptions], name: str, options: Mapping[str, Any], taken: Mapping[str, Any]) -> str:
    """Return what to do instead of giving an option that a strategy does not have, with the mark before it."""
    value = options[name]
    # 1 is a number of weights, and 1.0 a share.
    share = name == "sparsity" and isinstance(value, int | float) and not value > isinstance(value, float)
    if share and value == 0:
        return "; without it no weight is left out"
    meant = "density" if share else "privacy" if name in _OF_PRIVACY else name
    if meant in _NOT_IN_EVERY_METHOD and meant not in taken:
        sparse = "; " + (_objection(cls, "regularizer") or "here write regularizer=L1(...)")
        return f". {_NOT_IN_EVERY_METHOD[meant]}{sparse if meant == 'density' else ''}"
    counted = next((key for key in _PER_ROUND if key in options), name) if name == "batch_size" else name
    values = {"name": counted, "value": options[counted], "batch": options.get("batch_size", 32)}
    texts = [text.format(**values) for text, names in _INSTEAD.items() if counted in names.split()]
    if share:
        left = f"{1 - value:.12g}" if 0 < value < 1 else "..., the share of the weights that stay, between 0 and 1"
        texts = [f"density={left}"]
    for text in texts:
        option, _, written = text.partition("=")
        if not option.isidentifier():
            return f"; {text}"
        like = type(getattr(cls.__dataclass_fields__.get(option), "default", None)).__name__
        kinds = _TAKEN.get(like, (written.partition("(")[0],))
        if option in taken and written.partition("(")[0] in kinds:
            return f"; {_objection(cls, option) or f'write {text}'}" if written else f"; did you mean {option}?"
    near = get_close_matches(name, taken, n=1, cutoff=0.68)
    return f"; did you mean {near[0]}?" if near else f"; help({cls.__name__}) lists those it has"


def _objection(cls: type[CommonOptions], option: str) -> str:
    """Return why one of our strategies, or the one that a class is derived from, has an option's default only."""
    ours = next((base for base in cls.__mro__ if base.__module__.startswith("flwr_fco.strategies.")), None)
    if ours is None or option not in _TRIED:
        return ""
    value = _TRIED[option]
    try:
        ours(**{option: value})
    except ConfigurationError as error:
        # Of a value that the user has not given nothing is said.
        why = f"{error}".removeprefix(f"{option}={value!r}: ")
        return why.replace(f"={value!r} is a {type(value).__name__}; expected", "= takes")
    return ""


#: The options that a strategy's docstring describes itself, before those that it inherits are added.
_OWN_ENTRIES: WeakKeyDictionary[type, dict[tuple[str, ...], str]] = WeakKeyDictionary()


def _document_inherited_options(cls: type[CommonOptions]) -> None:
    """Add the documentation of inherited options to a strategy's docstring, without the options that it removes."""
    if "__doc__" not in vars(cls) or not cls.__doc__:
        return
    text = cleandoc(cls.__doc__)
    described_here = parameter_entries(text)
    gone = {name for name, value in vars(cls).items() if isinstance(value, Field) and not value.init}
    documented = {name for names in described_here for name in names}
    entries = [entry.rstrip() for entry in described_here.values()]
    for base in cls.__mro__[1:]:
        described = _OWN_ENTRIES.get(base) or parameter_entries(vars(base).get("__doc__"))
        if base.__module__.startswith("flwr_fco"):
            for names, entry in described.items():
                if not documented.issuperset(names) and not gone.issuperset(names):
                    entries.append(entry.rstrip())
            documented |= {name for names in described for name in names}
        gone |= {name for name, value in getattr(base, "__dataclass_fields__", {}).items() if not value.init}
    _OWN_ENTRIES[cls] = described_here
    head, _, tail = _sections(text)
    margin = re.search(r"\n( *)\S", cls.__doc__)
    put_together = head + "\n".join(entries) + "\n\n" + tail
    cls.__doc__ = indent(put_together, margin[1] if margin else "").lstrip()
