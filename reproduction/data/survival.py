"""Survival times that come with lifelines and scikit-survival, which need not be installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.datasets import FederatedDataset, Samples, iid_partition
from flwr_fco.errors import ConfigurationError, NotInstalledError
from flwr_fco.objectives import CoxRegression
from reproduction.data.samples import stream


@dataclass(frozen=True, eq=False)
class SurvivalTimes(FederatedDataset):
    """Rows with a time and an event, of several sites, each with a baseline hazard of its own.

    Parameters
    ----------
    features : ndarray of float64, shape (n, d)
        In units of about one standard deviation.
    targets : ndarray of float64, shape (n, 2)
        The time until the event, or until a row is censored, and 1 for an event.
    names : sequence of str
        Names of the features.
    partition : tuple of ndarray of int64
        Rows of each site.
    """

    features: NDArray[np.float64]
    targets: NDArray[np.float64]
    names: Sequence[str]
    partition: tuple[NDArray[np.int64], ...]

    @property
    def num_clients(self) -> int:  # type: ignore[override]
        """Number of sites."""
        return len(self.partition)

    def client(self, index: int) -> Samples:
        """Return the rows of a site.

        Parameters
        ----------
        index : int
            0 .. num_clients - 1.
        """
        self._check_index(index)
        rows = self.partition[index]
        return Samples(self.features[rows], self.targets[rows])

    def build_objective(self, examples: Samples, **options: Any) -> CoxRegression:
        """Return :class:`flwr_fco.objectives.CoxRegression` on some rows."""
        objective = CoxRegression(examples.features, *examples.targets.T, **options)
        objective.feature_names = tuple(self.names)
        return objective


def _lung() -> tuple[Any, Any, Any]:
    frame = _from("lifelines.datasets", "load_lung", "lifelines").dropna()
    units = {"age": 10, "sex": 1, "ph.ecog": 1, "ph.karno": 10, "pat.karno": 10, "meal.cal": 400, "wt.loss": 10}
    features = {name: frame[name] / unit for name, unit in units.items()}
    return features, frame[["time", "status"]], frame["inst"]


def _gbsg2() -> tuple[Any, Any, Any]:
    frame = _from("lifelines.datasets", "load_gbsg2", "lifelines")
    units = {"age": 10, "tsize": 15, "pnodes": 5, "progrec": 200, "estrec": 150}
    features = {name: frame[name] / unit for name, unit in units.items()}
    features |= {"horTh": frame["horTh"] == "yes", "menostat": frame["menostat"] == "Post"}
    features["tgrade"] = frame["tgrade"].map({"I": 1, "II": 2, "III": 3})
    # In these data 1 is an event, whatever the column is called.
    return features, frame[["time", "cens"]], None


def _flchain() -> tuple[Any, Any, Any]:
    frame, targets = _from("sksurv.datasets", "load_flchain", "scikit-survival")
    # What a patient has died of is known afterwards.
    known = frame.drop(columns="chapter").notna().all(axis=1).to_numpy()
    frame, targets = frame[known], targets[known]
    features = {name: frame[name] / unit for name, unit in {"age": 10, "creatinine": 0.4}.items()}
    features |= {"kappa": frame["kappa"], "lambda": frame["lambda"], "flc.grp": frame["flc.grp"].astype(float) / 3}
    features |= {"mgus": frame["mgus"] == "yes", "male": frame["sex"] == "M"}
    features["sample.yr"] = frame["sample.yr"].astype(float) - 1995.0
    return features, np.column_stack([targets["futime"], targets["death"]]), None


#: What reads the features, the targets and, where the data have them, the sites of the rows.
_READERS: Mapping[str, Callable[[], tuple[Any, Any, Any]]] = MappingProxyType(
    {"lung": _lung, "gbsg2": _gbsg2, "flchain": _flchain}
)


def survival(variant: str, num_clients: int = 0, seed: int = 0) -> SurvivalTimes:
    """Return complete rows of lung, GBSG2 or flchain.

    `lung` (Loprinzi and others 1994): 167 patients with lung cancer of 17 institutions, 120 deaths. `gbsg2` (Schumacher
    and others 1994): 686 patients with breast cancer, 299 events. `flchain` (Dispenzieri and others 2012): 6,524
    residents of a county with their free light chains, 1,962 deaths.

    Parameters
    ----------
    variant : {"lung", "gbsg2", "flchain"}
        Which data.
    num_clients : int, default 0
        Number of sites, among which the rows are split at random; 0 for the sites of the data, which `lung` has.
    seed : int, default 0
        Seed of the split.

    Raises
    ------
    NotInstalledError
        If lifelines (`lung`, `gbsg2`) or scikit-survival (`flchain`) is not installed.
    ConfigurationError
        If the data have no sites, or there are fewer rows than clients.
    """
    columns, targets, sites = _READERS[variant]()
    features = np.column_stack([np.asarray(column, dtype=np.float64) for column in columns.values()])
    if num_clients == 0 and sites is None:
        raise ConfigurationError(f"num_clients=0 of {variant}, whose rows name no sites; expected a number of them")
    if num_clients > 0:
        partition = tuple(iid_partition(len(features), num_clients, stream(seed)))
    else:
        partition = tuple(np.flatnonzero(sites == site) for site in np.unique(sites))
    return SurvivalTimes(features, np.asarray(targets, dtype=np.float64), list(columns), partition)


def _from(module: str, function: str, package: str) -> Any:
    try:
        return getattr(import_module(module), function)()
    except ImportError as error:
        raise NotInstalledError(f"these data come with {package}: pip install {package}") from error
