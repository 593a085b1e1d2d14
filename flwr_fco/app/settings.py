"""The run config of the root Flower App, with types and ranges checked: Flower checks that a key exists, no more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from flwr_fco import regularizers, strategies
from flwr_fco.app.problems import PROBLEMS
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import Regularizer
from flwr_fco.strategies import CompositeStrategy

__all__ = ["REGULARIZERS", "STRATEGIES", "Settings"]

#: Strategies by the name that the run config uses: all that the package exports.
STRATEGIES: dict[str, type[CompositeStrategy]] = {
    name: value
    for name, value in ((name, getattr(strategies, name)) for name in strategies.__all__)
    if isinstance(value, type) and issubclass(value, CompositeStrategy) and value is not CompositeStrategy
}
#: Regularizers that one number, the strength, describes.
REGULARIZERS: dict[str, type[Regularizer]] = {
    name: getattr(regularizers, name) for name in ("L1", "L2Squared", "Nuclear", "Zero")
}


@dataclass(frozen=True)
class Settings:
    """What ``[tool.flwr.app.config]`` says, checked. A field is the key with underscores for dashes.

    Parameters
    ----------
    problem : str
        One of :data:`flwr_fco.app.problems.PROBLEMS`.
    strategy : str
        One of :data:`STRATEGIES`.
    regularizer : str
        One of :data:`REGULARIZERS`.
    strength : float
        Of the regularizer, >= 0.
    client_lr, server_lr : float
        Learning rates, > 0.
    batch_size, local_steps : int
        Local work: rows of a minibatch, minibatches in a round; >= 1.
    num_server_rounds : int
        Number of rounds, >= 1.
    num_nodes : int
        Number of nodes over which the data are split, >= 2.
    alpha : float
        Concentration of the Dirichlet distribution that splits labels over nodes, > 0; small is less IID.
    train_fraction : float
        Share of the examples to train on, between 0 and 1.
    seed : int
        Of the data split and of all minibatches, 0 <= seed < 2**32.
    evaluate_every : int
        Evaluate on the server every so many rounds, >= 1.
    output_dir : str
        Absolute path of a directory in which each run makes its folder; empty: write nothing.

    Raises
    ------
    ConfigurationError
        If a value is out of range.
    """

    problem: str
    strategy: str
    regularizer: str
    strength: float
    client_lr: float
    server_lr: float
    batch_size: int
    local_steps: int
    num_server_rounds: int
    num_nodes: int
    alpha: float
    train_fraction: float
    seed: int
    evaluate_every: int
    output_dir: str

    _TYPES: ClassVar[dict[str, tuple[type, ...]]] = {"str": (str,), "int": (int,), "float": (float, int)}

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Any]) -> Settings:
        """Read and check a run config.

        Parameters
        ----------
        run_config : mapping
            ``context.run_config``.

        Raises
        ------
        ConfigurationError
            If a key is missing or unknown, or a value is of the wrong type or out of range.

        Examples
        --------
        >>> Settings.from_run_config({"problem": 3})
        Traceback (most recent call last):
        ...
        flwr_fco.errors.ConfigurationError: problem=3 is a int; expected str. Give it as in -c 'problem="..."'
        """
        expected = {field.name.replace("_", "-"): field for field in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in run_config.items():
            if key not in expected:
                raise ConfigurationError(f"unknown key {key!r} in the run config; it may have {', '.join(expected)}")
            wanted = str(expected[key].type)
            # TOML's true is Python's True, which is an int.
            if isinstance(value, bool) or not isinstance(value, cls._TYPES[wanted]):
                example = {"str": '"..."', "int": "3", "float": "0.1"}[wanted]
                raise ConfigurationError(
                    f"{key}={value!r} is a {type(value).__name__}; expected {wanted}. "
                    f"Give it as in -c '{key}={example}'"
                )
            values[expected[key].name] = float(value) if wanted == "float" else value  # type: ignore[arg-type]
        missing = [key for key, field in expected.items() if field.name not in values]
        if missing:
            raise ConfigurationError(
                f"the run config lacks {', '.join(missing)}; put them into [tool.flwr.app.config] of pyproject.toml"
            )
        return cls(**values)

    def __post_init__(self) -> None:
        for name, choices in (("problem", PROBLEMS), ("strategy", STRATEGIES), ("regularizer", REGULARIZERS)):
            if getattr(self, name) not in choices:
                raise ConfigurationError(f"{name}={getattr(self, name)!r}; expected one of {', '.join(choices)}")
        for name, least in (
            ("batch_size", 1),
            ("local_steps", 1),
            ("num_server_rounds", 1),
            ("num_nodes", 2),
            ("evaluate_every", 1),
        ):
            if getattr(self, name) < least:
                raise self._error(name, f"a whole number >= {least}")
        for name in ("client_lr", "server_lr", "alpha"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise self._error(name, "a finite number > 0")
        if not 0.0 <= self.strength < math.inf:
            raise self._error("strength", "a finite number >= 0")
        if not 0.0 < self.train_fraction < 1.0:
            raise self._error("train_fraction", "a number between 0 and 1")
        if not 0 <= self.seed < 2**32:
            raise self._error("seed", "a whole number from 0 to 2**32 - 1")
        if self.output_dir and not Path(self.output_dir).is_absolute():
            raise self._error(
                "output_dir",
                "an absolute path (the ServerApp runs in the SuperLink's working directory, not in yours), "
                'or "" to write nothing',
            )

    def _error(self, name: str, expected: str) -> ConfigurationError:
        return ConfigurationError(f"{name.replace('_', '-')}={getattr(self, name)!r}; expected {expected}")

    def build_regularizer(self) -> Regularizer:
        """Return the regularizer."""
        if self.regularizer == "Zero":
            return regularizers.Zero()
        return REGULARIZERS[self.regularizer](self.strength)  # type: ignore[call-arg]

    def build_strategy(self, num_nodes: int) -> CompositeStrategy:
        """Return the strategy, evaluated on the server only: federated evaluation would double a round's time.

        Parameters
        ----------
        num_nodes : int
            How many nodes it waits for; all take part in every round.
        """
        return STRATEGIES[self.strategy](
            fraction_evaluate=0.0,
            min_train_nodes=num_nodes,
            min_available_nodes=num_nodes,
            regularizer=self.build_regularizer(),
            client_lr=self.client_lr,
            server_lr=self.server_lr,
            batch_size=self.batch_size,
            local_steps=self.local_steps,
            seed=self.seed,
        )

    def to_config(self) -> dict[str, str | int | float]:
        """Return the settings as a run config; :meth:`from_run_config` reads it."""
        return {field.name.replace("_", "-"): getattr(self, field.name) for field in fields(self)}
