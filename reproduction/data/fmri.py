"""fMRI: sessions of a visual experiment as clients (Haxby et al. 2001), and a synthetic volume of the same size.

Section 5.3 and appendix B.4 of Yuan, Zaheer, Reddi (2021): each voxel is detrended and z-scored within its session,
each session is a client, and a sparse linear model distinguishes scans of faces from scans of houses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flwr_fco.datasets import FederatedDataset, PartitionedClassification, Samples
from flwr_fco.errors import ConfigurationError, NotInstalledError
from flwr_fco.objectives import Logistic
from reproduction.data import DataNotFoundError
from reproduction.data.samples import check_whole, stream

_SCALE_FLOOR = 1e-12


@dataclass(frozen=True, eq=False)
class BrainScans:
    """Scans of faces and houses, with the session of each scan.

    Parameters
    ----------
    features : ndarray of float32, shape (scans, voxels)
        Detrended and z-scored within the session.
    labels : ndarray of int64, shape (scans,)
        1 for a face, 0 for a house.
    sessions : ndarray of int64, shape (scans,)
        0 .. num_sessions - 1, subject after subject.
    subjects : ndarray of int64, shape (num_sessions,)
        The subject of each session, from 1.

    Examples
    --------
    >>> import numpy as np
    >>> scans = BrainScans(np.eye(6, dtype=np.float32), np.array([0, 1] * 3), np.repeat([0, 1, 2], 2), np.ones(3, int))
    >>> split = scans.split(held_out=[2])
    >>> split.num_clients, split.client(1).targets, split.test.targets
    (2, array([0, 1]), array([0, 1]))
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    sessions: NDArray[np.int64]
    subjects: NDArray[np.int64]

    @property
    def num_sessions(self) -> int:
        """Number of sessions."""
        return int(self.subjects.size)

    def split(self, held_out: Sequence[int]) -> PartitionedClassification:
        """Return the data set with one client for each session, and the held-out sessions as its test part.

        Parameters
        ----------
        held_out : sequence of int
            Sessions to hold out.

        Returns
        -------
        PartitionedClassification

        Raises
        ------
        ConfigurationError
            If a session does not exist, or the training or test part has no session.
        """
        apart = sorted(set(held_out))
        if not apart or not set(apart) < set(range(self.num_sessions)):
            raise ConfigurationError(
                f"held_out={list(held_out)}; expected some, not all, of the sessions 0 .. {self.num_sessions - 1}"
            )
        is_test = np.isin(self.sessions, apart)
        train = Samples(self.features[~is_test], self.labels[~is_test])
        test = Samples(self.features[is_test], self.labels[is_test])
        kept = self.sessions[~is_test]
        partition = tuple(np.flatnonzero(kept == session) for session in np.unique(kept))
        return PartitionedClassification(train, test, partition, 2)

    def folds(self, num_held_out: int = 2) -> list[range]:
        """Return the sessions of each test part: consecutive sessions of one subject, each held out exactly once.

        Parameters
        ----------
        num_held_out : int, default 2
            Sessions in a test part; a subject's last part contains the remaining sessions.

        Returns
        -------
        list of range
            With all 12 sessions of a subject held out, the last of six test parts is the first paper's: subject 6.

        Raises
        ------
        ConfigurationError
            If no subject has that many sessions, or no other sessions are left for training.

        Examples
        --------
        >>> subjects = np.array([1, 1, 1, 2, 2])
        >>> scans = BrainScans(np.eye(5, dtype=np.float32), np.arange(5) % 2, np.arange(5), subjects)
        >>> scans.folds(2)
        [range(0, 2), range(2, 3), range(3, 5)]
        """
        # Sessions are ordered by subject, so each subject's sessions are consecutive.
        counts = np.unique(self.subjects, return_counts=True)[1].tolist()
        most = min(max(counts, default=0), self.num_sessions - 1)
        if not 1 <= num_held_out <= most:
            raise ConfigurationError(
                f"num_held_out={num_held_out}; expected 1 .. {most}: sessions of one subject, with others to train on "
                f"(the subjects have {', '.join(map(str, counts))})"
            )
        ends = np.cumsum(counts).tolist()
        return [
            range(first, min(first + num_held_out, end))
            for count, end in zip(counts, ends, strict=True)
            for first in range(end - count, end, num_held_out)
        ]


