"""The options of strategies: Flower's, and those of all methods; how they are checked, and what an unknown one gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, is_dataclass
from inspect import get_annotations
from typing import Any, ClassVar, Literal, TypeVar, cast, dataclass_transform

import numpy as np
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from flwr_fco.algorithms.contract import Algorithm, register
from flwr_fco.algorithms.contract.choices import Arrays, Bounds, Density, Everyone, Output, Participation, Trimmed, Wire
from flwr_fco.algorithms.decentralized import Graph
from flwr_fco.algorithms.density import SparseDualAveraging
from flwr_fco.algorithms.dual_averaging import DualAveraging
from flwr_fco.algorithms.restricted_gradient_tracking import Staged, restricted_map
from flwr_fco.core.validation import AT_LEAST_ONE, FRACTION, NATURAL, SEED, check_fields, nearest, refusing, short
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.short import Short
from flwr_fco.mirror_maps import Euclidean, MirrorMap, Product
from flwr_fco.privacy import check_private
from flwr_fco.regularizers import HardSparsity, PerParameter, Regularizer, Zero

AUTO = "auto"
#: Options that theory can choose, with their values before the choice.
AUTOMATIC = {"client_lr": 0.1, "server_lr": 1.0, "nu": 0.01, "rho": 0.0}
Rate = float | Callable[[int], float] | Literal["auto"]
MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]
#: What is wrong with options of a strategy, after its name.
_WRONG = {
    "aggregation": "needs the mean: its trackers, duals or gossip hold only with the clients' weights; take FedDualAvg",
    "regularizer": "has no place for psi, because {}; put a smooth psi into the losses, or take FedDR or FedDualAvg",
    "mirror_map": "{}, so it is Euclidean; take FedMid or FedDualAvg for other geometries",
    "fraction_train": "needs every client in every round; leave it 1.0, or take a strategy that samples, as Scaffold",
    "participation": "waits for others; expected {}",
    "server_lr": "takes no plain mean of increments, for which the rule is; give a number",
    "output": "cannot average the clients' steps: {}",
    "certificate_every": "certifies the mean of losses weighted by examples, and not by weighted_by_key; leave one out",
    "configrecord_key": "needs this key, arrayrecord_key and those of its own records, which begin with fco, to differ",
    "wire": 'sends short messages with density= alone, of models that are mostly zero, and without output="shadow"',
}
_Kind = TypeVar("_Kind", bound=type[Any])


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def strategy(kind: _Kind) -> _Kind:
    """Make a class of options a strategy: a dataclass of keywords, whose error for an unknown one says what to write.

    Parameters
    ----------
    kind : type
        A subclass of a strategy.

    Examples
    --------
    >>> from flwr_fco.strategies import FedDualAvg
    >>> FedDualAvg(fraction_fit=0.5)
    Traceback (most recent call last):
    ...
    flwr_fco.errors.UnknownOptionError: fraction_fit=0.5: FedDualAvg has no such option; write fraction_train=
    """
    return refusing(cast(_Kind, dataclass(repr=False, eq=False, kw_only=True)(kind)), _advice)


@dataclass(repr=False, eq=False)
class Options(FedAvg):
    """Options of every strategy, beginning with those of Flower's ``FedAvg`` in its order.

    Parameters
    ----------
    fraction_train, fraction_evaluate : float, default 1.0
        Fractions of the connected nodes in a round of training, and of evaluation: one at least, and 0 leaves it out.
    min_train_nodes, min_evaluate_nodes, min_available_nodes : int, default 2
        As in Flower's ``FedAvg``.
    weighted_by_key : str, default "num-examples"
        Key of the weight in the replies' MetricRecord; answers to questions weigh by numbers of examples.
    arrayrecord_key, configrecord_key : str, default "arrays", "config"
        Keys of the records in the messages.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        ``(list of RecordDict, weighted_by_key) -> MetricRecord``; by default weighted means.
    regularizer : Regularizer, default Zero()
        psi.
    mirror_map : MirrorMap, default Euclidean()
        h.
    weighting : {"examples", "uniform"}, default "examples"
        Client weights p_m: numbers of examples (the pooled empirical risk), or equal (1/M, as in the papers).
    seed : int, default 0
        Seed of node sampling and of all minibatches; 0 <= seed < 2**32.
    on_divergence : {"raise", "warn"}, default "raise"
        What ``start`` does when the model diverges: raise :class:`DivergedError`, which holds the result so far and
        the last good model; or log one warning and go on.
    certificate_every : int, optional
        Number of rounds between two certificates: ``start`` asks all clients how far the model is from the optimum, and
        adds ``duality-gap``, or ``residual`` if there is no gap, to the round's metrics. Beside ``SimplexEntropy``
        it needs ``regularizer=Simplex(...)``.
    output : "last", Last or Average, default "last"
        The primal point that evaluation and the user see: the last one, or ``Average()`` of all rounds, which is
        neither sparse nor of low rank.
    aggregation : {"mean", "median", "geometric-median"} or Trimmed, default "mean"
        How the server combines the clients' increments; all but the mean bound the influence of a minority.
    bounds : Bounds, default Bounds()
        What the server accepts of a reply.
    arrays : Arrays, default Arrays()
        Which arrays psi acts on, and which are not optimised.
    wire : Wire or Short, default Wire()
        Precision and form of the vectors in messages. ``Short()``: a ninth of the bytes for a model of `density` 0.1,
        with one line at the clients.
    participation : Participation, default Participation()
        Who takes part in a round, and how long the server waits.
    """

    fraction_train: float = field(default=1.0, metadata=FRACTION)
    fraction_evaluate: float = field(default=1.0, metadata=FRACTION)
    min_train_nodes: int = field(default=2, metadata=NATURAL)
    min_evaluate_nodes: int = field(default=2, metadata=NATURAL)
    min_available_nodes: int = field(default=2, metadata=NATURAL)
    weighted_by_key: str = "num-examples"
    arrayrecord_key: str = "arrays"
    configrecord_key: str = "config"
    train_metrics_aggr_fn: MetricsFunction | None = None  # type: ignore[assignment]
    evaluate_metrics_aggr_fn: MetricsFunction | None = None  # type: ignore[assignment]
    _: KW_ONLY
    regularizer: Regularizer = field(default=Zero(), metadata={"example": "L1(0.1)"})
    mirror_map: MirrorMap = field(default=Euclidean(), metadata={"example": "PNorm(3.0)"})
    weighting: Literal["examples", "uniform"] = "examples"
    seed: int = field(default=0, metadata=SEED)
    on_divergence: Literal["raise", "warn"] = "raise"
    certificate_every: int | None = field(default=None, metadata=AT_LEAST_ONE)
    output: Output = "last"
    aggregation: Literal["mean", "median", "geometric-median"] | Trimmed = "mean"
    bounds: Bounds = field(default=Bounds())
    arrays: Arrays = field(default=Arrays())
    wire: Wire | Short = field(default=Wire())
    participation: Participation | Everyone = field(default=Participation())

    #: Weights by partition in the place of those that clients report: estimators set what their rows weigh.
    site_weights: Mapping[int, float] | None = field(init=False, default=None)

    #: What clients have said of their tables to estimators, that ask before the run.
    tables: Any = field(init=False, default=None)

    #: The method: both halves.
    algorithm: ClassVar[type[Algorithm] | None] = None
    #: The client rate of theory, which ``client_lr="auto"`` takes: 1 over numbers, L, K and a graph's tau or tau^2.
    theory: ClassVar[str] = "1/(4 L)"

    #: Functions of metrics that stand for the mean of this package; FedAvg has one, which hooks copied from it call.
    _means: ClassVar[tuple[Any, ...]] = (None, aggregate_metricrecords)

    #: What follows from a strategy's options: whether the clients are ClientApps of FedAvg, which do not know psi; the
    #: density, if there is one; and on what psi acts.
    _unmodified: ClassVar[bool] = False
    _density: ClassVar[Density | None] = None
    _scope: ClassVar[Literal["each", "joint"]] = "each"

    def _check(self) -> None:
        """Check the options, and set those that follow from others: before the strategy is complete, and each run."""
        name = type(self).__name__
        for option in fields(self):
            default = getattr(type(self), option.name, MISSING)
            if option.default is not MISSING and repr(default) != repr(option.default):
                prefix = f"class {name} has {option.name} = {default!r}, which changes no default"
                advice = f"write `{option.name}: type = ...` under @flwr_fco.strategies.strategy"
                raise ConfigurationError(f"{prefix}; {advice}, or give it to the constructor")
        check_fields(self)
        density = getattr(self, "density", None)
        density = Density(density) if isinstance(density, int | float) else density
        # A density of all arrays together acts on all as one vector.
        joint = density is not None and density.scope == "global"
        unmodified = getattr(self, "client", "composite") == "unmodified"
        vars(self).update(_unmodified=unmodified, _density=density, _scope="joint" if joint else self.arrays.scope)
        method = self._kind()
        mean = self.aggregation == "mean"
        everyone = method.reads == "everyone"
        sends_steps = self.output in ("shadow", "ergodic")
        plain = mean and method.reads == "mean" and "server_lr" not in method.refuses
        keys = {self.arrayrecord_key, self.configrecord_key}
        other_weights = self.weighting == "examples" and self.weighted_by_key != "num-examples"
        wrong = {
            "aggregation": not mean and method.reads != "mean",
            "regularizer": "regularizer" in method.refuses and not isinstance(self.regularizer, Zero),
            "mirror_map": "mirror_map" in method.refuses and not isinstance(self.mirror_map, Euclidean),
            "fraction_train": everyone and self.fraction_train != 1.0,
            "participation": everyone != isinstance(self.participation, Everyone),
            "server_lr": getattr(self, "server_lr", None) == AUTO and not plain,
            "output": sends_steps and self._why_no_steps(),
            "certificate_every": self.certificate_every is not None and other_weights,
            "configrecord_key": len(keys) < 2 or any(key.startswith("fco") for key in keys),
            "wire": isinstance(self.wire, Short) and (self._density is None or sends_steps),
        }
        for key in (key for key, is_wrong in wrong.items() if is_wrong):
            of_option = {"participation": "an Everyone" if everyone else "a Participation", "output": wrong["output"]}
            text = _WRONG[key].format({**of_option, **method.refuses}.get(key, ""))
            raise ConfigurationError(f"{key}={getattr(self, key)!r}: {name} {text}")
        # Of maps and regularizers for each array their names decide, which are not known yet.
        if not (isinstance(self.mirror_map, Product) or self.regularizer.by_name):
            self.mirror_map.require(self.regularizer)
        if (mixing := getattr(self, "mixing", None)) is not None:
            Graph(mixing)
        # The same option of a method of the user's own may mean anything.
        if issubclass(method, Staged) and hasattr(self, "radius_squared"):
            restricted_map(self.mirror_map, np.zeros(1), self.radius_squared, self.regularizer)
        if getattr(self, "privacy", None) is not None:
            check_private(self)
        if hasattr(self, "client") and hasattr(self, "density"):
            _check_unmodified(self)

    def _why_no_steps(self) -> str:
        """Return why the clients' steps are not there to be averaged; an empty text if they are."""
        work: Any = getattr(self, "work", None)
        if momentum := getattr(self, "server_momentum", 0.0):
            return f"server_momentum={momentum:g} leaves the mean of the clients' steps; take output=Average()"
        if self._unmodified:
            return 'client="unmodified" sends no steps'
        if self.aggregation != "mean":
            return f"aggregation={self.aggregation!r} has no form for steps"
        same = getattr(work, "steps", None) is not None
        return "" if same else f"all clients must take as many steps: work=Steps(...) instead of {work!r}"

    # --- what follows from the options ----------------------------------------------------------------------------

    def _kind(self) -> type[Algorithm]:
        """Return the class of the method."""
        kind = type(self).algorithm
        density = self._density
        if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
            expected = "expected a subclass of flwr_fco.algorithms.Algorithm, which says what it runs"
            raise ConfigurationError(f"{type(self).__name__}.algorithm is {kind!r}; {expected}")
        if density is None or issubclass(kind, SparseDualAveraging):
            return kind
        if kind is not DualAveraging:
            prefix = f"density={density!r}: {type(self).__name__} runs {kind.__name__}, and not SparseDualAveraging"
            raise ConfigurationError(f"{prefix}: make yours a subclass of it, or leave density out")
        return SparseDualAveraging

    def _method(self) -> Algorithm:
        """Return the method, with the strategy's options of the same names."""
        kind: Any = self._kind()
        if vars(kind).get("name"):
            # Of a script or notebook: cloudpickle makes the class in another process, and gives it its name last.
            register(kind)
        taken = fields(kind) if is_dataclass(kind) else ()
        declared = {name for base in kind.__mro__ for name in get_annotations(base)} - {option.name for option in taken}
        if lost := sorted(declared & {option.name for option in fields(self)}):
            prefix = f"{kind.__name__} declares {', '.join(lost)} but is no dataclass, and would not get the strategy's"
            raise ConfigurationError(f"{prefix}: put @dataclass(frozen=True, kw_only=True) above it")
        own = [option.name for option in taken if option.init and hasattr(self, option.name)]
        return cast(Algorithm, kind(**{name: getattr(self, name) for name in own}))

    def __repr__(self) -> str:
        return text_of(self)


