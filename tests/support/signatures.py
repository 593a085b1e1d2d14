"""What the class of every strategy keeps, the library's and those that build on it."""

import inspect
import re

from flwr.serverapp.strategy import FedAvg


def documented(cls):
    """Return the names of the sections of parameters in the docstrings of a class and its bases."""
    names = set()
    for kind in cls.__mro__:
        section = re.search(
            r"\nParameters\n-{10}\n(.*?)(\n[A-Z]\w+\n-{3,}|\Z)", inspect.cleandoc(kind.__doc__ or ""), re.DOTALL
        )
        for line in re.findall(r"^([\w, ]+) : ", section[1] if section else "", re.MULTILINE):
            names |= set(line.split(", "))
    return names


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
    from pydoc import plain, render_doc

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
