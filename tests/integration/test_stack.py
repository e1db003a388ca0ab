"""The local stack on real programs: what it starts, keeps, stops, and leaves behind when it is killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from stack import state
from stack.local import Stack
from stack.place import temporary_home
from stack.process import AlreadyRunningError, StackError, answers_ok
from stack.state import REPOSITORY, Ports
from stack.temporal import HEADLESS
from tests.harness import Site

# Runs a stack in a process of its own, as `./duly up` does. Arguments: home, whether with a worker, then four ports.
SERVE = """
import sys
from pathlib import Path
from stack import serve
from stack.local import Stack
from stack.state import Ports
serve.SHORTEST_LIFE = 0
serve.serve(Stack(Path(sys.argv[1]), ports=Ports(*map(int, sys.argv[3:])), with_worker=sys.argv[2] == "worker",
                  external=False, quick=True, progress=lambda line: print(line, flush=True)))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with temporary_home() as folder:
        yield folder


def small(home: Path, *, ports: Ports | None = None, lines: list[str] | None = None) -> Stack:
    """A stack without worker and web UI."""
    lines = [] if lines is None else lines
    return Stack(
        home,
        ports=ports or Ports.free(),
        with_worker=False,
        external=False,
        quick=True,
        temporal_arguments=HEADLESS,
        progress=lines.append,
    )


def serve(home: Path, ports: Ports, *, worker: bool = False) -> subprocess.Popen[str]:
    arguments = [str(home), "worker" if worker else "none"]
    arguments += [str(port) for port in (ports.temporal, ports.ui, ports.sandbox, ports.health)]
    return subprocess.Popen(
        [sys.executable, "-c", SERVE, *arguments], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )


