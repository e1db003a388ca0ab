"""The commands on real Postgres and Temporal: what they do, what they print, how they end."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.app import run
from config.environment import REPOSITORY
from config.search_attributes import SEARCH_ATTRIBUTES
from provider.port import OutcomeName
from stack import database as databases
from stack.local import Stack
from tests.harness import Site

NOWHERE = "127.0.0.1:1"  # nothing listens on port 1
DEMO_LIMIT = 240  # seconds; 15 when idle


@dataclass(frozen=True)
class Printed:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON document: it fails if there is anything else."""
        return json.loads(self.out)


Duly = Callable[..., Printed]


@pytest.fixture
def duly(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Duly:
    """Runs one command in this process, on the site of the test and with all rights; asserts its exit code."""
    for name, value in {**site.environment, "DULY_DATABASE_URL": site.database}.items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str, code: int = 0) -> Printed:
        capsys.readouterr()
        ended = run(list(arguments))
        printed = Printed(ended, *capsys.readouterr())
        assert ended == code, printed
        assert "Traceback" not in printed.err
        assert "CONTEXT" not in printed.err
        return printed

    return call


@pytest.fixture
def empty_database(stack_env: Stack) -> Iterator[str]:
    """URL of a database without the schema."""
    name = f"empty_{uuid.uuid4().hex[:12]}"
    databases.create(stack_env.database_url("postgres"), name)
    yield stack_env.database_url(name)
    databases.drop(stack_env.database_url("postgres"), name)


def schedule_arguments(key: str, **changes: str) -> list[str]:
    options = {"kind": "note", "payload": '{"n": 1}', "due": "+1h", "deadline": "+2h", **changes}
    return ["schedule", key, *(part for name, value in options.items() for part in (f"--{name}", value))]


def test_scheduling_again_changes_nothing_and_other_content_is_refused(site: Site, duly: Duly) -> None:
    first = duly(*schedule_arguments("a"), "--json").json
    assert (first["created"], first["state"]) == (True, "scheduled")
    again = duly(*schedule_arguments("a"), "--json").json
    assert (again["created"], again["due_utc"]) == (False, first["due_utc"])
    assert "the first call's times stand" in again["note"]
    refused = duly(*schedule_arguments("a", payload='{"n": 2}'), code=3)
    assert "payload differs" in refused.err
    assert refused.out == ""
    assert len(site.history("a")) == 1


@pytest.mark.parametrize(
    ("key", "changes", "says"),
    [
        ("a" * 201, {}, "breaks the key rule"),
        ("a/b", {}, "breaks the key rule"),
        ("a\n", {}, "breaks the key rule"),
        ("😀", {}, "breaks the key rule"),
        ("a", {"kind": "letter"}, "Known: note"),
        ("a", {"payload": "{}"}, "lacks n"),
        ("a", {"payload": '{"n": "\\u0000"}'}, "Unicode"),
        ("a", {"due": "+3h"}, "is not after due_at"),
        ("a", {"due": "9999-01-01T00:00Z", "deadline": "9999-12-01T00:00Z"}, "century"),
        ("a", {"due": "2030-01-01T10:00"}, "--due"),
        ("a", {"subject": "s"}, "go together"),
    ],
)
def test_bad_values_end_with_2_and_a_sentence(
    site: Site, duly: Duly, key: str, changes: dict[str, str], says: str
) -> None:
    assert says in duly(*schedule_arguments(key, **changes), code=2).err
    assert site.sql("SELECT 1 FROM duly.operation") == []


