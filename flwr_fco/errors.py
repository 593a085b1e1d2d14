"""Every error that this package raises on purpose.

A message says what was wrong (with the value), what was expected and what to do. All of them derive from
:class:`FlwrFcoError`; those about an argument also derive from :class:`ValueError`, so code that catches
``ValueError`` keeps working.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

__all__ = ["ClientError", "ConfigurationError", "DivergedError", "FlwrFcoError", "NoAnswerError", "NotInstalledError"]
__all__ += ["NothingTrainedError", "ProtocolError", "RunInterrupted", "SpecError", "UnknownOptionError"]
__all__ += ["UnsupportedPairError"]


#: Advice when the ClientApp of a FedAvg project meets a strategy that sends duals.
FOR_A_MODEL = "This is what a ClientApp of FedAvg does with a message whose arrays are a dual and no model: give the "
FOR_A_MODEL += 'strategy client="unmodified" (FedDualAvg), or train with flwr_fco.torch.local_training, which loads '
FOR_A_MODEL += "the model itself (docs/tutorials/pytorch.md, about ten lines)"


#: Advice when a NumPyClient (`client_fn`), whose messages had other records, meets Flower's present messages.
OLD_CLIENT = "This is a client of Flower's earlier interface: flwr_fco.client_apps.numpy_client_app(client_fn) makes "
OLD_CLIENT += 'its ClientApp, and the strategy takes client="unmodified" (docs/how-to/subclasses.md)'

#: Advice when a ClientApp meets short messages, and cannot read them.
SHORT_MOD = "The strategy sends short messages, wire=Short(), which a client reads with one line: "
SHORT_MOD += "ClientApp(mods=[flwr_fco.short_mod()])"

#: Characters of an error: names in it may be another side's, which can make them as long as it likes.
_LONGEST = 1_900
#: What is in the error of a client whose cause is known, and what to do.
_SIGNS = {
    "short:": SHORT_MOD,
    # The error says what to do.
    "Flower's own ClientApp": "",
    "'partition-id'": "",
    # Of fitins and evaluateins.
    "ins.parameters": OLD_CLIENT,
    "No train function registered": "The ClientApp has no @app.train(), which the server calls in each round: add one",
    "No evaluate function registered": "The ClientApp has no @app.evaluate(): add one, or fraction_evaluate=0.0",
    "No query function registered": "The ClientApp answers no questions: make it with client_app (an estimator's own)",
    # Of a network that loads what it is sent.
    '"dual"': FOR_A_MODEL,
    "attempting to load": "Its SuperNode's log has the reason: often a package that is not installed there",
}


def advice_on(text: str, *, foreign: bool, short: bool = False) -> str:
    """Return what to do after a client's error whose cause is known, after a full stop; else an empty text.

    Parameters
    ----------
    text : str
        The error.
    foreign : bool
        Whether a ClientApp that knows nothing of this package was sent a task of its strategies.
    short : bool, default False
        Whether it was sent a short message, and there is no sign yet that it can read one.
    """
    otherwise = SHORT_MOD if short else FOR_A_MODEL if foreign else ""
    advice = next((advice for sign, advice in _SIGNS.items() if sign in text), otherwise)
    # An error of PyTorch ends with a full stop, and a space.
    return f"{'.' * (not text.endswith(('.', '. ')))} {advice}" if advice else ""


class FlwrFcoError(Exception):
    """Base class of all errors of this package; a message of more than a page is cut.

    Parameters
    ----------
    *given : object
        The message.
    **known : Any
        What else is known of it: the attributes of its class, None by default.
    """

    def __init__(self, *given: object, **known: Any) -> None:
        # What to do is said at the end.
        cut = [f"{own[:1500]} ... {own[-395:]}" if isinstance(own, str) and own[_LONGEST:] else own for own in given]
        super().__init__(*cut)
        # No defaults in the class: what Ray raises of a task's error would have these, not what the error knows.
        vars(self).update({name: None for name in type(self).__annotations__ if not hasattr(self, name)} | known)


class ConfigurationError(FlwrFcoError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class PublicError(ConfigurationError):
    """One about a site's data whose text holds nothing of its rows: names of columns, and what a server knows."""


