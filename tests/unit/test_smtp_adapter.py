"""The SMTP adapter: a mail out, an outcome back."""

from __future__ import annotations

import asyncio
import hashlib
import tomllib
from typing import Any

import pytest

from provider.clock import boottime
from provider.port import Call, FindingName, Outcome, OutcomeName, Query
from provider.registry import build, describe, parse_provider
from provider.settings import ConnectionSettings
from provider.smtp_adapter import SmtpAdapter
from tests.unit.exchanges import free_port
from tests.unit.http_provider import a_call
from tests.unit.raw_server import LIMIT, tls_files
from tests.unit.smtp_server import CLOSE, STALL, Talk, mailbox, talking

PROVIDER = """
adapter = "smtp"
host = "127.0.0.1"
port = 25
tls = "none"
from = "Orders <orders@shop.test>"
to = "{payload.email}"
subject = "Order {payload.order_id}"
body = "It has come, {payload.name}."
"""
PAYLOAD: dict[str, Any] = {"order_id": 17, "name": "Zoë Łuczak 愛", "email": "zoe@example.org"}
LOGIN: dict[str, Any] = {"username": "${MAIL_USER}", "password": "${MAIL_PASSWORD}"}
ENVIRON = {"MAIL_USER": "duly", "MAIL_PASSWORD": "pass-77"}


def settings(**more: Any) -> Any:
    table = {**tomllib.loads(PROVIDER), **more}
    return parse_provider({name: value for name, value in table.items() if value is not None})


def adapter(port: int = 25, *, login: bool = False, environ: dict[str, str] | None = None, **more: Any) -> SmtpAdapter:
    connection = ConnectionSettings(provider="mail", **(LOGIN if login else {}))
    used = {**ENVIRON, **(environ or {})}
    built = build({"mail": settings(port=port, **more)}, {"main": connection}, used)["main"]
    assert isinstance(built, SmtpAdapter)
    return built


def mail_call(payload: dict[str, Any] | None = None, **more: Any) -> Call:
    return a_call({**PAYLOAD, **(payload or {})}, **more)


async def perform(replies: dict[str, str] | None = None, call: Call | None = None, **more: Any) -> tuple[Outcome, Talk]:
    async with talking(replies) as talk:
        return await adapter(talk.port, **more).perform(call or mail_call()), talk


# -- the mail ---------------------------------------------------------------------------------------------------------


async def test_a_real_server_takes_the_mail() -> None:
    async with mailbox() as box:
        outcome = await adapter(box.port).perform(mail_call())
    assert (outcome.name, outcome.sent, outcome.status_code) == (OutcomeName.DELIVERED, True, 250)
    assert outcome.reference == "REAL1"
    assert outcome.call_seconds is not None
    (envelope,) = box.mails
    assert (envelope.mail_from, envelope.rcpt_tos) == ("orders@shop.test", ["zoe@example.org"])
    assert isinstance(envelope.content, bytes)
    assert b"Message-ID: <idem-1@shop.test>\r\n" in envelope.content


async def test_each_attempt_is_the_same_bytes_with_the_same_digest() -> None:
    async with talking() as talk:
        used = adapter(talk.port)
        outcomes = [await used.perform(mail_call(attempt=attempt)) for attempt in (1, 2)]
    assert talk.mails[0] == talk.mails[1]
    assert outcomes[0].request_digest == outcomes[1].request_digest
    text = f"smtp 127.0.0.1:{talk.port}\norders@shop.test\nzoe@example.org\n".encode() + talk.mails[0]
    assert outcomes[0].request_digest == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("payload", [{"email": "a@b.test, c@d.test"}, {"email": None}, {"email": {"x": 1}}])
async def test_more_or_fewer_recipients_than_one_are_invalid_and_nobody_is_called(payload: dict[str, Any]) -> None:
    outcome, talk = await perform(call=mail_call(payload))
    assert (outcome.name, outcome.sent, talk.connections) == (OutcomeName.INVALID, False, 0)


@pytest.mark.parametrize("call", [mail_call(idempotency_key=""), mail_call(idempotency_key="k" * 256)])
async def test_a_key_that_is_none_is_a_defect_and_nobody_is_called(call: Call) -> None:
    outcome, talk = await perform(call=call)
    assert (outcome.name, outcome.sent, talk.connections) == (OutcomeName.DEFECT, False, 0)


