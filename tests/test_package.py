"""What leaves the repository: the wheel, the FAB, the pictures."""

import re
import subprocess
import sys
import zipfile
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

ROOT = Path(__file__).parents[1]


def test_the_wheel_has_one_top_level_name(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"flwr_fco"}
    assert "flwr_fco/py.typed" in names


@cache
def fab(app):
    """Return the files of an app's FAB; Flower reads the whole folder for it."""
    return zipfile.ZipFile(BytesIO(build_fab_from_disk(ROOT / app)))


@pytest.mark.parametrize(
    "app", [".", "examples/quickstart-sparse-logistic", "examples/one-line-sklearn", "examples/exact-logistic"]
)
def test_the_fab_holds_the_app_and_little_else(app):
    names = fab(app).namelist()
    packages = {name.split("/")[0] for name in names if "/" in name} - {".info"}
    own = Path(app).name.replace("quickstart-", "").replace("-", "_")
    assert packages == ({"flwr_fco", "main_job"} if app == "." else {own})


def test_the_package_in_its_fab_finds_its_names(tmp_path):
    """A FAB holds Python, TOML, Markdown, YAML and JSON only, so a list of names in a stub file would be missing."""
    fab(".").extractall(tmp_path)
    code = "import flwr_fco; print(flwr_fco.__file__, len(dir(flwr_fco)) > len(flwr_fco.__all__) > 50)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "flwr_fco" / "__init__.py"), "True"]


def test_pictures_are_small_and_made_by_a_script_that_the_readme_names():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < 200_000, picture
    for shown in re.findall(r"docs/images/[\w-]+\.png", readme):
        assert (ROOT / shown).is_file()
    for script in re.findall(r"docs/make_\w+\.py", readme):
        assert (ROOT / script).is_file()


def test_every_path_that_the_documentation_links_exists():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*/README.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links {target}"
