import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.data import DataNotFoundError
from reproduction.data.fmri import SyntheticBrain, load_haxby, normalize_sessions
from reproduction.tests import stand_ins


def test_normalising_removes_trend_offset_and_scale_of_each_session():
    rng = np.random.default_rng(0)
    sessions = np.repeat([4, 7], [30, 50])
    signal = rng.normal(size=(80, 5))
    plain = normalize_sessions(signal, sessions)
    times = np.arange(80.0)[:, None]
    moved = 3.0 * signal + np.where(sessions[:, None] == 4, 100.0 + 2.0 * times, -50.0 - times)
    assert np.allclose(normalize_sessions(moved, sessions), plain, atol=1e-5)
    for session in (4, 7):
        block = plain[sessions == session]
        assert np.allclose(block.mean(axis=0), 0.0, atol=1e-6)
        assert np.allclose(block.std(axis=0), 1.0, atol=1e-6)
        slope = np.arange(len(block)) - (len(block) - 1) / 2
        assert np.allclose(slope @ block, 0.0, atol=1e-3)


def test_a_voxel_without_variation_becomes_zero():
    series = np.column_stack([np.full(9, 17.0), np.arange(9.0), np.arange(9.0) ** 2])
    found = normalize_sessions(series, np.zeros(9))
    assert not found[:, :2].any()
    assert found[:, 2].std() == pytest.approx(1.0)
    with pytest.raises(ConfigurationError, match="9 volumes"):
        normalize_sessions(series, np.zeros(8))


@pytest.fixture
def volumes(tmp_path):
    """Return a directory of two subjects on a 4 x 3 x 2 grid, and the arrays that were written."""
    pytest.importorskip("nibabel")
    names = ["rest", "face", "house", "cat", "face", "house", "rest"]
    mask, arrays = stand_ins.write_haxby(tmp_path, {subject: [names, names] for subject in (1, 2)})
    return tmp_path, mask, arrays, names * 2


def test_scans_are_the_named_volumes_inside_the_mask(volumes):
    directory, mask, arrays, names = volumes
    scans = load_haxby(directory, subjects=(1, 2))
    assert scans.num_sessions == 4
    assert scans.subjects.tolist() == [1, 1, 2, 2]
    assert scans.sessions.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert scans.labels.tolist() == [1, 0, 1, 0] * 4
    indices = np.argwhere(mask)
    series = np.array([arrays[2][tuple(place)] for place in indices], dtype=float).T
    expected = normalize_sessions(series, np.repeat([0, 1], 7))[
        [i for i, n in enumerate(names) if n in ("face", "house")]
    ]
    assert np.array_equal(scans.features[8:], expected)


def test_what_is_missing_is_named(volumes, tmp_path):
    directory, *_ = volumes
    with pytest.raises(DataNotFoundError, match="subj3"):
        load_haxby(directory, subjects=(3,))
    (directory / "subj1" / "labels.txt").write_text("face 0\n")
    with pytest.raises(ConfigurationError, match="labels 1 volumes"):
        load_haxby(directory, subjects=(1,))
    (directory / "subj1" / "labels.txt").write_text("face zero\n")
    with pytest.raises(ConfigurationError, match="a label and a session number"):
        load_haxby(directory, subjects=(1,))


def test_a_synthetic_brain_is_smooth_seeded_and_separable_by_its_pattern():
    data = SyntheticBrain(num_clients=4, num_voxels=3000, grid=(16, 16, 16), contrast=2.0, seed=3)
    scan = data.client(1).features
    assert np.array_equal(SyntheticBrain(4, 3000, (16, 16, 16), contrast=2.0, seed=3).client(1).features, scan)
    assert not np.array_equal(data.client(2).features, scan)
    noise = scan[2] - scan[0]
    assert 0.5 < noise.var() / 2.0 < 2.0
    # Neighbours along the last axis resemble each other; without smoothing they would not.
    pairs = np.flatnonzero(np.diff(data._voxels[0]) == 1)
    assert np.corrcoef(noise[pairs], noise[pairs + 1])[0, 1] > 0.7
    assert 0.0 < (data.pattern != 0).mean() < 0.5
    held = data.held_out(0)
    scores = held.features @ data.pattern
    assert np.mean((scores > np.median(scores)) == (held.targets == 1)) > 0.9
    with pytest.raises(ConfigurationError, match="num_voxels=5000"):
        SyntheticBrain(num_voxels=5000, grid=(16, 16, 16))
