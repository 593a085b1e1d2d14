"""The HTML report holds what the runs hold, needs nothing from outside, and a browser shows it."""

import base64
import io
import math
import re
import shlex
import shutil
import subprocess
from datetime import date
from html.parser import HTMLParser

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the report draws with matplotlib")

from PIL import Image

import flwr_fco
from reproduction.cli.shell import parsed
from reproduction.pictures.appearance import appearance
from reproduction.pictures.comparison import compare
from reproduction.pictures.html_report import _by_one_rule, html_page
from reproduction.runs.run import run
from reproduction.runs.run_folder import RunRecord, read_run
from reproduction.runs.settings import RunSettings

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
#: Elements that HTML closes by themselves.
VOID = {"meta", "img", "br", "link"}


class Reader(HTMLParser):
    """Checks that elements are closed in order; keeps tags with attributes, and the text."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(page):
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    chosen = {
        "one": RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 30}),
        "two": RunSettings.of("lasso-small", "FedMid", {"num-rounds": 30, "server-lr": 2}),
        "bad": RunSettings.of("lasso-small", "FedMid", {"num-rounds": 30, "client-lr": 5}),
        "best": RunSettings.of("lasso-small", "centralized"),
    }
    for name, settings in chosen.items():
        run(settings, folder=folder / name)
    return {name: read_run(folder / name) for name in chosen}


@pytest.fixture(scope="module")
def page(runs):
    return html_page(compare(list(runs.items())))


def test_the_page_is_well_formed_and_asks_for_nothing_outside(page):
    reader = read(page)
    for tag, attributes in reader.tags:
        assert tag not in ("script", "link", "iframe", "object")
        for key in ("src", "href", "xlink:href"):
            assert attributes.get(key, "#").startswith(("#", "data:")), (tag, attributes)
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page
    names = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(names) == len(set(names))
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page))
    assert used
    assert {name for pair in used for name in pair if name} <= set(names)


def test_the_page_says_what_the_folders_say(page, runs):
    text = " ".join(read(page).text)
    for metric in ("objective", "recovery-error", "density", "f1"):
        assert metric in text
    assert f"{runs['one'].metrics[-1]['objective']:.4g}" in text
    assert f"{runs['best'].metrics[-1]['duality-gap']:.4g}" in text
    assert f"diverged in round {runs['bad'].status.diverged}" in text
    assert "FedMid, client-lr=0.01, server-lr=2" in text
    down = sum(line["bytes-down"] for line in runs["two"].exchanges) / 1e6
    assert f"{down:.3g}" in text
    assert "No reply was left out." in text
    parts = ("clients-seconds", "server-seconds", "evaluation-seconds")
    seconds = sum(sum(line[part] for line in runs["one"].exchanges) for part in parts)
    assert any(f"{value:.3g} s" in text for value in (seconds, math.nextafter(seconds, 0), math.nextafter(seconds, 9)))


def test_replies_that_were_left_out_are_counted(runs):
    damaged = runs["one"]._replace(exchanges=[{**line, "num-left-out": 2} for line in runs["one"].exchanges])
    text = " ".join(read(html_page(compare([("damaged", damaged)]))).text)
    assert "replies left out so far" in text
    assert "60" in text.split("rounds skipped")[1][:200].split()


def test_the_heat_map_is_the_support(runs):
    page = html_page(compare([("one", runs["one"])]))
    (source,) = [attributes["src"] for tag, attributes in read(page).tags if tag == "img"]
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))).convert("RGB"))
    white = (image == 255).all(axis=2)
    np.testing.assert_array_equal(~white.T, runs["one"].support.share > 0)
    np.testing.assert_array_equal(~white[:, -1], runs["one"].arrays["coefficients"] != 0)


@pytest.mark.filterwarnings("error")
def test_a_run_without_coefficients_has_a_page_too(runs):
    empty = runs["one"]._replace(arrays={**runs["one"].arrays, "coefficients": np.zeros(0)})
    assert "not zero in the end" not in html_page(compare([("empty", empty)]))


def test_a_folder_with_nothing_but_metrics_has_a_page_too():
    lines = [{"round": r, "objective": 1.0 / (r + 1)} for r in range(4)]
    text = " ".join(
        read(html_page(compare([("old", RunRecord({"problem": "<b>", "strategy": "Own"}, lines, {}))]))).text
    )
    assert "<b>" in text
    assert "Bytes and replies" not in text
    assert "Support over" not in text


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_a_browser_shows_it(page, tmp_path):
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    options = (
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr"),
        *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,3000"),
    )
    picture = tmp_path / "page.png"
    done = subprocess.run(
        [CHROMIUM, *options, f"--screenshot={picture}", (tmp_path / "report.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    # The browser's console: what the page's policy refused, what could not be read.
    assert "CONSOLE" not in done.stderr, done.stderr
    pixels = np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3)
    for method in ("FedDualAvg", "FedMid"):
        color = appearance(method).color
        wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
        # Swatch, curves and heat map; a page without its pictures has far fewer.
        assert (np.abs(pixels.astype(int) - wanted).max(axis=1) <= 2).sum() > 3000, method


def test_density_and_support_are_by_one_rule(runs):
    """The problem's own density leaves out what is small; the page's counts it, in the table as in the picture."""
    (group,) = _by_one_rule(compare([("one", runs["one"])]))
    ((rounds, density),) = group.series("density")
    np.testing.assert_array_equal(rounds, runs["one"].support.rounds)
    np.testing.assert_allclose(density, (runs["one"].support.share > 0).mean(axis=1), rtol=1e-12)
    share = float((runs["one"].arrays["coefficients"] != 0).mean())
    ((_, above),) = group.series("density above threshold")
    assert density[-1] == share > above[-1] == runs["one"].metrics[-1]["density"]
    text = " ".join(read(html_page(compare([("one", runs["one"])]))).text)
    assert f"{share:.4g}" in text
    assert f"{above[-1]:.4g}" in text
    assert f"{share:.1%} not zero in the end" in text
    # Nothing is added where both rules agree.
    lines = [{**line, "density": density[i]} for i, line in enumerate(runs["one"].metrics[1:])]
    same = compare([("same", runs["one"]._replace(metrics=lines))])
    assert _by_one_rule(same) == same


def test_the_page_says_how_to_repeat_its_runs(runs, tmp_path):
    given = {"num-rounds": 3, "client-lr": "auto", "server-lr": 0.1 + 0.2}
    automatic = RunSettings.of("lasso-small", "FedMidOSP", given, seed=4)
    chosen = run(automatic, folder=tmp_path / "run").chosen
    assert list(run(automatic, folder=tmp_path / "run", resume=True).chosen) == chosen
    record = read_run(tmp_path / "run")
    text = " ".join(read(html_page(compare([*runs.items(), ("automatic", record)]))).text)
    assert f"Written on {date.today().isoformat()} by flwr-fco {flwr_fco.__version__}" in text
    (rate,) = chosen
    assert rate in text
    assert rate.startswith("client-lr=")
    commands = [shlex.split(line) for line in text.splitlines() if "python -m reproduction run" in line]
    assert len(commands) == len(runs) + 1
    for words, own in zip(commands, [*runs.values(), record], strict=True):
        problem, _, strategy, _, seed, *options = words[words.index("run") + 1 :]
        settings = parsed(options[1::2])
        assert RunSettings.of(problem, strategy, settings, int(seed)).to_config() == own.config
    # The folder of another program has none.
    assert "Commands" not in html_page(compare([("old", RunRecord({"problem": "p"}, [{"round": 1.0}], {}))]))