def _check_unmodified(options: Any) -> None:
    """Check that one option, which fits psi, says how fast the weight of psi or its sparsity grows.

    Parameters
    ----------
    options : Options
        Of a strategy with the options `client` and `density`.

    Raises
    ------
    ConfigurationError
        If options are missing or conflict.
    """
    if (density := options.density) is not None:
        _check_density(options)
    if not options._unmodified:
        return
    steps = options.work.steps
    psi = options.regularizer
    wrong = ""
    if density is not None and steps is not None:
        wrong = f"density={density!r}, work={options.work!r}: each of them says how fast psi's weight grows; give one"
    elif density is None and steps is None and not (isinstance(psi, Zero) or psi.constraint):
        wrong = f"with {psi!r} it is not known how fast the weight of psi grows. Give density=0.1 (the share of "
        wrong += "weights that are not 0 in the end) in its place, or work=Steps(...) with the clients' client_lr"
    elif not isinstance(options.mirror_map, Euclidean):
        wrong = "takes differences of models for gradients, which is Euclidean; other maps need our ClientApp "
        wrong += f"(flwr_fco.client_apps.client_app): mirror_map={options.mirror_map!r}"
    elif options.certificate_every is not None:
        wrong = f"answers no questions: certificate_every={options.certificate_every}; evaluate on the server"
    elif AUTO in (options.client_lr, options.server_lr):
        wrong = "takes steps of a size of its own, and answers no questions; give client_lr and server_lr as numbers"
    if wrong:
        raise ConfigurationError(f'client="unmodified": {wrong}')