def normalize_sessions(series: NDArray[Any], sessions: NDArray[Any]) -> NDArray[np.float32]:
    """Return a series that is linearly detrended and z-scored column by column within each session.

    x <- (x - trend) / sd(x - trend) over the volumes of a session; columns without variation become 0.

    Parameters
    ----------
    series : ndarray, shape (volumes, voxels)
    sessions : ndarray, shape (volumes,)
        The session of each volume.

    Returns
    -------
    ndarray of float32, shape of series

    Raises
    ------
    ConfigurationError
        If `series` and `sessions` have different numbers of volumes.

    Examples
    --------
    >>> import numpy as np
    >>> normalize_sessions(np.array([[1.0], [3.0], [2.0], [4.0]]), np.zeros(4)).ravel()
    array([-0.4472136,  1.3416408, -1.3416408,  0.4472136], dtype=float32)
    """
    if sessions.shape != series.shape[:1]:
        raise ConfigurationError(
            f"{series.shape[0]} volumes, but sessions have shape {sessions.shape}; expected one each"
        )
    # Imported here, because this import takes as long as all that every user of the package needs.
    from scipy.signal import detrend

    result = np.empty(series.shape, dtype=np.float32)
    for session in np.unique(sessions):
        rows = sessions == session
        block = detrend(series[rows].astype(np.float64), axis=0, type="linear")
        deviation = block.std(axis=0)
        # A constant voxel differs from its mean only by rounding, which is not a signal.
        dead = deviation <= _SCALE_FLOOR * (1.0 + np.abs(series[rows]).max(axis=0))
        block /= np.where(dead, 1.0, deviation)
        block[:, dead] = 0.0
        result[rows] = block
    return result


def load_haxby(
    path: str | PathLike[str] | None, *, fetch: bool = False, subjects: Sequence[int] = (1, 2, 3, 4, 5, 6)
) -> BrainScans:
    """Return the face and house scans of Haxby et al. (2001), normalised within each session.

    Parameters
    ----------
    path : path-like or None
        A directory with ``bold.nii.gz``, ``mask.nii.gz`` and ``attributes_literal.txt`` (one subject, as distributed by
        PyMVPA), or with ``mask.nii.gz`` and ``subj1/bold.nii.gz``, ``subj1/labels.txt``, ... With `fetch`: nilearn's
        download directory, or None for its own.
    fetch : bool, default False
        Whether to download missing files with ``nilearn.datasets.fetch_haxby`` (about 300 MB per subject).
    subjects : sequence of int, default all six
        Subjects to load, if there are several. All have the same standard mask of 39,912 voxels.

    Returns
    -------
    BrainScans

    Raises
    ------
    DataNotFoundError
        If a file is missing or cannot be downloaded.
    NotInstalledError
        If nibabel (or nilearn, for `fetch`) is missing.
    ConfigurationError
        If the files do not belong together.

    Examples
    --------
    >>> scans = load_haxby("data/haxby-slice")  # doctest: +SKIP
    >>> scans.features.shape, scans.num_sessions  # doctest: +SKIP
    ((216, 530), 12)
    """
    directory = _fetched(path, subjects) if fetch else Path(path or ".")
    parts = []
    owners: list[int] = []
    for subject, files in _find(directory, subjects):
        features, labels, sessions = _load_subject(*files)
        names, numbers = np.unique(sessions, return_inverse=True)
        parts.append((features, labels, numbers.astype(np.int64) + len(owners)))
        owners += [subject] * names.size
    features, labels, sessions = map(np.concatenate, zip(*parts, strict=True))
    return BrainScans(features, labels, sessions, np.array(owners))


