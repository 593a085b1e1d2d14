"""A ClientApp of a NumPyClient or a Client, the clients of Flower's earlier interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flwr_fco.client_apps.client import Mod
from flwr_fco.core.validation import of_type, takes
from flwr_fco.errors import ConfigurationError


def numpy_client_app(client_fn: Callable[[Any], Any], mods: Sequence[Mod] | None = None) -> ClientApp:
    """Return a ClientApp that trains and evaluates with a NumPyClient or a Client, for ``client="unmodified"``.

    Parameters
    ----------
    client_fn : callable
        ``(context) -> client``: the project's function, with or without ``.to_client()``; or ``(cid: str) -> client``
        as ``start_simulation`` took it, which is given the partition id. Of the client, ``fit`` and ``evaluate`` are
        called, with the arrays in the order of the initial model.
    mods : sequence of callable, optional
        The ClientApp's.

    Raises
    ------
    ConfigurationError
        If it is no such function; on a client, if it returns something else, or a client without the method.

    Examples
    --------
    >>> from flwr_fco import FedDualAvg, simulate
    >>> class Client:
    ...     def fit(self, parameters, config):
    ...         return [0.5 * (array + 1.0) for array in parameters], 10, {"loss": 0.1}
    >>> strategy = FedDualAvg(client="unmodified", fraction_evaluate=0.0)
    >>> start = {"w": np.zeros(2)}
    >>> app = numpy_client_app(lambda context: Client())
    >>> simulate(strategy, app, num_nodes=2, num_rounds=2, initial_arrays=start, progress=False).arrays["w"].numpy()
    array([0.75, 0.75])
    """
    client_of = _of_a_context(client_fn)
    app = ClientApp(mods=list(mods or ()))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        sent, given, config = _read(message)
        arrays, number, metrics = _three(_call(client_of(context), context, "fit", given, config), "fit", "arrays")
        if len(arrays) != len(sent):
            raise ConfigurationError(f"`fit` returned {len(arrays)} arrays; `start` has {len(sent)}: {', '.join(sent)}")
        record = ArrayRecord({name: Array(np.asarray(each)) for name, each in zip(sent, arrays, strict=True)})
        return _answer(message, {"arrays": record}, number, metrics)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        _, given, config = _read(message)
        answer = _call(client_of(context), context, "evaluate", given, config)
        loss, number, metrics = _three(answer, "evaluate", "loss")
        return _answer(message, {}, number, {**metrics, "loss": float(loss)})

    return app


def _of_a_context(client_fn: Callable[[Any], Any]) -> Callable[[Context], Any]:
    """Return the function as one of a context, as Flower itself reads both."""
    if not callable(client_fn) or not takes(client_fn, 1):
        problem = getattr(client_fn, "__name__", type(client_fn).__name__)
        expected = "expected a function (context) -> client, or (cid) -> client with the partition id as text"
        raise ConfigurationError(f"client_fn is {problem}, which does not take one argument; {expected}")
    first = next(iter(signature(client_fn).parameters.values()))
    if first.name == "cid" or first.annotation in (str, "str"):
        return lambda context: client_fn(str(context.node_config.get("partition-id", context.node_id)))

    def client_of(context: Context) -> Any:
        try:
            return client_fn(context)
        except TypeError as error:
            if "Context" not in str(error):
                raise
            advice = "If it takes a partition id, call its argument cid"
            raise ConfigurationError(f"client_fn({first.name}) is given a Context: {error}. {advice}") from error

    return client_of


def _call(client: Any, context: Context, name: str, arrays: list[NDArray[Any]], config: dict[str, Any]) -> Any:
    """Return what a client's `fit` or `evaluate` returns, as a NumPyClient would return it."""
    # `NumPyClient.to_client()` wraps the client in one that reads the earlier messages.
    client = getattr(client, "numpy_client", client)
    if hasattr(client, "set_context"):
        client.set_context(context)
    bases = [base for base in type(client).__mro__ if base.__module__.startswith("flwr.")]
    method = getattr(client, name, None)
    if method is None or getattr(type(client), name, None) in [getattr(base, name, None) for base in bases]:
        advice = "; expected a NumPyClient with one" + ", or fraction_evaluate=0.0" * (name == "evaluate")
        raise ConfigurationError(f"client_fn returned {of_type(client)}, which has no `{name}`{advice}")
    if "Client" not in [base.__name__ for base in bases]:
        return method(arrays, config)
    from flwr.common import Code, EvaluateIns, FitIns, ndarrays_to_parameters, parameters_to_ndarrays

    asked: Any = FitIns if name == "fit" else EvaluateIns
    answer = method(asked(ndarrays_to_parameters(arrays), config))
    if answer.status.code != Code.OK:
        raise ConfigurationError(f"`{name}` says {answer.status.code.name}: {answer.status.message}")
    first = parameters_to_ndarrays(answer.parameters) if name == "fit" else answer.loss
    return first, answer.num_examples, dict(answer.metrics)


def _read(message: Message) -> tuple[list[str], list[NDArray[Any]], dict[str, Any]]:
    """Return the names of a message's arrays, and what a NumPyClient gets: the arrays and the config."""
    (arrays,), configs = message.content.array_records.values(), message.content.config_records
    config: Mapping[str, Any] = {**next(iter(configs.values()), {})}
    number = {"server_round": config["server-round"]} if "server-round" in config else {}
    return [*arrays], [array.numpy() for array in arrays.values()], {**config, **number}


def _three(answer: Any, name: str, first: str) -> tuple[Any, Any, Mapping[str, Any]]:
    if not (isinstance(answer, tuple) and len(answer) == 3 and isinstance(answer[2], Mapping)):
        said = f"{len(answer)} values" if isinstance(answer, tuple) else of_type(answer)
        raise ConfigurationError(f"`{name}` returned {said}; expected ({first}, number of examples, metrics as a dict)")
    return answer


def _answer(message: Message, records: dict[str, Any], number: int, metrics: Mapping[str, Any]) -> Message:
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in metrics.items()}
    # The sign makes a number of a truth value, which no record takes.
    numbers = {name: +value for name, value in plain.items() if isinstance(value, int | float)}
    texts = ConfigRecord({name: value for name, value in plain.items() if isinstance(value, str | bytes)})
    record = MetricRecord({**numbers, "num-examples": int(number)})
    return Message(RecordDict({**records, "metrics": record, "config": texts}), reply_to=message)
