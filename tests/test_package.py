"""What leaves the repository: the wheel, the FAB, the pictures."""

import re
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from tomllib import loads

import pytest
from flwr.cli.build import build_fab_from_disk

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build wheel and sdist, and return their folder."""
    folder = tmp_path_factory.mktemp("dist")
    build = f"-m hatchling build --target wheel --target sdist --directory {folder}".split()
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True)
    return folder


def test_the_wheel_has_one_top_level_name(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"flwr_fco"}
    assert "flwr_fco/py.typed" in names


def test_the_readme_on_an_index_has_absolute_links_to_files_that_exist(built):
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = archive.read(name).decode()
    assert metadata.startswith("Metadata-Version: 2.4\n")
    source = re.search(r"^Project-URL: Source, (\S+)$", metadata, flags=re.MULTILINE)[1]
    links = re.findall(r"\]\(([^)]+)\)", metadata.partition("\n\n")[2])
    assert len(links) > 20
    assert all(link.startswith("https://") for link in links)
    for link in links:
        if source.partition("//")[2].partition("/")[2] in link:
            assert (ROOT / link.partition("/main/")[2].partition("#")[0]).exists(), link


@pytest.fixture(scope="module")
def root_fab(clone):
    return fab(clone)


def fab(app):
    """Return the files of an app's FAB."""
    content = build_fab_from_disk(app)
    assert len(content) < 10 * 2**20
    return zipfile.ZipFile(BytesIO(content))


def folders_in(bundle):
    return {name.split("/")[0] for name in bundle.namelist() if "/" in name} - {".info"}


def test_the_fab_holds_the_root_app_and_little_else(root_fab):
    assert folders_in(root_fab) == {"flwr_fco", "main_job"}


@pytest.mark.parametrize("app", sorted(path.parent.name for path in ROOT.glob("examples/*/pyproject.toml")))
def test_the_fab_of_an_example_holds_the_app_and_little_else(app):
    place = ROOT / "examples" / app
    parts = loads((place / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["components"]
    bundle = fab(place)
    assert folders_in(bundle) == {value.split(".")[0] for value in parts.values()}
    assert {"README.md", "LICENSE"} <= set(bundle.namelist())


def test_every_path_that_the_documentation_links_exists():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("**/README.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links {target}"