def _check_density(options: Any) -> None:
    """Reject regularizers that cannot be combined with a density, which is a psi of its own."""
    whole = options.regularizer
    for psi in whole.regularizers.values() if isinstance(whole, PerParameter) else [whole]:
        if not isinstance(psi, Zero) and (psi is whole or not psi.constraint):
            prefix = f"density={options.density} is a psi of its own, beside which {short(psi)} would have no effect"
            which = "in a PerParameter, Zero(), HardSparsity(...) and constraints say which arrays have no share in it"
            raise ConfigurationError(f"{prefix}. Leave one of them out; {which}")
    if options._scope == "joint" and isinstance(whole, PerParameter):
        raise ConfigurationError('a PerParameter is of single arrays: Density(..., scope="layers"), or leave one out')
    if not isinstance(options.mirror_map, Product):
        options.mirror_map.require(HardSparsity(density=options._density.share))


def text_of(made: Any) -> str:
    """Return a strategy or a method in words: the options that are not the defaults."""
    shown = []
    for option in fields(made) if is_dataclass(made) else ():
        value = getattr(made, option.name) if option.init else aggregate_metricrecords
        default = option.default if option.default_factory is MISSING else option.default_factory()
        # Flower's mean of metrics stands for none of the user's.
        if value is not aggregate_metricrecords and repr(value) != repr(default):
            shown.append(f"{option.name}={value!r}")
    return f"{type(made).__name__}({', '.join(shown)})"


