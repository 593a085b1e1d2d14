"""What a process of ours has started ends with it, also if it is killed and can say nothing."""

import os
import signal
import subprocess
import time

import pytest

from tools.local_superlink import command_line, end_of, watch


@pytest.mark.parametrize("ours", [True, False])
def test_the_superlink_of_a_killed_process_is_ended_with_what_it_started(tmp_path, ours):
    """The system closes a killed process's end of the pipe; another's process of the same number is left alone."""
    # A child with a session of its own, as the SuperLink's.
    script = "setsid sleep 1000 & echo $!; exec sleep 1000"
    environment = {**os.environ, "FLWR_HOME": str(tmp_path if ours else tmp_path / "other")}
    options = {"stdout": subprocess.PIPE, "start_new_session": True, "env": environment}
    with subprocess.Popen(["sh", "-c", script], **options) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        watcher, lifeline = watch(leader.pid, tmp_path)
        try:
            time.sleep(0.2)
            assert leader.poll() is None
            os.close(lifeline)
            os.waitpid(watcher, 0)
            assert (leader.poll() is None) != ours
            assert bool(command_line(child)) != ours
        finally:
            for pid in (leader.pid, child):
                if command_line(pid):
                    os.kill(pid, signal.SIGKILL)


def test_of_a_log_of_gigabytes_the_end_is_read(tmp_path):
    log = tmp_path / "node-0.log"
    with log.open("wb") as file:
        file.truncate(2**35)
        file.seek(0, os.SEEK_END)
        file.write(b"the end\n")
    assert len(end_of(log)) <= 2**24
    assert end_of(log).endswith("\0the end\n")
    assert end_of(log, 2**35) == "the end\n"
    assert end_of(tmp_path / "none.log") == ""
