"""The command line without servers: help, times, files of operations, the demo's account, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer

from cli import times
from cli.app import app, run
from cli.demo_account import Operation, account
from cli.demo_orders import read_orders
from cli.errors import CommandError
from cli.importing import check
from cli.rows import Defaults, Read, read
from config.environment import REPOSITORY

COMMANDS = [
    "demo",
    "up",
    "migrate",
    "doctor",
    "worker",
    "schedule",
    "import",
    "list",
    "show",
    "cancel",
    "reschedule",
    "sweep",
    "resolve",
    "release",
    "retry-table",
    "bench",
    "test",
    "sandbox",
]
READING = [
    "migrate",
    "doctor",
    "schedule",
    "import",
    "list",
    "show",
    "cancel",
    "reschedule",
    "sweep",
    "resolve",
    "release",
    "retry-table",
    "demo",
]
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS if name != "bench")])
def test_help_imports_neither_temporal_nor_sqlalchemy(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom cli.app import run\ncode = run(sys.argv[1:])\n"
        "print(code, *(m for m in ('temporalio', 'sqlalchemy', 'psycopg', 'httpx', 'rich') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.splitlines()[-1] == "0", done.stdout
    assert "Usage: duly" in done.stdout


def test_every_command_has_help_with_an_example_and_reading_ones_have_json() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert sorted(commands) == sorted(COMMANDS)
    for name, command in commands.items():
        assert command.help, name
        assert f"./duly {name}" in command.epilog, name
    for name in READING:
        assert any("--json" in option.opts for option in commands[name].params), name


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lst"], "Did you mean 'list'"),
        (["schedule"], "Missing argument"),
        (["list", "--state", "lost"], "is not one of"),
        (["list", "--limit", "0"], "limit"),
        (["resolve", "k", "--reason", "seen there"], "exactly one of"),
        (["resolve", "k", "--reason", "seen there", "--abandon", "--not-delivered"], "exactly one of"),
        (["sweep"], "--once"),
        (["import", "-"], "--format"),
        (["import", "none.csv"], "cannot be read"),
        (["import", "file.xlsx"], "format"),
        (["reschedule", "k", "--due", "2030-01-01T10:00", "--deadline", "+1h", "--reason", "later"], "--due"),
    ],
)
def test_what_cannot_be_used_is_named_and_ends_with_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("payload", ["{", "[1]", "17", '{"a": NaN}', '{"a": 1, "a": 2}', "@none.json"])
def test_a_payload_that_is_no_json_object_is_refused(payload: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["schedule", "k", "--kind", "n", "--payload", payload, "--due", "now", "--deadline", "+1h"]
    assert run(arguments) == 2
    assert "--payload" in capsys.readouterr().err


def test_without_a_database_the_answer_is_4_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DULY_HOME", str(tmp_path))
    assert run(["list"]) == 4
    assert "./duly up" in capsys.readouterr().err
    monkeypatch.setenv("DULY_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    assert run(["list"]) == 4
    message = capsys.readouterr().err
    assert "cannot be reached" in message
    assert "Traceback" not in message
    assert run(["list", "--debug"]) == 4
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", timedelta()),
        ("+10m", timedelta(minutes=10)),
        ("2030-01-31T09:00+01:00", datetime(2030, 1, 31, 8, tzinfo=UTC)),
        (" 2030-01-31 09:00:00Z ", datetime(2030, 1, 31, 9, tzinfo=UTC)),
    ],
)
def test_times_are_read(text: str, moment: times.Moment) -> None:
    assert times.parse(text, "--due") == moment


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2030-01-31T09:00", "no time zone; add one, for example 2030-01-31T09:00Z"),
        ("2030-01-31", "no time zone; add one, for example 2030-01-31T09:00Z"),
        ("tomorrow", "is no time"),
        ("+10", "is no duration"),
        ("+9999999999d", "is no duration"),
        ("", "is no time"),
    ],
)
def test_a_naive_or_unreadable_time_is_refused_naming_field_and_remedy(text: str, says: str) -> None:
    with pytest.raises(times.TimeError, match="--deadline") as caught:
        times.parse(text, "--deadline")
    assert says in str(caught.value)


def test_a_relative_time_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(times.TimeError):
        times.resolve(times.parse("+4000000d", "--due"), NOW)


def csv_file(*lines: str) -> bytes:
    return "\r\n".join(lines).encode()


def problems(found: Read) -> list[tuple[int, str]]:
    return [(bad.line, bad.what) for bad in found.bad]


def test_csv_rows_keep_names_quotes_line_ends_and_the_lines_where_they_begin() -> None:
    content = b"\xef\xbb\xbf" + csv_file(
        "key,kind,due_at,deadline,version,subject,payload,order_id,note",
        'o-1,note,now,+1h,2,o-1:s,"{""n"": 1}",17,"first',
        'second ""line"""',
        "",
        "o-2,note,now,+1h,,,,18,Zoë 東京",
        "o-3,note,soon,+1h,,,,19,",
    )
    found = read(content, "csv", Defaults())
    first, second = found.rows
    assert (first.line, first.key, first.version, first.subject) == (2, "o-1", 2, "o-1:s")
    assert first.payload == {"n": 1, "order_id": "17", "note": 'first\r\nsecond "line"'}
    assert (second.line, second.payload, second.version) == (5, {"order_id": "18", "note": "Zoë 東京"}, None)
    assert problems(found) == [(6, f"due_at is 'soon', which is no time; write {times.HELP}")]


