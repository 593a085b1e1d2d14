"""Stand-ins for what fetches data: nilearn, Flower Datasets and OpenML, and small files as Haxby's."""

import sys
from types import SimpleNamespace

import numpy as np


def install_nilearn(monkeypatch, directory):
    """Let nilearn fetch what lies in a directory; return the list of what it is asked for."""
    asked = []

    def fetch_haxby(**options):
        asked.append(options)
        return SimpleNamespace(mask=str(directory / "mask.nii.gz"))

    monkeypatch.setitem(sys.modules, "nilearn", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "nilearn.datasets", SimpleNamespace(fetch_haxby=fetch_haxby))
    return asked


def write_haxby(directory, subjects):
    """Write files as Haxby's: for each subject the names of its sessions' volumes, on a 4 x 3 x 2 grid."""
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
        nibabel.save(nibabel.Nifti1Image(bold, np.eye(4)), folder / "bold.nii.gz")
        (folder / "labels.txt").write_text("labels chunks\n" + "\n".join(lines) + "\n")
        arrays[subject] = bold
    return mask, arrays


def install_flwr_datasets(monkeypatch, writers):
    """Let FEMNIST have these writers' labels, ink 255 - label on paper of 255; return the hub, which may be down."""

    class Partitioner:
        def __init__(self, partition_by):
            self.num_partitions = len(writers)

    class Hub:
        unreachable = False

        def __init__(self, *, dataset, partitioners, seed):
            assert (dataset, [*partitioners]) == ("flwrlabs/femnist", ["train"])

        def load_partition(self, number):
            if self.unreachable:
                raise ConnectionError("Couldn't reach 'flwrlabs/femnist' on the Hub")
            return Rows(np.array(writers[number]))

    class Rows:
        def __init__(self, labels):
            self.labels = labels

        def with_format(self, kind):
            return self

        def __getitem__(self, key):
            if key == "character":
                return self.labels
            image = np.full((28, 28), 255, dtype=np.uint8)
            image[self.labels[key] % 28, 4:24] = 255 - self.labels[key]
            return {"image": image}

    partitioner = SimpleNamespace(NaturalIdPartitioner=Partitioner)
    monkeypatch.setitem(sys.modules, "flwr_datasets", SimpleNamespace(FederatedDataset=Hub, partitioner=partitioner))
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", partitioner)
    return Hub


def install_openml(monkeypatch, images, labels):
    """Let OpenML have images and labels; return the list of what it is asked for."""
    asked = []

    def fetch_openml(name, **options):
        asked.append(name)
        # As OpenML has them: numbers as float64, labels as texts.
        return images.astype(np.float64), labels.astype(str).astype(object)

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch_openml)
    return asked
