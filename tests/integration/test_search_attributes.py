"""What operators filter by in the web UI, on a real worker: set at the start, touched again only around a doubt."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from config.search_attributes import SEARCH_ATTRIBUTES
from tests.harness import Site, wait_for


@pytest.fixture
def shown(site: Site) -> Site:
    """A site whose namespace knows the search attributes, with a worker."""
    site.duly("migrate")
    site.worker()
    return site


def found(site: Site, query: str) -> list[str]:
    listed = json.loads(site.temporal("workflow", "list", "--query", query, "--output", "json") or "[]")
    return [run["execution"]["workflowId"] for run in listed]


def attributes(site: Site, key: str) -> dict[str, Any]:
    """Name to value; times as datetimes."""
    described = json.loads(site.temporal("workflow", "describe", "--workflow-id", key, "--output", "json"))
    fields = described["workflowExecutionInfo"]["searchAttributes"]["indexedFields"]
    values = {name: json.loads(b64decode(fields[name]["data"])) for name in SEARCH_ATTRIBUTES if name in fields}
    return {
        name: datetime.fromisoformat(value) if SEARCH_ATTRIBUTES[name] == "Datetime" else value
        for name, value in values.items()
    }


def test_kind_provider_due_time_and_deadline_are_set_at_the_start(shown: Site) -> None:
    (key,) = shown.schedule("op")
    shown.wait_state(key, "delivered")
    row = shown.operation(key)
    assert attributes(shown, key) == {
        "DulyKind": "note",
        "DulyState": "scheduled",  # the happy path does not touch it again
        "DulyProvider": "sandbox",
        "DulyDue": row["due_at"],
        "DulyDeadline": row["deadline"],
    }


def test_an_unknown_is_found_by_its_state_and_by_how_long_it_waits_until_it_is_settled(shown: Site) -> None:
    started = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=1)
    (key,) = shown.schedule("lost")
    shown.sandbox.tell("commit_then_close", key=key)
    shown.wait_state(key, "unknown")
    query = f"DulyState = 'unknown' AND DulyWaitingSince > '{started.isoformat()}'"
    wait_for(lambda: found(shown, query) == [key], "the list to show it")
    assert started <= attributes(shown, key)["DulyWaitingSince"] <= datetime.now(UTC)
    shown.duly("resolve", key, "--abandon", "--reason", "the customer was told by phone")
    wait_for(lambda: attributes(shown, key).get("DulyState") == "abandoned", "the workflow to show the ending")
    assert "DulyWaitingSince" not in attributes(shown, key)
    wait_for(lambda: found(shown, query) == [], "the list to show it no more")
