"""The sandbox's keys over time: accepted for later, cancelled, forgotten, stored errors; and its record as it ages."""

from __future__ import annotations

import hashlib
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from provider.sandbox.client import SandboxError
from provider.sandbox.effects import Request
from provider.sandbox.store import Store
from tests.unit.sandbox_process import LIMIT, PROJECT, Running, get, post, start, tell, wait_for


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("sandbox") / "record.db")
    yield running
    assert running.stop() == 0
    assert running.data.with_name("stderr").read_text() == ""


def status(running: Running, key: str) -> str:
    return str(json.loads(get(running, f"/effects/idem-{key}").body)["status"])


# -- later ------------------------------------------------------------------------------------------------------------


def test_what_is_accepted_is_queued_and_then_done_and_only_then_an_effect(shared: Running) -> None:
    tell(shared, "later:1", "accept:0.4")
    answer = post(shared, "later:1")
    assert answer.status == 202
    told = json.loads(answer.body)
    assert told["status"] == "queued"
    assert (status(shared, "later:1"), shared.client.count("later:1")) == ("queued", 0)
    wait_for(lambda: status(shared, "later:1") == "done")
    (effect,) = shared.client.effects(key="later:1")["later:1"]
    assert effect["id"] == told["id"]
    assert effect["at"] == pytest.approx(told["at"] + 0.4)
    assert [one["status"] for one in shared.client.accepted(key="later:1")] == ["done"]


def test_what_is_accepted_can_fail_without_effect(shared: Running) -> None:
    tell(shared, "fails:1", "accept_then_fail:0.2")
    assert post(shared, "fails:1").status == 202
    assert status(shared, "fails:1") == "queued"
    wait_for(lambda: status(shared, "fails:1") == "failed")
    assert shared.client.count("fails:1") == 0


def test_a_repeat_of_an_accepted_key_is_answered_as_the_first_time(shared: Running) -> None:
    tell(shared, "again:1", "accept:0")
    first, second = post(shared, "again:1"), post(shared, "again:1")
    assert (second.status, second.body) == (202, first.body)
    assert second.headers["idempotent-replayed"] == "true"
    assert shared.client.count("again:1") == 1


def test_what_was_accepted_takes_place_although_the_process_was_killed(tmp_path: Path) -> None:
    first = start(tmp_path / "record.db")
    tell(first, "killed:1", "accept:0.3")
    assert post(first, "killed:1").status == 202
    first.stop(signal.SIGKILL)
    second = start(first.data)
    try:
        wait_for(lambda: second.client.count("killed:1") == 1)
    finally:
        second.stop()


# -- stored errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("commit", "effects"), [(False, 0), (True, 1)])
def test_a_stored_error_comes_again_for_the_same_key_and_not_for_another(
    shared: Running, commit: bool, effects: int
) -> None:
    key = f"stored:{commit}"
    tell(shared, key, {"do": "stored_error", "status": 500, "commit": commit}, "ok")
    first, second = post(shared, key), post(shared, key)
    assert (first.status, second.status, second.body) == (500, 500, first.body)
    assert second.headers["idempotent-replayed"] == "true"
    assert shared.client.count(key) == effects
    assert [request["answer"] for request in shared.client.requests(key=key)] == ["500", "500 replayed"]
    assert post(shared, key, idempotency_key="another").status == 201
    assert post(shared, key, b'{"a":2}').status == 422


# -- expiry -----------------------------------------------------------------------------------------------------------


def test_a_key_can_be_forgotten_on_command_and_is_then_a_new_one(shared: Running) -> None:
    for key in ("gone:1", "gone:2", "stays:1"):
        post(shared, key)
    assert shared.client.expire(key="gone:1") == 1
    assert "idempotent-replayed" not in post(shared, "gone:1").headers
    assert (shared.client.count("gone:1"), shared.client.count("gone:2")) == (2, 1)
    assert shared.client.expire(prefix="gone:") == 2
    assert post(shared, "stays:1").headers["idempotent-replayed"] == "true"
    assert shared.client.expire() > 0
    assert "idempotent-replayed" not in post(shared, "stays:1").headers


