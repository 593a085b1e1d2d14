import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1
from reproduction.data import DataNotFoundError
from reproduction.data.fmri import BrainScans, SyntheticBrain, load_haxby, normalize_sessions
from reproduction.pooled import centralized_solution
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
    with pytest.raises(ConfigurationError, match="fetch=True"):
        load_haxby()
    with pytest.raises(DataNotFoundError, match="subj3"):
        load_haxby(directory, subjects=(3,))
    (directory / "subj1" / "labels.txt").write_text("face 0\n")
    with pytest.raises(ConfigurationError, match="labels 1 volumes"):
        load_haxby(directory, subjects=(1,))
    (directory / "subj1" / "labels.txt").write_text("face zero\n")
    with pytest.raises(ConfigurationError, match="a label and a session number"):
        load_haxby(directory, subjects=(1,))


def scans_of(*counts):
    """Return scans of subjects with so many sessions, two scans a session, whose only voxel is the session."""
    sessions = np.repeat(np.arange(sum(counts)), 2)
    subjects = np.repeat(np.arange(len(counts)) + 1, counts)
    return BrainScans(sessions[:, None].astype(np.float32), np.tile([0, 1], sum(counts)), sessions, subjects)


def test_the_papers_split_is_the_last_of_six():
    """B.4: "the first 5 subjects as training set and the last subject as validation set": 59 clients, 12 sessions."""
    scans = scans_of(12, 12, 12, 12, 11, 12)
    splits = [scans.split(fold) for fold in scans.folds(12)]
    assert len(splits) == 6
    assert splits[5].num_clients == 59
    assert np.unique(splits[5].test.features).tolist() == list(range(59, 71))
    assert set(scans.subjects[scans.folds(12)[5]].tolist()) == {6}
    with pytest.raises(ConfigurationError, match=r"num_held_out=13; expected 1 \.\. 12.*12, 12, 12, 12, 11, 12"):
        scans.folds(13)
    # One subject alone: somebody must be left to train on.
    with pytest.raises(ConfigurationError, match=r"num_held_out=12; expected 1 \.\. 11"):
        scans_of(12).folds(12)


def test_the_real_slice(real_data):
    pytest.importorskip("nibabel")
    scans = load_haxby(real_data("haxby-slice"))
    assert scans.features.shape == (216, 530)
    assert np.bincount(scans.sessions).tolist() == [18] * 12
    assert scans.labels.mean() == 0.5
    correct = []
    for split in map(scans.split, scans.folds(2)):
        w = centralized_solution(split.objectives(), L1(1e-2), tol=1e-4)
        correct.append(split.test_objective().metrics(w)["accuracy"])
    # The data are known to be easy: a centralized l1 model gets 98 % of held-out sessions right.
    assert np.mean(correct) > 0.9


def test_synthetic_brain_is_smooth_seeded_and_told_apart_by_its_pattern():
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
