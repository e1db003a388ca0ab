"""The sandbox provider: what it does to a client and what it shows."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from provider.sandbox.behaviours import BEHAVIOURS, parse_behaviour
from provider.sandbox.client import SandboxError
from tests.unit.sandbox_process import LIMIT, PROJECT, Running, get, post, start, tell, wait_for


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("sandbox") / "record.db")
    yield running
    assert running.stop() == 0
    assert running.data.with_name("stderr").read_text() == ""


# -- effects and keys -------------------------------------------------------------------------------------------------


def test_a_request_is_one_effect_with_an_id(shared: Running) -> None:
    answer = post(shared, "one:1", '{"name":"Zoë 愛"}'.encode())
    assert answer.status == 201
    (effect,) = shared.client.effects(key="one:1")["one:1"]
    assert json.loads(answer.body)["id"] == effect["id"]
    assert effect["body"] == {"name": "Zoë 愛"}
    assert effect["idempotency_key"] == "idem-one:1"


def test_a_repeat_of_a_key_is_answered_with_the_same_bytes_and_no_second_effect(shared: Running) -> None:
    first, second = post(shared, "repeat:1"), post(shared, "repeat:1")
    assert (second.status, second.body) == (201, first.body)
    assert second.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    assert shared.client.count("repeat:1") == 1
    assert [request["answer"] for request in shared.client.requests(key="repeat:1")] == ["201", "201 replayed"]


def test_the_same_key_with_another_body_is_refused(shared: Running) -> None:
    post(shared, "mismatch:1")
    answer = post(shared, "mismatch:1", b'{"a":2}')
    assert (answer.status, json.loads(answer.body)["error"]) == (422, "key_mismatch")
    assert shared.client.count("mismatch:1") == 1


def test_effects_count_by_the_operations_key_and_not_by_the_idempotency_key(shared: Running) -> None:
    post(shared, "twice:1", idempotency_key="epoch-0")
    post(shared, "twice:1", idempotency_key="epoch-1")
    assert shared.client.count("twice:1") == 2


def test_many_clients_with_one_key_make_one_effect(shared: Running) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(shared, "race:1"), range(24)))
    assert {(answer.status, answer.body) for answer in answers} == {(201, answers[0].body)}
    assert shared.client.count("race:1") == 1


# -- behaviours -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "failure", "effects"),
    [
        ("commit_then_close", http.client.RemoteDisconnected, 1),
        ("close_before_commit", http.client.RemoteDisconnected, 0),
        ("commit_then_stall", TimeoutError, 1),
        ("cut_body", http.client.IncompleteRead, 1),
        ("reset", ConnectionResetError, 0),
        ({"do": "reset", "commit": True}, ConnectionResetError, 1),
    ],
    ids=str,
)
def test_a_reply_is_lost_as_told_and_the_effect_is_there_or_not(
    shared: Running, behaviour: Any, failure: type[Exception], effects: int
) -> None:
    key = f"lost:{behaviour}"[:40].replace("'", "").replace(" ", "")
    tell(shared, key, behaviour, "ok")
    with pytest.raises(failure) as caught:
        post(shared, key, seconds=0.3 if failure is TimeoutError else LIMIT)
    assert caught.type is failure  # RemoteDisconnected is a ConnectionResetError too
    assert shared.client.count(key) == effects
    again = post(shared, key)
    assert again.status == 201
    assert ("idempotent-replayed" in again.headers) is (effects == 1)
    assert shared.client.count(key) == 1


def test_a_cut_body_has_its_status_and_half_its_bytes(shared: Running) -> None:
    tell(shared, "cut:1", "cut_body")
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=LIMIT)
    connection.request("POST", "/effects", b"{}", {"Operation-Key": "cut:1"})
    answer = connection.getresponse()
    assert answer.status == 201
    with pytest.raises(http.client.IncompleteRead) as caught:
        answer.read()
    assert 0 < len(caught.value.partial) < int(answer.headers["content-length"])
    connection.close()


@pytest.mark.parametrize(
    ("behaviour", "status", "header", "effects"),
    [
        ("status:503", 503, None, 0),
        ({"do": "status", "status": 500, "commit": True}, 500, None, 1),
        ({"do": "status", "status": 307, "headers": {"Location": "http://[bad"}}, 307, ("location", "http://[bad"), 0),
        ({"do": "status", "status": 204, "body": "ignored"}, 204, None, 0),
        ("throttle:30", 429, ("retry-after", "30"), 0),
        ({"do": "throttle", "retry_after": "soon"}, 429, ("retry-after", "soon"), 0),
        ("deny", 401, ("www-authenticate", "Bearer"), 0),
        ("in_flight_409", 409, None, 0),
        ("commit_then_stall:0", None, None, 1),
    ],
    ids=str,
)
def test_any_status_can_be_had_with_or_without_an_effect(
    shared: Running, behaviour: Any, status: int | None, header: tuple[str, str] | None, effects: int
) -> None:
    key = "status:" + str(abs(hash(str(behaviour))))
    tell(shared, key, behaviour)
    if status is None:
        with pytest.raises(http.client.RemoteDisconnected):
            post(shared, key)
    else:
        answer = post(shared, key)
        assert answer.status == status
        assert header is None or answer.headers[header[0]] == header[1]
    assert shared.client.count(key) == effects


def test_ignoring_keys_makes_an_effect_each_time(shared: Running) -> None:
    tell(shared, "ignored:1", "ignore_keys")
    assert {post(shared, "ignored:1").status for _ in range(3)} == {201}
    assert shared.client.count("ignored:1") == 3


def test_slow_commits_after_the_wait_also_for_a_client_that_left_and_answers_409_meanwhile(shared: Running) -> None:
    tell(shared, "slow:1", "slow:0.5", "ok")
    with pytest.raises(TimeoutError):
        post(shared, "slow:1", seconds=0.1)
    assert shared.client.count("slow:1") == 0
    assert post(shared, "slow:1").status == 409
    wait_for(lambda: shared.client.count("slow:1") == 1)
    assert post(shared, "slow:1").headers["idempotent-replayed"] == "true"


def test_a_request_that_breaks_off_is_noted_and_has_no_effect(shared: Running) -> None:
    with socket.create_connection(("127.0.0.1", shared.port)) as sock:
        sock.sendall(b"POST /effects HTTP/1.1\r\nHost: x\r\nOperation-Key: broken:1\r\nContent-Length: 9\r\n\r\n{")
    wait_for(lambda: shared.client.requests(key="broken:1"))
    (request,) = shared.client.requests(key="broken:1")
    assert (request["complete"], request["answer"]) == (False, "incomplete")
    assert shared.client.count("broken:1") == 0


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01 hello", b"GET / HTTP/1.1\r\n\r\n", b"POST /effects HTTP/9\r\n\r\n", b""]
)
def test_what_is_no_http_harms_nobody(shared: Running, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=LIMIT) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass
    assert get(shared, "/healthz").status == 200


def test_a_connection_can_carry_several_requests(shared: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=LIMIT)
    for number in range(3):
        connection.request(
            "POST", "/effects", b"{}", {"Operation-Key": f"keep:{number}", "Idempotency-Key": f"keep{number}"}
        )
        answer = connection.getresponse()
        assert answer.status == 201
        answer.read()
    connection.close()


def test_a_body_too_large_is_refused_and_noted(shared: Running) -> None:
    assert post(shared, "large:1", b"x" * 1_100_000).status == 413
    assert shared.client.count("large:1") == 0
    assert [request["answer"] for request in shared.client.requests(key="large:1")] == ["413"]


# -- what it shows ----------------------------------------------------------------------------------------------------


def test_effects_and_requests_can_be_asked_for_by_key_and_prefix(shared: Running) -> None:
    for key in ("ask%:1", "ask%:2", "askother:1"):
        post(shared, key)
    assert list(shared.client.effects(prefix="ask%:")) == ["ask%:1", "ask%:2"]
    assert list(shared.client.effects(key="ask%:2")) == ["ask%:2"]
    assert [request["key"] for request in shared.client.requests(prefix="ask%:")] == ["ask%:1", "ask%:2"]
    assert {"ask%:1", "askother:1"} <= shared.client.effects().keys()
    totals = shared.client.health()
    assert totals["requests"] >= totals["effects"] >= totals["keys"] >= 3


def test_the_page_shows_names_as_they_are_and_runs_nothing(shared: Running) -> None:
    post(shared, "page:1", '{"name":"Zoë Łuczak 愛","x":"<script>alert(1)</script>"}'.encode())
    answer = get(shared, "/?prefix=page")
    page = answer.body.decode()
    assert "Zoë Łuczak 愛" in page
    assert "page:1" in page
    assert "<script>" not in page
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "http://" not in page
    assert "https://" not in page
    assert "'><b>x" not in get(shared, "/?prefix=%27%3E%3Cb%3Ex").body.decode()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("DELETE", "/effects", 405), ("PUT", "/effects", 405), ("POST", "/script", 405)],
)
def test_nobody_can_change_effects_but_by_making_one(shared: Running, method: str, path: str, status: int) -> None:
    assert get(shared, path, method).status == status


# -- the script -------------------------------------------------------------------------------------------------------


def test_every_behaviour_is_documented_and_can_be_told_by_name(shared: Running) -> None:
    for name in BEHAVIOURS:
        assert parse_behaviour(name).do == name
        tell(shared, f"every:{name}", name)


def test_no_behaviour_takes_the_instruction_back(shared: Running) -> None:
    tell(shared, "back:1", "deny")
    assert post(shared, "back:1").status == 401
    tell(shared, "back:1")
    assert post(shared, "back:1").status == 201


def test_an_instruction_that_means_nothing_is_refused_and_changes_nothing(shared: Running) -> None:
    tell(shared, "nonsense:1", "deny")
    with pytest.raises(SandboxError) as caught:
        tell(shared, "nonsense:1", "nope")
    assert "there are: ok, commit_then_close" in str(caught.value)
    with pytest.raises(SandboxError):
        shared.client._ask("PUT", "/script", [1])
    assert post(shared, "nonsense:1").status == 401


def test_the_command_line_tells_and_shows(shared: Running) -> None:
    def run(*arguments: str, url: str = shared.url) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "provider.sandbox", *arguments, "--url", url]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=LIMIT, check=False)

    assert run("tell", "--key", "cli:1", "--behaviour", "deny", "--behaviour", '{"do":"ok"}').returncode == 0
    assert [post(shared, "cli:1").status for _ in range(2)] == [401, 201]
    assert list(json.loads(run("effects", "--key", "cli:1", "--json").stdout)) == ["cli:1"]
    assert run("effects", "--prefix", "cli:").stdout.split()[:2] == ["1", "cli:1"]
    refused = run("tell", "--key", "cli:1", "--behaviour", "nope")
    assert (refused.returncode, "no behaviour" in refused.stderr) == (3, True)
    away = run("effects", url="http://127.0.0.1:1")
    assert (away.returncode, "There is no sandbox at" in away.stderr) == (4, True)


def test_a_proxy_in_the_environment_does_not_reach_the_client(shared: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "http_proxy", "http://127.0.0.1:1")
    assert shared.client.health()["ok"] is True
