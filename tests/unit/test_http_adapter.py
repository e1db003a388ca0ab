"""The generic HTTP adapter: one request out, an outcome back."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from provider import text as module
from provider.clock import boottime
from provider.http_adapter import HttpAdapter
from provider.port import Call, OutcomeName
from provider.settings import ConnectionSettings
from tests.unit.exchanges import free_port
from tests.unit.http_provider import PAYLOAD, TOKEN, a_call, adapter, answering, perform, settings
from tests.unit.raw_server import CREATED, LIMIT, Peer, created_with, replying, serving, tls_files

# -- the request ------------------------------------------------------------------------------------------------------


async def test_the_request_carries_payload_keys_credential_and_trace() -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "other": "x"}
    outcome, seen = await perform(replying(CREATED), a_call(trace_context=trace))
    assert outcome.name is OutcomeName.DELIVERED
    head, body = seen.requests[0].split(b"\r\n\r\n", 1)
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "post /effects http/1.1"
    for line in (
        "idempotency-key: idem-1",
        "operation-key: order-17:confirmation:1",
        f"authorization: bearer {TOKEN}",
        "content-type: application/json",
        f"traceparent: {trace['traceparent']}",
        f"host: 127.0.0.1:{seen.port}",
    ):
        assert lines.count(line) == 1, (line, lines)
    assert "other: x" not in lines
    assert body.decode() == '{"a":true,"b":[1,2.5,null],"name":"Zoë Łuczak 愛","order_id":17}'


async def test_the_same_operation_is_the_same_bytes_and_digest_whatever_the_order_of_its_fields() -> None:
    shuffled = dict(reversed(PAYLOAD.items()))
    first, seen_first = await perform(replying(CREATED))
    second, seen_second = await perform(replying(CREATED), a_call(shuffled, attempt=2))
    assert seen_first.requests[0].split(b"\r\n\r\n")[1] == seen_second.requests[0].split(b"\r\n\r\n")[1]
    body = seen_first.requests[0].split(b"\r\n\r\n")[1]
    url = f"POST http://127.0.0.1:{seen_first.port}/effects\n".encode()
    assert first.request_digest == hashlib.sha256(url + body).hexdigest()
    assert second.request_digest != first.request_digest  # another port is another place


async def test_a_new_token_in_the_url_is_not_a_new_request() -> None:
    async with serving(replying(CREATED)) as seen:
        digests = set()
        for token in ("token-one", "token-two"):
            environ = {"TOKEN": token}
            url = f"http://127.0.0.1:{seen.port}/bot${{TOKEN}}/send"
            used = HttpAdapter("main", settings(url=url), ConnectionSettings(provider="x"), environ)
            digests.add((await used.perform(a_call())).request_digest)
            assert token not in repr(used)
        assert len(digests) == 1
        assert b"/bottoken-two/send" in seen.requests[1]


async def test_the_key_can_be_part_of_the_address_and_the_idempotency_key_quoted() -> None:
    quoted = {"header": "Idempotency-Key", "quoted": True}
    _, seen = await perform(replying(CREATED), url="${SANDBOX}/{kind}/{key}", method="PUT", idempotency=quoted)
    assert seen.requests[0].startswith(b"PUT /order.confirmation/order-17:confirmation:1 HTTP/1.1\r\n")
    assert b'idempotency-key: "idem-1"\r\n' in seen.requests[0].lower()


async def test_what_a_key_contains_cannot_change_the_address() -> None:
    _, seen = await perform(replying(CREATED), a_call(key="../a?b=c#d"), url="${SANDBOX}/x/{key}", headers={})
    assert seen.requests[0].startswith(b"POST /x/..%2Fa%3Fb%3Dc%23d HTTP/1.1\r\n")


async def test_a_secret_with_braces_is_no_template() -> None:
    async with serving(replying(CREATED)) as seen:
        connection = ConnectionSettings(provider="x", headers={"Authorization": "${TOKEN}"})
        environ = {"SANDBOX": f"http://127.0.0.1:{seen.port}", "TOKEN": "a${B}{key}"}
        await HttpAdapter("main", settings(), connection, environ).perform(a_call())
        assert b"authorization: a${B}{key}\r\n" in seen.requests[0]


# -- the outcome ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (200, OutcomeName.DELIVERED),
        (202, OutcomeName.ACCEPTED),
        (301, OutcomeName.UNKNOWN),
        (307, OutcomeName.UNKNOWN),
        (401, OutcomeName.DENIED),
        (409, OutcomeName.IN_FLIGHT),  # as the settings above say
        (421, OutcomeName.NOT_PROCESSED),
        (422, OutcomeName.REJECTED),
        (429, OutcomeName.THROTTLED),
        (500, OutcomeName.UNKNOWN),
        (503, OutcomeName.UNKNOWN),
    ],
)
async def test_a_status_means_what_the_table_says(status: int, name: OutcomeName) -> None:
    outcome, seen = await perform(answering(status))
    assert (outcome.name, outcome.sent, outcome.status_code) == (name, True, status)
    assert outcome.call_seconds is not None
    assert len(seen.requests) == 1


async def test_the_reference_is_taken_from_json_or_header() -> None:
    body = b'{"data":{"items":[{"id":42}]}}'
    outcome, _ = await perform(answering(201, body), reference={"json": "data.items.0.id"})
    assert outcome.reference == "42"
    outcome, _ = await perform(answering(201, headers="Location: /e/7\r\n"), reference={"header": "location"})
    assert outcome.reference == "/e/7"


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"[]", b'{"id":null}', b'{"id":true}', b'{"id":{"a":1}}', b'{"ID":"x"}', b"\xff"]
)
async def test_an_answer_without_the_reference_is_still_delivered_and_says_so(body: bytes) -> None:
    outcome, _ = await perform(answering(201, body))
    assert (outcome.name, outcome.reference) == (OutcomeName.DELIVERED, None)
    assert "no reference" in outcome.detail


async def test_a_reference_with_a_nul_or_of_any_length_can_be_kept() -> None:
    outcome, _ = await perform(answering(201, b'{"id":"a\\u0000\\ud800' + b"x" * 5000 + b'"}'))
    assert outcome.reference is not None
    assert len(outcome.reference) <= module.REFERENCE_MAX
    assert "\x00" not in outcome.reference
    outcome.reference.encode()


async def test_a_2xx_with_a_cut_body_is_delivered_with_an_incomplete_receipt() -> None:
    outcome, _ = await perform(replying(b'HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n{"id":'))
    assert (outcome.name, outcome.status_code, outcome.reference) == (OutcomeName.DELIVERED, 201, None)
    assert "receipt incomplete" in outcome.detail


async def test_a_2xx_too_long_to_keep_is_delivered_with_an_incomplete_receipt() -> None:
    outcome, _ = await perform(replying(created_with(b"", b'{"id":"e1","x":"' + b"y" * 200_000 + b'"}')))
    assert outcome.name is OutcomeName.DELIVERED
    assert "receipt incomplete" in outcome.detail


async def test_a_replay_is_told() -> None:
    outcome, _ = await perform(answering(201, b'{"id":"e1"}', "Idempotent-Replayed: true\r\n"))
    assert (outcome.reference, outcome.detail) == ("e1", "replayed by the provider")


async def test_a_hint_to_wait_is_made_relative() -> None:
    headers = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 08:50:37 GMT\r\n"
    outcome, _ = await perform(answering(429, headers=headers))
    assert (outcome.name, outcome.retry_after) == (OutcomeName.THROTTLED, 60.0)


async def test_a_refusal_says_what_the_provider_said_without_payload_or_secret() -> None:
    said = f'{{"error":{{"code":"bad_name","message":"Zo\\u00eb \\u0141uczak 愛 with {TOKEN} is\\u0000 bad"}}}}'
    outcome, _ = await perform(answering(422, said.encode()))
    assert outcome.detail.startswith("status 422: bad_name, [hidden] with [hidden] is")
    assert "\x00" not in outcome.detail
    outcome, _ = await perform(answering(500, b"<html>" + TOKEN.encode() + b" \xff" + b"x" * 9000))
    assert TOKEN not in outcome.detail
    assert len(outcome.detail) <= 500


async def test_a_redirect_says_where_it_points() -> None:
    outcome, _ = await perform(answering(307, headers="Location: https://elsewhere/\r\n"))
    assert (outcome.name, outcome.detail) == (OutcomeName.UNKNOWN, "status 307: Location: https://elsewhere/")


async def test_no_listener_is_not_sent_and_a_lost_reply_unknown() -> None:
    used = adapter(f"http://127.0.0.1:{free_port()}")
    outcome = await used.perform(a_call())
    assert (outcome.name, outcome.sent, outcome.status_code) == (OutcomeName.NOT_SENT, False, None)
    await used.close()

    async def close(peer: Peer) -> None:
        await peer.request()

    outcome, seen = await perform(close)
    assert (outcome.name, outcome.sent, outcome.status_code) == (OutcomeName.UNKNOWN, True, None)
    assert seen.connections == 1


async def test_too_late_is_not_sent() -> None:
    outcome, seen = await perform(replying(CREATED), a_call(send_before=boottime() - 1))
    assert (outcome.name, outcome.sent) == (OutcomeName.NOT_SENT, False)
    assert "too late" in outcome.detail
    assert seen.requests == []


async def test_an_untrusted_certificate_is_denied_so_that_the_connection_is_held() -> None:
    file, tls = tls_files()
    async with serving(replying(CREATED), tls) as seen:
        base = f"https://127.0.0.1:{seen.port}"
        outcome = await adapter(base).perform(a_call())
        assert (outcome.name, outcome.sent) == (OutcomeName.DENIED, False)
        outcome = await adapter(base, ca_file=str(file)).perform(a_call())
        assert outcome.name is OutcomeName.DELIVERED


async def test_a_cancelled_call_still_gives_its_outcome() -> None:
    arrived = asyncio.Event()

    async def stall(peer: Peer) -> None:
        await peer.request()
        arrived.set()
        await peer.until_gone()

    task = asyncio.create_task(perform(stall))
    await asyncio.wait_for(arrived.wait(), LIMIT)
    task.cancel()
    outcome, _ = await task
    assert (outcome.name, outcome.sent) == (OutcomeName.UNKNOWN, True)


@pytest.mark.parametrize("payload", [{"a": float("nan")}, {"a": "\ud800"}, {"a": object()}, {"a": b"x"}])
async def test_a_payload_that_is_no_json_is_invalid_and_not_sent(payload: dict[str, Any]) -> None:
    outcome, seen = await perform(replying(CREATED), a_call(payload))
    assert (outcome.name, outcome.sent) == (OutcomeName.INVALID, False)
    assert seen.connections == 0


@pytest.mark.parametrize(
    "call", [a_call(idempotency_key="x" * 256), a_call(idempotency_key=""), a_call(key="a\r\nb: c")]
)
async def test_what_we_cannot_send_is_a_defect_and_not_sent(call: Call) -> None:
    outcome, seen = await perform(replying(CREATED), call)
    assert (outcome.name, outcome.sent) == (OutcomeName.DEFECT, False)
    assert seen.connections == 0


async def test_a_fault_of_ours_after_the_answer_is_unknown_and_not_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(HttpAdapter, "_judged", broken)
    outcome, _ = await perform(replying(CREATED))
    assert (outcome.name, outcome.sent, outcome.status_code) == (OutcomeName.UNKNOWN, True, 201)
    assert "bug" in outcome.detail
