"""Look-ups over HTTP: what each answer proves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from provider.http_adapter import HttpAdapter
from provider.http_look_up import PAGE_MAX
from provider.port import Finding, FindingName, Query
from provider.settings import ConnectionSettings
from tests.unit.exchanges import free_port
from tests.unit.http_provider import PAYLOAD, TOKEN, adapter
from tests.unit.raw_server import LIMIT, Handler, Peer, Seen, replying, serving, tls_files

ONE: dict[str, Any] = {"url": "${SANDBOX}/effects/{idempotency_key}", "by": "key", "reference": "id"}
LIST: dict[str, Any] = {
    "url": "${SANDBOX}/effects?key={key}",
    "by": "key",
    "items": "data",
    "page_size": 3,
    "match": {"meta.key": "{idempotency_key}", "amount": "{payload.amount}"},
    "reference": "id",
    "next": {"path": "next", "pages": 3},
}
STATUS = {"path": "status", "applied": ["done"], "working": ["queued"], "refused": ["failed"]}
OWN = {"id": "e1", "meta": {"key": "idem-1"}, "amount": 5}
OTHER = {"id": "e9", "meta": {"key": "idem-9"}, "amount": 5}


def a_query(**more: Any) -> Query:
    values: dict[str, Any] = {
        "key": "order-17:confirmation:1",
        "kind": "order.confirmation",
        "connection": "main",
        "idempotency_keys": ("idem-1",),
        "reference": None,
        "payload": {**PAYLOAD, "amount": 5},
        "time_limit": LIMIT,
    }
    return Query(**{**values, **more})


def answer(status: int, document: Any = None, headers: str = "") -> bytes:
    body = b"" if document is None else document if isinstance(document, bytes) else json.dumps(document).encode()
    return f"HTTP/1.1 {status} X\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def by_path(answers: Mapping[str, bytes]) -> Handler:
    """Answers by the end of the request's target; one that is not there is a fault of the test."""

    async def handler(peer: Peer) -> None:
        target = (await peer.request()).split(b" ")[1].decode()
        await peer.say(next(said for end, said in answers.items() if target.endswith(end)))

    return handler


async def ask(
    handler: Handler, look_up: dict[str, Any], query: Query | None = None, **more: Any
) -> tuple[Finding, Seen]:
    async with serving(handler) as seen:
        used = adapter(f"http://127.0.0.1:{seen.port}", look_up=look_up, **more)
        finding = await used.look_up(query or a_query())
        await used.close()
        return finding, seen


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
        b'HTTP/1.1 200 X\r\n\r\n{"id":"e1"}' + b" " * PAGE_MAX,
        b"HTTP/1.1 404 X\r\n\r\n" + b" " * (PAGE_MAX + 1),
        b"junk\r\n\r\n",
        b"",
    ],
    ids=["cut 404", "cut 200", "bad gzip", "too long", "too long 404", "junk", "closed"],
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


# -- pages ------------------------------------------------------------------------------------------------------------

FULL = [OTHER, {**OTHER, "id": "e8"}, {**OTHER, "id": "e7"}]


async def test_every_page_is_read_one_request_each() -> None:
    pages = {
        "?key=order-17:confirmation:1": answer(200, {"data": FULL, "next": "/effects?page=2"}),
        "page=2": answer(200, {"data": FULL, "next": "?page=3"}),
        "page=3": answer(200, {"data": [OWN], "next": None}),
    }
    finding, seen = await ask(by_path(pages), LIST)
    assert (finding.name, finding.reference, len(seen.requests)) == (FindingName.APPLIED, "e1", 3)
    assert all(f"authorization: bearer {TOKEN}".encode() in request.lower() for request in seen.requests)


async def test_absence_is_absence_on_every_page() -> None:
    pages = {"page=2": answer(200, {"data": []}), "1": answer(200, {"data": FULL, "next": "?page=2"})}
    assert (await ask(by_path(pages), LIST))[0].name is FindingName.ABSENT


@pytest.mark.parametrize(
    "second",
    [
        answer(503),
        answer(404),
        answer(200, {"data": FULL}),
        answer(200, {"data": [], "next": "/effects?page=2"}),
        answer(200, b"{"),
        b"",
    ],
    ids=["503", "404", "full", "circle", "junk", "closed"],
)
async def test_a_later_page_that_fails_cannot_tell_of_absence_but_takes_no_hit_back(second: bytes) -> None:
    pages = {"page=2": second, "1": answer(200, {"data": FULL, "next": "/effects?page=2"})}
    assert (await ask(by_path(pages), LIST))[0].name is FindingName.CANNOT_TELL
    pages["1"] = answer(200, {"data": [OWN, *FULL[1:]], "next": "/effects?page=2"})
    finding, _ = await ask(by_path(pages), LIST)
    assert (finding.name, finding.reference) == (FindingName.APPLIED, "e1")
    assert "the rest was not read" in finding.detail


async def test_more_pages_than_the_limit_cannot_tell() -> None:
    pages = {f"page={number}": answer(200, {"data": FULL, "next": f"?page={number + 1}"}) for number in range(2, 9)}
    pages["1"] = answer(200, {"data": FULL, "next": "?page=2"})
    finding, seen = await ask(by_path(pages), LIST)
    assert (finding.name, len(seen.requests)) == (FindingName.CANNOT_TELL, 3)
    assert "more than 3 pages" in finding.detail