def test_options_stand_in_for_columns_that_a_file_has_not() -> None:
    defaults = Defaults("note", timedelta(), timedelta(hours=1), "order-{order_id}:c:1")
    found = read(csv_file("order_id,total", "17,1.50", ",2.00"), "csv", defaults)
    (row,) = found.rows
    assert (row.key, row.kind, row.payload) == ("order-17:c:1", "note", {"order_id": "17", "total": "1.50"})
    assert problems(found) == [(3, "key cannot be made: the row has no order_id")]


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (b"", 1, "empty"),
        (b"key;kind\na;b", 1, "not separated by commas"),
        (b"key,key\na,b", 1, "more than once"),
        (b"key,\na,b", 1, "without a name"),
        (b"key,kind\na", 2, "has 1 cells, and the header has 2"),
        (b'key,kind\n"a,b', 2, "this is not CSV"),
        (b"key,kind\na,\xfc", 2, "not UTF-8"),
        (b"key,kind,due_at,deadline,version,subject\na,n,now,+1h,1.5,s", 2, "version must be a whole number"),
        (b"key,kind,due_at,deadline,version\na,n,now,+1h,1", 2, "go together"),
        (b"key,kind,due_at,deadline,payload\na,n,now,+1h,[1]", 2, "payload is not a JSON object"),
        (b"key,kind,due_at,deadline\na,n,2030-01-01,+1h", 2, "no time zone"),
        (b"order_id\n17", 2, "key is missing"),
    ],
)
def test_a_fault_in_a_csv_file_is_named_with_its_line(content: bytes, line: int, says: str) -> None:
    found = read(content, "csv", Defaults())
    assert found.rows == []
    assert any(at == line and says in what for at, what in problems(found)), problems(found)


def test_every_bad_line_of_a_jsonl_file_is_reported_and_line_separators_inside_text_are_kept() -> None:
    good = {
        "key": "o-1",
        "kind": "note",
        "due_at": "now",
        "deadline": "+1h",
        "payload": {"n": "a\u2028b"},
        "tenant": None,
    }
    lines = [
        json.dumps(good, ensure_ascii=False), "", "{", "[]", '{"key": 7}',
        json.dumps({**good, "key": "o-2", "payload": None}), json.dumps({**good, "n": 1}),
    ]  # fmt: skip
    found = read("\n".join(lines).encode(), "jsonl", Defaults())
    assert [(row.line, row.payload) for row in found.rows] == [(1, {"n": "a\u2028b"})]
    assert {line for line, _ in problems(found)} == {3, 4, 5, 6, 7}
    assert (7, "payload and columns both give n") in problems(found)


def rows_of(*records: dict[str, object]) -> Read:
    base = {"kind": "note", "due_at": "now", "deadline": "+1h", "payload": {"n": 1}}
    return read("\n".join(json.dumps({**base, **record}) for record in records).encode(), "jsonl", Defaults())


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"key": "a/b"}, "breaks the key rule"),
        ({"key": "-a"}, "breaks the key rule"),
        ({"key": "a" * 201}, "breaks the key rule"),
        ({"key": "😀"}, "breaks the key rule"),
        ({"key": "a\n"}, "breaks the key rule"),
        ({"key": "a", "kind": "letter"}, "kind 'letter' is not known; known: note"),
        ({"key": "a", "payload": {}}, "payload lacks n"),
        ({"key": "a", "payload": {"n": "x" * 70000}}, "65536 are allowed"),
        ({"key": "a", "payload": {"n": "\x00"}}, "NUL"),
        ({"key": "a", "payload": {"n": "\ud800"}}, "surrogate"),
        ({"key": "a", "due_at": "+2h"}, "is not after due_at"),
        ({"key": "a", "due_at": "2020-01-01T00:00Z", "deadline": "2020-01-02T00:00Z"}, "already past"),
        ({"key": "a", "due_at": "9999-01-01T00:00Z", "deadline": "9999-01-02T00:00Z"}, "a century ahead"),
        ({"key": "a", "subject": "s" * 201, "version": 1}, "subject has 201 bytes"),
    ],
)
def test_what_the_ledger_would_refuse_is_found_before_anything_is_written(record: dict[str, object], says: str) -> None:
    found = rows_of(record)
    assert not found.bad
    ready, bad = check(found.rows, {"note": ["n"]}, NOW)
    assert not ready
    assert any(says in fault.what for fault in bad), bad


