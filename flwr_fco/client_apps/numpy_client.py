"""A ClientApp of a NumPyClient or a Client, the clients of Flower's earlier interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    app.train()(partial(_handled, client_of, "fit"))
    app.evaluate()(partial(_handled, client_of, "evaluate"))
    return app


def _handled(client_of: Callable[[Context], Any], name: str, message: Message, context: Context) -> Message:
    """Return the reply to a message for which a client's `fit` or `evaluate` is called."""
    (sent,), configs = message.content.array_records.values(), message.content.config_records
    config: dict[str, Any] = {**next(iter(configs.values()), {})}
    config |= {"server_round": config["server-round"]} if "server-round" in config else {}
    answer = _call(client_of(context), context, name, [array.numpy() for array in sent.values()], config)
    if not (isinstance(answer, tuple) and len(answer) == 3 and isinstance(answer[2], Mapping)):
        said = f"{len(answer)} values" if isinstance(answer, tuple) else of_type(answer)
        expected = f"({'arrays' if name == 'fit' else 'loss'}, number of examples, metrics as a dict)"
        raise ConfigurationError(f"`{name}` returned {said}; expected {expected}")
    found, number, metrics = answer
    content = RecordDict()
    if name == "evaluate":
        metrics = {**metrics, "loss": float(found)}
    elif len(found) != len(sent):
        raise ConfigurationError(f"`fit` returned {len(found)} arrays; `start` has {len(sent)}: {', '.join(sent)}")
    else:
        content["arrays"] = ArrayRecord({own: Array(np.asarray(a)) for own, a in zip(sent, found, strict=True)})
    # Numbers of NumPy, JAX and PyTorch, and no arrays: these are left out, as lists are.
    plain = {own: value.item() if getattr(value, "shape", None) == () else value for own, value in metrics.items()}
    # The sign makes a number of a truth value, which no record takes.
    numbers = {own: +value for own, value in plain.items() if isinstance(value, int | float)}
    content["metrics"] = MetricRecord({**numbers, "num-examples": int(number)})
    content["config"] = ConfigRecord({own: value for own, value in plain.items() if isinstance(value, str | bytes)})
    return Message(content, reply_to=message)


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

    answer = method((FitIns if name == "fit" else EvaluateIns)(ndarrays_to_parameters(arrays), config))
    if answer.status.code != Code.OK:
        raise ConfigurationError(f"`{name}` says {answer.status.code.name}: {answer.status.message}")
    first = parameters_to_ndarrays(answer.parameters) if name == "fit" else answer.loss
    return first, answer.num_examples, dict(answer.metrics)