def test_an_import_is_all_or_nothing_and_safe_to_repeat(site: Site, duly: Duly, tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text("\ufeffkey,kind,due_at,deadline,n\n" + "".join(f"k-{n},note,+1h,+2h,Zoë {n}\n" for n in range(5)))
    assert duly("import", str(path), "--dry-run", "--json").json["created"] == 5
    assert site.sql("SELECT 1 FROM duly.operation") == []
    assert duly("import", str(path), "--json").json["created"] == 5
    again = duly("import", str(path), "--json").json
    assert (again["rows"], again["created"], again["already_there"], again["times_differ"]) == (5, 0, 5, 5)
    assert {row["payload"]["n"] for row in site.sql("SELECT payload FROM duly.operation")} == {
        f"Zoë {n}" for n in range(5)
    }
    path.write_text("key,kind,due_at,deadline,n\nk-9,note,+1h,+2h,1\nk-1,note,+1h,+2h,else\nk-2,note,+1h,+2h,else\n")
    refused = duly("import", str(path), "--json", code=3)
    assert [conflict["line"] for conflict in refused.json["conflicts"]] == [3, 4]
    assert f"{path}:3: key k-1 exists with other content: payload differs" in refused.err
    assert site.sql("SELECT 1 FROM duly.operation WHERE key = 'k-9'") == []


def test_every_bad_row_is_reported_with_its_line_and_nothing_is_imported(
    site: Site, duly: Duly, tmp_path: Path
) -> None:
    path = tmp_path / "notes.jsonl"
    good = {"key": "k-1", "kind": "note", "due_at": "+1h", "deadline": "+2h", "payload": {"n": 1}}
    bad = [
        {**good, "key": "a/b"},
        {**good, "key": "k-2", "due_at": "2030-01-01T10:00"},
        {**good, "key": "k-3", "kind": "letter"},
        {**good, "payload": {"n": 2}},
    ]
    path.write_text("\n".join(json.dumps(row) for row in [good, *bad]) + "\n{\n")
    printed = duly("import", str(path), "--json", code=2)
    assert [row["line"] for row in printed.json["bad_rows"]] == [2, 3, 4, 5, 6]
    assert "nothing was changed" in printed.err
    assert site.sql("SELECT 1 FROM duly.operation") == []


def test_what_only_the_ledger_can_refuse_is_reported_for_every_row(site: Site, duly: Duly, tmp_path: Path) -> None:
    path = tmp_path / "versions.csv"
    header = "key,kind,due_at,deadline,subject,version,n\n"
    path.write_text(header + "a-2,note,+1h,+2h,a,2,1\nb-2,note,+1h,+2h,b,2,1\n")
    duly("import", str(path))
    path.write_text(header + "a-1,note,+1h,+2h,a,1,1\nc-1,note,+1h,+2h,c,1,1\nb-1,note,+1h,+2h,b,1,1\n")
    printed = duly("import", str(path), "--json", code=3)
    assert [conflict["line"] for conflict in printed.json["conflicts"]] == [2, 4]
    assert len(site.sql("SELECT 1 FROM duly.operation")) == 2


def test_reading_commands_filter_and_never_show_payloads_or_claim_tokens(site: Site, duly: Duly) -> None:
    duly(*schedule_arguments("a:1", payload='{"n": "CANARY"}'))
    duly(*schedule_arguments("b:1", payload='{"n": "CANARY"}'))
    duly("cancel", "b:1", "--reason", "not wanted")
    assert [row["key"] for row in duly("list", "--state", "scheduled", "--json").json] == ["a:1"]
    assert [row["key"] for row in duly("list", "--prefix", "b:", "--json").json] == ["b:1"]
    assert duly("list", "--kind", "letter", "--json").json == []
    assert len(duly("list", "--limit", "1").out.splitlines()) == 2
    assert duly("show", "a:1", "--json").json["state"] == "scheduled"
    story = duly("show", "b:1").out
    assert "CANCELLED" in story
    assert "scheduled → cancelled  not wanted" in story
    for arguments in (["list"], ["list", "--json"], ["show", "a:1"], ["show", "a:1", "--json"]):
        assert "CANARY" not in duly(*arguments).out
    assert "list" in duly("show", "none", code=2).err


def test_cancel_and_reschedule_answer_which_state_won(site: Site, duly: Duly) -> None:
    duly(*schedule_arguments("a"))
    moved = duly("reschedule", "a", "--due", "+3h", "--deadline", "+4h", "--reason", "later", "--json").json
    assert moved["done"]
    due = site.operation("a")["due_at"]
    assert timedelta(hours=2, minutes=59) < due - datetime.now(UTC) < timedelta(hours=3, minutes=1)
    assert duly("cancel", "a", "--reason", "not wanted", "--json").json["state"] == "cancelled"
    late = duly("reschedule", "a", "--due", "+3h", "--deadline", "+4h", "--reason", "later", "--json", code=3)
    assert late.json["done"] is False
    assert "too late: it is cancelled" in late.err
    assert "not in the ledger" in duly("cancel", "none", "--reason", "not wanted", code=2).err


def test_an_unknown_operation_is_settled_by_a_decision_and_its_workflow_ends(site: Site, duly: Duly) -> None:
    key = site.key("lost")
    site.sandbox.tell("commit_then_close", key=key)
    duly(*schedule_arguments(key, due="now"))
    site.worker()
    site.wait_state(key, "unknown")
    assert [row["key"] for row in duly("list", "--state", "unknown", "--json").json] == [key]
    story = duly("show", key).out
    assert f"./duly resolve {key} --delivered REFERENCE" in story
    assert "NOT RESOLVED" in story

    (effect,) = site.sandbox.effects(key=key)[key]
    decision = ["resolve", key, "--reason", "seen at the provider", "--json"]
    tried = duly(*decision, "--not-delivered", "--dry-run").json
    assert (tried["accepted"], tried["dry_run"]) == (True, True)
    moved_on = duly(*decision, "--abandon", "--expect-attempt", "7", code=3)
    assert "it moved on since you read it" in moved_on.json["answer"]
    assert site.sql("SELECT 1 FROM duly.decision") == []

    settled = duly(*decision, "--delivered", effect["id"], "--label", "alice", "--evidence", "their page").json
    assert settled["state"] == "delivered"
    assert settled["nudge"] == "its workflow was told"
    site.wait_event(key, "WORKFLOW_EXECUTION_COMPLETED")
    assert duly("show", key, "--json").json["settled_by"] == "person"
    assert "their page" in duly("show", key).out
    assert duly(*decision, "--abandon", code=3).json["accepted"] is False
    assert site.sandbox.count(key) == 1


def test_a_decision_holds_when_temporal_is_away(site: Site, duly: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    (key,) = site.schedule("a", due=timedelta(hours=1), deadline=timedelta(hours=2))
    monkeypatch.setenv("TEMPORAL_ADDRESS", NOWHERE)
    printed = duly("cancel", key, "--reason", "not wanted")
    assert "Temporal was not told" in printed.err
    assert "the sweep will find it" in printed.err
    assert site.state(key) == "cancelled"


def test_a_held_connection_is_released_once(site: Site, duly: Duly) -> None:
    site.sql("UPDATE duly.connection SET held = 'denied', held_at = now()")
    assert duly("release", "main", "--reason", "new credential", "--json").json["done"] is True
    assert site.sql("SELECT 1 FROM duly.connection WHERE held IS NOT NULL") == []
    duly("release", "main", "--reason", "new credential", code=3)
    duly("release", "none", "--reason", "new credential", code=2)


def test_a_sweep_prints_starts_accepted_and_gives_rows_back_when_temporal_is_away(
    site: Site, duly: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.schedule("a", "b", "c")
    with monkeypatch.context() as away:
        away.setenv("TEMPORAL_ADDRESS", NOWHERE)
        assert "./duly up" in duly("sweep", "--once", code=4).err
    found = duly("sweep", "--once", "--json").json
    assert (found["taken"], found["starts_accepted"]) == (3, 3)
    assert found["oldest_eligible_s"] > 0
    again = duly("sweep", "--once")
    assert "starts accepted: 0 of 0 taken" in again.out
    assert "oldest eligible: none was due" in again.out


def test_migrate_makes_schema_kinds_and_search_attributes_and_may_be_repeated(
    empty_database: str, site: Site, duly: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DULY_DATABASE_URL", empty_database)
    assert "./duly migrate" in duly("list", code=4).err
    assert "./duly migrate" in duly(*schedule_arguments("a"), code=4).err
    with monkeypatch.context() as away:
        away.setenv("TEMPORAL_ADDRESS", NOWHERE)
        assert "were not registered" in duly("migrate", "--json").json["search_attributes"]
    for _ in range(2):
        done = duly("migrate", "--json").json
        assert (done["kinds"], done["connections"]) == (["note"], ["main"])
    assert done["search_attributes"] == "search attributes are registered"
    duly(*schedule_arguments("a"))
    listed = site.temporal("operator", "search-attribute", "list", "--output", "json")
    assert json.loads(listed)["customAttributes"].keys() >= SEARCH_ATTRIBUTES.keys()


def checks(printed: Printed) -> dict[str, dict[str, str]]:
    return {check["check"]: check for check in printed.json["checks"]}


def test_the_doctor_finds_everything_well_once_a_worker_polls(site: Site, duly: Duly) -> None:
    duly("migrate")
    idle = checks(duly("doctor", "--json", code=4))
    assert {name for name, check in idle.items() if check["result"] == "fail"} == {"workers on duly-sandbox"}
    assert "./duly worker" in idle["workers on duly-sandbox"]["remedy"]
    site.worker()
    well = duly("doctor", "--json")
    # A test's server writes lazily, which the doctor is right to say.
    assert all(check["result"] == "ok" or name in ("fsync", "full_page_writes", "synchronous_commit")
               for name, check in checks(well).items())  # fmt: skip
    assert well.json["ok"] is True


def test_the_doctor_names_what_is_not_well_and_what_to_do(
    empty_database: str, site: Site, duly: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.sql("UPDATE duly.kind SET max_attempts = 77 WHERE active")
    site.sql("UPDATE duly.connection SET held = 'denied', held_at = now()")
    monkeypatch.delenv("DULY_SANDBOX_URL")
    monkeypatch.setenv("TEMPORAL_ADDRESS", NOWHERE)
    found = checks(duly("doctor", "--json", code=4))
    assert found["kinds"]["remedy"] == "Run ./duly migrate"
    assert "DULY_SANDBOX_URL" in found["secrets"]["found"]
    assert found["connections"]["result"] == "warn"
    assert "./duly up" in found["temporal"]["remedy"]
    monkeypatch.setenv("DULY_DATABASE_URL", empty_database)
    assert checks(duly("doctor", "--json", code=4))["schema"]["remedy"] == "Run ./duly migrate"
    monkeypatch.setenv("DULY_DATABASE_URL", f"postgresql://{NOWHERE}/none")
    assert checks(duly("doctor", "--json", code=4))["database"]["result"] == "fail"
    monkeypatch.setenv("DULY_DATABSE_URL", "x")
    assert "Did you mean DULY_DATABASE_URL?" in checks(duly("doctor", "--json", code=4))["environment"]["found"]


def test_a_login_without_the_right_is_refused_by_rule(site: Site, duly: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DULY_DATABASE_URL", site.worker_database)
    printed = duly(*schedule_arguments("a"), code=3)
    assert "permission denied" in printed.err
    assert "duly_app" in printed.err


def test_the_retry_table_holds_every_outcome_and_each_kinds_waits(duly: Duly) -> None:
    found = duly("retry-table", "--json").json
    assert {row["outcome"] for row in found["outcomes"]} == {str(name) for name in OutcomeName}
    (kind,) = found["kinds"]
    assert (kind["kind"], kind["backoff_base_s"], kind["backoff_cap_s"]) == ("note", 1.0, 2.0)
    assert "Anything not listed is unknown." in duly("retry-table").out


def test_json_stands_alone_on_standard_output_with_every_log_line_asked_for(site: Site) -> None:
    site.environment["DULY_LOG_LEVEL"] = "DEBUG"
    site.schedule("a")
    assert json.loads(site.duly("sweep", "--once", "--json"))["starts_accepted"] == 1
    assert json.loads(site.duly("cancel", site.key("a"), "--reason", "not wanted", "--json"))["state"] == "cancelled"


def test_the_demo_accounts_for_every_operation_and_leaves_the_lost_reply_unknown() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cli", "demo", "--once", "--json"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=DEMO_LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "operations": 12, "delivered": 11, "unknown": 1, "ended_other": 0, "provider_effects": 12,
        "duplicates": 0, "lost": 0, "late": 0,
    }  # fmt: skip