# --- unknown options --------------------------------------------------------------------------------------------------

_TABLE = """
fraction_train= | fraction_fit sample_fraction participation_rate
min_train_nodes= | min_fit_clients min_clients
seed= | random_state random_seed rng
server_lr= | eta server_learning_rate global_lr
client_lr= | eta_l lr learning_rate client_learning_rate qffl_learning_rate rate local_lr step_size
aggregation=Trimmed(...) | beta
aggregation="median", "geometric-median" or Trimmed(...) | num_malicious_nodes num_malicious_clients selection_rule
  num_nodes_to_select num_clients_to_keep first_aggregation_rule aggregation_rule_kwargs krum median trim
participation=Participation(min_replies=...) | accept_failures min_replies
  min_completion_rate_fit min_completion_rate_evaluate
density=, the share of weights that are not 0 | sparsity sparsity_ratio keep_ratio pruning_ratio prune top_k
work=Steps(...) or work=Epochs(...) | local_steps local_epochs epochs batch_size steps
wire=Short() or Wire(...) | compression quantize quantization dtype
bounds=Bounds(...) | max_ratio max_share rows max_increment_norm own_loops
regularizer=L1(...) | l1 alpha lambda_ lam reg psi strength penalty regularisation
regularizer=L2Squared(...) or ElasticNet(...) | l2 l1_ratio weight_decay
privacy=GaussianDP(...), which FedDualAvg and FeDualEx take | noise_multiplier clipping_norm clip_norm accountant
  num_sampled_clients initial_clipping_norm init_clip_norm clip_norm_lr target_clipped_quantile target_epsilon
  clip_norm_target_quantile clipped_count_stddev clip_count_stddev server_side_noising epsilon delta noise sigma
client="unmodified", and give `start` train_config=ConfigRecord({"proximal-mu": ...}) | proximal_mu
this strategy is none around another: give its options to FedDualAvg itself | strategy
the server's step has no moments of its own; FedDualAvg takes server_momentum= | beta_1 beta_2 tau beta1 beta2
  server_momentum momentum
FedDualAvg, FedDualAvgOSP and FedDA take it | density client
what clients remember has no noise; of methods without it, FedDualAvg, FedDualAvgOSP and FeDualEx take it | privacy
give `start` or `simulate` initial_arrays=ArrayRecord(...) | initial_parameters
give `start` or `simulate` callbacks=[EarlyStopping(...)] | early_stopping patience
give `start` or `simulate` callbacks=[Checkpoint(...)] | checkpoint save_path
give it to `start` or `simulate` | initial_arrays evaluate_fn evaluate_function num_rounds callbacks timeout
  train_config evaluate_config rounds n_rounds resume
give `simulate` num_nodes= | num_clients n_clients num_nodes clients
give `start` train_config= or evaluate_config=, or override a hook | on_fit_config_fn on_evaluate_config_fn
it has no effect on a result; leave it out | inplace
override aggregate_train, and weigh the replies there by their loss | q q_param train_loss_key
"""
# A row goes on in lines that begin with spaces.
_ROWS = [row.split(" | ") for row in _TABLE.strip().replace("\n  ", " ").splitlines()]
#: What to write here, or what to do, by options of Flower's strategies and of ours that others do not have.
_ADVICE = {name: text for text, names in _ROWS for name in names.split()}


def _advice(name: str, taken: Mapping[str, Any]) -> str:
    """Return what to do instead of giving an option that a strategy does not have, with the mark before it."""
    # Of short names many are alike.
    near = name if name in _ADVICE else nearest(name, [*taken, *_ADVICE] if len(name) > 3 else taken)
    if near is None:
        return "; help() of the class lists those it has"
    if near in taken:
        return f"; did you mean {near}?"
    text = _ADVICE[near]
    option, is_option, _ = text.partition("=")
    if ("client_lr" if option == "work" else option) in taken:
        return f"; write {text}"
    if option.isidentifier() and is_option:
        return f"; elsewhere it is {text}" + (", and this method has none" if "take" not in text else "")
    return f"; {text}"


refusing(Options, _advice)