def test_the_command_line_tells_look_ups_and_forgets_keys(shared: Running) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "provider.sandbox", *arguments, "--url", shared.url]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=LIMIT, check=False)

    post(shared, "cli:1")
    assert run("expire", "--key", "cli:1").stdout == "1 keys forgotten\n"
    assert run("tell", "--key", "cli:1", "--look-up", "outage", "--look-up", '{"do":"deny"}').returncode == 0
    assert run("tell", "--key", "cli:1", "--behaviour", "deny").returncode == 0
    assert [get(shared, "/effects/idem-cli:1").status for _ in range(2)] == [503, 401]
    assert post(shared, "cli:1").status == 401
    assert run("tell", "--key", "cli:1").returncode == 0  # both back
    assert (get(shared, "/effects/idem-cli:1").status, post(shared, "cli:1").status) == (200, 201)
    assert "lag" in run("tell", "--help").stdout


# -- cancelling -------------------------------------------------------------------------------------------------------


def test_a_cancelled_key_takes_no_effect_whether_it_came_before_or_comes_after(shared: Running) -> None:
    tell(shared, "cancel:1", "accept:3600", "ok")
    post(shared, "cancel:1")
    assert shared.client.cancel("idem-cancel:1") == "cancelled"
    assert status(shared, "cancel:1") == "cancelled"
    assert shared.client.cancel("idem-cancel:2") == "cancelled"
    for key in ("cancel:1", "cancel:2"):
        answer = post(shared, key)
        assert (answer.status, json.loads(answer.body)["error"]) == (410, "cancelled")
        assert shared.client.count(key) == 0
    assert post(shared, "cancel:1", idempotency_key="next-epoch").status == 201


def test_what_has_taken_place_or_is_in_flight_cannot_be_cancelled(shared: Running) -> None:
    post(shared, "done:1")
    with pytest.raises(SandboxError, match="too_late"):
        shared.client.cancel("idem-done:1")
    tell(shared, "slow:1", "slow:0.5")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(post, shared, "slow:1")
        wait_for(lambda: shared.client.requests(key="slow:1"))
        with pytest.raises(SandboxError, match="in_flight"):
            shared.client.cancel("idem-slow:1")
        assert slow.result().status == 201
    assert [one["answer"] for one in shared.client.look_ups(key="slow:1")] == ["409"]


def test_the_page_shows_what_was_accepted(shared: Running) -> None:
    tell(shared, "page<:1", "accept:3600")
    post(shared, "page<:1")
    page = get(shared, "/?prefix=page").body.decode()
    assert "<code>page&lt;:1</code></td><td>queued</td>" in page
    assert "Accepted for later" not in get(shared, "/?prefix=none").body.decode()


# -- the record -------------------------------------------------------------------------------------------------------


def test_a_record_of_the_first_version_is_read_and_carried_on(tmp_path: Path) -> None:
    path = tmp_path / "record.db"
    db = sqlite3.connect(path)
    db.executescript(
        """
        CREATE TABLE request (id INTEGER PRIMARY KEY, at REAL NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL,
            key TEXT, idempotency_key TEXT, traceparent TEXT, body_sha256 TEXT, complete INTEGER NOT NULL,
            rule INTEGER, behaviour TEXT, answer TEXT, effect INTEGER);
        CREATE TABLE effect (id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, key TEXT, idempotency_key TEXT,
            body BLOB NOT NULL);
        CREATE TABLE reply (idempotency_key TEXT PRIMARY KEY, at REAL NOT NULL, body_sha256 TEXT NOT NULL,
            effect INTEGER NOT NULL, answer BLOB NOT NULL) WITHOUT ROWID;
        INSERT INTO effect VALUES (1, 1.0, 'k', 'i', CAST('{}' AS BLOB));
        """
    )
    db.execute("INSERT INTO reply VALUES ('i', 1.0, ?, 1, ?)", (hashlib.sha256(b"{}").hexdigest(), b"old"))
    db.commit()
    db.close()
    for _ in range(2):
        store = Store(path, 60)
        assert [effect["id"] for effect in store.effects()["k"]] == ["eff_000001"]
        again = store.commit(Request(2.0, "POST", "/effects", "k", "i", None, b"{}"), 2.0)
        assert (again.effect, again.status, again.answer, again.replayed) == (1, 201, b"old", True)
        assert [found.status for found in store.found(now=2.0)] == ["done"]
        store.close()
