"""Signals as an operator types them: none wedges the workflow, none vanishes, and only the permitted ones decide."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import RawValue

from tests.harness import Site
from tests.workbench import Bench, eventually
from workflows import contract

REASON = "seen in the provider's own list"


def signal(site: Site, key: str, name: str, *arguments: str, identity: str = "alice@desk", meta: str = "") -> None:
    """What an operator types; ``arguments`` are JSON."""
    inputs = [part for argument in arguments for part in ("--input", argument)]
    extra = ["--input-meta", meta] if meta else []
    site.temporal("workflow", "signal", "--workflow-id", key, "--name", name, *inputs, *extra, "--identity", identity)


def evidence(site: Site, key: str) -> list[dict[str, Any]]:
    return site.sql("SELECT * FROM duly.evidence WHERE key = %s ORDER BY id", key)


def has_evidence(site: Site, key: str, number: int) -> bool:
    return len(evidence(site, key)) == number


def decisions(site: Site, key: str) -> list[dict[str, Any]]:
    return site.sql("SELECT * FROM duly.decision WHERE key = %s ORDER BY id", key)


async def unknown(bench: Bench, name: str) -> str:
    """A key whose reply was lost."""
    (key,) = bench.site.schedule(name)
    bench.site.sandbox.tell("commit_then_close", key=key)
    await bench.wait_state(key, "unknown")
    await bench.wait_asked(key)
    return key


async def is_well(bench: Bench, key: str) -> bool:
    """Whether the workflow runs and no task of it fails."""
    description = await bench.client.get_workflow_handle(key).describe()
    return (
        description.status == WorkflowExecutionStatus.RUNNING
        and description.raw_description.pending_workflow_task.attempt <= 1
    )


UNREADABLE: dict[str, tuple[str, tuple[str, ...], str]] = {
    "no argument": ("resolve", (), ""),
    "two arguments": ("resolve", ('{"choice": "abandon", "reason": "it is over"}', '"and more"'), ""),
    "null": ("resolve", ("null",), ""),
    "a number": ("resolve", ("17",), ""),
    "a list": ("resolve", ('["delivered"]',), ""),
    "plain text": ("resolve", ('"delivered"',), ""),
    "text that is JSON of something else": ("resolve", ('"[1, 2]"',), ""),
    "an unknown choice": ("resolve", ('{"choice": "explode", "reason": "for the test"}',), ""),
    "a choice that is an object": ("resolve", ('{"choice": {"delivered": true}, "reason": "for the test"}',), ""),
    "a reason that is no text": ("resolve", ('{"choice": "abandon", "reason": 12345678}',), ""),
    "delivered without a reference": ("resolve", ('{"choice": "delivered", "reason": "for the test"}',), ""),
    "abandon without a reason": ("resolve", ('{"choice": "abandon"}',), ""),
    "a NUL": ("resolve", ('{"choice": "delivered", "reason": "a\\u0000b", "reference": "\\u0000"}',), ""),
    "half a surrogate pair": ("resolve", ('{"choice": "\\ud800", "reason": "\\udfff"}',), ""),
    "bytes": ("resolve", ("not JSON at all",), "encoding=binary/plain"),
    "an encoding that nobody here knows": ("resolve", ("sealed",), "encoding=binary/encrypted"),
    "a name that nobody defined": ("finish-it", ('{"choice": "delivered"}', "2"), ""),
    "that name, unreadable": ("finish-it", ("sealed",), "encoding=binary/encrypted"),
    "very long": ("resolve", (json.dumps({"choice": "abandon", "reason": "ä" * 60_000}, ensure_ascii=False),), ""),
}  # fmt: skip


async def test_a_signal_that_decides_nothing_is_kept_as_evidence_and_wedges_nothing(bench: Bench) -> None:
    site = bench.site
    async with bench.working():
        key = await unknown(bench, "odd")
        handle = bench.client.get_workflow_handle(key)
        for number, (name, arguments, meta) in enumerate(UNREADABLE.values(), 1):
            signal(site, key, name, *arguments, meta=meta)
            await eventually(partial(has_evidence, site, key, number), f"number {number} to be kept", 20)
        # What no command line can type: an empty name of 0 bytes is refused by the server, a NUL in one is not.
        await handle.signal("na\0me", RawValue(Payload(data=b"\xff\x00", metadata={"encoding": b"\xff\xfe"})))
        rows = await eventually(
            lambda: rows if len(rows := evidence(site, key)) == len(UNREADABLE) + 1 else None, "the last one"
        )
        assert await is_well(bench, key)
    assert {row["source"] for row in rows} == {"signal"}
    assert all("alice@desk" in row["who"] for row in rows[:-1])
    assert [row["detail"]["received"]["signal"] for row in rows[-4:-2]] == ["finish-it", "finish-it"]
    assert "and more" in rows[1]["detail"]["received"]["arguments"]
    assert "sealed" in rows[15]["detail"]["received"]["arguments"]
    assert decisions(site, key) == []
    assert site.state(key) == "unknown"


@pytest.mark.parametrize("form", ["object", "text"])
@pytest.mark.parametrize(("choice", "state"), [("delivered", "delivered"), ("abandon", "abandoned")])
async def test_a_choice_that_sends_nothing_is_a_decision_labelled_with_who_signalled(
    bench: Bench, form: str, choice: str, state: str
) -> None:
    site = bench.site
    said = json.dumps({"choice": choice, "reason": REASON + " ✓", "reference": "ref-9"})
    async with bench.working():
        key = await unknown(bench, "decided")
        signal(site, key, "resolve", identity="bob@other")  # one more of that name, and not the one that decides
        signal(site, key, "resolve", said if form == "object" else json.dumps(said))
        row = await bench.wait_state(key, state)
        assert await bench.client.get_workflow_handle(key).result() == state
    (decision,) = decisions(site, key)
    assert (decision["choice"], decision["by_right"], decision["label"]) == (choice, "temporal", "alice@desk")
    assert decision["reason"] == REASON + " ✓"
    assert row["settled_by"] == ("person" if choice == "delivered" else None)
    assert len(site.sandbox.requests(key=key)) == 1


async def test_not_delivered_by_a_bare_signal_is_only_a_proposal(bench: Bench) -> None:
    site = bench.site
    async with bench.working():
        key = await unknown(bench, "proposed")
        signal(site, key, "resolve", json.dumps({"choice": "not delivered", "reason": REASON}))
        (row,) = await eventually(lambda: evidence(site, key), "the proposal")
        assert await is_well(bench, key)
    assert (row["source"], row["finding"]) == ("proposal", "not delivered")
    assert REASON in row["detail"]["received"]["arguments"]
    assert decisions(site, key) == []
    assert (site.state(key), site.operation(key)["pending_decision"]) == ("unknown", None)


async def test_a_nudge_carries_nothing_whatever_is_put_into_it(bench: Bench) -> None:
    site = bench.site
    async with bench.working():
        key = await unknown(bench, "nudged")
        handle = bench.client.get_workflow_handle(key)
        nudges: list[tuple[tuple[str, ...], str]] = [
            ((), ""), (("1", '{"choice": "abandon"}'), ""), (("sealed",), "encoding=binary/encrypted")
        ]  # fmt: skip
        for arguments, meta in nudges:
            before = len((await handle.fetch_history()).events)
            signal(site, key, contract.NUDGE, *arguments, meta=meta)

            async def asked(before: int = before) -> bool:
                new = (await handle.fetch_history()).events[before:]
                return any(event.HasField("activity_task_completed_event_attributes") for event in new)

            await eventually(asked, f"the nudge {arguments} {meta} to make it ask")
        assert await is_well(bench, key)
    assert (site.state(key), evidence(site, key), decisions(site, key)) == ("unknown", [], [])


async def test_a_decision_comes_too_late_for_what_has_ended_and_says_so(bench: Bench) -> None:
    site = bench.site
    async with bench.working():
        key = await unknown(bench, "late")
        # Decided in the ledger while no signal reaches the workflow; then the bare signal comes.
        site.sql("SELECT duly.decide(%s, 'delivered', %s, 'ref-1')", key, REASON)
        signal(site, key, "resolve", json.dumps({"choice": "abandon", "reason": REASON}))
        assert await bench.client.get_workflow_handle(key).result() == "delivered"
    assert [row["source"] for row in evidence(site, key)] == ["refused decision"]
    assert [row["choice"] for row in decisions(site, key)] == ["delivered"]
