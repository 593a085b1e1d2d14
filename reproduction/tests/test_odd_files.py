"""Run folders that somebody else has made: every command reads them, or says in words what is wrong."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest
from fuzz.budget import VALUES, fuzzed
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from flwr_fco.errors import ConfigurationError
from flwr_fco.models import write_npz
from reproduction.cli.commands import app
from reproduction.pictures.comparison import compare
from reproduction.pictures.html_report import html_page
from reproduction.runs.run_folder import RunFolder, RunStatus, SupportHistory, read_run
from reproduction.runs.sweep import read_trials

EVIL = '<form action=\'//evil\'><meta http-equiv="refresh" content="0;url=//evil"><script>1</script>]]>--></style>'


def made(path, name="FedDualAvg"):
    folder = RunFolder(path, {"problem": "digits", "strategy": name, "seed": 3, "stretch": 1})
    for number in range(3):
        folder.add({"round": number, "objective": 1.0 / (1 + number), "density": 0.5})
    support = SupportHistory(np.array([1, 2]), np.array([[0.0, 1.0], [1.0, 1.0]], np.float32))
    costs = [{"round": 1, "bytes-down": 8, "bytes-up": 8, "num-left-out": 1, "clients-seconds": 0.5}]
    folder.checkpoint(RunStatus(2, True, 0, 1.0), {"coefficients": np.ones(3)}, costs, support)
    return folder


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


ODD = (
    *(
        b"",
        b"null",
        b"[]",
        b"3",
        b'"x"',
        b"NaN",
        b"{}",
        b"[" * 10**6,
        b"\xff\xfe",
        b"\x00" * 9,
        b'{"a": ' + b"9" * 9999,
    ),
    json.dumps({"exchanges": EVIL, "finished": EVIL, "diverged": EVIL, "seconds": EVIL}).encode(),
    *(
        json.dumps({"exchanges": 1, "finished": True, "diverged": 0, "seconds": s}).encode()
        for s in (-1, None, [], 1e999)
    ),
    json.dumps({"exchanges": 10**400, "finished": True, "diverged": 0, "seconds": 1}).encode(),
    *(json.dumps({"problem": p, "strategy": "x", "seed": 1}).encode() for p in (1, None, [EVIL], {})),
    *(json.dumps({"problem": "p", "strategy": "x", "seed": s}).encode() for s in ("1", -1, 1.5, True, 10**400)),
    *(json.dumps({"problem": "p", "strategy": "x", "stretch": s}).encode() for s in ("1", None, 2.5, 10**400)),
    b'{"round": NaN}\n',
    b'{"round": 1, "num-left-out": NaN}\n',
    b'{"round": 1, "bytes-up": Infinity}\n',
    b"round,node_id\n" + b'"' * 200_000,
)
FILES = ("config.json", "metrics.jsonl", "exchanges.jsonl", "status.json", "model.npz", "support.npz", "left-out.csv")


@pytest.mark.parametrize("name", FILES)
def test_every_command_reads_a_folder_or_says_what_is_wrong_with_it(tmp_path, name):
    pytest.importorskip("matplotlib", reason="the report draws with matplotlib")
    made(tmp_path / "run")
    for number, content in enumerate(ODD):
        (tmp_path / "run" / name).write_bytes(content)
        # Both read the folder in the same way; a page takes longer to draw.
        for kind in ("html",) if number % 4 == 0 else ("text",):
            result = call("report", tmp_path / "run", "--format", kind, "--out", tmp_path / "page.html")
            assert result.exit_code in (0, 2), (number, content[:60], result.exception, result.output)
            said = result.output.replace("\n", "")
            assert result.exit_code == 0 or name in said or "has no metrics" in said, said


@pytest.mark.parametrize(
    ("rounds", "share"),
    [
        (np.array([1.0, 2.0]), np.ones((2, 3))),
        (np.array([1, 2]), np.ones((3, 3))),
        (np.array([1, 2]), np.ones(2)),
        (np.array([1, 2]), np.full((2, 3), np.nan)),
        (np.array([1, 2]), np.full((2, 3), 300.0)),
        (np.array([[1, 2]]), np.ones((1, 3))),
        (np.array(1), np.ones(3)),
    ],
)
def test_a_support_that_is_none_is_refused(tmp_path, rounds, share):
    made(tmp_path / "run")
    write_npz(tmp_path / "run" / "support.npz", {"rounds": rounds, "share": share})
    with pytest.raises(ConfigurationError, match=r"support\.npz is damaged"):
        read_run(tmp_path / "run")


@fuzzed(0.05)
@given(st.dictionaries(st.sampled_from(["problem", "strategy", "seed", "stretch", "$x$", "a"]), VALUES, max_size=4))
def test_settings_of_any_type_are_shown_or_refused(tmp_path_factory, config):
    pytest.importorskip("matplotlib", reason="the report draws with matplotlib")
    path = tmp_path_factory.mktemp("fuzz") / "run"
    made(path)
    (path / "config.json").write_text(json.dumps(config))
    try:
        record = read_run(path)
    except ConfigurationError:
        return
    assert "<!DOCTYPE html>" in html_page(compare([("run", record)]))


class Tags(HTMLParser):
    """Keeps the tags of a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


