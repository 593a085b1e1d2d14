"""Hashed posts from what scikit-learn fetches."""

from types import SimpleNamespace

import numpy as np
import pytest

from reproduction.data import DataNotFoundError
from reproduction.data.newsgroups import newsgroups
from reproduction.problems.named import load_task


def posts(subset, **options):
    texts = [f"{word} number {i}" for i in range(30) for word in ("graphics card", "hockey game")]
    return SimpleNamespace(data=texts, target=np.arange(60) % 2, target_names=["comp.graphics", "rec.sport.hockey"])


def test_posts_are_hashed(monkeypatch):
    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", posts)
    data = newsgroups(num_clients=6, num_features=2**12)
    assert data.num_clients == 6
    objective = data.objective(0)
    assert objective.layout.shapes == {"coefficients": (2**12,)}
    assert objective.num_examples == 10
    assert set(data.test.targets) == {0, 1}
    task = load_task("text", 3, {"source": "newsgroups", "num-clients": 5, "num-features": 4096})
    assert len(task.clients) == 5
    assert task.scores(np.zeros(4096))["objective"] == pytest.approx(np.log(2.0))


def test_posts_that_are_not_there(monkeypatch):
    def missing(**options):
        raise OSError("no file")

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", missing)
    with pytest.raises(DataNotFoundError, match="download=true"):
        newsgroups()
