"""What the sandbox remembers: over time, over a kill, and for one owner of its file."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provider.sandbox.effects import Request
from provider.sandbox.store import Store
from tests.unit.sandbox_process import LIMIT, PROJECT, Running, get, post, start, tell, wait_for


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Running]:
    running = start(tmp_path / "deep" / "record.db", "--retention", "1")
    yield running
    running.process.kill()
    running.process.wait(LIMIT)


def test_a_key_is_forgotten_after_its_retention(own: Running) -> None:
    post(own, "old:1")
    deadline = time.monotonic() + LIMIT
    while own.client.count("old:1") < 2:
        assert time.monotonic() < deadline
        post(own, "old:1")


def test_effects_replies_and_script_survive_sigkill(own: Running) -> None:
    first = own
    answer = post(first, "kept:1")
    tell(first, "kept:2", "throttle", "deny", "ok")
    assert post(first, "kept:2").status == 429
    first.stop(signal.SIGKILL)
    second = start(first.data)
    own.process = second.process  # what the fixture ends
    assert second.client.count("kept:1") == 1
    again = post(second, "kept:1")
    assert (again.body, again.headers["idempotent-replayed"]) == (answer.body, "true")
    assert [post(second, "kept:2").status for _ in range(2)] == [401, 201]
    assert second.stop() == 0


def test_sigterm_stops_it_cleanly_with_a_client_waiting(own: Running) -> None:
    tell(own, "wait:1", "commit_then_stall")
    with socket.create_connection(("127.0.0.1", own.port), timeout=LIMIT) as sock:
        sock.sendall(b"POST /effects HTTP/1.1\r\nHost: x\r\nOperation-Key: wait:1\r\nContent-Length: 2\r\n\r\n{}")
        wait_for(lambda: own.client.count("wait:1") == 1)
        assert own.stop() == 0
        assert sock.recv(1) == b""


def test_a_second_one_on_the_same_record_or_port_says_so(own: Running, tmp_path: Path) -> None:
    for arguments, told in (
        (["--port", "0", "--data", str(own.data)], "Is another one running on it?"),
        (["--port", str(own.port), "--data", str(tmp_path / "other.db")], f"cannot listen on port {own.port}"),
    ):
        command = [sys.executable, "-m", "provider.sandbox", *arguments]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 4
        assert told in done.stderr
        assert "Traceback" not in done.stderr
    assert get(own, "/healthz").status == 200


def test_an_effect_and_its_reply_are_one_commit(tmp_path: Path) -> None:
    store = Store(tmp_path / "record.db", 60)
    request = Request(1.0, "POST", "/effects", "k", "i", None, b"{}")

    def die_between() -> None:
        with store.together():
            store.commit(request, 1.0)
            raise RuntimeError("between effect and note")

    with pytest.raises(RuntimeError, match="between"):
        die_between()
    assert store.effects() == {}
    assert not store.commit(request, 2.0).replayed
    store.close()