async def test_a_next_page_elsewhere_is_not_fetched() -> None:
    async with serving(replying(answer(200, {"data": [OWN]}))) as elsewhere:
        for target in (elsewhere.url, f"//127.0.0.1:{elsewhere.port}/x", "https://127.0.0.1/x", "http://[x"):
            finding, seen = await ask(replying(answer(200, {"data": FULL, "next": target})), LIST)
            assert (finding.name, seen.connections) == (FindingName.CANNOT_TELL, 1)
        assert elsewhere.connections == 0


async def test_pages_that_go_round_are_read_once() -> None:
    pages = {
        "page=2": answer(200, {"data": FULL, "next": "?page=2"}),
        "1": answer(200, {"data": [], "next": "?page=2"}),
    }
    finding, seen = await ask(by_path(pages), LIST)
    assert (finding.name, len(seen.requests)) == (FindingName.CANNOT_TELL, 2)
    assert "circle" in finding.detail


async def test_a_cursor_goes_into_its_parameter() -> None:
    look_up = {**LIST, "next": {"path": "meta.cursor", "parameter": "after"}}
    pages = {
        "?key=order-17%3Aconfirmation%3A1&after=c%263": answer(200, {"data": [OWN]}),
        "?key=order-17%3Aconfirmation%3A1&after=c2": answer(200, {"data": FULL, "meta": {"cursor": "c&3"}}),
        "?key=order-17:confirmation:1": answer(200, {"data": FULL, "meta": {"cursor": "c2"}}),
    }
    assert (await ask(by_path(pages), look_up))[0].reference == "e1"


async def test_an_item_that_slid_to_the_next_page_is_one_and_two_equal_ones_on_a_page_are_two() -> None:
    pages = {"page=2": answer(200, {"data": [OWN]}), "1": answer(200, {"data": [*FULL[:2], OWN], "next": "?page=2"})}
    assert (await ask(by_path(pages), LIST))[0].name is FindingName.APPLIED
    bare = {**LIST, "reference": None}
    assert (await ask(by_path(pages), bare))[0].name is FindingName.APPLIED
    assert (await ask(by_path({"1": answer(200, {"data": [OWN, OWN]})}), bare))[0].name is FindingName.SEVERAL


async def test_all_pages_share_one_time_limit() -> None:
    async def slow(peer: Peer) -> None:
        await peer.request()
        if len(peer.seen.requests) == 1:
            await peer.say(answer(200, {"data": FULL, "next": "?page=2"}))
        else:
            await peer.until_gone()

    finding, seen = await ask(slow, LIST, a_query(time_limit=0.3))
    assert (finding.name, len(seen.requests)) == (FindingName.CANNOT_TELL, 2)


# -- several keys -----------------------------------------------------------------------------------------------------

THERE, GONE, AWAY = answer(200, {"id": "e1", "status": "done"}), answer(404), answer(503)
QUEUED, FAILED = answer(200, {"id": "e1", "status": "queued"}), answer(200, {"id": "e1", "status": "failed"})


@pytest.mark.parametrize(
    ("newest", "oldest", "name"),
    [
        (THERE, GONE, FindingName.APPLIED),
        (GONE, THERE, FindingName.APPLIED),
        (GONE, GONE, FindingName.ABSENT),
        (THERE, THERE, FindingName.SEVERAL),
        (GONE, AWAY, FindingName.CANNOT_TELL),
        (THERE, AWAY, FindingName.CANNOT_TELL),  # whether there is a second one
        (THERE, QUEUED, FindingName.WORKING),
        (FAILED, FAILED, FindingName.REFUSED),
        (FAILED, GONE, FindingName.ABSENT),
    ],
)
async def test_every_key_that_was_used_is_asked_and_a_doubt_about_one_is_a_doubt(
    newest: bytes, oldest: bytes, name: FindingName
) -> None:
    query = a_query(idempotency_keys=("idem-2", "idem-1"))
    finding, seen = await ask(by_path({"idem-2": newest, "idem-1": oldest}), {**ONE, "status": STATUS}, query)
    assert (finding.name, len(seen.requests)) == (name, 2)


async def test_without_any_key_nothing_is_asked_or_concluded() -> None:
    finding, seen = await ask(replying(GONE), ONE, a_query(idempotency_keys=()))
    assert (finding.name, seen.connections) == (FindingName.CANNOT_TELL, 0)


async def test_by_the_operations_own_key_one_question_is_enough() -> None:
    look_up = {**ONE, "url": "${SANDBOX}/effects/{key}"}
    _, seen = await ask(replying(THERE), look_up, a_query(idempotency_keys=("idem-2", "idem-1")))
    assert len(seen.requests) == 1


# -- around it --------------------------------------------------------------------------------------------------------


async def test_what_a_provider_says_is_kept_without_payload_or_secret() -> None:
    said = f'{{"error":"Zo\\u00eb \\u0141uczak \\u611b has no {TOKEN}\\u0000"}}'.encode()
    finding, _ = await ask(replying(answer(403, said)), ONE)
    assert finding.detail.startswith("status 403: [hidden] has no [hidden]")


async def test_a_cancelled_look_up_is_cancelled() -> None:
    arrived = asyncio.Event()

    async def stall(peer: Peer) -> None:
        await peer.request()
        arrived.set()
        await peer.until_gone()

    async with serving(stall) as seen:
        used = adapter(f"http://127.0.0.1:{seen.port}", look_up=ONE)
        task = asyncio.create_task(used.look_up(a_query()))
        await asyncio.wait_for(arrived.wait(), LIMIT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_fault_of_ours_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr("provider.http_look_up.read", broken)
    finding, _ = await ask(replying(GONE), ONE)
    assert finding.name is FindingName.CANNOT_TELL
    assert "bug" in finding.detail
