"""A result: short to print, and a table of all rounds."""

import math
import sys

import numpy as np
import pandas
import pytest
from flwr.app import MetricRecord
from problems import clients, run

from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg


@pytest.fixture(scope="module")
def result():
    return run(
        FedDualAvg(regularizer=L1(0.3), client_lr=0.05),
        clients(),
        200,
        fraction_evaluate=1.0,
        evaluate_fn=lambda n, arrays: MetricRecord({"score": float(n)}) if n % 10 == 0 else None,
    )


def test_two_hundred_rounds_print_a_few_lines_with_the_last_round(result, capsys):
    print(result)
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 8
    assert max(map(len, text.splitlines())) < 400
    assert "after round 200" in text
    assert f"density {result.train_metrics_clientapp[200]['density']:.6g}" in text
    assert "score 200" in text
    nonzero = np.count_nonzero(result.arrays["coefficients"].numpy())
    assert f"coefficients float64[6], {nonzero} not zero" in text


def test_the_table_has_every_number_of_every_round(result):
    table = result.table()
    assert type(table) is pandas.DataFrame
    assert list(table["round"]) == list(range(201))
    for name, history in (
        ("train", result.train_metrics_clientapp),
        ("evaluate", result.evaluate_metrics_clientapp),
        ("server", result.evaluate_metrics_serverapp),
    ):
        for number, metrics in history.items():
            for key, value in metrics.items():
                assert table[f"{name}/{key}"][number] == value
    assert math.isnan(table["server/score"][7])


def test_without_pandas_the_error_names_the_command(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigurationError, match="pip install pandas"):
        result.table()
    assert len(result.rows()) == 201