@pytest.mark.filterwarnings("ignore:constrained_layout")
def test_what_a_folder_says_is_text_in_the_page_wherever_it_says_it(tmp_path):
    pytest.importorskip("matplotlib", reason="the report draws with matplotlib")
    records = []
    for number in range(2):
        path = tmp_path / str(number)
        made(path)
        config = {"problem": EVIL, "strategy": EVIL + str(number), "seed": number, EVIL: [EVIL, {EVIL: number}]}
        (path / "config.json").write_text(json.dumps(config))
        lines = [json.dumps({"round": r, EVIL: r / 3, "$\\frac{": 1.0, "objective": 0.1}) for r in range(3)]
        (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        records.append((EVIL, read_run(path)))
    page = html_page(compare(records))
    tags = Tags()
    tags.feed(page)
    names = {tag for tag, _ in tags.found}
    assert not names & {"form", "script", "iframe", "object", "base", "link"}
    assert [given.get("http-equiv") for tag, given in tags.found if tag == "meta"].count("refresh") == 0
    (policy,) = (given["content"] for _, given in tags.found if given.get("http-equiv") == "Content-Security-Policy")
    for rule in ("default-src 'none'", "form-action 'none'", "base-uri 'none'"):
        assert rule in policy
    assert "//evil" in page


def test_a_table_for_a_page_of_markdown_has_no_html_and_no_control_characters(tmp_path):
    made(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps({"round": 1, "<b>\x1b[2J\n|": 1.0}) + "\n")
    result = call("report", tmp_path / "run", "--out", tmp_path / "r.md")
    for text in (result.output, (tmp_path / "r.md").read_text()):
        assert "<b>" not in text
        assert "\x1b" not in text
        assert len(text.strip().splitlines()) == 3


@pytest.mark.parametrize(
    "change",
    [
        *({"settings": value} for value in ([], {}, {"strategy": 3}, None)),
        *({"score": value} for value in ("1", None, [])),
        *({"mean": value} for value in ([], {"f1": "x"}, {"f1": None})),
        *({name: ...} for name in ("rounds", "seconds", "last", "diverged")),
        {"diverged": 1.5},
        {"more": 1},
    ],
)
def test_a_trial_that_is_none_is_refused(tmp_path, change):
    trial = {"settings": {"strategy": "A"}, "score": 1.0, "diverged": 0, "rounds": 3, "seconds": 0.1}
    trial |= {"mean": {"f1": 0.5}, "last": {"f1": 0.5}}
    (tmp_path / "trials.jsonl").write_text(json.dumps(trial) + "\n")
    assert read_trials(tmp_path) == [trial]
    changed = {name: value for name, value in {**trial, **change}.items() if value is not ...}
    (tmp_path / "trials.jsonl").write_text(json.dumps(changed) + "\n")
    with pytest.raises(ConfigurationError, match=r"trials\.jsonl is damaged: line 1"):
        read_trials(tmp_path)
