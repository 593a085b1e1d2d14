"""Which strategies have no use for partial sums: those that need every client's vector, or messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flwr_fco.errors import ConfigurationError
from flwr_fco.wire.metrics import average_metrics


def check_partial_sums(strategy: Any) -> None:
    """Refuse workers that send one weighted sum each where a strategy could not use them.

    What a method does with a client's vector by itself is refused where it does it.

    Parameters
    ----------
    strategy : CompositeStrategy

    Raises
    ------
    ConfigurationError
        With the reason and what to do.
    """
    for reason, instead in _objections(strategy):
        raise ConfigurationError(f"partial_sums=True: {reason}; {instead}, or run without partial_sums")


def _objections(strategy: Any) -> Iterator[tuple[str, str]]:
    name, memories = type(strategy).__name__, strategy.memories
    if strategy.aggregation != "mean":
        yield f"aggregation={strategy.aggregation!r} compares the clients' vectors", "take aggregation='mean'"
    if strategy.private_mean is not None:
        yield "differential privacy clips each client's vector", "leave privacy out"
    if memories is not None and memories.ledger:
        yield f"the ledger of {name} copies what each client remembers", "take client_state='reset'"
    if strategy.graph is not None:
        yield f"{name} mixes each client's vector with its neighbours'", "take a strategy with a server"
    if getattr(strategy, "server_lr", None) == "auto":
        yield "server_lr='auto' compares the clients' vectors with their mean", "give server_lr as a number"
    if getattr(strategy, "client", "composite") == "unmodified":
        yield "client='unmodified' answers with models, in messages", "take this package's ClientApp"
    if strategy.pass_through_arrays:
        arrays = ", ".join(strategy.pass_through_arrays)
        yield f"the arrays that pass through ({arrays}) travel in messages", "take a model without such arrays"
    if strategy.plan.wire_dtype != "float64":
        yield f"wire_dtype={strategy.plan.wire_dtype!r} is about messages", "take wire_dtype='float64'"
    if strategy.train_metrics_aggr_fn is not average_metrics:
        yield "a train_metrics_aggr_fn of one's own is given messages", "take the default"
    if strategy.has_own_hooks:
        yield f"{name} has a configure_train or an aggregate_train of its own, which is given messages", "leave it out"