def _find(directory: Path, subjects: Sequence[int]) -> list[tuple[int, tuple[Path, Path, Path]]]:
    mask = directory / "mask.nii.gz"
    if (directory / "bold.nii.gz").is_file():
        found = [(1, (directory / "bold.nii.gz", mask, directory / "attributes_literal.txt"))]
    else:
        own = [(number, directory / f"subj{number}") for number in subjects]
        found = [(number, (folder / "bold.nii.gz", mask, folder / "labels.txt")) for number, folder in own]
    for _, files in found:
        for file in files:
            if not file.is_file():
                raise DataNotFoundError(
                    f"{file} does not exist; expected a directory with bold.nii.gz, mask.nii.gz and "
                    "attributes_literal.txt, or with mask.nii.gz and subj1/bold.nii.gz, subj1/labels.txt, ... "
                    "With internet: fetch=True (--set fetch=true)."
                )
    return found


def _fetched(path: str | PathLike[str] | None, subjects: Sequence[int]) -> Path:
    """Return the directory to which nilearn has downloaded the subjects."""
    try:
        from nilearn.datasets import fetch_haxby
    except ImportError as error:
        raise NotInstalledError("fetching the scans (fetch=True) needs nilearn: pip install nilearn") from error
    try:
        bunch = fetch_haxby(data_dir=None if path is None else str(path), subjects=list(subjects), fetch_stimuli=False)
    except OSError as error:
        raise DataNotFoundError(
            f"the scans of Haxby et al. could not be downloaded by nilearn: {error}. Try again, or give the directory "
            "of the files instead"
        ) from error
    return Path(bunch.mask).parent


