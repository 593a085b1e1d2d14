"""A ClientApp of a NumPyClient, the client of Flower's earlier interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError


def numpy_client_app(client_fn: Callable[[Context], Any]) -> ClientApp:
    """Return a ClientApp that trains and evaluates with a NumPyClient, for ``client="unmodified"``.

    Parameters
    ----------
    client_fn : callable
        ``(context) -> client``: the project's function, with or without ``.to_client()``. Of the client, ``fit`` and
        ``evaluate`` are called, with the arrays in the order of the initial model.

    Raises
    ------
    ConfigurationError
        If it returns something else.

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
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        sent, *given = _read(message)
        arrays, number, metrics = _three(_client(client_fn, context).fit(*given), "fit", "arrays")
        if len(arrays) != len(sent):
            raise ConfigurationError(f"`fit` returned {len(arrays)} arrays; expected {len(sent)}: {', '.join(sent)}")
        record = ArrayRecord({name: Array(np.asarray(each)) for name, each in zip(sent, arrays, strict=True)})
        return _answer(message, {"arrays": record}, number, metrics)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        _, *given = _read(message)
        loss, number, metrics = _three(_client(client_fn, context).evaluate(*given), "evaluate", "loss")
        return _answer(message, {}, number, {**metrics, "loss": float(loss)})

    return app


def _client(client_fn: Callable[[Context], Any], context: Context) -> Any:
    client = client_fn(context)
    # `NumPyClient.to_client()` wraps the client in one that reads the earlier messages.
    client = getattr(client, "numpy_client", client)
    if not hasattr(client, "fit"):
        raise ConfigurationError(f"client_fn returned a {type(client).__name__}; expected a NumPyClient")
    return client


def _read(message: Message) -> tuple[list[str], list[NDArray[Any]], dict[str, Any]]:
    """Return the names of a message's arrays, and what a NumPyClient gets: the arrays and the config."""
    (arrays,), configs = message.content.array_records.values(), message.content.config_records
    config: ConfigRecord | Mapping[str, Any] = next(iter(configs.values()), {})
    number = {"server_round": config["server-round"]} if "server-round" in config else {}
    return [*arrays], [array.numpy() for array in arrays.values()], {**config, **number}


def _three(answer: Any, name: str, first: str) -> tuple[Any, Any, Mapping[str, Any]]:
    if not (isinstance(answer, tuple) and len(answer) == 3 and isinstance(answer[2], Mapping)):
        said = f"{len(answer)} values" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
        raise ConfigurationError(f"`{name}` returned {said}; expected ({first}, number of examples, metrics as a dict)")
    return answer


def _answer(message: Message, records: dict[str, Any], number: int, metrics: Mapping[str, Any]) -> Message:
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in metrics.items()}
    # The sign makes a number of a truth value, which no record takes.
    numbers = {name: +value for name, value in plain.items() if isinstance(value, int | float)}
    record = MetricRecord({**numbers, "num-examples": int(number)})
    return Message(RecordDict({**records, "metrics": record}), reply_to=message)