# -- the outcome ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "code", "name", "sent"),
    [
        ("greeting", 421, OutcomeName.NOT_PROCESSED, False),
        ("greeting", 554, OutcomeName.DENIED, False),
        ("EHLO", 550, OutcomeName.DENIED, False),
        ("MAIL", 451, OutcomeName.NOT_PROCESSED, True),
        ("MAIL", 550, OutcomeName.DENIED, True),  # the sender is the connection's
        ("MAIL", 552, OutcomeName.REJECTED, True),  # this mail is too large
        ("MAIL", 530, OutcomeName.DENIED, True),
        ("RCPT", 450, OutcomeName.NOT_PROCESSED, True),
        ("RCPT", 550, OutcomeName.REJECTED, True),
        ("RCPT", 530, OutcomeName.DENIED, True),
        ("DATA", 451, OutcomeName.NOT_PROCESSED, True),
        ("DATA", 554, OutcomeName.REJECTED, True),
        (".", 250, OutcomeName.DELIVERED, True),
        (".", 421, OutcomeName.NOT_PROCESSED, True),
        (".", 452, OutcomeName.NOT_PROCESSED, True),
        (".", 550, OutcomeName.REJECTED, True),
        (".", 554, OutcomeName.REJECTED, True),
    ],
)
async def test_a_code_means_what_its_step_makes_of_it(step: str, code: int, name: OutcomeName, sent: bool) -> None:
    outcome, talk = await perform({step: f"{code} 2.0.0 said 17"})
    assert (outcome.name, outcome.sent, outcome.status_code) == (name, sent, code)
    assert "said 17" in outcome.detail
    assert (outcome.reference is not None) is (name is OutcomeName.DELIVERED)
    assert talk.connections == 1


async def test_lost_after_the_dot_is_unknown_and_lost_before_it_not_sent() -> None:
    outcome, talk = await perform({".": CLOSE})
    assert (outcome.name, outcome.sent, len(talk.mails)) == (OutcomeName.UNKNOWN, True, 1)
    outcome, talk = await perform({"DATA": CLOSE})
    assert (outcome.name, outcome.sent, len(talk.mails)) == (OutcomeName.NOT_SENT, False, 0)


@pytest.mark.parametrize("at_dot", [CLOSE, STALL])
async def test_a_real_server_that_keeps_the_mail_and_says_nothing_leaves_it_unknown(at_dot: str) -> None:
    async with mailbox(at_dot) as box:
        outcome = await adapter(box.port).perform(mail_call(time_limit=LIMIT if at_dot == CLOSE else 0.7))
        assert (outcome.name, outcome.sent) == (OutcomeName.UNKNOWN, True)
        assert outcome.request_digest is not None
        assert len(box.mails) == 1


@pytest.mark.parametrize(
    ("said", "reference"),
    [
        ("2.0.0 Ok: queued as 4F2A17", "4F2A17"),
        ("OK id=1rVqYd-0003Xy-2B", "1rVqYd-0003Xy-2B"),
        ("2.6.0 <x@y> [InternalId=5566, Hostname=h] Queued mail for delivery", "5566"),
        ("2.0.0 OK  1759474800 a1-20020a5d - gsmtp", "1759474800 a1-20020a5d - gsmtp"),
        ("Ok 0102018f-1a2b", "0102018f-1a2b"),
        ("OK", None),
        ("2.0.0 Message accepted", None),
        ("", None),
    ],
)
async def test_the_reference_is_the_servers_own_name_for_the_mail(said: str, reference: str | None) -> None:
    outcome, _ = await perform({".": f"250 {said}"})
    assert (outcome.name, outcome.reference) == (OutcomeName.DELIVERED, reference)


async def test_what_a_server_says_is_kept_without_payload_or_secret() -> None:
    outcome, _ = await perform({"RCPT": "550 5.1.1 <zoe@example.org> is not pass-77 of duly\x07"}, login=False)
    assert outcome.detail == "RCPT: 550 5.1.1 <[hidden]> is not pass-77 of duly\ufffd"
    replies = {"EHLO": "250-mx\r\n250 AUTH PLAIN", "AUTH": "535 no duly pass-77 here"}
    outcome, _ = await perform(replies, login=True)
    assert outcome.detail == "AUTH: 535 no [hidden] [hidden] here"


async def test_no_listener_is_not_sent_and_too_late_too() -> None:
    outcome = await adapter(free_port()).perform(mail_call())
    assert (outcome.name, outcome.sent, outcome.status_code) == (OutcomeName.NOT_SENT, False, None)
    outcome, talk = await perform(call=mail_call(send_before=boottime() - 1))
    assert (outcome.name, outcome.sent, talk.mails) == (OutcomeName.NOT_SENT, False, [])


async def test_a_cancelled_call_still_gives_its_outcome() -> None:
    async with talking({".": STALL}) as talk:
        task = asyncio.create_task(adapter(talk.port).perform(mail_call()))
        await asyncio.wait_for(talk.asked.wait(), LIMIT)
        task.cancel()
        assert (await task).name is OutcomeName.UNKNOWN


async def test_a_mail_server_cannot_be_asked() -> None:
    query = Query("k", "kind", "main", ("idem-1",), None, PAYLOAD, LIMIT)
    assert (await adapter().look_up(query)).name is FindingName.CANNOT_TELL


# -- encryption and login ---------------------------------------------------------------------------------------------


