"""What a provider does, end to end: the outcome and what follows are those of the design's table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from temporalio.client import WorkflowHandle

from config import crash
from provider import registry
from provider.port import Adapter, Call, Descriptor, Outcome, OutcomeName
from reconcile.policy import TABLE
from stack.local import Stack
from stack.state import free_ports
from tests.harness import Site, fresh_site
from tests.workbench import Bench, bench_of, eventually

ANSWERS = """
[providers.sandbox.answers]
"452" = "duplicate"
"453" = "in_flight"
"454" = "key_mismatch"
"""
"""Statuses that no other test uses, declared to mean what few providers say."""


@dataclass(frozen=True)
class Expected:
    """Where a provider's behaviour leads. ``outcomes`` are those of the attempts, in order."""

    state: str
    outcomes: tuple[str, ...]
    requests: int = 1
    effects: int = 0
    spent: int = 1


UNKNOWN = Expected("unknown", ("unknown",))
UNKNOWN_WITH_EFFECT = Expected("unknown", ("unknown",), effects=1)
REJECTED = Expected("rejected", ("rejected",))

CASES: dict[str, tuple[tuple[Any, ...], Expected]] = {
    "ok": ((), Expected("delivered", ("delivered",), effects=1)),
    "commits and closes": (("commit_then_close",), UNKNOWN_WITH_EFFECT),
    "commits and stalls": (("commit_then_stall",), UNKNOWN_WITH_EFFECT),
    "commits and resets": (({"do": "reset", "commit": True},), UNKNOWN_WITH_EFFECT),
    "502 after the effect": (({"do": "status", "status": 502, "commit": True},), UNKNOWN_WITH_EFFECT),
    "closes before": (("close_before_commit",), UNKNOWN),
    "cuts the body after 201": (("cut_body",), Expected("delivered", ("delivered",), effects=1)),
    "301": (("status:301",), UNKNOWN),
    "307": (("status:307",), UNKNOWN),
    "307 to itself": (({"do": "status", "status": 307, "headers": {"Location": "/effects"}},), UNKNOWN),
    "408": (("status:408",), UNKNOWN),
    "409": (("status:409",), UNKNOWN),
    "500": (("status:500",), UNKNOWN),
    "503": (("status:503",), UNKNOWN),
    "400": (("status:400",), REJECTED),
    "422": (("status:422",), REJECTED),
    "202": (("status:202",), Expected("accepted", ("accepted",))),
    "421, then well": (
        ("status:421", "ok"),
        Expected("delivered", ("not_processed", "delivered"), requests=2, effects=1, spent=2),
    ),
    "421 for ever": (("status:421",), Expected("exhausted", ("not_processed",) * 3, requests=3, spent=3)),
    "has it already": (("status:452",), Expected("unknown", ("duplicate",))),
    "is about it": (("status:453",), Expected("unknown", ("in_flight",))),
    "same key, other body": (("status:454",), Expected("blocked", ("key_mismatch",))),
}