def _load_subject(bold: Path, mask: Path, labels: Path) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Return the features, labels and sessions of the volumes of one subject that show faces or houses."""
    try:
        import nibabel
    except ImportError as error:
        raise NotInstalledError("reading NIfTI files needs nibabel: pip install nibabel") from error
    volumes, image = (np.asarray(cast(Any, nibabel.load(file)).dataobj) for file in (bold, mask))
    inside = image.reshape(image.shape[:3]) != 0
    names, sessions = _read_labels(labels)
    if volumes.shape != (*inside.shape, len(names)):
        raise ConfigurationError(f"{labels} labels {len(names)} volumes of {inside.shape}, {bold} is {volumes.shape}")
    series = volumes[inside].T
    wanted = np.isin(names, ("face", "house"))
    if not wanted.any():
        raise ConfigurationError(f"{labels} labels no volume 'face' or 'house', but {sorted(set(names.tolist()))}")
    # The trend and deviation use every volume of a session, including rest volumes.
    features = normalize_sessions(series, sessions)[wanted]
    return features, (names[wanted] == "face").astype(np.int64), sessions[wanted]


def _read_labels(file: Path) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    table = pd.read_csv(file, sep=r"\s+", header=None, names=["name", "session"], dtype=str)
    # nilearn's labels.txt has a header, PyMVPA's file has none.
    table = table[table.session != "chunks"]
    if not table.session.str.isdigit().all():
        raise ConfigurationError(f"{file}: expected lines of a label and a session number, such as 'face 3'")
    return table.name.to_numpy(dtype=str), table.session.to_numpy(dtype=np.int64)


@dataclass(frozen=True, eq=False)
class SyntheticBrain(FederatedDataset):
    """Scans of a synthetic brain: smooth noise, and a smooth pattern in two regions that differs between the classes.

    A voxel of a scan is x = noise + session + (2 y - 1) contrast * pattern, each smoothed by a Gaussian in space; the
    mask contains the voxels nearest to the centre of the grid. Scans are generated session by session, so that hundreds
    of sessions with 39,912 voxels are never in memory at once.

    Parameters
    ----------
    num_clients : int, default 12
        Number of sessions.
    num_voxels : int, default 39,912
        Voxels in the mask (39,912 in the standard mask of Haxby et al.).
    grid : tuple of int, default (40, 64, 64)
        The scanner's grid.
    scans_per_client : int, default 18
        Scans per client, alternating between the two classes.
    smoothness : float, default 1.5
        Width of the Gaussian, in voxels.
    contrast : float, default 0.5
        Height of the pattern, in standard deviations of the noise.
    seed : int, default 0

    Raises
    ------
    ConfigurationError
        If a number is out of range.

    Examples
    --------
    >>> data = SyntheticBrain(num_clients=3, num_voxels=500, grid=(10, 10, 10))
    >>> data.client(2).features.shape, data.client(2).targets[:4]
    ((18, 500), array([1, 0, 1, 0]))
    """

    num_clients: int = 12
    num_voxels: int = 39_912
    grid: tuple[int, int, int] = (40, 64, 64)
    scans_per_client: int = 18
    smoothness: float = 1.5
    contrast: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self, "num_clients", "num_voxels", "scans_per_client")
        if self.num_voxels > math.prod(self.grid) or not self.smoothness > 0.0:
            raise ConfigurationError(
                f"grid={self.grid} with num_voxels={self.num_voxels}, smoothness={self.smoothness}; expected at most "
                "the grid's product of voxels, and a positive number"
            )

    @cached_property
    def _voxels(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The mask, as indices into the grid, and the places of its voxels in [-1, 1]^3."""
        axes = np.meshgrid(*[np.linspace(-1.0, 1.0, length) for length in self.grid], indexing="ij")
        radius = np.sum(np.square(axes), axis=0).reshape(-1)
        mask = np.sort(np.argsort(radius, kind="stable")[: self.num_voxels])
        return mask, np.stack([axis.reshape(-1)[mask] for axis in axes])

    @cached_property
    def pattern(self) -> NDArray[np.float32]:
        """What is added to one class and subtracted from the other: at most 1, exactly 0 outside the two regions."""
        _, points = self._voxels
        pattern = np.zeros(self.num_voxels, dtype=np.float32)
        # Relative to the mask, so that the regions lie inside it whatever its size.
        extent = float(np.sqrt(np.sum(np.square(points), axis=0).max()))
        width = 0.35 * extent
        for sign, centre in ((1.0, -0.35 * extent), (-1.0, 0.35 * extent)):
            distance = np.linalg.norm(points - np.array([[0.0], [centre], [centre]]), axis=0)
            pattern += np.float32(sign) * np.maximum(1.0 - (distance / width) ** 2, 0.0).astype(np.float32)
        return pattern

    def client(self, index: int) -> Samples:
        """Return the scans of a session.

        Parameters
        ----------
        index : int
            0 .. num_clients - 1.

        Returns
        -------
        Samples
            float32 features; label 1 if the pattern is added, 0 if it is subtracted.

        Raises
        ------
        ConfigurationError
            If there is no session with this index.
        """
        self._check_index(index)
        return self._draw(index)

    def held_out(self, index: int) -> Samples:
        """Return a session that belongs to no client, for validation.

        Parameters
        ----------
        index : int
            0, 1, ...

        Returns
        -------
        Samples
        """
        return self._draw(self.num_clients + index)

    def build_objective(self, examples: Samples, **options: Any) -> Logistic:
        """Return logistic regression on the scans.

        Parameters
        ----------
        examples : Samples
        **options
            Keyword arguments of `Logistic`.

        Returns
        -------
        Logistic
        """
        return Logistic(examples.features, examples.targets, **options)

    def _draw(self, session: int) -> Samples:
        rng = stream(self.seed, session)
        labels = (np.arange(self.scans_per_client) % 2 == 0).astype(np.int64)
        offset = 0.5 * self._smooth_noise(rng)
        features = np.empty((self.scans_per_client, self.num_voxels), dtype=np.float32)
        for row, label in zip(features, labels, strict=True):
            row[:] = self._smooth_noise(rng) + offset + (2 * label - 1) * np.float32(self.contrast) * self.pattern
        return Samples(features, labels)

    def _smooth_noise(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Return a field of variance 1 (away from the border) on the mask."""
        from scipy.ndimage import gaussian_filter

        white = rng.standard_normal(self.grid, dtype=np.float32)
        smooth = gaussian_filter(white, self.smoothness, mode="wrap").reshape(-1)[self._voxels[0]]
        # A Gaussian of width s averages about (2 sqrt(pi) s)^3 independent voxels.
        return np.asarray(smooth * np.float32((2.0 * np.sqrt(np.pi) * self.smoothness) ** 1.5))
