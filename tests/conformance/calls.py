"""Scenarios of calls: what an outcome may say of what the provider really did."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from provider.clock import boottime
from provider.port import Descriptor, OutcomeName
from tests.conformance.bench import Do, NotPossibleError
from tests.conformance.stage import LIMIT, Stage
from tests.conformance.suite import Scenario

SHORT = 0.5
"""Seconds: a time limit for what never comes."""

LONG = 5.0
"""Seconds that a scenario waits at most for time itself to pass; a capability that takes longer cannot be shown so."""


async def an_effect_is_delivered_once_with_its_key(stage: Stage) -> None:
    call = stage.call()
    outcome = await stage.perform(call)
    assert (outcome.name, outcome.sent) == (OutcomeName.DELIVERED, True)
    assert outcome.reference, "no reference"
    assert outcome.call_seconds is not None
    (effect,) = await stage.bench.effects(stage.key)
    if stage.declared.key_carrier is not None:
        assert effect.idempotency_key == call.idempotency_key, "the key did not arrive"
        stage.show("key_carrier")


async def a_refusal_is_rejected(stage: Stage) -> None:
    await stage.bench.tell(stage.key, Do.REFUSE)
    assert (await stage.perform()).name is OutcomeName.REJECTED


async def no_access_is_denied_and_not_a_refusal_of_the_operation(stage: Stage) -> None:
    await stage.bench.tell(stage.key, Do.DENY)
    assert (await stage.perform()).name is OutcomeName.DENIED


async def a_rate_limit_is_neither_refusal_nor_doubt(stage: Stage) -> None:
    await stage.bench.tell(stage.key, Do.THROTTLE)
    outcome = await stage.perform()
    assert outcome.name in (OutcomeName.THROTTLED, OutcomeName.NOT_PROCESSED)
    assert (await stage.perform(stage.call(attempt=2))).name is OutcomeName.DELIVERED
    await stage.effects_are(1)


async def an_error_that_repeats_payload_and_credential_is_kept_without_them(stage: Stage) -> None:
    await stage.bench.tell(stage.key, Do.ECHO)
    outcome = await stage.perform()  # the stage looks into the detail
    assert outcome.detail, "the error's text was thrown away"


async def a_reply_lost_after_the_effect_is_unknown(stage: Stage) -> None:
    await stage.bench.tell(stage.key, Do.HANG_UP)
    outcome = await stage.perform()
    assert (outcome.name, outcome.sent) == (OutcomeName.UNKNOWN, True)
    await stage.effects_are(1)
    assert await stage.bench.requests(stage.key) == 1


async def a_reply_lost_before_the_effect_claims_none(stage: Stage) -> None:
    await stage.bench.tell(stage.key, Do.HANG_UP_BEFORE)
    assert (await stage.perform()).name in (OutcomeName.UNKNOWN, OutcomeName.NOT_SENT)
    await stage.effects_are(0)


async def a_cut_reply_never_says_that_nothing_happened(stage: Stage) -> None:
    await stage.bench.tell(stage.key, Do.CUT)
    outcome = await stage.perform()
    assert outcome.name in (OutcomeName.DELIVERED, OutcomeName.UNKNOWN)
    assert outcome.detail, "it does not say that the reply was cut"
    await stage.effects_are(1)


async def silence_ends_at_the_time_limit_as_unknown(stage: Stage) -> None:
    await stage.bench.tell(stage.key, Do.STALL)
    begin = boottime()
    outcome = await stage.perform(stage.call(time_limit=SHORT))
    assert (outcome.name, outcome.sent) == (OutcomeName.UNKNOWN, True)
    assert boottime() - begin >= SHORT
    await stage.effects_are(1)


async def a_cancelled_call_still_tells_its_outcome(stage: Stage) -> None:
    await stage.bench.tell(stage.key, Do.STALL)
    task = asyncio.create_task(stage.bench.adapter.perform(stage.call()))
    await stage.effects_are(1)
    task.cancel()
    async with asyncio.timeout(LIMIT):
        outcome = await task
    assert (outcome.name, outcome.sent) == (OutcomeName.UNKNOWN, True)


async def a_dead_address_is_not_sent(stage: Stage) -> None:
    outcome = await stage.perform(adapter=stage.bench.other(reachable=False))
    assert (outcome.name, outcome.sent, outcome.status_code) == (OutcomeName.NOT_SENT, False, None)


async def after_the_time_for_the_first_byte_nothing_leaves(stage: Stage) -> None:
    outcome = await stage.perform(stage.call(send_before=boottime() - 0.001))
    assert (outcome.name, outcome.sent) == (OutcomeName.NOT_SENT, False)
    assert await stage.bench.requests(stage.key) == 0


async def a_payload_that_cannot_be_sent_reaches_nobody(stage: Stage) -> None:
    outcome = await stage.perform(stage.call(payload=stage.payload(name="\ud800", email="\ud800", order_id="\ud800")))
    assert (outcome.name, outcome.sent) == (OutcomeName.INVALID, False)
    assert await stage.bench.requests(stage.key) == 0


async def every_attempt_is_the_same_bytes(stage: Stage) -> None:
    await stage.bench.tell(stage.key, Do.HANG_UP)
    await stage.perform(stage.call(attempt=1))
    await stage.bench.forget(stage.key)
    await stage.perform(stage.call(attempt=2))
    first, second = await stage.bench.effects(stage.key)
    assert first == second, "the provider got other bytes"


async def a_key_of_the_longest_kind_arrives_whole_and_a_longer_one_not_at_all(stage: Stage) -> None:
    if stage.declared.key_carrier is None:
        raise NotPossibleError("there is no key")
    longest = stage.declared.key_max_length
    alphabet = _alphabet(stage.declared.key_alphabet)
    key = (alphabet * longest)[:longest].strip("._:-").ljust(longest, "k")
    assert (await stage.perform(stage.call(idempotency_key=key))).name is OutcomeName.DELIVERED
    (effect,) = await stage.bench.effects(stage.key)
    assert effect.idempotency_key == key
    outcome = await stage.perform(stage.call(idempotency_key=key + "k"))
    assert (outcome.name, outcome.sent) == (OutcomeName.DEFECT, False)
    stage.show("key_max_length", "key_alphabet")


def _alphabet(declared: str) -> str:
    """The characters of ``A-Za-z0-9._:-``."""
    ranges = {"A-Z": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "a-z": "abcdefghijklmnopqrstuvwxyz", "0-9": "0123456789"}
    characters = ""
    for shorthand, meant in ranges.items():
        if shorthand in declared:
            declared = declared.replace(shorthand, "")
            characters += meant
    return characters + declared


async def a_repeat_within_the_safe_retention_is_no_second_effect(stage: Stage) -> None:
    if not stage.declared.replays_keys:
        raise NotPossibleError("no replay of keys is declared")
    first = await stage.perform(stage.call(attempt=1))
    await stage.bench.pass_time(stage.declared.retention_safe)
    second = await stage.perform(stage.call(attempt=2))
    assert (second.name, second.reference) == (OutcomeName.DELIVERED, first.reference)
    await stage.effects_are(1)
    assert 0 < stage.declared.retention_safe <= stage.declared.retention_published
    stage.show("replays_keys", "retention_safe", "retention_published")


async def a_repeat_after_a_lost_reply_brings_the_reply(stage: Stage) -> None:
    if not stage.declared.replays_keys:
        raise NotPossibleError("no replay of keys is declared")
    call = await stage.commit_without_reply()
    assert (await stage.perform(call)).name is OutcomeName.DELIVERED
    await stage.effects_are(1)


async def a_forgotten_key_is_a_new_one(stage: Stage) -> None:
    """Why nothing is repeated after the retention: the record shows what it would do."""
    await stage.perform()
    await stage.bench.forget(stage.key)
    assert (await stage.perform()).name is OutcomeName.DELIVERED
    await stage.effects_are(2)


async def the_same_key_with_other_content_is_treated_as_declared(stage: Stage) -> None:
    compares = stage.declared.compares_body
    if compares is None:
        raise NotPossibleError("it is not declared")
    call = stage.call()
    first = await stage.perform(call)
    second = await stage.perform(stage.with_payload(call, amount=6))
    if compares:
        assert second.name is OutcomeName.KEY_MISMATCH
    else:
        assert second.reference == first.reference
    await stage.effects_are(1)
    stage.show("compares_body")


async def a_stored_error_comes_again_until_it_is_forgotten(stage: Stage) -> None:
    if not stage.declared.stores_errors:
        raise NotPossibleError("it is not declared")
    await stage.bench.tell(stage.key, Do.STORED_ERROR)
    for attempt in (1, 2):
        outcome = await stage.perform(stage.call(attempt=attempt))
        assert outcome.name not in (OutcomeName.DELIVERED, OutcomeName.ACCEPTED), "the error was not stored"
    await stage.effects_are(0)
    await stage.bench.forget(stage.key)
    assert (await stage.perform()).name is OutcomeName.DELIVERED
    stage.show("stores_errors")


async def a_key_in_flight_is_neither_failure_nor_success(stage: Stage) -> None:
    call = stage.call()
    await stage.bench.tell(stage.key, Do.SLOW, 0.5)
    slow = asyncio.create_task(stage.bench.adapter.perform(call))
    while not await stage.bench.requests(stage.key):
        assert not slow.done()
        await asyncio.sleep(0.01)  # between two looks
    outcome = await stage.perform(call)
    assert outcome.name in (OutcomeName.IN_FLIGHT, OutcomeName.UNKNOWN), outcome
    assert (await slow).name is OutcomeName.DELIVERED
    if stage.declared.replays_keys:
        assert (await stage.perform(call)).name is OutcomeName.DELIVERED
    await stage.effects_are(1)


async def what_is_taken_for_later_is_accepted(stage: Stage) -> None:
    await stage.bench.tell(stage.key, Do.ACCEPT, 0.3)
    assert (await stage.perform()).name is OutcomeName.ACCEPTED
    await stage.effects_are(1)


async def the_provider_works_on_no_longer_than_declared(stage: Stage) -> None:
    processing = stage.declared.max_processing
    if not processing:
        raise NotPossibleError("nothing is declared")
    await stage.bench.tell(stage.key, Do.LATE, SHORT + 1.5)
    outcome = await stage.perform(stage.call(time_limit=SHORT))
    assert outcome.name is OutcomeName.UNKNOWN
    await stage.effects_are(0, limit=0)
    await stage.effects_are(1, limit=min(processing, LONG))
    stage.show("max_processing")


async def codes_that_prove_that_nothing_was_done_are_so_and_no_others(stage: Stage) -> None:
    vouched = stage.declared.not_processed_codes
    for number, code in enumerate(sorted({*vouched, *stage.bench.codes})):
        await stage.bench.tell(stage.key, Do.CODE, code)
        outcome = await stage.perform(stage.call(epoch=number))
        assert outcome.status_code == code
        if code in vouched:
            assert outcome.name is OutcomeName.NOT_PROCESSED, f"{code} is declared, and {outcome.name}"
            stage.show(f"not_processed_codes:{code}")
        else:
            assert outcome.name is not OutcomeName.NOT_PROCESSED, f"{code} is not declared, and not processed"
    assert (await stage.perform(stage.call(epoch=-1))).name is OutcomeName.DELIVERED


async def the_scope_changes_with_the_credential_and_shows_nothing_of_it(stage: Stage) -> None:
    mine, same, theirs = (
        stage.bench.adapter,
        stage.bench.other(),
        stage.bench.other(secret="another-secret-9"),
    )
    assert mine.scope == same.scope
    assert mine.rendering == same.rendering == theirs.rendering
    assert mine.scope != theirs.scope, "another credential, and the same scope"
    for adapter, secret in ((mine, stage.bench.secret), (theirs, "another-secret-9")):
        assert secret not in adapter.scope + adapter.rendering + repr(adapter)
    if stage.declared.scope != Descriptor().scope:
        stage.show("scope")


SCENARIOS: Mapping[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        an_effect_is_delivered_once_with_its_key,
        a_refusal_is_rejected,
        no_access_is_denied_and_not_a_refusal_of_the_operation,
        a_rate_limit_is_neither_refusal_nor_doubt,
        an_error_that_repeats_payload_and_credential_is_kept_without_them,
        a_reply_lost_after_the_effect_is_unknown,
        a_reply_lost_before_the_effect_claims_none,
        a_cut_reply_never_says_that_nothing_happened,
        silence_ends_at_the_time_limit_as_unknown,
        a_cancelled_call_still_tells_its_outcome,
        a_dead_address_is_not_sent,
        after_the_time_for_the_first_byte_nothing_leaves,
        a_payload_that_cannot_be_sent_reaches_nobody,
        every_attempt_is_the_same_bytes,
        a_key_of_the_longest_kind_arrives_whole_and_a_longer_one_not_at_all,
        a_repeat_within_the_safe_retention_is_no_second_effect,
        a_repeat_after_a_lost_reply_brings_the_reply,
        a_forgotten_key_is_a_new_one,
        the_same_key_with_other_content_is_treated_as_declared,
        a_stored_error_comes_again_until_it_is_forgotten,
        a_key_in_flight_is_neither_failure_nor_success,
        what_is_taken_for_later_is_accepted,
        the_provider_works_on_no_longer_than_declared,
        codes_that_prove_that_nothing_was_done_are_so_and_no_others,
        the_scope_changes_with_the_credential_and_shows_nothing_of_it,
    )
}
