"""Look-ups over HTTP: what each answer proves."""

from __future__ import annotations

from typing import Any

import pytest

from provider.http_adapter import HttpAdapter
from provider.http_look_up import PAGE_MAX
from provider.port import Finding, FindingName
from provider.settings import ConnectionSettings
from tests.unit.exchanges import free_port
from tests.unit.http_provider import PAYLOAD, TOKEN, adapter
from tests.unit.look_up_provider import LIST, ONE, OTHER, OWN, STATUS, a_query, answer, ask
from tests.unit.raw_server import replying, serving, tls_files

# -- the request ------------------------------------------------------------------------------------------------------


async def test_a_look_up_is_a_get_with_the_credential_and_neither_body_nor_idempotency_key() -> None:
    finding, seen = await ask(replying(answer(200, {"id": "e1"})), ONE)
    assert finding == Finding(FindingName.APPLIED, "e1", "", 200)
    head, body = seen.requests[0].split(b"\r\n\r\n", 1)
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "get /effects/idem-1 http/1.1"
    assert f"authorization: bearer {TOKEN}" in lines
    assert "operation-key: order-17:confirmation:1" in lines
    assert not [line for line in lines if line.startswith(("idempotency-key", "content-"))]
    assert body == b""


async def test_what_a_payload_or_reference_contains_cannot_change_the_address() -> None:
    look_up = {**ONE, "by": "reference", "url": "${SANDBOX}/e/{reference}?n={payload.name}"}
    query = a_query(reference="../a?b#c", payload={"name": "x&y=z"})
    _, seen = await ask(replying(answer(404)), look_up, query)
    assert seen.requests[0].startswith(b"GET /e/..%2Fa%3Fb%23c?n=x%26y%3Dz HTTP/1.1\r\n")


async def test_a_header_that_belongs_to_an_attempt_is_not_sent_with_a_question() -> None:
    _, seen = await ask(replying(answer(404)), ONE, headers={"X-Attempt": "{attempt}", "X-Kind": "{kind}"})
    assert b"x-attempt" not in seen.requests[0].lower()
    assert b"x-kind: order.confirmation" in seen.requests[0].lower()


async def test_the_hook_for_crash_points_is_not_called_for_a_question() -> None:
    called = []
    async with serving(replying(answer(404))) as seen:
        base = f"http://127.0.0.1:{seen.port}"
        made = adapter(base, look_up=ONE)
        used = HttpAdapter(
            "main",
            made._settings,
            ConnectionSettings(provider="x"),
            {"SANDBOX": base, "TOKEN": TOKEN},
            before_first_byte=lambda: called.append(1),
        )
        assert (await used.look_up(a_query())).name is FindingName.ABSENT
    assert called == []


# -- one object -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "document", "name"),
    [
        (200, {"id": "e1"}, FindingName.APPLIED),
        (200, {"id": 17}, FindingName.APPLIED),
        (404, {"error": "not_found"}, FindingName.ABSENT),
        (404, None, FindingName.ABSENT),
        (200, {"ok": False, "error": "x"}, FindingName.CANNOT_TELL),
        (200, {"id": None}, FindingName.CANNOT_TELL),
        (200, {"id": True}, FindingName.CANNOT_TELL),
        (200, {"id": ""}, FindingName.CANNOT_TELL),
        (200, [{"id": "e1"}], FindingName.CANNOT_TELL),
        (200, b"<html>", FindingName.CANNOT_TELL),
        (200, None, FindingName.CANNOT_TELL),
        (201, {"id": "e1"}, FindingName.CANNOT_TELL),
        (202, {"id": "e1"}, FindingName.CANNOT_TELL),
        (204, None, FindingName.CANNOT_TELL),
        (206, {"id": "e1"}, FindingName.CANNOT_TELL),
        (301, None, FindingName.CANNOT_TELL),
        (400, {"error": "bad"}, FindingName.CANNOT_TELL),
        (401, {"error": "denied"}, FindingName.CANNOT_TELL),
        (403, {"error": "denied"}, FindingName.CANNOT_TELL),
        (410, None, FindingName.CANNOT_TELL),
        (429, None, FindingName.CANNOT_TELL),
        (500, {"id": "e1"}, FindingName.CANNOT_TELL),
        (503, None, FindingName.CANNOT_TELL),
    ],
)
async def test_one_object_is_there_or_absent_by_the_providers_own_words_only(
    status: int, document: Any, name: FindingName
) -> None:
    finding, seen = await ask(replying(answer(status, document)), ONE)
    assert (finding.name, finding.status_code) == (name, status)
    assert len(seen.requests) == 1
    assert bool(finding.detail) is (name is FindingName.CANNOT_TELL)


