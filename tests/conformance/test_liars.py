"""The suite sees through adapters that lie. Each lie is one line, so what fails is the lie."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from provider.port import Descriptor
from tests.conformance import http_bench, sandbox_bench, smtp_bench
from tests.conformance.bench import Wrap
from tests.conformance.liars import (
    acts_to_find_out,
    asking,
    calling,
    changes_bytes,
    declaring,
    finds_always,
    ignores_the_time_limit,
    ignores_the_time_to_send,
    mints_keys,
    raises,
    says_not_sent,
    sends_again,
    shows_the_payload,
    takes_any_error_for_absence,
    takes_no_access_for_absence,
    takes_silence_for_failure,
    takes_silence_for_success,
    takes_two_for_one,
    takes_working_for_applied,
)
from tests.conformance.profiles import PROFILES, SCENARIOS
from tests.conformance.reports import report_of
from tests.conformance.suite import as_it_is, declared_by, run

TABLES = {"http": http_bench.TABLE, "sandbox": sandbox_bench.TABLE, "smtp": smtp_bench.TABLE}


@dataclass(frozen=True)
class Lie:
    """What is said falsely, the scenario (by a part of its name) that must see it, and words of its complaint."""

    profile: str
    scenario: str
    complaint: str
    wrap: Wrap = as_it_is
    settings: dict[str, Any] = field(default_factory=dict)
    """Tables of the provider, each merged into the honest one."""


DECLARED = {
    "mail servers replay keys": Lie(
        "smtp", "within_the_safe", "declared and not shown: replays_keys",
        declaring(replays_keys=True, retention_published=60.0, retention_safe=30.0),
    ),
    "a retention longer than the provider's": Lie(
        "http", "within_the_safe", "declared and not shown: retention_safe",
        settings={"idempotency": {"retention": "60d"}},
    ),
    "a retention that nobody has waited for": Lie(
        "sandbox", "within_the_safe", "declared and not shown: retention_safe",
        settings={"idempotency": {"retention": "24h"}},
    ),
    "a safe retention above the published one": Lie(
        "http", "within_the_safe", "declared and not shown: retention_safe", declaring(retention_safe=86_000.0 * 2),
    ),
    "a header that the provider ignores": Lie(
        "sandbox", "once_with_its_key", "the key did not arrive", settings={"idempotency": {"header": "Wrong-Header"}},
    ),
    "bodies that are not compared, and are": Lie(
        "http", "other_content", "declared and not shown: compares_body",
        settings={"idempotency": {"compares_body": False}},
    ),
    "mail servers compare bodies": Lie(
        "smtp", "other_content", "declared and not shown: compares_body", declaring(compares_body=True)
    ),
    "mail servers store errors": Lie(
        "smtp", "stored_error", "declared and not shown: stores_errors", declaring(stores_errors=True)
    ),
    "a lag shorter than the provider's": Lie(
        "http", "after_the_declared_lag", "still invisible", settings={"look_up": {"lag": "1s"}}
    ),
    "mail servers can be asked": Lie(
        "smtp", "reply_was_lost", "declared and not shown: look_up_by", declaring(look_up_by="key")
    ),
    "mail servers prove absence": Lie(
        "smtp", "own_words", "declared and not shown: look_up_conclusive",
        declaring(look_up_by="key", look_up_lag=0.0, look_up_conclusive=True),
    ),
    "absence in words that the provider does not use": Lie(
        "sandbox", "own_words", "declared and not shown: look_up_conclusive",
        settings={"look_up": {"absent": {"path": "error", "values": ["nothing"]}}},
    ),
    "whatever is found is ours": Lie("sandbox", "own_words", "full: applied", settings={"look_up": {"match": {}}}),
    "cancelling by key": Lie(
        "http", "own_words", "declared and not shown: cancel_by_key", declaring(cancel_by_key=True)
    ),
    "a code more that proves nothing done": Lie(
        "http", "codes_that_prove", "504 is declared", declaring(not_processed_codes=frozenset({421, 425, 503, 504})),
    ),
    "a code less": Lie(
        "http", "codes_that_prove", "503 is not declared", declaring(not_processed_codes=frozenset({421, 425}))
    ),
    "a shorter time to process": Lie(
        "http", "works_on", "declared and not shown: max_processing", declaring(max_processing=0.2)
    ),
    "longer keys": Lie(
        "http", "longest_kind", "declared and not shown: key_max_length", declaring(key_max_length=300)
    ),
    "a scope that is no scope": Lie("http", "dead_address_is", "declared and not shown: scope", declaring(scope=())),
}  # fmt: skip

SAID = {
    "sends again": Lie("http", "lost_after", "2 requests for one call", calling(sends_again)),
    "mails again": Lie("smtp", "lost_after", "2 requests for one call", calling(sends_again)),
    "silence is success": Lie(
        "http", "lost_before", "delivered, and the provider has no", calling(takes_silence_for_success)
    ),
    "silence is failure": Lie(
        "smtp", "lost_after", "not_processed, and the provider has an", calling(takes_silence_for_failure)
    ),
    "not sent, and it was": Lie("http", "lost_after", "not sent, and the provider has an", calling(says_not_sent)),
    "sends too late": Lie("http", "first_byte", "DELIVERED", calling(ignores_the_time_to_send)),
    "mails too late": Lie("smtp", "first_byte", "DELIVERED", calling(ignores_the_time_to_send)),
    "waits too long": Lie("http", "silence_ends", "longer than its time limit", calling(ignores_the_time_limit)),
    "other bytes": Lie("http", "same_bytes", "other bytes", calling(changes_bytes)),
    "another mail": Lie("smtp", "same_bytes", "other bytes", calling(changes_bytes)),
    "keys of its own": Lie("http", "within_the_safe", "declared and not shown: replays_keys", calling(mints_keys)),
    "shows the payload": Lie("http", "refusal_is_rejected", "shows the payload", calling(shows_the_payload)),
    "raises": Lie("http", "refusal_is_rejected", "ValueError", calling(raises)),
}

FOUND = {
    "an error is absence": Lie("http", "own_words", "error: absent", asking(takes_any_error_for_absence)),
    "no access is absence": Lie("sandbox", "own_words", "denied: absent", asking(takes_no_access_for_absence)),
    "an error takes an effect back": Lie(
        "sandbox", "takes_no_effect_back", "ABSENT", asking(takes_any_error_for_absence)
    ),
    "it is always there": Lie("http", "somebody", "APPLIED", asking(finds_always)),
    "two are one": Lie("http", "two_effects", "APPLIED", asking(takes_two_for_one)),
    "working is done": Lie("http", "taken_for_later_is_working", "never shown", asking(takes_working_for_applied)),
    "acts to find out": Lie("http", "own_words", "a look-up asked for an effect", asking(acts_to_find_out)),
    "mail servers say so": Lie("smtp", "who_cannot", "no look-up is declared", asking(takes_any_error_for_absence)),
}

LIES = {**DECLARED, **SAID, **FOUND}


@pytest.mark.parametrize("name", LIES)
async def test_a_lie_is_seen(name: str) -> None:
    lie = LIES[name]
    scenarios = {known: scenario for known, scenario in SCENARIOS.items() if lie.scenario in known}
    assert len(scenarios) == 1
    honest = await report_of(lie.profile)
    assert not honest.failed.keys() & scenarios.keys(), "without the lie it fails too"
    assert not [told for told in honest.complaints if lie.complaint in told]
    table = TABLES[lie.profile]
    settings = {part: {**table[part], **changed} for part, changed in lie.settings.items()}
    report = await run(PROFILES[lie.profile], scenarios, wrap=lie.wrap, settings=settings)
    assert [told for told in report.complaints if lie.complaint in told], report.complaints


@pytest.mark.parametrize("name", [one.name for one in fields(Descriptor)])
def test_whatever_is_not_the_cautious_value_counts_as_declared(name: str) -> None:
    changed: dict[str, Any] = {name: "something"}
    assert declared_by(replace(Descriptor(), **changed)) == {name}


def test_who_declares_nothing_has_nothing_to_show() -> None:
    assert declared_by(Descriptor()) == set()
