"""A Ray that is started here runs nobody else's code."""

import os
import subprocess
import sys

import pytest

from flwr_fco.simulation import ray_actors as ray_token

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}

OURS = """
import os, subprocess, sys
from flwr_fco.simulation import RayActors

STRANGER = '''
import sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
print("ran as", ray.get(ray.remote(lambda: 42).remote(), timeout=60))
'''

with RayActors(1) as workers:
    import ray
    address = ray.get_runtime_context().gcs_address
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    for token in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        done = subprocess.run([sys.executable, "-c", STRANGER, address], env={**environment, **token},
                              capture_output=True, text=True, timeout=200)
        print("stranger", done.returncode, "ran as" in done.stdout, "uthenti" in done.stderr, flush=True)
    done = subprocess.run([sys.executable, "-c", STRANGER, address], capture_output=True, text=True, timeout=200)
    print("friend", done.returncode, "ran as 42" in done.stdout, flush=True)
"""


@pytest.mark.slow
def test_a_stranger_is_refused_and_who_has_the_token_is_not(tmp_path):
    pytest.importorskip("ray")
    if not ray_token.token_settings():
        pytest.skip("this Ray has no tokens, or the environment says something else")
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", OURS], env=environment, capture_output=True, text=True, timeout=550, check=False
    )
    told = [line for line in done.stdout.splitlines() if line.startswith(("stranger", "friend"))]
    assert told == ["stranger 1 False True"] * 2 + ["friend 0 True"], done.stderr[-2000:]
    assert "demands no token" not in done.stderr


def test_what_the_environment_says_stays(monkeypatch):
    monkeypatch.setattr(ray_token, "version", lambda name: "2.55.1")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    first, second = ray_token.token_settings(), ray_token.token_settings()
    assert first["RAY_AUTH_MODE"] == "token"
    assert len(first["RAY_AUTH_TOKEN"]) == 64
    assert first != second
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/some/file")
    assert ray_token.token_settings() == {"RAY_AUTH_MODE": "token"}
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert ray_token.token_settings() == {}


@pytest.mark.parametrize("installed", ["2.51.9", "2.9.0", "1.13"])
def test_an_older_ray_has_none(monkeypatch, installed):
    monkeypatch.setattr(ray_token, "version", lambda name: installed)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert ray_token.token_settings() == {}


@pytest.mark.parametrize(
    ("address", "demands", "said"),
    [(None, True, ""), (None, False, "started on this machine"), ("h:1", False, "cluster at h:1"), ("h:1", True, "")],
)
def test_where_anybody_can_run_code_it_is_said(monkeypatch, caplog, address, demands, said):
    monkeypatch.setitem(sys.modules, "ray", object())
    monkeypatch.setattr(ray_token, "_demands_token", lambda: demands)
    before = dict(os.environ)
    assert ray_token.import_ray(address) is sys.modules["ray"]
    warnings = [record.getMessage() for record in caplog.records if "demands no token" in record.getMessage()]
    assert len(warnings) == bool(said)
    assert not said or said in warnings[0]
    # It is imported already: what is set now would be the raylets' alone.
    assert dict(os.environ) == before
