"""Clients whose code cannot be changed: any FedAvg ClientApp. The model goes down, the new model comes up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from flwr_fco.algorithms.contract.choices import Density
from flwr_fco.core.layout import Layout, Vector, dense
from flwr_fco.core.logs import logger
from flwr_fco.core.schema import listed
from flwr_fco.core.validation import short
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.arrays import increment_of, model_vector
from flwr_fco.messages.protocol import Uplink
from flwr_fco.messages.records import ELAPSED, EXAMPLES, STEPS, is_number, only
from flwr_fco.mirror_maps import Euclidean, Product
from flwr_fco.regularizers import HardSparsity, PerParameter, Zero
from flwr_fco.strategies.options import AUTO


def check_unmodified(options: Any) -> None:
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
    density: Density = options._density
    if options._scope == "joint" and isinstance(whole, PerParameter):
        raise ConfigurationError('a PerParameter is of single arrays: Density(..., scope="layers"), or leave one out')
    if not isinstance(options.mirror_map, Product):
        options.mirror_map.require(HardSparsity(density=density.share))


def model_message(options: Any, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
    """Return the records of a model, as ``FedAvg`` sends them.

    Parameters
    ----------
    options : Options
        With the record keys.
    arrays : ArrayRecord
        The model.
    config : ConfigRecord
        The user's, with the round.
    """
    return RecordDict({options.arrayrecord_key: arrays.copy(), options.configrecord_key: config.copy()})


def read_model(run: Any, content: RecordDict, increment: Vector | None = None) -> Uplink:
    """Return the client's model minus the one that it was sent, as an uplink.

    The clients' own learning rate is as the user says it; what a client reports takes precedence.

    Parameters
    ----------
    run : Run
        Of the strategy.
    content : RecordDict
        Of the reply.
    increment : ndarray of float64, shape (d,), optional
        Of a short message, whose arrays are those that pass through.
    """
    options, layout = run.options, run.problem.layout
    if increment is None:
        increment, passed = increment_of(layout, only(ArrayRecord, content), run.last()[0])
    else:
        passed = model_vector(Layout(layout.passed_through), only(ArrayRecord, content))[1]
    metrics: dict[str, Any] = dict(only(MetricRecord, content))
    # As with FedAvg, a client need not say more than its weight.
    examples = metrics.pop(EXAMPLES, metrics.get(options.weighted_by_key))
    # Where nothing depends on their steps, these names are theirs: seconds are no sizes of steps.
    steps, elapsed = None, 1.0
    if options.work.steps is not None:
        steps = metrics.pop(STEPS, options.work.steps)
        elapsed = metrics.pop(ELAPSED, run.problem.client_lr * steps if is_number(steps) else None)
    return Uplink({"increment": increment}, elapsed, steps, examples=examples, metrics=metrics, pass_through=passed)


class Untrained:
    """Arrays that no client has moved yet: they pass through until one does, as frozen layers of a ``state_dict``.

    psi leaves them alone, and the method does not change what nobody has moved.

    Attributes
    ----------
    names : set of str or None
        None before the first round.
    """

    saved = ("names", "idle")

    def __init__(self) -> None:
        self.names: set[str] | None = None
        #: Rounds in a row in which nothing has moved.
        self.idle = 0

    def observe(self, layout: Layout, uplinks: Sequence[Uplink]) -> None:
        """Take note of what the clients of a round have moved.

        Parameters
        ----------
        layout : Layout
            The user's.
        uplinks : sequence of Uplink
            The replies that count.
        """
        entries = [entry for entry in layout.optimized if entry.size]
        increments = [dense(up.vectors["increment"]) for up in uplinks]
        still = {entry.name for entry in entries if not any(part[entry.block].any() for part in increments)}
        self.idle = self.idle + 1 if len(still) == len(entries) else 0
        if self.idle == 2:
            logger.warning("the clients return the model that they were sent: in 2 rounds nobody trained any array")
        before = self.names
        self.names = still if self.names is None else self.names & still
        if before is None and still:
            logger.info("no client has trained %s: they stay as they are until one does", listed(sorted(still)))
        elif moved := (before or set()) - still:
            logger.info("clients train %s now", listed(sorted(moved)))

    def without(self, layout: Layout) -> Layout:
        """Return the layout in which psi does not act on these arrays."""
        return layout.regularizing({*layout.regularized_names} - self.names) if self.names else layout