def test_a_key_of_200_bytes_is_good_and_a_repeat_counts_only_with_other_content() -> None:
    found = rows_of({"key": "a" * 200}, {"key": "b"}, {"key": "b"}, {"key": "b", "payload": {"n": 2}})
    ready, bad = check(found.rows, {"note": ["n"]}, NOW)
    assert len(ready) == 3
    assert [(fault.line, fault.what) for fault in bad] == [(4, "key b stands in line 2 with other content")]


def test_the_examples_are_good_and_hold_names_in_several_scripts() -> None:
    orders = read_orders(REPOSITORY / "examples" / "orders.csv")
    assert len(orders) == 12
    assert all(order.payload["order_id"] == order.order_id for order in orders)
    assert any("東京" in str(order.payload) for order in orders)
    text = (REPOSITORY / "examples" / "orders.jsonl").read_bytes()
    found = read(text, "jsonl", Defaults(due=timedelta(), deadline=timedelta(hours=1)))
    ready, bad = check(found.rows, {"order.confirmation": ["order_id"]}, NOW)
    assert (len(ready), bad, found.bad) == (4, [], [])


def test_orders_with_nulls_are_read_and_bad_ones_are_named_with_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "orders.csv"
    header = "orderID,orderDate,requiredDate,shipRegion,shipName"
    path.write_text(f"{header}\n1,1996-07-04 00:00:00.000,1996-08-01 00:00:00.000,NULL,Spezialitäten\n")
    (order,) = read_orders(path)
    assert (order.key, order.time_allowed) == ("order-1:confirmation:1", timedelta(days=28))
    assert order.payload["shipRegion"] is None
    assert order.payload["shipName"] == "Spezialitäten"
    path.write_text(f"{header}\n1,NULL,1996-08-01,a,b\n2,1996-07-04,then,a,b\n3,1996-07-04,1996-07-04,a,b\n4\n")
    with pytest.raises(CommandError, match="4 bad rows"):
        read_orders(path)
    assert [line.split(":")[1] for line in capsys.readouterr().err.splitlines()] == ["2", "3", "4", "5"]


DUE, DEADLINE = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


def operation(state: str, *, visible: bool = True) -> Operation:
    return Operation(state, DUE, DEADLINE, state in ("delivered", "expired"), visible)


def at(key: str, *times_: datetime) -> Sequence[dict[str, object]]:
    return [{"key": key, "at": moment.timestamp()} for moment in times_]


def test_the_account_of_a_good_run_is_good() -> None:
    ledger = {"a": operation("delivered"), "b": operation("unknown"), "c": operation("expired")}
    found = account(ledger, {"a": [1], "b": [1]}, [*at("a", DUE), *at("b", DEADLINE)], {"a", "b"})
    assert found.as_dict() == {
        "operations": 3, "delivered": 1, "unknown": 1, "ended_other": 1, "provider_effects": 2,
        "duplicates": 0, "lost": 0, "late": 0,
    }  # fmt: skip
    assert found.good


def test_the_account_counts_a_second_effect_and_one_without_an_operation_as_duplicates() -> None:
    found = account({"a": operation("delivered")}, {"a": [1, 2], "ghost": [3]}, [], {"a"})
    assert (found.duplicates, found.provider_effects, found.good) == (2, 3, False)


def test_the_account_counts_what_nobody_sees_or_has_no_effect_as_lost() -> None:
    ledger = {"a": operation("delivered"), "b": operation("scheduled", visible=False), "c": operation("scheduled")}
    found = account(ledger, {}, [], {"a", "b", "c", "ghost"})
    assert (found.lost, found.good) == (3, False)


def test_the_account_counts_requests_out_of_their_time_as_late() -> None:
    second = timedelta(seconds=1)
    found = account({"a": operation("delivered")}, {"a": [1]}, at("a", DUE - second, DUE, DEADLINE + second), {"a"})
    assert (found.late, found.good) == (2, False)
