"""The mail that is made of an operation: the same bytes each time, and nothing that is no mail."""

from __future__ import annotations

import email
import email.policy
from typing import Any

import pytest

from provider.mail import Mail, compose
from provider.smtp_settings import PLACEHOLDERS
from provider.templates import Template
from provider.values import UnfitError

TEXTS = {
    "from": "Orders <orders@shop.test>",
    "to": "{payload.name} <{payload.email}>",
    "subject": "Order {payload.order_id} for {payload.name}",
    "body": "Hello {payload.name},\nyour order {payload.order_id} has come.\n.\n",
    "date": "{payload.at}",
}
PAYLOAD: dict[str, Any] = {
    "name": "Zoë Łuczak",
    "email": "zoe@example.org",
    "order_id": 17,
    "at": "2026-10-03T09:00:00+02:00",
}


def made(
    payload: dict[str, Any] | None = None, *, key: str = "4f2a17", domain: str | None = None, **texts: str
) -> Mail:
    values = {f"payload.{name}": str(value) for name, value in {**PAYLOAD, **(payload or {})}.items()}
    templates = {part: Template(text, {}, None, PLACEHOLDERS) for part, text in {**TEXTS, **texts}.items() if text}
    return compose(templates, lambda name: values[name], key, domain)


def read(mail: Mail) -> Any:
    return email.message_from_bytes(mail.message, policy=email.policy.default)


def test_a_mail_says_what_the_templates_say() -> None:
    mail = made()
    message = read(mail)
    assert (mail.sender, mail.recipient) == ("orders@shop.test", "zoe@example.org")
    assert str(message["From"]) == "Orders <orders@shop.test>"
    assert str(message["To"]) == "Zoë Łuczak <zoe@example.org>"
    assert str(message["Subject"]) == "Order 17 for Zoë Łuczak"
    assert message["Date"].datetime.isoformat() == "2026-10-03T07:00:00+00:00"
    assert message.get_content().replace("\r\n", "\n") == "Hello Zoë Łuczak,\nyour order 17 has come.\n.\n"
    assert mail.message_id == str(message["Message-ID"]) == "<4f2a17@shop.test>"


def test_the_same_operation_is_the_same_bytes() -> None:
    assert made().message == made(dict(reversed(PAYLOAD.items()))).message
    # If this fails with the same Python, messages have changed: count MESSAGE_RULE up.
    plain = made({"name": "Ann"}).message.decode("ascii").split("\r\n")
    assert plain == [
        "From: Orders <orders@shop.test>",
        "To: Ann <zoe@example.org>",
        "Subject: Order 17 for Ann",
        "Message-ID: <4f2a17@shop.test>",
        "Date: Sat, 03 Oct 2026 07:00:00 +0000",
        'Content-Type: text/plain; charset="utf-8"',
        "Content-Transfer-Encoding: 7bit",
        "MIME-Version: 1.0",
        "",
        "Hello Ann,",
        "your order 17 has come.",
        ".",
        "",
    ]


def test_every_byte_is_ascii_and_every_line_short_and_ended_by_both_characters() -> None:
    message = made({"name": "愛" * 300}, body="{payload.name}\rx\ny\r\n" + "z" * 3000).message
    assert message.isascii()
    lines = message.split(b"\r\n")
    assert max(map(len, lines)) <= 998  # RFC 5321 4.5.3.1.6
    assert not any(b"\r" in line or b"\n" in line for line in lines)


def test_without_a_date_none_is_made_up() -> None:
    assert "Date" not in read(made(date=""))


@pytest.mark.parametrize(("at", "instant"), [("1759474800", 1759474800.0), ("2025-10-03T07:00:00Z", 1759474800.0)])
def test_a_date_is_iso_8601_or_epoch_seconds(at: str, instant: float) -> None:
    assert read(made({"at": at}))["Date"].datetime.timestamp() == instant


@pytest.mark.parametrize("key", ["k" * 255, "order-17:confirmation:1", "a..b", "a=b", "x@y"])
def test_every_key_is_a_message_id_of_its_own_on_one_line(key: str) -> None:
    mail = made(key=key)
    assert f"\r\nMessage-ID: {mail.message_id}\r\n".encode() in mail.message
    local = mail.message_id[1:].partition("@")[0]
    assert not set(local) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=")
    assert made(key=key + "x").message_id != mail.message_id


def test_the_domain_of_the_message_id_can_be_given() -> None:
    assert made(domain="mail.shop.test").message_id == "<4f2a17@mail.shop.test>"


@pytest.mark.parametrize(
    "to",
    [
        "a@b.test, c@d.test",
        "team: a@b.test;",
        "",
        "nobody",
        "a b@c.test",
        "a@b.test>\r\nDATA",
        "a@b.test\nBcc: c@d.test",
        "a@b.test\x00",
        '"a b"@c.test',
        "ü@x.test",
        "a@ü.test",
        "a@[127.0.0.1]",
        "x" * 65 + "@b.test",
        "<a@b.test> c",
    ],
)
def test_what_is_not_exactly_one_plain_address_is_no_recipient(to: str) -> None:
    with pytest.raises(UnfitError, match="To"):
        made(to="{payload.email}", payload={"email": to})


@pytest.mark.parametrize(
    "payload",
    [{"name": "Ann\nBcc: x@y.test"}, {"name": "Ann\r\n"}, {"name": "\x1b[2J"}, {"name": "\ud800"}, {"name": "a\x00"}],
)
def test_no_payload_adds_a_header(payload: dict[str, Any]) -> None:
    with pytest.raises(UnfitError):
        made(payload, to="{payload.email}")


def test_a_nul_or_half_a_character_in_the_body_is_no_mail() -> None:
    for name in ("a\x00b", "\ud800"):
        with pytest.raises(UnfitError):
            made({"name": name}, to="{payload.email}", subject="s")


@pytest.mark.parametrize("at", ["yesterday", "2026-10-03T09:00:00", "2026-10-03", "", "999999999999", "-1"])
def test_a_date_that_is_no_instant_is_refused(at: str) -> None:
    with pytest.raises(UnfitError, match="date"):
        made({"at": at})
