"""Every error that this package raises on purpose.

A message says what was wrong (with the value), what was expected and what to do. All of them derive from
:class:`FlwrFcoError`; those about an argument also derive from :class:`ValueError`, so code that catches
``ValueError`` keeps working.
"""

from typing import Any

__all__ = [
    "ClientError",
    "CompositeError",
    "ConfigurationError",
    "DataNotFoundError",
    "DivergedError",
    "FlwrFcoError",
    "NoAnswerError",
    "NotInstalledError",
    "NothingTrainedError",
    "ProtocolError",
    "RunInterrupted",
    "SpecError",
    "UnknownOptionError",
    "UnsupportedPairError",
]


#: What to do where the ClientApp of a FedAvg project meets a strategy that sends duals.
FOR_A_MODEL = (
    "This is what a ClientApp of FedAvg does with a message that holds no model but a dual: give the strategy "
    'client="unmodified" (FedDualAvg), or train with flwr_fco.torch.local_training (docs/pytorch.md, about ten lines)'
)


class FlwrFcoError(Exception):
    """Base class of all errors of this package."""


#: The name of :class:`FlwrFcoError` before 0.2.
CompositeError = FlwrFcoError


class ConfigurationError(FlwrFcoError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class UnknownOptionError(ConfigurationError, TypeError):
    """An option that a strategy does not have; also a :class:`TypeError`, like Python's own error."""


class DataNotFoundError(FlwrFcoError, FileNotFoundError):
    """Data files that are not where they were said to be."""


class NotInstalledError(ConfigurationError):
    """Something that needs an optional package which is not installed; the message names the command."""


class NoAnswerError(ConfigurationError):
    """A question that no client, or not every client that had to, has answered."""


class MagnitudeError(ConfigurationError):
    """Numbers too large to compute with, almost always because a rate is too large."""


class UnsupportedPairError(ConfigurationError):
    """A mirror map and a regularizer whose joint proximal map is not available."""


class SpecError(FlwrFcoError, ValueError):
    """A specification (of a regularizer, a mirror map, ...) that cannot be read."""


class ProtocolError(FlwrFcoError, ValueError):
    """A message whose content is not what the protocol says."""


class ClientError(FlwrFcoError, RuntimeError):
    """A client raised an exception in an in-process simulation.

    The original exception is the ``__cause__``.

    Parameters
    ----------
    message : str
        What happened, with node and round.
    node_id : int
        The node whose ClientApp raised.
    server_round : str
        The round stamp of the message it was handling.
    """

    def __init__(self, message: str, node_id: int, server_round: str) -> None:
        super().__init__(message)
        self.node_id = node_id
        self.server_round = server_round

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make it again: it may come from another process."""
        return type(self), (str(self), self.node_id, self.server_round), self.__dict__


class DivergedError(FlwrFcoError, ArithmeticError):
    """A run whose model has grown beyond all bounds, almost always because a rate is too large.

    Parameters
    ----------
    message : str
        The round, the rates and what to do.
    server_round : int
        The round in which the run was stopped.
    result : Any
        The result so far, whose ``arrays`` are the last good model.
    good_round : int
        The round that this model is from; 0 is the initial one.
    """

    def __init__(self, message: str, server_round: int, result: Any, good_round: int) -> None:
        super().__init__(message)
        self.server_round = server_round
        self.result = result
        self.good_round = good_round

    @property
    def arrays(self) -> Any:
        """The last good model, as in ``result.arrays``: a start point for a run with a smaller rate."""
        return self.result.arrays


class NothingTrainedError(FlwrFcoError, RuntimeError):
    """A run without a single round that counted: its model is the initial one.

    Parameters
    ----------
    message : str
        Why the replies were left out, and what to do.
    result : Any
        The result, with the metrics of the skipped rounds and ``left_out``.
    """

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run; a :class:`KeyboardInterrupt`, so whatever stops at one stops at this.

    Parameters
    ----------
    message : str
    result : Any
        The result so far.
    """

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result