@pytest.mark.parametrize(
    ("status", "document", "name"),
    [
        (400, {"error": "RecordNotFound"}, FindingName.ABSENT),
        (400, {"error": "InvalidRequest"}, FindingName.CANNOT_TELL),
        (400, b"RecordNotFound", FindingName.CANNOT_TELL),
        (404, {"error": "RecordNotFound"}, FindingName.CANNOT_TELL),  # not among the statuses
    ],
)
async def test_absence_by_an_error_code_is_that_code_and_no_other(
    status: int, document: Any, name: FindingName
) -> None:
    absent = {"statuses": [400], "path": "error", "values": ["RecordNotFound"]}
    finding, _ = await ask(replying(answer(status, document)), {**ONE, "absent": absent})
    assert finding.name is name


@pytest.mark.parametrize(
    "answered",
    [
        b"HTTP/1.1 404 X\r\nContent-Length: 9\r\n\r\n{",  # cut
        b'HTTP/1.1 200 X\r\nContent-Length: 99\r\n\r\n{"id":"e1"}',
        b"HTTP/1.1 404 X\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        b'HTTP/1.1 200 X\r\n\r\n{"id":"e1","x":"' + b"y" * PAGE_MAX + b'"}',
        b"junk\r\n\r\n",
        b"",
    ],
    ids=["cut 404", "cut 200", "bad gzip", "too long", "junk", "closed"],
)
async def test_an_answer_that_is_not_whole_cannot_tell(answered: bytes) -> None:
    finding, seen = await ask(replying(answered), ONE)
    assert finding.name is FindingName.CANNOT_TELL
    assert finding.detail
    assert seen.connections == 1


async def test_what_cannot_be_reached_cannot_tell() -> None:
    used = adapter(f"http://127.0.0.1:{free_port()}", look_up=ONE)
    finding = await used.look_up(a_query())
    assert (finding.name, finding.status_code) == (FindingName.CANNOT_TELL, None)
    assert "could not ask" in finding.detail
    _, tls = tls_files()
    async with serving(replying(answer(404)), tls) as seen:
        finding = await adapter(f"https://127.0.0.1:{seen.port}", look_up=ONE).look_up(a_query())
        assert finding.name is FindingName.CANNOT_TELL


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("done", FindingName.APPLIED),
        ("queued", FindingName.WORKING),
        ("failed", FindingName.REFUSED),
        ("reversed", FindingName.CANNOT_TELL),
        (None, FindingName.CANNOT_TELL),
    ],
)
async def test_a_status_says_what_its_list_says_and_an_unlisted_one_nothing(
    word: str | None, name: FindingName
) -> None:
    finding, _ = await ask(replying(answer(200, {"id": "e1", "status": word})), {**ONE, "status": STATUS})
    assert (finding.name, finding.reference) == (name, "e1")


async def test_an_object_under_the_key_that_is_not_the_one_is_a_doubt() -> None:
    look_up = {**ONE, "match": {"amount": "{payload.amount}"}}
    assert (await ask(replying(answer(200, {"id": "e1", "amount": 5})), look_up))[0].name is FindingName.APPLIED
    finding, _ = await ask(replying(answer(200, {"id": "e1", "amount": 6})), look_up)
    assert finding.name is FindingName.CANNOT_TELL
    assert "differs in amount" in finding.detail


