"""Where a stack says that it is, and what it says when this machine lacks a program. No servers."""

import fcntl
import os
from pathlib import Path

import pytest

from stack import place, state, temporal
from stack.process import AlreadyRunningError, StackError
from stack.state import Addresses, Ports

ADDRESSES = Addresses("a", "b", "c", "d", "e", "f", "g", {"up": 1})


def ignore(_: str) -> None:
    pass


def test_the_file_of_a_running_stack_is_read_and_that_of_an_ended_one_is_not(tmp_path: Path) -> None:
    lock = state.lock_home(tmp_path, ignore)
    state.write(tmp_path, ADDRESSES)
    assert state.read(tmp_path) == ADDRESSES
    os.close(lock)  # as the kernel does when the last of its programs ends
    assert (tmp_path / "stack.json").exists()
    assert state.read(tmp_path) is None


def test_a_home_without_a_stack_has_no_addresses(tmp_path: Path) -> None:
    assert state.read(tmp_path) is None


def test_a_home_in_use_is_refused_with_the_process_that_uses_it(tmp_path: Path) -> None:
    lock = state.lock_home(tmp_path, ignore)
    with pytest.raises(AlreadyRunningError, match=f"process {os.getpid()}"):
        state.lock_home(tmp_path, ignore)
    os.close(lock)


def test_a_killed_stack_whose_programs_still_stop_is_waited_for(tmp_path: Path) -> None:
    gone = os.posix_spawn("/bin/sh", ["sh", "-c", "exit"], {})
    os.waitpid(gone, 0)
    held = os.open(tmp_path / "stack.lock", os.O_RDWR | os.O_CREAT)  # by a guard of the stack that was killed
    os.write(held, str(gone).encode())
    fcntl.flock(held, fcntl.LOCK_EX)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        os.close(held)  # the guard's program has ended now

    os.close(state.lock_home(tmp_path, tell))
    assert len(told) == 1
    assert "still stopping" in told[0]


def test_free_ports_differ() -> None:
    ports = Ports.free()
    assert len({ports.temporal, ports.ui, ports.sandbox, ports.health}) == 4


def test_a_platform_without_postgres_is_told_what_to_point_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack.place.importlib.util.find_spec", lambda name: None)
    with pytest.raises(StackError, match=r"no embedded Postgres for this platform.*DULY_DATABASE_URL"):
        place.place(tmp_path)


def test_a_platform_without_temporal_is_told_what_to_point_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack.temporal.sys.executable", str(tmp_path / "python"))
    with pytest.raises(StackError, match=r"no Temporal server for this platform.*TEMPORAL_ADDRESS"):
        temporal.program()


def test_postgres_is_reached_by_a_short_socket_path_however_deep_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "SHARED", tmp_path)
    monkeypatch.setattr(place, "_digest", lambda path: "0")
    monkeypatch.setattr(place, "SOCKET_PATH_LIMIT", len(str(tmp_path)) + 40)
    assert place._sockets(tmp_path / "postgres", None) == tmp_path / "postgres"
    deep = tmp_path / ("deep" * 20) / "postgres"
    assert place._sockets(deep, None) == tmp_path / "duly-socket-0"
    assert (tmp_path / "duly-socket-0").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_somebody_else_put_in_our_way_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "SHARED", tmp_path)
    (tmp_path / "target").mkdir()
    (tmp_path / "duly-0").symlink_to(tmp_path / "target")
    with pytest.raises(StackError, match="not ours"):
        place._shared_folder("duly-0")