class UnknownOptionError(ConfigurationError, TypeError):
    """An option that a strategy does not have; also a :class:`TypeError`, like Python's own error."""


class NotInstalledError(ConfigurationError, ImportError):
    """An optional package is not installed; the message names the command that does. Also an :class:`ImportError`."""


def installed(module: str, advice: str) -> Any:
    """Return a module of an optional package, or raise a NotInstalledError that says who needs it, and how to get it.

    Examples
    --------
    >>> installed("math", "numbers need math").inf
    inf
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise NotInstalledError(f"{advice} ({error})") from error


class NoAnswerError(ConfigurationError):
    """No client, or not every required client, has answered a question."""


class MagnitudeError(ConfigurationError):
    """Numbers too large to compute with, almost always because a rate is too large."""


class SeparableError(ConfigurationError):
    """Some coefficients have no optimum, because the classes are separable along them.

    Attributes
    ----------
    indices : sequence of int
        Which coefficients, in the model's vector.
    """

    indices: Sequence[int]


class UnsupportedPairError(ConfigurationError):
    """A mirror map and a regularizer whose joint proximal map is not available."""


class SpecError(FlwrFcoError, ValueError):
    """A specification (of a regularizer, a mirror map, ...) cannot be read."""


class ProtocolError(FlwrFcoError, ValueError):
    """The content of a message violates the protocol."""


class FormError(ProtocolError):
    """A reply that no round can count: other names, shapes, keys or work than the method's."""


class ClientError(FlwrFcoError, RuntimeError):
    """A client raised an exception in an in-process simulation.

    The original exception is the ``__cause__``.

    Attributes
    ----------
    node_id : int
        The node whose ClientApp raised the exception.
    server_round : str
        Round stamp of the message that the client was handling.
    """

    node_id: int
    server_round: str


class DivergedError(FlwrFcoError, ArithmeticError):
    """A run has diverged, almost always because a learning rate is too large.

    Attributes
    ----------
    server_round : int
        Round in which the run was stopped.
    result : Any
        The result so far; its ``arrays`` are the last good model.
    good_round : int
        Round of that model; 0 for the initial model.
    """

    server_round: int
    result: Any
    good_round: int

    @property
    def arrays(self) -> Any:
        """The last good model, as in ``result.arrays``: a start point for a run with a smaller rate."""
        return self.result.arrays


class NothingTrainedError(FlwrFcoError, RuntimeError):
    """All rounds of a run were skipped: its model is the initial one.

    Attributes
    ----------
    result : Any
        The result, with the metrics of the skipped rounds and ``left_out``.
    """

    result: Any


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run; a :class:`KeyboardInterrupt`, so code that handles one also handles this.

    Parameters
    ----------
    message : str
        What happened.
    result : Any
        The result so far.
    """

    # Another process makes an error again of its text alone, and then sets its attributes.
    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


@contextmanager
def in_words(problem: str, kind: Any = ProtocolError, advice: str = "", passing: Any = FlwrFcoError) -> Iterator[None]:
    """Turn any error of a block, or of a function, in reading what others have sent or saved into one of this package.

    Parameters
    ----------
    problem : str
        Begins the error.
    kind : type of error, default ProtocolError
        What is raised.
    advice : str, optional
        Ends the error.
    passing : type of error, default FlwrFcoError
        What is in words already, and passes as it is.

    Examples
    --------
    >>> with in_words("the server's plan cannot be read"):
    ...     {}["seed"]
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ProtocolError: the server's plan cannot be read: KeyError: 'seed'
    """
    try:
        yield
    except passing:
        raise
    except Exception as error:
        # These texts are for people; a KeyError's is the bare key.
        plain = type(error) is ValueError or isinstance(error, FlwrFcoError)
        text = f"{error}" if plain else f"{type(error).__name__}: {error}"
        raise kind(f"{problem}: {text:.500}{advice}") from error
