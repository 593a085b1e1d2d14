"""What the class of every strategy keeps, the library's and those that build on it."""

import inspect
from dataclasses import fields

from flwr.serverapp.strategy import FedAvg

from flwr_fco.server.options import parameter_entries

#: The names that a user reads, beside those of options and of Flower's strategies.
READ = {"state", "memories", "result", "summary", "describe"}


def documents_its_arguments_and_no_others(cls):
    documented = [name for names in parameter_entries(cls.__doc__) for name in names]
    assert sorted(documented) == sorted(inspect.signature(cls).parameters)


def has_a_type_and_a_default_for_every_argument(cls):
    for parameter in inspect.signature(cls).parameters.values():
        assert parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY), "no hidden **options"
        assert parameter.annotation is not parameter.empty
        assert parameter.default is not parameter.empty


def has_the_positional_arguments_of_flowers_fed_avg(cls):
    ours = [p.name for p in inspect.signature(cls).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert ours == list(inspect.signature(FedAvg).parameters)


def has_all_of_ours_behind_one_attribute(cls):
    strategy = cls()
    taken = {*dir(FedAvg()), *READ, *(option.name for option in fields(strategy)), "_fco", "_abc_impl"}
    assert {key for key in dir(strategy) if not key.startswith("__")} <= taken


#: All of them.
KEPT = (
    documents_its_arguments_and_no_others,
    has_a_type_and_a_default_for_every_argument,
    has_the_positional_arguments_of_flowers_fed_avg,
    has_all_of_ours_behind_one_attribute,
)
