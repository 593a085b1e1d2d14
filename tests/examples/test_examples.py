"""The examples in this process; `tests/integration/test_flwr_run.py` runs one of them through Flower too.

An app that reads `data-path` gives its node that file's rows, and without it a share of the bundled ones.
"""

import csv
import functools
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from problems import node, refused, run_app
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import Lasso, LogisticRegression
from sklearn.preprocessing import StandardScaler

from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import FedDR, LocalSGD, Minimise, Scaffold, Steps
from flwr_fco.tables import FederatedCoxRegression
from flwr_fco.testing import check_saddle_objective
from reproduction.data.saddle_objectives import UniversalAdversarialLogistic

EXAMPLES = Path(__file__).parents[2] / "examples"


def used(printed):
    """Return how many features the model uses, as an example prints it."""
    return int(re.search(r"The model uses (\d+) of ", printed)[1])


def shown(folder, number):
    """Return a block of text in an example's README."""
    return (EXAMPLES / folder / "README.md").read_text(encoding="utf-8").split("```text\n")[number].split("```")[0]


# --- patients of one table --------------------------------------------------------------------------------------------


def test_the_quickstart_finds_a_few_measurements_that_do(example, capsys):
    run_app(example("quickstart-sparse-logistic"))
    assert 1 <= used(capsys.readouterr().out) <= 8  # measured 5; scikit-learn's solution of the pooled problem has 4


def test_the_quickstart_is_scikit_learns_solution_of_the_scaled_pool(example):
    """Which only this test has; each node scales by what all have reported."""
    app = example("quickstart-sparse-logistic")
    names, features, _, labels, _ = app.task.load_patients()
    grid = InProcessGrid(app.client_app.app, 10)
    with grid.identity():
        model = app.task.new_model(C=0.05, num_clients=10).fit(grid, features=len(names))
    scaler = StandardScaler().fit(features)
    theirs = LogisticRegression(C=0.05, l1_ratio=1.0, solver="saga", tol=1e-10, max_iter=10**5)
    theirs.fit(scaler.transform(features), labels)
    np.testing.assert_allclose(model.coef_ * scaler.scale_, theirs.coef_, atol=1e-4)


def test_the_quickstart_takes_a_file_of_patients(example, tmp_path, capsys):
    """A CSV as Excel writes it, in another order of columns."""
    app = example("quickstart-sparse-logistic")
    data = load_breast_cancer()
    path = tmp_path / "patients.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["benign", *data.feature_names[::-1]])
        writer.writerows([label, *row[::-1]] for row, label in zip(data.data[:40], data.target[:40], strict=True))
    features, benign = app.task.load_client(node(**{"data-path": str(path)}))
    np.testing.assert_array_equal(features, data.data[:40])
    np.testing.assert_array_equal(benign, data.target[:40])
    parts = [app.task.load_client(node(**{"partition-id": m, "num-partitions": 4}))[0] for m in range(4)]
    assert sum(map(len, parts)) == 426
    run_app(app, 2, path=path, bundled=False, C=1.0)
    assert "The model uses" in (said := capsys.readouterr().out)
    assert "test patients" not in said


def test_ten_hospitals_get_the_pooled_solution(example, capsys):
    app = example("exact-logistic")
    run_app(app)
    rounds = re.search(r"pooled solution after (\d+) rounds", capsys.readouterr().out)[1]
    assert 43 <= int(rounds) <= 47  # the README says 45
    refused("rho='0.1' is a str; expected a number", run_app, app, rho="0.1")

    solution = app.server_app.pooled_solution()
    assert np.linalg.norm(app.task.load_pooled().gradient(solution)) <= 1e-12

    def rounds_of(strategy, limit):
        distances = []

        def near(number, arrays, metrics):
            distances.append(np.abs(arrays["coefficients"].numpy() - solution).max())
            return distances[-1] <= 1e-8

        options = {"initial_arrays": app.task.initial_model(), "callbacks": [near], "progress": False}
        simulate(strategy, app.client_app.app, num_nodes=10, num_rounds=limit, **options)
        return len(distances), distances[-1]

    split = FedDR(step=3.0, relaxation=1.95, work=Minimise(tolerance=1e-11), fraction_evaluate=0.0)
    assert 24 <= rounds_of(split, 40)[0] <= 26  # the README says 25
    options = {"work": Steps(10, batch_size=None), "fraction_evaluate": 0.0}
    assert 46 <= rounds_of(Scaffold(client_lr=0.3, **options), 60)[0] <= 50  # the README says 48
    count, distance = rounds_of(LocalSGD(client_lr=0.1, **{**options, "work": Steps(5, batch_size=None)}), 50)
    assert (count, distance > 1e-4) == (50, True)


