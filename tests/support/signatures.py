"""What the class of every strategy keeps, the library's and those that build on it."""

import inspect
import re
from pydoc import plain, render_doc

from flwr.serverapp.strategy import FedAvg
from numpydoc.docscrape import NumpyDocString


def documented(cls):
    """Return the names of the parameters in the docstrings of a class and its bases."""
    docs = [NumpyDocString(inspect.cleandoc(kind.__doc__ or "")) for kind in cls.__mro__]
    return {name for doc in docs for own in doc["Parameters"] for name in own.name.split(", ")}


def documents_its_arguments(cls):
    assert set(inspect.signature(cls).parameters) <= documented(cls)


def has_a_type_and_a_default_for_every_argument(cls):
    for parameter in inspect.signature(cls).parameters.values():
        assert parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY), "no hidden **options"
        assert parameter.annotation is not parameter.empty
        assert parameter.default is not parameter.empty


def has_the_positional_arguments_of_flowers_fed_avg(cls):
    ours = [p.name for p in inspect.signature(cls).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert ours == list(inspect.signature(FedAvg).parameters)


def shows_its_options_with_their_defaults(cls):
    text = plain(render_doc(cls)).split("Method resolution order")[0]
    for name, parameter in inspect.signature(cls).parameters.items():
        assert re.search(rf"\b{name}: ", text), name
        default = parameter.default if isinstance(parameter.default, (str, int, float, type(None))) else None
        assert default is None or f"= {default!r}" in text


#: All of them.
KEPT = (
    documents_its_arguments,
    has_a_type_and_a_default_for_every_argument,
    has_the_positional_arguments_of_flowers_fed_avg,
    shows_its_options_with_their_defaults,
)
