"""Look-ups over HTTP: pages, several keys, and what surrounds them."""

from __future__ import annotations

import asyncio

import pytest

from provider.port import FindingName
from tests.unit.http_provider import TOKEN, adapter
from tests.unit.look_up_provider import LIST, ONE, OTHER, OWN, STATUS, a_query, answer, ask, by_path
from tests.unit.raw_server import LIMIT, Peer, replying, serving

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


@pytest.mark.parametrize("target", ["http://127.0.0.1:1/x", "https://127.0.0.1/x", "//elsewhere/x", "http://[x"])
async def test_a_next_page_elsewhere_is_not_fetched(target: str) -> None:
    finding, seen = await ask(replying(answer(200, {"data": FULL, "next": target})), LIST)
    assert (finding.name, seen.connections) == (FindingName.CANNOT_TELL, 1)


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