async def test_a_real_server_is_spoken_to_encrypted_and_logged_in() -> None:
    file, context = tls_files()
    async with mailbox(starttls=context, login=True) as box:
        used = adapter(box.port, login=True, tls="starttls", ca_file=str(file))
        assert (await used.perform(mail_call())).name is OutcomeName.DELIVERED
        wrong = adapter(box.port, login=True, tls="starttls", ca_file=str(file), environ={"MAIL_PASSWORD": "wrong-1"})
        outcome = await wrong.perform(mail_call())
        assert (outcome.name, outcome.sent, outcome.status_code) == (OutcomeName.DENIED, False, 535)
    assert (len(box.mails), set(box.logins)) == (1, {b"duly"})
    async with mailbox(tls=context) as box:
        used = adapter(box.port, tls="tls", ca_file=str(file))
        assert (await used.perform(mail_call())).name is OutcomeName.DELIVERED


@pytest.mark.parametrize("tls", ["starttls", "tls"])
async def test_an_untrusted_certificate_is_denied_and_neither_login_nor_mail_leaves(tls: str) -> None:
    _, context = tls_files()
    how: dict[str, Any] = {tls: context}
    async with mailbox(**how, login=tls == "starttls") as box:
        outcome = await adapter(box.port, login=True, tls=tls).perform(mail_call())
        assert (outcome.name, outcome.sent) == (OutcomeName.DENIED, False)
        assert "certificate" in outcome.detail
        assert (box.mails, box.logins) == ([], [])


async def test_without_the_encryption_demanded_neither_login_nor_mail_leaves() -> None:
    outcome, talk = await perform({"EHLO": "250-mx\r\n250 AUTH PLAIN"}, login=True, tls="starttls")
    assert (outcome.name, outcome.sent, talk.verbs()) == (OutcomeName.DENIED, False, ["EHLO"])
    assert "STARTTLS" in outcome.detail


async def test_without_a_login_where_one_is_demanded_no_mail_leaves() -> None:
    outcome, talk = await perform(login=True)
    assert (outcome.name, outcome.sent, talk.verbs()) == (OutcomeName.DENIED, False, ["EHLO"])


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tls": "none", "host": "mx.shop.test"}, "only 127.0.0.1 may"),
        ({"tls": "none", "host": "10.0.0.1"}, "only 127.0.0.1 may"),
        ({"tls": "none", "host": "${MX}"}, "only 127.0.0.1 may"),
        ({"tls": "none", "ca_file": "x"}, "means nothing"),
        ({"tls": "ssl"}, "starttls"),
        ({"port": 0}, "greater than or equal to 1"),
        ({"to": None}, "to\n"),
        ({"from": None}, "from\n"),
        ({"to": "{payload}"}, "is not known here"),
        ({"body": "{attempt}"}, r"\{attempt\} is not known here; known are .*\{payload.FIELD\}"),
        ({"domain": "a b"}, "not a domain name"),
        ({"hello": "x\r\ny"}, "not a domain name"),
        ({"headers": {}}, "Extra inputs"),
        ({"look_up": {}}, "Extra inputs"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        settings(**change)


def test_what_cannot_be_used_once_filled_in_is_refused_with_the_connections_name() -> None:
    without_address: dict[str, Any] = {"from": "orders"}
    with pytest.raises(ValueError, match="connection main: from: From is not"):
        adapter(**without_address)
    with pytest.raises(ValueError, match="connection main: a mail server takes username"):
        build({"m": settings()}, {"main": ConnectionSettings(provider="m", headers={"A": "b"})}, {})


def test_the_descriptor_promises_little() -> None:
    told = describe(settings())
    assert (told.key_carrier, told.replays_keys, told.retention_safe, told.look_up_by) == (
        "header:Message-ID",
        False,
        0.0,
        None,
    )
    assert told.not_processed_codes == set(range(400, 500))
    assert told.max_processing == 600.0  # RFC 5321 4.5.3.2.6


def test_scope_and_rendering_change_with_account_and_texts() -> None:
    plain = adapter()
    assert plain.scope == "mail/main/127.0.0.1:25/none"
    scopes = {plain.scope, adapter(login=True).scope, adapter(26).scope}
    scopes.add(adapter(login=True, environ={"MAIL_PASSWORD": "other"}).scope)
    assert len(scopes) == 4
    assert not any(secret in scope for scope in scopes for secret in ENVIRON.values() if len(secret) > 4)
    assert adapter(login=True).rendering == adapter(26).rendering == plain.rendering
    changes: list[dict[str, Any]] = [{"subject": "x"}, {"body": "x"}, {"from": "o@shop.test"}, {"date": "1"}]
    for change in [*changes, {"domain": "x.test"}]:
        assert adapter(**change).rendering != plain.rendering, change
    assert "pass-77" not in repr(adapter(login=True))
