"""What an HTTP status proves, what a provider's table may say instead, and when to come back."""

from __future__ import annotations

import time

import pytest

from provider.answers import DEFAULTS, AnswerTable, check_overrides
from provider.durations import parse_duration
from provider.port import OutcomeName
from provider.retry_after import HINT_MAX, http_date, retry_after

# The outcomes after which Duly sends the same key again by itself, or holds it back to send it later.
SENT_AGAIN = {
    OutcomeName.NOT_SENT,
    OutcomeName.NOT_PROCESSED,
    OutcomeName.THROTTLED,
    OutcomeName.IN_FLIGHT,
    OutcomeName.DENIED,
}


def test_every_status_has_an_outcome_and_what_nobody_thought_of_is_unknown() -> None:
    table = AnswerTable()
    for status in range(1000):
        assert isinstance(table.outcome(status), OutcomeName)
        if status not in DEFAULTS and not 200 <= status < 300:
            assert table.outcome(status) is OutcomeName.UNKNOWN, status


@pytest.mark.parametrize(
    ("outcome", "statuses"),
    [
        (OutcomeName.DELIVERED, [200, 201, 203, 204, 205, 206, 299]),
        (OutcomeName.ACCEPTED, [202]),
        (OutcomeName.REJECTED, [400, 404, 405, 410, 413, 415, 422, 501, 505]),
        (OutcomeName.DENIED, [401, 403]),
        (OutcomeName.THROTTLED, [429]),
        (OutcomeName.NOT_PROCESSED, [421, 425]),
        (
            OutcomeName.UNKNOWN,
            [
                *(101, 103, 207, 300, 301, 302, 303, 304, 307, 308, 402, 406, 408, 409, 412, 418, 499),
                *(500, 502, 503, 504, 507, 520, 521, 522, 523, 524, 529, 600, 999),
            ],
        ),
    ],
)
def test_the_default_table_is_the_designs(outcome: OutcomeName, statuses: list[int]) -> None:
    assert {status: AnswerTable().outcome(status) for status in statuses} == dict.fromkeys(statuses, outcome)


def test_by_default_only_statuses_that_prove_it_let_the_key_be_sent_again() -> None:
    again = {status for status in range(1000) if AnswerTable().outcome(status) in SENT_AGAIN}
    assert again == {401, 403, 421, 425, 429}


@pytest.mark.parametrize("word", sorted(OutcomeName))
def test_no_override_lets_a_success_or_an_ambiguous_failure_be_sent_again(word: OutcomeName) -> None:
    for status in [
        "200",
        "201",
        "202",
        "2xx",
        "301",
        "499",
        "500",
        "502",
        "504",
        "520",
        "522",
        "524",
        "3xx",
        "4xx",
        "5xx",
    ]:
        if word in SENT_AGAIN and not (status == "301" and word in (OutcomeName.NOT_PROCESSED, OutcomeName.DENIED)):
            with pytest.raises(ValueError, match=f'"{status}" = "{word}"'):
                check_overrides({status: word})


@pytest.mark.parametrize("word", ["not_sent", "invalid", "defect", "nonsense", ""])
def test_no_answer_at_all_can_mean_what_only_we_can_know(word: str) -> None:
    for status in [str(status) for status in range(200, 600)] + ["2xx", "3xx", "4xx", "5xx"]:
        with pytest.raises(ValueError, match="cannot prove"):
            check_overrides({status: word})


@pytest.mark.parametrize(
    ("status", "word"), [("500", "delivered"), ("404", "delivered"), ("5xx", "rejected"), ("500", "rejected")]
)
def test_a_failure_cannot_be_declared_an_ending_that_it_does_not_prove(status: str, word: str) -> None:
    with pytest.raises(ValueError, match="possible: "):
        check_overrides({status: word})


@pytest.mark.parametrize("status", ["99", "1xx", "600", "6xx", "abc", "40", "4XX", "4\u0660\u0664", "200 ", ""])
def test_an_override_for_what_is_no_status_is_refused(status: str) -> None:
    with pytest.raises(ValueError, match="no status"):
        check_overrides({status: "unknown"})


@pytest.mark.parametrize(
    ("status", "word"),
    [
        (409, "in_flight"),
        (409, "key_mismatch"),
        (409, "delivered"),
        (409, "duplicate"),
        (403, "duplicate"),
        (500, "duplicate"),
        (503, "not_processed"),
        (503, "throttled"),
        (521, "not_processed"),
        (307, "not_processed"),
        (303, "delivered"),
        (408, "not_processed"),
        (422, "key_mismatch"),
        (200, "accepted"),
        (429, "unknown"),
    ],
)
def test_what_providers_really_mean_can_be_declared(status: int, word: str) -> None:
    table = AnswerTable({str(status): word})
    assert table.outcome(status) is OutcomeName(word)
    assert table.outcome(504) is OutcomeName.UNKNOWN


def test_a_class_speaks_only_for_statuses_without_a_meaning_of_their_own() -> None:
    table = AnswerTable({"4xx": "rejected", "409": "unknown"})
    assert table.outcome(418) is OutcomeName.REJECTED
    assert table.outcome(409) is OutcomeName.UNKNOWN
    assert table.outcome(429) is OutcomeName.THROTTLED
    assert table.outcome(401) is OutcomeName.DENIED


# -- Retry-After ------------------------------------------------------------------------------------------------------

NOW = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110 5.6.7


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60.0),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60.0),
        ("Sun Nov  6 08:50:37 1994", 60.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),  # past
        ("-5", None),
        ("", None),
        ("soon", None),
        ("1e3", None),
        ("inf", None),
        ("nan", None),
        ("\u0663", None),
        ("5, 7", None),
        ("99999999999999999999", None),
        ("1764441600", None),  # epoch seconds, a known mistake
        ("Fri, 31 Dec 9999 23:59:59 GMT", None),
        ("Sun, 99 Nov 1994 08:50:37 GMT", None),
        (str(int(HINT_MAX)), HINT_MAX),
        (str(int(HINT_MAX) + 1), None),
    ],
)
def test_a_hint_is_read_in_every_form_and_nonsense_is_none(value: str, seconds: float | None) -> None:
    assert retry_after([value], [], NOW) == seconds


def test_a_date_counts_from_the_providers_own_clock() -> None:
    two_hours_fast = http_date(NOW + 7200)
    assert retry_after([http_date(NOW + 7230)], [two_hours_fast], NOW) == 30.0
    assert retry_after([http_date(NOW + 30)], ["no date"], NOW) == 30.0


def test_an_http_date_is_gmt_wherever_the_worker_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert retry_after(["Sun Nov  6 08:50:37 1994"], [], NOW) == 60.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_of_several_hints_the_longest_holds_and_no_header_is_no_hint() -> None:
    assert retry_after(["5", "junk", "60"], [], NOW) == 60.0
    assert retry_after([], [http_date(NOW)], NOW) is None


# -- durations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10), ("1.5s", 1.5), ("5m", 300), ("1h", 3600), ("1d", 86400), ("0s", 0)],
)
def test_a_duration_is_read_as_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["10", "", "s", "-1s", "1 s", "1h30m", "1w", "1S", "1e3s", "\u0663s", "1s\n", 10, 1.5, None, True]
)
def test_what_is_no_duration_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match='write for example "500ms"'):
        parse_duration(text)