def lines_until_ready(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith("ready"):
            return lines
    raise AssertionError(f"it ended before it was ready: {lines}")


def wait_for(condition: Callable[[], bool], what: str, limit: float = 30.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit:.0f} s: {what}"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie that only its parent can clear away has ended too.
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"


def mark(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('committed')")


def marked(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT word FROM kept").fetchall() == [("committed",)]


def test_a_stack_says_where_each_part_is_and_each_part_is_there(home: Path) -> None:
    lines: list[str] = []
    stack = small(home, lines=lines)
    with stack:
        found = state.read(home)
        assert found is not None
        assert found == stack.addresses
        with psycopg.connect(found.worker_database_url) as connection:
            assert connection.execute("SELECT current_user").fetchone() == ("duly_stack_worker",)
        assert answers_ok(stack.ports.sandbox, "/healthz")
        socket.create_connection(("127.0.0.1", stack.ports.temporal), timeout=5).close()
        assert set(found.pids) == {"postgres", "temporal", "sandbox", "up"}
    text = "\n".join(lines)
    assert found.database_url in text
    assert found.temporal_address in text
    assert found.sandbox_url in text


def test_stopping_leaves_no_process_and_no_state_file(home: Path) -> None:
    stack = small(home)
    pids = dict(stack.start().pids)
    stack.stop()
    pids.pop("up")
    assert all(gone(pid) for pid in pids.values())
    assert state.read(home) is None
    assert not (home / "stack.json").exists()


def test_a_second_start_finds_the_data_of_the_first(home: Path) -> None:
    with small(home) as stack:
        mark(stack.database_url())
    with small(home) as stack:
        assert marked(stack.database_url())


def test_ctrl_c_stops_every_part_in_order_and_exits_zero(home: Path) -> None:
    process = serve(home, Ports.free())
    lines_until_ready(process)
    found = state.read(home)
    assert found is not None
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert rest.split("\n")[:3] == ["sandbox: stopping", "temporal: stopping", "postgres: stopping"]
    assert all(gone(pid) for pid in found.pids.values())
    assert state.read(home) is None


def test_a_killed_stack_leaves_no_orphan_and_starts_again_on_its_data(home: Path) -> None:
    ports = Ports.free()
    process = serve(home, ports)
    lines_until_ready(process)
    found = state.read(home)
    assert found is not None
    mark(found.database_url)
    process.kill()
    process.communicate()
    wait_for(lambda: all(gone(pid) for pid in found.pids.values()), "every program has stopped")
    wait_for(lambda: state.read(home) is None, "the file of the killed stack counts for nothing")
    with small(home, ports=ports) as stack:
        assert marked(stack.database_url())


def test_a_killed_worker_is_started_again_and_term_lets_it_drain_first(home: Path) -> None:
    ports = Ports.free()
    process = serve(home, ports, worker=True)
    lines = lines_until_ready(process)
    assert f"worker: ready, health at http://127.0.0.1:{ports.health}" in lines
    before = state.read(home)
    assert before is not None
    os.kill(before.pids["worker 1"], signal.SIGKILL)

    def another() -> bool:
        now = state.read(home)
        return now is not None and now.pids["worker 1"] != before.pids["worker 1"]

    wait_for(another, "another worker is ready", limit=60)
    after = state.read(home)
    assert after is not None
    process.terminate()
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "the worker ended (code 137)" in rest
    assert rest.splitlines()[-4:] == [
        "worker: stopping",
        "sandbox: stopping",
        "temporal: stopping",
        "postgres: stopping",
    ]
    assert all(gone(pid) for pid in after.pids.values())
    assert "stopped" in (home / "logs" / "worker.log").read_text().splitlines()[-1]


def test_a_second_stack_on_the_same_home_is_told_that_one_runs(home: Path) -> None:
    with small(home), pytest.raises(AlreadyRunningError, match=f"running already on {home}") as refusal:
        small(home).start()
    assert refusal.value.exit_code == 3


def test_a_taken_port_is_named_with_the_flag_that_changes_it_and_nothing_stays_running(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        free = Ports.free()
        for ports, flag in [
            (Ports(port, free.ui, free.sandbox, free.health), "--temporal-port"),
            (Ports(free.temporal, free.ui, port, free.health), "--sandbox-port"),
        ]:
            stack = small(home, ports=ports)
            with pytest.raises(StackError, match=f"port {port} for .* is taken .*{flag}") as refusal:
                stack.start()
            assert refusal.value.exit_code == 4
            assert (stack.postgres, stack.temporal, stack.sandbox) == (None, None, None)


def test_postgres_killed_comes_back_with_what_was_committed(home: Path) -> None:
    with small(home) as stack:
        mark(stack.database_url())
        stack.stop_postgres(kill=True)
        stack.start_postgres()
        assert marked(stack.database_url())


def test_a_stale_pid_file_of_postgres_is_no_obstacle(home: Path) -> None:
    with small(home) as stack:
        assert stack._place is not None
        pid_file = stack._place.data / "postmaster.pid"
        left = pid_file.read_text()
        owner = pid_file.stat()
    pid_file.write_text(left)
    pid_file.chmod(0o600)
    os.chown(pid_file, owner.st_uid, owner.st_gid)
    with small(home) as stack:
        assert stack.postgres is not None


def test_temporal_killed_comes_back_and_knows_its_search_attributes(home: Path) -> None:
    with small(home) as stack:
        stack.stop_temporal(kill=True)
        stack.start_temporal()  # returns only when every search attribute is there
        assert stack.temporal is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's Postgres runs as another user")
def test_a_home_closed_to_the_user_of_postgres_gets_its_data_folder_elsewhere(home: Path) -> None:
    home.chmod(0o700)
    lines: list[str] = []
    with small(home, lines=lines) as stack:
        assert stack._place is not None
        assert stack._place.data.is_relative_to("/var/tmp")
        assert any(str(stack._place.data) in line for line in lines)
        mark(stack.database_url())
    with small(home) as stack:
        assert marked(stack.database_url())


def test_workers_of_one_test_share_its_database_and_namespace_and_can_be_killed_one_by_one(
    site: Site, stack_env: Stack
) -> None:
    first, second = (stack_env.start_worker(site.environment) for _ in range(2))
    try:
        first.kill()
        assert first.exit_code == 128 + signal.SIGKILL
        assert second.running
        assert first.log != second.log
    finally:
        for worker in (first, second):
            stack_env.stop_worker(worker, kill=True)


def test_a_database_and_a_temporal_server_that_the_environment_names_are_used(
    home: Path, stack_env: Stack, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{stack_env.ports.temporal}"
    monkeypatch.setenv("DULY_DATABASE_URL", database)
    monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    with Stack(home, ports=Ports.free(), with_worker=False) as stack:
        assert stack.addresses is not None
        assert (stack.postgres, stack.temporal) == (None, None)
        assert stack.addresses.database_url == database
        assert stack.addresses.temporal_address == address
        environment = stack.environment()
    assert environment["DULY_DATABASE_URL"] == database
    assert environment["TEMPORAL_ADDRESS"] == address


def test_a_database_that_cannot_be_reached_is_said_by_the_variable_that_names_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DULY_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(StackError, match="DULY_DATABASE_URL cannot be reached"):
        Stack(home, ports=Ports.free(), with_worker=False).start()
