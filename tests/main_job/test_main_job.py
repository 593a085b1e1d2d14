import pytest

from flwr_fco.errors import ConfigurationError
from main_job.compare import RUNS, draw, main, read_task


def test_the_runs_differ_in_the_strategy_and_its_rates_only(request):
    configs = [read_task(request.config.rootpath, overrides).config for overrides in RUNS]
    assert [config["strategy"] for config in configs] == ["FedDualAvg", "FedAvgSubgradient", "FedNewton"]
    own = ("strategy", "client-lr", "server-lr")
    same = [{key: value for key, value in config.items() if key not in own} for config in configs]
    assert same[0] == same[1] == same[2]


@pytest.mark.parametrize("name", ["picture.png", "PICTURE.PNG"])
def test_the_picture_is_drawn(tmp_path, name):
    rounds = {r: {"objective": 1.0 / (r + 1), "accuracy": r / 10, "density": 1.0 - r / 10} for r in range(10)}
    draw(
        {"FedDualAvg": rounds, "FedAvgSubgradient": rounds},
        {"objective": 0.05, "accuracy": 0.9, "density": 0.2},
        tmp_path / "new" / name,
    )
    assert (tmp_path / "new" / name).read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_no_known_kind_is_refused_before_anything_runs(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--picture", "x.xyz"])
    assert "--picture x.xyz: expected a name that ends in .png, .svg, .pdf" in capsys.readouterr().err
    # The clone is read later: the name is not refused.
    assert main(["--picture", "X.PNG", "--root", "no such clone", "--directory", str(tmp_path)]) == 1


def test_another_directory_than_the_clone_is_refused(tmp_path, capsys):
    with pytest.raises(ConfigurationError, match=r"pyproject\.toml does not exist"):
        read_task(tmp_path, {})
    assert main(["--root", str(tmp_path)]) == 1
    assert "pyproject.toml does not exist" in capsys.readouterr().err
    for content in ("", "x", "[tool.flwr.app]\nconfig = 3\n"):
        (tmp_path / "pyproject.toml").write_text(content)
        with pytest.raises(ConfigurationError, match=r"pyproject\.toml is not the root app's"):
            read_task(tmp_path, {})