async def test_without_a_reference_or_a_payload_field_to_ask_by_nothing_is_asked() -> None:
    look_up = {**ONE, "by": "reference", "url": "${SANDBOX}/e/{reference}"}
    finding, seen = await ask(replying(answer(404)), look_up)
    assert (finding.name, seen.connections) == (FindingName.CANNOT_TELL, 0)
    assert "no reference" in finding.detail
    look_up = {**ONE, "match": {"to": "{payload.to}"}}
    finding, seen = await ask(replying(answer(404)), look_up)
    assert (finding.name, seen.connections) == (FindingName.CANNOT_TELL, 0)


async def test_a_provider_that_cannot_be_asked_cannot_tell() -> None:
    finding = await adapter().look_up(a_query())
    assert finding.name is FindingName.CANNOT_TELL


# -- a list -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "name", "reference"),
    [
        ([], FindingName.ABSENT, None),
        ([OTHER], FindingName.ABSENT, None),
        ([OTHER, OWN], FindingName.APPLIED, "e1"),
        ([OWN, {**OWN, "id": "e2"}], FindingName.SEVERAL, None),
        ([{**OWN, "amount": 6}], FindingName.CANNOT_TELL, "e1"),  # our key, another amount
        ([OWN, {**OWN, "id": "e2", "amount": 6}], FindingName.CANNOT_TELL, "e2"),
        ([OTHER, OTHER, OTHER], FindingName.CANNOT_TELL, None),  # a full page, nothing after it
        ([OTHER, OTHER, OWN], FindingName.APPLIED, "e1"),
        (["e1"], FindingName.CANNOT_TELL, None),
        ({"id": "e1"}, FindingName.CANNOT_TELL, None),
        (None, FindingName.CANNOT_TELL, None),
    ],
    ids=[
        "empty",
        "others",
        "found",
        "two",
        "other amount",
        "found and doubt",
        "full",
        "full and found",
        "texts",
        "object",
        "none",
    ],
)
async def test_a_list_is_read_item_by_item(items: Any, name: FindingName, reference: str | None) -> None:
    finding, _ = await ask(replying(answer(200, {"data": items})), LIST)
    assert (finding.name, finding.reference) == (name, reference)


async def test_without_a_page_size_only_an_empty_list_is_certainly_all() -> None:
    look_up = {**LIST, "page_size": None, "next": None}
    assert (await ask(replying(answer(200, {"data": []})), look_up))[0].name is FindingName.ABSENT
    assert (await ask(replying(answer(200, {"data": [OTHER]})), look_up))[0].name is FindingName.CANNOT_TELL


async def test_the_body_itself_can_be_the_list() -> None:
    finding, _ = await ask(replying(answer(200, [OTHER, OWN])), {**LIST, "items": "."})
    assert finding.reference == "e1"


async def test_a_search_by_text_never_takes_a_different_item_for_a_doubt() -> None:
    look_up = {**LIST, "by": "search", "match": {"text": "{payload.name}", "amount": "{payload.amount}"}}
    items = [{"id": "e1", "text": PAYLOAD["name"], "amount": 6}]
    assert (await ask(replying(answer(200, {"data": items})), look_up))[0].name is FindingName.ABSENT
    items[0]["amount"] = 5
    assert (await ask(replying(answer(200, {"data": items})), look_up))[0].name is FindingName.APPLIED


async def test_a_failed_try_beside_a_finished_one_is_one_effect_and_two_unfinished_ones_are_several() -> None:
    look_up = {**LIST, "status": STATUS}

    async def found(*words: str) -> FindingName:
        items = [{**OWN, "id": f"e{number}", "status": word} for number, word in enumerate(words)]
        return (await ask(replying(answer(200, {"data": items})), look_up))[0].name

    assert await found("failed", "done") is FindingName.APPLIED
    assert await found("failed", "queued") is FindingName.WORKING
    assert await found("failed", "failed") is FindingName.REFUSED
    assert await found("queued", "done") is FindingName.SEVERAL
    assert await found("queued", "queued") is FindingName.SEVERAL
    assert await found("done", "reversed") is FindingName.CANNOT_TELL
