import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.pictures.comparison import compare, logarithmic_metrics, metric_names, require_one_problem
from reproduction.runs.run_folder import RunRecord, RunStatus
from reproduction.runs.settings import RunSettings


def record(strategy="FedDualAvg", problem="lasso-small", seed=0, values=(1.0, 0.5), status=None, **assignments):
    given = {key.replace("_", "-"): value for key, value in assignments.items()}
    config = RunSettings.of(problem, strategy, given, seed).to_config()
    lines = [{"round": float(i), "objective": value, "density": 0.1 + i} for i, value in enumerate(values)]
    return RunRecord(config, lines, {}, status=status)


def labels(*records):
    return [group.label for group in compare([(str(i), own) for i, own in enumerate(records)])]


def test_labels_name_the_settings_that_differ_and_no_others():
    rates = {"client_lr": 0.01, "server_lr": 1.0}
    assert labels(record(**rates), record("FedMid", **rates)) == ["FedDualAvg", "FedMid"]
    assert labels(record(server_lr=1), record(server_lr=3)) == ["FedDualAvg, server-lr=1", "FedDualAvg, server-lr=3"]
    assert labels(record(strength=0.1), record(strength=0.2))[1] == "FedDualAvg, strength=0.2"
    assert len(set(labels(record(server_lr=1), record(server_lr=3), record(client_lr=1)))) == 3


def test_settings_that_mean_nothing_to_a_baseline_are_not_in_its_label():
    found = labels(record(server_lr=1), record(server_lr=3, strength=0.2), record("centralized", strength=0.2))
    assert found[2] == "centralized, strength=0.2"


def test_runs_that_differ_in_the_seed_alone_are_one_group():
    (group,) = compare([("a", record(seed=1)), ("b", record(seed=2))])
    assert group.label == "FedDualAvg"
    assert len(group.series("objective")) == 2


def test_different_problems_are_refused():
    require_one_problem(compare([("a", record()), ("b", record("FedMid"))]))
    with pytest.raises(ConfigurationError, match="different problems: lasso-small, digits"):
        require_one_problem(compare([("a", record()), ("b", record(problem="digits"))]))


def test_axes_are_logarithmic_where_sound_values_span_decades():
    diverged = record("FedMid", values=(1.0, 1e12), status=RunStatus(1, True, 1))
    groups = compare([("a", record()), ("b", diverged)])
    assert [group.diverged for group in groups] == [0, 1]
    assert logarithmic_metrics(groups, metric_names(groups)) == set()
    groups = compare([("a", record(values=(1.0, 0.01))), ("b", diverged)])
    assert logarithmic_metrics(groups, metric_names(groups)) == {"objective"}
    assert logarithmic_metrics(compare([("a", record(values=(1.0, 0.0)))]), ["objective"]) == set()


def test_an_older_folder_has_diverged_if_its_last_line_is_not_finite():
    (group,) = compare([("a", record(values=(1.0, np.inf)))])
    assert group.diverged == 1
