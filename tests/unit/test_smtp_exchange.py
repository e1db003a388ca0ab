"""One mail handed over: how far it came, and what that proves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiosmtplib.protocol import SMTPProtocol

from provider.clock import boottime
from provider.mail import Mail
from provider.smtp_exchange import Exchange, Server, Step, deliver
from provider.transport import Phase
from tests.unit.exchanges import free_port
from tests.unit.raw_server import LIMIT
from tests.unit.smtp_server import CLOSE, RESET, STALL, talking

TEXT = b"Subject: hi\r\n\r\nbody\r\n.\r\n..two\r\nend\r\n"


def server(port: int, **more: Any) -> Server:
    values: dict[str, Any] = {"tls": None, "starttls": False, "username": None, "password": None}
    return Server(host="127.0.0.1", port=port, hello="client.test", **{**values, **more})


async def hand_over(
    port: int, *, seconds: float = LIMIT, send_before: float | None = None, text: bytes = TEXT, **more: Any
) -> Exchange:
    mail = Mail("from@a.test", "to@b.test", "<k@a.test>", text)
    before = boottime() + 60 if send_before is None else send_before
    return await deliver(server(port), mail, time_limit=seconds, send_before=before, **more)


async def test_a_mail_is_taken_with_its_dots_doubled_and_the_connection_ended_politely() -> None:
    async with talking() as talk:
        exchange = await hand_over(talk.port)
        await asyncio.wait_for(talk.over.wait(), LIMIT)
    assert (exchange.phase, exchange.step, exchange.code) == (Phase.ANSWERED, Step.DOT, 250)
    assert exchange.detail == "2.0.0 Ok: queued as 4F2A17"
    assert talk.commands == [
        "EHLO client.test",
        f"MAIL FROM:<from@a.test> SIZE={len(TEXT)}",
        "RCPT TO:<to@b.test>",
        "DATA",
        "QUIT",
    ]
    assert talk.mails == [b"Subject: hi\r\n\r\nbody\r\n..\r\n...two\r\nend\r\n"]


async def test_the_size_is_told_only_to_who_wants_to_know() -> None:
    async with talking({"EHLO": "250 mx.test"}) as talk:
        assert (await hand_over(talk.port)).code == 250
        assert "MAIL FROM:<from@a.test>" in talk.commands


# -- before the dot: not sent, or refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [CLOSE, RESET, STALL])
@pytest.mark.parametrize("step", ["greeting", "EHLO", "MAIL", "RCPT", "DATA"])
async def test_whatever_is_lost_before_the_dot_was_not_sent(step: str, loss: str) -> None:
    async with talking({step: loss}) as talk:
        exchange = await hand_over(talk.port, seconds=0.3 if loss == STALL else LIMIT)
        assert (exchange.phase, exchange.code) == (Phase.NOT_SENT, None)
        assert exchange.detail
        assert not exchange.own_fault
        assert talk.connections == 1
        assert talk.mails == []


async def test_no_listener_is_not_sent() -> None:
    exchange = await hand_over(free_port())
    assert (exchange.phase, exchange.step) == (Phase.NOT_SENT, Step.CONNECT)
    assert "refused" in exchange.detail.lower()


@pytest.mark.parametrize("code", [421, 450, 452, 454, 500, 530, 550, 552, 554, 556])
@pytest.mark.parametrize("step", ["greeting", "EHLO", "MAIL", "RCPT", "DATA"])
async def test_a_refusal_before_the_dot_is_an_answer_and_no_text_leaves(step: str, code: int) -> None:
    async with talking({step: f"{code} 9.9.9 no"}) as talk:
        exchange = await hand_over(talk.port)
        assert (exchange.phase, exchange.step, exchange.code) == (Phase.ANSWERED, step, code)
        assert exchange.detail == f"{step}: {code} 9.9.9 no"
        assert not talk.mails
        assert not talk.unfinished


@pytest.mark.parametrize("said", ["200", "354 not yet", "abc", "250-and then", "999 what", "25", "\x00\xff"])
async def test_a_reply_that_is_none_before_the_dot_was_not_sent(said: str) -> None:
    async with talking({"DATA" if said != "354 not yet" else "RCPT": said}) as talk:
        exchange = await hand_over(talk.port, seconds=0.5)
        assert (exchange.phase, exchange.code) == (Phase.NOT_SENT, None)
        assert talk.mails == []


async def test_a_server_that_stops_reading_the_text_never_gets_the_dot() -> None:
    async with talking(read_text=False) as talk:
        exchange = await hand_over(talk.port, seconds=1.0, text=b"x" * 64 * 1024 * 1024)
        assert (exchange.phase, exchange.step) == (Phase.NOT_SENT, Step.TEXT)


async def test_when_the_dot_is_written_no_byte_of_the_text_still_waits_in_a_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = []
    write = SMTPProtocol.write

    def noted(self: SMTPProtocol, data: bytes) -> None:
        if data == b".\r\n":
            assert isinstance(self.transport, asyncio.WriteTransport)
            waiting.append(self.transport.get_write_buffer_size())
        write(self, data)

    monkeypatch.setattr(SMTPProtocol, "write", noted)
    async with talking() as talk:
        exchange = await hand_over(talk.port, text=b"x" * 70 + b"\r\n" + (b"y" * 70 + b"\r\n") * 100_000)
    assert (exchange.code, waiting) == (250, [0])


async def test_a_reply_that_came_before_the_dot_is_not_taken_for_its_reply() -> None:
    async with talking({"DATA": "354 go\r\n250 2.0.0 Ok: queued as EARLY", ".": "554 no"}) as talk:
        exchange = await hand_over(talk.port)
        assert (exchange.phase, exchange.step) == (Phase.NOT_SENT, Step.TEXT)
        assert talk.mails == []


# -- after the dot ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss", [CLOSE, RESET, STALL, "25", "250 2.0.0 Ok: que\\", "250-more", "abc", "354 x", "199 x"]
)
async def test_after_the_dot_nothing_but_a_whole_reply_tells(loss: str) -> None:
    async with talking({".": loss}) as talk:
        exchange = await hand_over(talk.port, seconds=LIMIT if loss in (CLOSE, RESET) else 0.5)
        assert (exchange.phase, exchange.step, exchange.code) == (Phase.UNKNOWN, Step.DOT, None)
        assert exchange.detail
        assert (talk.connections, len(talk.mails)) == (1, 1)


@pytest.mark.parametrize("code", [250, 251, 299, 421, 450, 451, 452, 499, 500, 550, 552, 554, 599])
async def test_the_reply_to_the_dot_is_the_answer(code: int) -> None:
    async with talking({".": f"{code} so"}) as talk:
        exchange = await hand_over(talk.port)
        assert (exchange.phase, exchange.step, exchange.code) == (Phase.ANSWERED, Step.DOT, code)


async def test_a_reply_of_several_lines_is_one() -> None:
    async with talking({".": "250-2.0.0 first\r\n250 2.0.0 second"}) as talk:
        assert (await hand_over(talk.port)).detail == "2.0.0 first 2.0.0 second"


# -- time -------------------------------------------------------------------------------------------------------------


async def test_too_late_before_mail_asks_for_nothing() -> None:
    async with talking() as talk:
        exchange = await hand_over(talk.port, send_before=boottime() - 1)
        assert exchange.phase is Phase.NOT_SENT
        assert "too late" in exchange.detail
        await asyncio.wait_for(talk.over.wait(), LIMIT)
        assert talk.verbs() == ["EHLO"]


async def test_too_late_at_the_dot_leaves_the_text_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # As after a freeze between the text and the dot: the hook is the last thing that runs before the check.
    now = [boottime()]
    monkeypatch.setattr("provider.smtp_exchange.boottime", lambda: now[0])

    def freeze() -> None:
        now[0] += 100

    async with talking() as talk:
        exchange = await hand_over(talk.port, send_before=now[0] + 10, before_dot=freeze)
        assert (exchange.phase, exchange.step) == (Phase.NOT_SENT, Step.TEXT)
        assert "too late" in exchange.detail
        await asyncio.wait_for(talk.over.wait(), LIMIT)
        assert talk.mails == []
        assert talk.unfinished.endswith(b"end\r\n")


async def test_the_hook_is_called_once_and_when_it_raises_nothing_was_sent() -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError("crash point")

    async with talking() as talk:
        exchange = await hand_over(talk.port, before_dot=fail)
        assert (exchange.phase, exchange.own_fault, calls) == (Phase.NOT_SENT, True, [1])
        assert talk.mails == []


async def test_one_limit_holds_for_the_whole_dialogue() -> None:
    begin = boottime()
    async with talking({"RCPT": STALL}) as talk:
        exchange = await hand_over(talk.port, seconds=0.4)
    assert 0.4 <= boottime() - begin < 5
    assert exchange.detail == "RCPT: no complete answer within 0.4 s"


@pytest.mark.parametrize(("at", "phase"), [("RCPT", Phase.NOT_SENT), (".", Phase.UNKNOWN)])
async def test_a_cancelled_call_still_tells_how_far_it_came(at: str, phase: Phase) -> None:
    async with talking({at: STALL}) as talk:
        task = asyncio.create_task(hand_over(talk.port))
        await asyncio.wait_for(talk.asked.wait(), LIMIT)
        task.cancel()
        exchange = await task
        assert exchange.phase is phase
        assert "cancelled" in exchange.detail