# --- texts and images -------------------------------------------------------------------------------------------------


def test_the_sparse_example_uses_few_of_a_million_words(example, capsys):
    """In fewer rounds and with fewer documents than as it stands; measured there: 296, liblinear's solution has 295."""
    app = example("sparse-text")
    app.task.NUM_DOCUMENTS = 40
    run_app(app, num_server_rounds=12, num_clients=10, fraction_train=1.0, strength=0.002)
    printed = capsys.readouterr().out
    assert 1 <= used(printed) <= 5000
    sent, whole = (float(number) for number in re.findall(r"([\d.]+)(?: MB|\.$)", printed.splitlines()[-1]))
    assert sent < whole / 50


def test_the_sparse_example_takes_a_file_of_documents(example, tmp_path, capsys):
    app = example("sparse-text")
    path = tmp_path / "documents.csv"
    path.write_text('label,text\n1,"a good, good word"\n0,a bad one\n', encoding="utf-8-sig")
    loss = app.client_app.load_objective(node(**{"data-path": str(path)}))
    assert loss.features.shape == (2, app.task.NUM_FEATURES)
    assert (loss.features != app.task.features_of(["a good, good word", "a bad one"])).nnz == 0
    run_app(app, 2, path=path, bundled=False, num_server_rounds=1, fraction_train=1.0)
    assert "The model uses" in capsys.readouterr().out
    path.write_text("label,text\n")
    refused(r"documents\.csv has no documents", app.task.load_file, str(path), kind=ValueError)


@pytest.mark.slow
def test_the_robust_example_attacks_all_models_and_draws_the_attacks(example, capsys, tmp_path):
    """Against the strongest attack on each model, the one that trained against a fast opponent loses much less."""
    run_app(example("robust-logistic"), picture=str(tmp_path / "attacks.png"))
    lines = [line for line in capsys.readouterr().out.splitlines() if "clean accuracy" in line]
    numbers = {line.split(":")[0]: [float(number) for number in re.findall(r"\d+\.\d+", line)] for line in lines}
    assert list(numbers) == ["FedAvg", "FeDualEx", "FedMiP"]
    assert (tmp_path / "attacks.png").stat().st_size > 1000
    clean, attacked, loss = numbers["FedAvg"]
    robust_clean, robust_attacked, robust_loss = numbers["FedMiP"]
    assert clean > robust_clean > 0.93  # measured .962 and .949
    assert robust_attacked > attacked + 0.08  # measured .727 and .556
    assert robust_loss < 0.8 * loss


def test_the_robust_example_takes_a_file_of_images(example, tmp_path, capsys):
    app = example("robust-logistic")
    images, labels = (array[:60] for array in load_digits(return_X_y=True))
    path = tmp_path / "digits.npz"
    np.savez(path, images=images.reshape(-1, 8, 8), labels=labels)
    loss = app.client_app.load_objective(node(**{"data-path": str(path)}))
    w = np.random.default_rng(0).standard_normal(loss.layout.size)
    assert loss.value(w) == pytest.approx(UniversalAdversarialLogistic(images / 16.0, labels).value(w), rel=1e-12)
    check_saddle_objective(loss)
    run_app(app, 2, path=path, bundled=False, num_server_rounds=2, local_steps=1)
    assert capsys.readouterr().out.count("at the nodes: clean accuracy") == 3


