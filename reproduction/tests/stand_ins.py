"""Stand-ins for what fetches data: nilearn's, Flower Datasets' and scikit-learn's functions, with their signatures.

They take what the real ones take and nothing else; tests compare the signatures where the libraries are installed.
"""

import inspect
import sys
from types import SimpleNamespace

import numpy as np


def parameters(function):
    """Return names, kinds and defaults of a function's arguments: what decides whether a call fits."""
    return [(own.name, own.kind, own.default) for own in inspect.signature(function).parameters.values()]


# --- nilearn 0.13 -----------------------------------------------------------------------------------------------------


def fetch_haxby(data_dir=None, subjects=(2,), fetch_stimuli=False, url=None, resume=True, verbose=1):
    """Stand for ``nilearn.datasets.fetch_haxby``; :func:`install_nilearn` says where the files are."""


def install_nilearn(monkeypatch, directory):
    """Let nilearn fetch what lies in a directory; return the list of what it is asked for."""
    asked = []
    signature = inspect.signature(fetch_haxby)

    def fetch(*given, **options):
        call = signature.bind(*given, **options).arguments
        asked.append(call)
        folders = [directory / f"subj{number}" for number in call["subjects"]]
        return SimpleNamespace(
            anat=[None for folder in folders],
            func=[str(folder / "bold.nii.gz") for folder in folders],
            session_target=[str(folder / "labels.txt") for folder in folders],
            mask=str(directory / "mask.nii.gz"),
        )

    monkeypatch.setitem(sys.modules, "nilearn", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "nilearn.datasets", SimpleNamespace(fetch_haxby=fetch))
    return asked


def write_haxby(directory, subjects, contrast=0):
    """Write files as Haxby's: for each subject the names of its sessions' volumes, on a 4 x 3 x 2 grid.

    Faces are brighter by the contrast in the first half of the voxels. Returns the mask and the volumes by subject.
    """
    import nibabel

    rng = np.random.default_rng(0)
    mask = rng.random((4, 3, 2)) < 0.6
    nibabel.save(nibabel.Nifti1Image(mask.astype(np.int16), np.eye(4)), directory / "mask.nii.gz")
    arrays = {}
    for subject, sessions in subjects.items():
        folder = directory / f"subj{subject}"
        folder.mkdir()
        lines = [f"{name} {session}" for session, names in enumerate(sessions) for name in names]
        bold = rng.integers(0, 1000, (4, 3, 2, len(lines))).astype(np.int16)
        bold[:2, ..., [line.startswith("face") for line in lines]] += contrast
        nibabel.save(nibabel.Nifti1Image(bold, np.eye(4)), folder / "bold.nii.gz")
        (folder / "labels.txt").write_text("labels chunks\n" + "\n".join(lines) + "\n")
        arrays[subject] = bold
    return mask, arrays


def write_all_of_haxby(directory):
    """Write six subjects with 12 sessions; as in the real data nobody says what one of the fifth showed."""
    names = ["rest", "face", "house", "face", "house", "rest"]
    silent = ["rest"] * len(names)
    sessions = {subject: [names] * 12 for subject in range(1, 7)}
    sessions[5] = [names] * 8 + [silent] + [names] * 3
    write_haxby(directory, sessions, contrast=1000)


# --- Flower Datasets 0.6 ----------------------------------------------------------------------------------------------


class NaturalIdPartitioner:
    """Stand for the partitioner of one client for each value of a column."""

    def __init__(self, partition_by):
        assert partition_by == "writer_id"
        self.dataset = None

    @property
    def num_partitions(self):
        # The real one asks its data set too, which it has only when something was loaded.
        assert self.dataset is not None
        return len(self.dataset)


class FederatedDataset:
    """Stand for FEMNIST on the hub: the labels of each writer's images, ink 255 - label on paper of 255."""

    writers = ()
    shape = (28, 28)
    unreachable = False

    def __init__(
        self, *, dataset, subset=None, preprocessor=None, partitioners, shuffle=True, seed=42, **load_dataset_kwargs
    ):
        assert dataset == "flwrlabs/femnist"
        assert not load_dataset_kwargs
        # FEMNIST has one split.
        (self.partitioner,) = [partitioners[name] for name in ("train",)]

    def load_partition(self, partition_id, split=None):
        if self.unreachable:
            raise ConnectionError("Couldn't reach 'flwrlabs/femnist' on the Hub (LocalEntryNotFoundError)")
        self.partitioner.dataset = self.writers
        return _Rows(np.array(self.writers[partition_id]), self.shape)


class _Rows:
    """A Hugging Face data set of one writer, as far as it is used."""

    def __init__(self, labels, shape):
        self.labels, self.shape = labels, shape

    def with_format(self, type=None):
        assert type == "numpy"
        return self

    def __getitem__(self, key):
        if isinstance(key, str):
            assert key == "character"
            return self.labels
        image = np.full(self.shape, 255, dtype=np.uint8)
        # A stroke whose place depends on the label: pictures that can be told apart.
        image[self.labels[key] % 28, 4:24] = 255 - self.labels[key]
        return {"image": image, "writer_id": "f0000_00", "hsf_id": 0, "character": self.labels[key]}


def install_flwr_datasets(monkeypatch, writers, shape=(28, 28)):
    """Let Flower Datasets have these writers; return its class, for what is to be changed about it."""

    class Hub(FederatedDataset):
        pass

    Hub.writers, Hub.shape = writers, shape
    partitioner = SimpleNamespace(NaturalIdPartitioner=NaturalIdPartitioner)
    monkeypatch.setitem(sys.modules, "flwr_datasets", SimpleNamespace(FederatedDataset=Hub, partitioner=partitioner))
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", partitioner)
    return Hub


# --- scikit-learn 1.6 -------------------------------------------------------------------------------------------------


def fetch_openml(
    name=None,
    *,
    version="active",
    data_id=None,
    data_home=None,
    target_column="default-target",
    cache=True,
    return_X_y=False,
    as_frame="auto",
    n_retries=3,
    delay=1.0,
    parser="auto",
    read_csv_kwargs=None,
):
    """Stand for ``sklearn.datasets.fetch_openml``; :func:`install_openml` says what it returns."""


def install_openml(monkeypatch, images, labels):
    """Let OpenML have images and labels; return the list of what it is asked for."""
    import sklearn.datasets

    asked = []
    signature = inspect.signature(fetch_openml)

    def fetch(*given, **options):
        asked.append(signature.bind(*given, **options).arguments)
        # As OpenML has them: numbers as float64, labels as texts.
        return images.astype(np.float64), labels.astype(str).astype(object)

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    return asked
