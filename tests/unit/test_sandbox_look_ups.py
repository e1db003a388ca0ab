"""The sandbox when it is asked: what is true, what is late, and what is a lie."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from provider.sandbox.behaviours import LOOK_UPS, parse_behaviour
from provider.sandbox.client import SandboxError
from tests.unit.sandbox_process import LIMIT, Answer, Running, get, post, start, tell, wait_for


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("sandbox") / "record.db")
    yield running
    assert running.stop() == 0
    assert running.data.with_name("stderr").read_text() == ""


def told(running: Running, key: str, *behaviour: str | dict[str, Any]) -> None:
    running.client.tell(*behaviour, key=key, look_up=True)


def ask(running: Running, key: str) -> Answer:
    return get(running, f"/effects/idem-{quote(key)}")


def listed(running: Running, query: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(running, f"/effects?{query}").body)
    return found


# -- the truth --------------------------------------------------------------------------------------------------------


def test_an_effect_is_found_by_its_idempotency_key_with_what_identifies_it(shared: Running) -> None:
    made = json.loads(post(shared, "true:1", b'{"order_id":17}').body)
    answer = ask(shared, "true:1")
    found = json.loads(answer.body)
    assert answer.status == 200
    assert found == {
        "id": made["id"],
        "status": "done",
        "operation_key": "true:1",
        "idempotency_key": "idem-true:1",
        "at": made["at"],
        "payload": {"order_id": 17},
    }


def test_what_is_not_there_is_404_by_key_and_an_empty_list(shared: Running) -> None:
    answer = ask(shared, "never:1")
    assert (answer.status, json.loads(answer.body)["error"]) == (404, "not_found")
    assert listed(shared, "idempotency_key=never") == {"items": [], "next": None}


def test_the_list_comes_newest_first_in_pages_without_gap_or_repeat(shared: Running) -> None:
    ids = [json.loads(post(shared, "paged:1", idempotency_key=f"page-{number}").body)["id"] for number in range(5)]
    seen: list[str] = []
    target: str | None = "/effects?operation_key=paged%3A1&limit=2"
    sizes = []
    while target is not None:
        page = json.loads(get(shared, target).body)
        sizes.append(len(page["items"]))
        seen += [item["id"] for item in page["items"]]
        target = page["next"]
    assert (seen, sizes) == (ids[::-1], [2, 2, 1])


def test_a_page_that_is_just_full_has_no_next_one(shared: Running) -> None:
    for number in range(2):
        post(shared, "full:1", idempotency_key=f"full-{number}")
    assert listed(shared, "operation_key=full:1&limit=2")["next"] is None


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "cursor=x"])
def test_a_page_that_cannot_be_is_refused(shared: Running, query: str) -> None:
    assert get(shared, f"/effects?{query}").status == 400


def test_two_effects_of_one_key_are_a_conflict_by_key_and_two_in_the_list(shared: Running) -> None:
    tell(shared, "double:1", "ignore_keys")
    post(shared, "double:1")
    post(shared, "double:1")
    answer = ask(shared, "double:1")
    assert (answer.status, json.loads(answer.body)["error"]) == (409, "several")
    assert len(listed(shared, "idempotency_key=idem-double:1")["items"]) == 2


def test_look_ups_are_noted_apart_and_are_no_requests(shared: Running) -> None:
    post(shared, "noted:1")
    ask(shared, "noted:1")
    listed(shared, "operation_key=noted:1")
    assert len(shared.client.requests(key="noted:1")) == 1
    assert [(one["path"], one["behaviour"], one["answer"]) for one in shared.client.look_ups(key="noted:1")] == [
        ("/effects/idem-noted%3A1", "ok", "200"),
        ("/effects?operation_key=noted:1", "ok", "200"),
    ]


# -- lag and lies -----------------------------------------------------------------------------------------------------


def test_with_a_lag_an_effect_is_shown_late_and_then_for_good(shared: Running) -> None:
    told(shared, "lag:1", "lag:0.5")
    at = json.loads(post(shared, "lag:1").body)["at"]
    assert ask(shared, "lag:1").status == 404
    assert listed(shared, "operation_key=lag:1")["items"] == []
    wait_for(lambda: ask(shared, "lag:1").status == 200)
    assert time.time() - at >= 0.5
    assert len(listed(shared, "operation_key=lag:1")["items"]) == 1


def test_it_can_lie_that_nothing_is_there_and_the_record_does_not(shared: Running) -> None:
    post(shared, "hidden:1")
    told(shared, "hidden:1", "absent")
    assert ask(shared, "hidden:1").status == 404
    assert listed(shared, "operation_key=hidden:1")["items"] == []
    assert shared.client.count("hidden:1") == 1


def test_it_can_lie_that_something_is_there_and_the_record_does_not(shared: Running) -> None:
    told(shared, "made-up:1", "present")
    answer = get(shared, "/effects/made-up:1")
    assert (answer.status, json.loads(answer.body)["idempotency_key"]) == (200, "made-up:1")
    assert shared.client.count("made-up:1") == 0


def test_it_can_show_two_where_there_is_one_and_somebody_elses(shared: Running) -> None:
    post(shared, "one:1")
    told(shared, "one:1", "several", "several", "wrong", "wrong", "full_page", "full_page", "ok")
    assert ask(shared, "one:1").status == 409
    items = listed(shared, "operation_key=one:1")["items"]
    assert [item["idempotency_key"] for item in items] == ["idem-one:1", "idem-one:1"]
    assert items[0]["id"] != items[1]["id"]
    assert json.loads(ask(shared, "one:1").body)["idempotency_key"] == "somebody-else"
    assert [item["operation_key"] for item in listed(shared, "operation_key=one:1")["items"]] == ["somebody-else"]
    page = listed(shared, "operation_key=one:1&limit=7")
    assert (len(page["items"]), page["next"]) == (7, None)
    assert json.loads(ask(shared, "one:1").body)["idempotency_key"] == "somebody-else"
    assert json.loads(ask(shared, "one:1").body)["idempotency_key"] == "idem-one:1"


def test_it_can_be_out_or_deny_or_break_off_or_say_nothing(shared: Running) -> None:
    post(shared, "out:1")
    told(shared, "out:1", "outage", "outage:502", "deny", "cut_body", "stall", "stall:0", "ok")
    assert [ask(shared, "out:1").status for _ in range(3)] == [503, 502, 401]
    with pytest.raises(http.client.IncompleteRead):
        ask(shared, "out:1")
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=0.2)
    connection.request("GET", "/effects/idem-out:1")
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    with pytest.raises(http.client.RemoteDisconnected):
        ask(shared, "out:1")
    assert ask(shared, "out:1").status == 200


def test_instructions_for_look_ups_and_for_requests_do_not_replace_each_other(shared: Running) -> None:
    tell(shared, "both:1", "deny", "ok")
    told(shared, "both:1", "outage", "ok")
    assert [post(shared, "both:1").status, ask(shared, "both:1").status] == [401, 503]
    assert [post(shared, "both:1").status, ask(shared, "both:1").status] == [201, 200]
    told(shared, "both:1")
    assert len([rule for rule in json.loads(get(shared, "/script").body)["script"] if rule["key"] == "both:1"]) == 1


def test_a_key_that_never_arrived_is_told_by_the_header_of_the_look_up(shared: Running) -> None:
    told(shared, "lost:1", "outage")
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=LIMIT)
    connection.request("GET", "/effects/unheard", headers={"Operation-Key": "lost:1"})
    assert connection.getresponse().status == 503
    connection.close()


def test_every_behaviour_of_look_ups_can_be_told_by_name_and_no_other(shared: Running) -> None:
    for name in LOOK_UPS:
        assert parse_behaviour(name, LOOK_UPS).do == name
        told(shared, f"every:{name}", name)
    with pytest.raises(SandboxError, match="there are: ok, lag"):
        told(shared, "every:1", "slow")
    with pytest.raises(SandboxError, match="not both"):
        shared.client._ask("PUT", "/script", {"key": "x", "look_up": [], "behaviour": []})