@pytest.mark.parametrize("beside", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_one_line_makes_flowers_quickstart_sparse(beside, example):
    """In the default run without FedAvg's own run, whose accuracy is .939."""
    app = example("one-line-sklearn")
    task, server = app.task, app.server_app
    task.load_images = functools.cache(task.load_images)

    def train(strategy):
        start = server.ArrayRecord(task.get_model_params(task.get_model(app.config["local-epochs"])))
        options = {"num_rounds": app.config["num-server-rounds"], "initial_arrays": start, "run_config": app.config}
        result = simulate(strategy, app.client_app.app, num_nodes=10, **options)
        model = task.set_model_params(task.get_model(1), result.arrays.to_numpy_ndarrays())
        _, images, _, labels = task.load_images()
        return model.score(images, labels), float((model.coef_ != 0).mean())

    # The strategy that the example's server builds, from its one line.
    line = re.search(r"strategy = (FedDualAvg.*)", Path(server.__file__).read_text(encoding="utf-8"))[1]
    strategy = eval(line, vars(server))
    strategy.fraction_evaluate = 0.0
    dense_accuracy, dense = train(FedAvg(fraction_evaluate=0.0)) if beside else (0.939, 1.0)
    accuracy, density = train(strategy)
    assert dense > 0.95  # all but the pixels that never vary
    assert density < 0.5  # exact zeros; measured .42
    assert accuracy > dense_accuracy - 0.02  # measured .933 and .939


# --- tables of hospitals ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:before a fit, look at Fir. bmi has a mean of 32.6:UserWarning")
def test_the_hospitals_fit_the_lasso_of_all_patients_in_a_few_messages(example, capsys, tmp_path):
    """From their files; scikit-learn on the pooled rows is the oracle."""
    pytest.importorskip("pandas", reason="pip install pandas")
    app = example("hospital-lasso")
    task = app.task
    files = EXAMPLES / "hospital-lasso" / "data"
    path = tmp_path / "table.csv"
    run_app(app, task.HOSPITALS, path=lambda m: files / f"hospital-{m + 1}.csv", table=str(path))
    printed = capsys.readouterr().out
    # What is left of the residual is rounding, which differs by processor.
    residual = r"(?<=Residual: )[\d.e-]+"
    assert float(re.search(residual, printed)[0]) < 1e-9
    for line in re.sub(residual, "rounding", shown("hospital-lasso", 1)).splitlines():
        assert line in re.sub(residual, "rounding", printed)
    tables = [task.rows_of(hospital) for hospital in range(task.HOSPITALS)]
    spreads = [column.spread for column in task.CODEBOOK.columns.values()]
    X = np.concatenate([table[list(task.CODEBOOK.columns)].to_numpy() for table in tables]) / spreads
    y = np.concatenate([table[task.TARGET].to_numpy() for table in tables])
    alpha = float(re.search(r"alpha=([\d.]+)", printed)[1])
    # What is not penalised is projected out, which is the lasso's solution with it.
    free = np.column_stack([X[:, :2], np.ones(len(y))])
    project = np.eye(len(y)) - free @ np.linalg.pinv(free)
    theirs = Lasso(alpha, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(project @ X[:, 2:], project @ y)
    with path.open(encoding="utf-8") as file:
        table = {row["feature"]: float(row["coefficient"]) for row in csv.DictReader(file)}
    np.testing.assert_allclose([table[name] for name in task.CODEBOOK.features[2:]], theirs.coef_, atol=1e-3)


#: lung's institutions, and their patients and deaths with age, sex and performance score.
LUNG = [
    [1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 15, 16, 21, 22, 26, 32, 33],
    [36, 5, 19, 4, 9, 14, 8, 4, 18, 23, 20, 6, 16, 12, 17, 6, 7, 2],
    [27, 4, 15, 4, 6, 12, 6, 4, 11, 18, 12, 4, 12, 10, 13, 2, 2, 1],
]


@pytest.fixture
def lung(monkeypatch):
    """lifelines' patients, or drawn ones of the same form where it is not installed; whether they are the real ones."""
    pandas = pytest.importorskip("pandas", reason="pip install pandas")
    if importlib.util.find_spec("lifelines"):
        return True
    rng = np.random.default_rng(0)
    institutions, rows, deaths = (np.repeat(numbers, LUNG[1]) for numbers in LUNG)
    table = pandas.DataFrame({"inst": institutions.astype(float), "age": rng.integers(40, 82, rows.size)})
    table["sex"] = rng.integers(1, 3, rows.size)
    table["ph.ecog"] = rng.integers(0, 3, rows.size).astype(float)
    risk = 0.3 * table["ph.ecog"] - 0.5 * (table["sex"] == 2) + 0.02 * table["age"]
    table["time"] = np.ceil(900.0 * rng.exponential(size=rows.size) * np.exp(-risk))
    table["status"] = (table.groupby("inst").cumcount() < deaths).astype(int)
    module = ModuleType("lifelines.datasets")
    module.load_lung = lambda: pandas.concat([table, table[:1].assign(inst=np.nan)], ignore_index=True)
    monkeypatch.setitem(sys.modules, "lifelines", ModuleType("lifelines"))
    monkeypatch.setitem(sys.modules, "lifelines.datasets", module)
    return False


def test_thirteen_institutions_have_the_hazard_ratios_of_their_pooled_rows(lung, example, capsys, tmp_path):
    """From their files; the oracle is a fit of the pooled rows, stratified by institution."""
    pytest.importorskip("matplotlib", reason="pip install matplotlib")
    app = example("hospital-survival")
    institutions = [app.task.rows_of(number) for number in app.task.INSTITUTIONS[: app.task.TAKING_PART]]
    for number, own in enumerate(institutions):
        own.to_csv(tmp_path / f"{number}.csv")
    written = {"table": tmp_path / "table.csv", "picture": tmp_path / "forest.png"}
    run_app(app, 13, path=lambda m: tmp_path / f"{m}.csv", **{name: str(path) for name, path in written.items()})
    printed = capsys.readouterr().out
    assert written["picture"].stat().st_size > 10_000
    with written["table"].open(encoding="utf-8") as file:
        table = {row["feature"]: row for row in csv.DictReader(file)}
    parts = [own.dropna(subset=["ph.ecog"]).assign(strata=number) for number, own in enumerate(institutions)]
    pooled = np.concatenate([np.column_stack([own["age"] / 10, own["sex"] == 2, own["ph.ecog"]]) for own in parts])
    reported = {name: np.concatenate([own[name] for own in parts]) for name in ("time", "status", "strata")}
    y = np.array(list(zip(*reported.values(), strict=True)), dtype=[(name, float) for name in reported])
    oracle = FederatedCoxRegression(num_clients=1).fit(pooled, y)
    found = [float(table[name]["estimate"]) for name in app.task.CODEBOOK.features]
    np.testing.assert_allclose(found, oracle.coef_, atol=1e-9)
    assert {"hazard ratio", "Hartung-Knapp lower", "site 1", "site 1 error"} <= set(table["age"])
    if lung:
        stable = r"(?m)^(├── Residual: ).*$"
        assert re.sub(stable, r"\1", shown("hospital-survival", 1)) in re.sub(stable, r"\1", printed)


def test_small_institutions_and_one_with_other_columns_are_refused_by_name(lung, example):
    app = example("hospital-survival")
    text = refused("do not fit together: 4: ", run_app, app, 18, raise_errors=False, sites=18)
    assert "Traceback" not in text
    reasons = {int(number): limit for number, limit in re.findall(r"(\d+): error .*?than (min_\w+)=", text)}
    assert reasons == {4: "min_rows", 10: "min_rows", 26: "min_events", 32: "min_events", 33: "min_rows"}
    if lung:
        assert " ".join(shown("hospital-survival", 2).split()).removesuffix(" ...") in text
    text = refused("5: .*lacks the columns 'ph.ecog'", run_app, app, 13, raise_errors=False, misaligned=3)
    assert " ".join(shown("hospital-survival", 3).split()) == text
