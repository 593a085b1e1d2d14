"""Stand-ins for nilearn, which fetches data, and for the files of Haxby."""

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