@pytest.fixture(scope="module")
def shared_site(stack_env: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One site for all the cases: they run beside each other."""
    with fresh_site(stack_env, tmp_path_factory.mktemp("outcomes")) as site:
        site.configure(more=ANSWERS)
        yield site


@pytest.fixture(scope="module")
async def played(shared_site: Site) -> AsyncIterator[dict[str, dict[str, Any]]]:
    """All cases played: the row of each as it stood when it had come to rest, with its attempts, requests, effects."""
    site = shared_site
    keys = dict(zip(CASES, site.schedule(*(f"case-{n}" for n in range(len(CASES)))), strict=True))
    for name, (told, _) in CASES.items():
        if told:
            site.sandbox.tell(*told, key=keys[name])
    async with bench_of(site) as bench, bench.working():
        for name, (_, expected) in CASES.items():
            await bench.wait_state(keys[name], expected.state)
        yield {
            name: {
                **site.operation(key),
                "tried": site.attempts(key),
                "requests": site.sandbox.requests(key=key),
                "effects": site.sandbox.count(key),
            }
            for name, key in keys.items()
        }


@pytest.mark.parametrize("name", CASES)
def test_a_behaviour_of_the_provider_leads_where_the_table_says(played: dict[str, dict[str, Any]], name: str) -> None:
    row, expected = played[name], CASES[name][1]
    assert row["state"] == expected.state
    assert tuple(attempt["outcome"] for attempt in row["tried"]) == expected.outcomes
    assert (len(row["requests"]), row["effects"], row["spent"]) == (expected.requests, expected.effects, expected.spent)
    assert row["open_attempts"] == (1 if expected.state in ("unknown", "accepted") else 0)
    assert all(attempt["sent"] for attempt in row["tried"])
    assert {request["idempotency_key"] for request in row["requests"]} == {row["tried"][0]["idempotency_key"]}
    assert len({request["body_sha256"] for request in row["requests"]}) == 1


def test_a_receipt_that_was_cut_is_delivered_without_a_reference(played: dict[str, dict[str, Any]]) -> None:
    whole, cut = played["ok"], played["cuts the body after 201"]
    assert (whole["settled_by"], cut["settled_by"]) == ("reply", "reply")
    assert whole["provider_reference"]
    assert cut["provider_reference"] is None
    assert "receipt incomplete" in cut["tried"][0]["detail"]


async def test_an_accepted_operation_is_unknown_when_its_bound_has_passed(bench: Bench) -> None:
    site = bench.site
    (key,) = site.schedule("accepted", deadline=timedelta(hours=9))
    site.sandbox.tell("status:202", key=key)
    async with bench.working():
        await bench.wait_state(key, "accepted")
        site.move_clock(timedelta(minutes=30))
        assert (await bench.sweep.once()).taken == 0
        site.move_clock(timedelta(hours=2))  # the bound is an hour
        row = await bench.wait_state(key, "unknown")
        await bench.wait_asked(key)
    assert (row["open_attempts"], len(site.sandbox.requests(key=key))) == (1, 1)
    assert site.history(key) == ["scheduled", "calling", "accepted", "unknown"]


async def test_while_nothing_listens_it_is_tried_again_without_using_up_attempts(bench: Bench) -> None:
    site = bench.site
    (key,) = site.schedule("refused")
    there = site.environment["DULY_SANDBOX_URL"]
    site.environment["DULY_SANDBOX_URL"] = f"http://127.0.0.1:{free_ports(1)[0]}"
    async with bench.working():
        # One more than max_attempts, which is 3.
        await eventually(lambda: len(site.attempts(key)) == 4, "four attempts")
    row = site.operation(key)
    assert (row["state"], row["spent"], row["open_attempts"]) == ("scheduled", 0, 0)
    assert {(attempt["outcome"], attempt["sent"]) for attempt in site.attempts(key)[:3]} == {("not_sent", False)}
    site.environment["DULY_SANDBOX_URL"] = there
    async with bench.working():
        row = await bench.wait_state(key, "delivered")
    assert (row["spent"], len(site.sandbox.requests(key=key)), site.sandbox.count(key)) == (1, 1, 1)
    assert len({attempt["idempotency_key"] for attempt in site.attempts(key)}) == 1


async def test_denied_holds_the_connection_and_its_operations_until_it_is_released(bench: Bench) -> None:
    site = bench.site
    first, second = site.schedule("first", "second")
    (near,) = site.schedule("near", deadline=timedelta(minutes=30))
    site.sandbox.tell("deny", match=f"{site.prefix}*")
    async with bench.working():
        await eventually(lambda: site.sql("SELECT name FROM duly.connection WHERE held IS NOT NULL"), "the hold")
        late = site.schedule("late")[0]
        keys = (first, second, late)
        await eventually(
            lambda: all("is held" in (site.operation(key)["waiting_for"] or "") for key in keys), "all to wait for it"
        )
        alerts = site.sql("SELECT * FROM duly.alerts")
        assert [(alert["alert"], alert["name"]) for alert in alerts] == [("connection held", "main")]
        assert {site.state(key) for key in keys} == {"scheduled"}
        assert {site.operation(key)["spent"] for key in keys} == {0}
        assert site.sandbox.requests(key=late) == []
        # Nothing waits past its deadline for the sake of a credential.
        site.move_clock(timedelta(minutes=31))
        assert (await bench.wait_state(near, "expired"))["open_attempts"] == 0
        denied = len(site.sandbox.requests(prefix=site.prefix))
        site.sandbox.tell(match=f"{site.prefix}*")
        site.sql("SELECT duly.release_connection('main', 'a new token is in place')")
        for key in keys:
            await bench.wait_state(key, "delivered")
    assert len(site.sandbox.requests(prefix=site.prefix)) == denied + len(keys)
    assert {site.sandbox.count(key) for key in keys} == {1}


async def test_throttled_makes_the_connection_wait_as_long_as_the_provider_asked(bench: Bench) -> None:
    site = bench.site
    (key,) = site.schedule("throttled")
    site.sandbox.tell("throttle:3", "ok", key=key)
    async with bench.working():
        await eventually(lambda: site.sandbox.requests(key=key), "the first request")
        await eventually(
            lambda: site.sql("SELECT name FROM duly.connection WHERE not_before > duly.now()"), "the connection to wait"
        )
        (other,) = site.schedule("other")
        for one in (key, other):
            await bench.wait_state(one, "delivered")
    asked, *later = sorted(request["at"] for request in site.sandbox.requests(prefix=site.prefix))
    assert len(later) == 2
    assert all(at - asked >= 3.0 for at in later)
    assert [attempt["outcome"] for attempt in site.attempts(key)] == ["throttled", "delivered"]
    assert [site.operation(one)["spent"] for one in (key, other)] == [1, 1]


async def test_a_hint_beyond_the_deadline_ends_it_now(bench: Bench) -> None:
    site = bench.site
    (key,) = site.schedule("hint", deadline=timedelta(minutes=1))
    site.sandbox.tell("throttle:120", key=key)
    async with bench.working():
        row = await bench.wait_state(key, "expired")
    assert (row["open_attempts"], len(site.sandbox.requests(key=key))) == (0, 1)


async def test_no_call_is_made_that_would_not_fit_before_the_deadline(bench: Bench) -> None:
    site = bench.site
    (key,) = site.schedule("tight", deadline=timedelta(seconds=1.5))  # one call may take 2 s
    async with bench.working():
        await bench.wait_state(key, "expired")
    assert (site.attempts(key), site.sandbox.requests(key=key)) == ([], [])


async def test_a_payload_is_sent_or_refused_at_scheduling_however_deep_it_is(bench: Bench) -> None:
    site = bench.site
    keys = {depth: site.key(f"deep-{depth}") for depth in (99, 100, 101, 5000)}
    for depth, key in keys.items():
        payload = '{"n": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"
        with pytest.raises(psycopg.errors.InvalidParameterValue) if depth > 100 else nullcontext():
            site.sql(
                "SELECT duly.schedule(key => %s, kind => 'note', payload => (%s)::jsonb, due_at => now(),"
                " deadline => now() + interval '1 hour')",
                key, payload,
            )  # fmt: skip
    async with bench.working():
        for depth in (99, 100):
            await bench.wait_state(keys[depth], "delivered")
            assert site.sandbox.count(keys[depth]) == 1


async def test_our_own_defect_before_the_first_byte_blocks_and_sends_nothing(bench: Bench) -> None:
    site = bench.site
    key = site.key("bad-trace")
    site.sql(
        "SELECT duly.schedule(key => %s, kind => 'note', payload => '{\"n\": 1}', due_at => now(),"
        " deadline => now() + interval '1 hour', trace_context => '{\"traceparent\": \"a\\nb\"}')",
        key,
    )
    async with bench.working():
        row = await bench.wait_state(key, "blocked")
    assert (row["open_attempts"], row["wake_at"]) == (0, None)
    assert [(attempt["outcome"], attempt["sent"]) for attempt in site.attempts(key)] == [("defect", False)]
    assert site.sandbox.requests(key=key) == []
    assert site.sql("SELECT alert FROM duly.alerts WHERE name = %s", key) == [{"alert": "blocked"}]


class Says:
    """An adapter that looks at the payload and sends nothing."""

    descriptor = Descriptor()

    def __init__(self, name: OutcomeName) -> None:
        self.outcome = Outcome(name, sent=False, detail="said by the test")

    async def perform(self, call: Call) -> Outcome:
        return self.outcome

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(("name", "state"), [(OutcomeName.INVALID, "rejected"), (OutcomeName.DEFECT, "blocked")])
async def test_what_an_adapter_finds_unfit_is_never_sent(bench: Bench, name: OutcomeName, state: str) -> None:
    (key,) = bench.site.schedule("unfit")
    async with bench.working(adapters={"main": Says(name)}):
        row = await bench.wait_state(key, state)
    assert (row["open_attempts"], row["attempts"]) == (0, 1)
    assert bench.site.attempts(key)[0]["detail"] == "said by the test"


class RaisesAfterwards:
    """A real adapter with a bug in what it does with the answer."""

    def __init__(self, real: Adapter) -> None:
        self.real = real
        self.descriptor = Descriptor()

    async def perform(self, call: Call) -> Outcome:
        await self.real.perform(call)
        raise KeyError(call.payload["n"])

    async def close(self) -> None:
        await self.real.close()


async def test_our_own_defect_after_the_bytes_left_is_unknown_and_is_not_sent_again(bench: Bench) -> None:
    site = bench.site
    (key,) = site.schedule("defect")
    settings = bench.settings
    real = registry.build(settings.providers, settings.connections, site.environment)["main"]
    async with bench.working(adapters={"main": RaisesAfterwards(real)}):
        row = await bench.wait_state(key, "unknown")
        await bench.wait_asked(key)
        site.move_clock(timedelta(hours=5))
        assert (await bench.sweep.once()).taken == 0
    await real.close()
    assert row["open_attempts"] == 1
    assert site.attempts(key)[0]["outcome"] == "defect"
    assert (len(site.sandbox.requests(key=key)), site.sandbox.count(key)) == (1, 1)


async def test_a_connection_without_an_adapter_here_blocks(bench: Bench) -> None:
    (key,) = bench.site.schedule("no-adapter")
    bench.site.sql("INSERT INTO duly.connection (name, provider) VALUES ('gone', 'sandbox')")
    bench.site.sql("UPDATE duly.kind SET connection = 'gone'")
    async with bench.working():
        await bench.wait_state(key, "blocked")
    assert "no adapter" in bench.site.attempts(key)[0]["detail"]


def arm(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """A programmer's error at this place, each time."""
    monkeypatch.setattr(crash, "_NAME", point)
    monkeypatch.setattr(crash, "_ACTION", "raise")


async def test_a_step_after_the_record_that_raises_changes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = bench.site
    (key,) = site.schedule("after-record")
    arm(monkeypatch, "after_record")
    async with bench.working():
        await bench.wait_state(key, "delivered")
        assert await bench.client.get_workflow_handle(key).result() == "delivered"
    assert (len(site.sandbox.requests(key=key)), site.sandbox.count(key), len(site.attempts(key))) == (1, 1, 1)


async def test_a_step_between_reply_and_record_that_raises_makes_it_unknown_and_the_call_is_not_repeated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = bench.site
    (key,) = site.schedule("after-reply")
    arm(monkeypatch, "after_reply")
    async with bench.working():
        await eventually(lambda: site.sandbox.requests(key=key), "the request")
        await eventually(lambda: site.state(key) == "calling", "the claim")
        site.move_clock(timedelta(minutes=3))  # past the lease and the alarm behind it
        await bench.wait_state(key, "unknown")
        await bench.wait_asked(key)
        site.move_clock(timedelta(hours=5))
        assert (await bench.sweep.once()).taken == 0
    assert (len(site.sandbox.requests(key=key)), site.sandbox.count(key), len(site.attempts(key))) == (1, 1, 1)


@pytest.mark.parametrize("point", ["before_claim", "in_claim_transaction", "after_claim", "before_send"])
async def test_a_defect_before_the_first_byte_never_sends_whatever_follows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    site = bench.site
    (key,) = site.schedule(point)
    arm(monkeypatch, point)
    settings = bench.settings
    real = registry.build(
        settings.providers, settings.connections, site.environment,
        before_first_byte=lambda: crash.point("before_send"),
    )  # fmt: skip
    async with bench.working(adapters=real):
        if point in ("before_claim", "in_claim_transaction"):
            await eventually(lambda: site.operation(key)["dispatched_at"], "the start")
            handle = bench.client.get_workflow_handle(key)
            await eventually(lambda: failed_twice(handle), "two failed attempt activities")
            assert (site.state(key), site.attempts(key)) == ("scheduled", [])
            monkeypatch.setattr(crash, "_NAME", "")  # the deploy that mends it
            await bench.wait_state(key, "delivered")
        elif point == "after_claim":
            await eventually(lambda: site.state(key) == "calling", "the claim")
            site.move_clock(timedelta(minutes=3))
            await bench.wait_state(key, "unknown")
        else:
            row = await bench.wait_state(key, "blocked")
            assert (row["open_attempts"], site.attempts(key)[0]["sent"]) == (0, False)
    for adapter in real.values():
        await adapter.close()
    assert len(site.sandbox.requests(key=key)) == (1 if site.state(key) == "delivered" else 0)


async def failed_twice(handle: WorkflowHandle[Any, Any]) -> bool:
    kinds = [event.WhichOneof("attributes") for event in (await handle.fetch_history()).events]
    return kinds.count("activity_task_failed_event_attributes") >= 2


def test_the_table_in_the_code_is_the_table_in_the_database(site: Site) -> None:
    rows = site.sql('SELECT outcome, "then", ends_as, counts FROM duly.rule')
    assert {row["outcome"]: (row["then"], row["ends_as"], row["counts"]) for row in rows} == {
        name.value: (rule.then, rule.ends_as, rule.counts) for name, rule in TABLE.items()
    }
