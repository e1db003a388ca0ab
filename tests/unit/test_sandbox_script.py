"""What the sandbox can be told, and which instruction holds."""

from __future__ import annotations

import re
from typing import Any

import pytest

from provider.sandbox.script import Script, parse_rule


def script(*told: dict[str, Any]) -> Script:
    return Script(enumerate(map(parse_rule, told)))


def does(script: Script, key: str, times: int = 1) -> list[str]:
    return [script.next(key)[1].do for _ in range(times)]


def test_behaviours_are_used_one_per_request_of_a_key_and_the_last_one_stays() -> None:
    told = script({"match": "a*", "behaviour": ["deny", "throttle", "ok"]})
    assert does(told, "a1", 4) == ["deny", "throttle", "ok", "ok"]
    assert does(told, "a2", 2) == ["deny", "throttle"]
    assert does(told, "b", 2) == ["ok", "ok"]


def test_the_most_exact_instruction_holds() -> None:
    told = script(
        {"behaviour": "deny"},
        {"match": "a*", "behaviour": "reset"},
        {"match": "ab*", "behaviour": "throttle"},
        {"key": "abc", "behaviour": "cut_body"},
    )
    assert [does(told, key)[0] for key in ("x", "a", "ab", "abc")] == ["deny", "reset", "throttle", "cut_body"]


def test_by_rate_the_same_share_of_keys_is_chosen_each_time() -> None:
    rule = parse_rule({"rate": 0.25, "behaviour": "deny"})
    chosen = [key for key in map(str, range(2000)) if rule.holds_for(key)]
    assert 400 < len(chosen) < 600
    assert chosen == [key for key in map(str, range(2000)) if rule.holds_for(key)]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"key": "a", "behaviour": ["nope"]}, "no behaviour; there are: ok, commit_then_close"),
        ({"key": "a", "behaviour": ["deny:1"]}, "deny takes no value"),
        ({"key": "a", "behaviour": ["slow:x"]}, "could not convert"),
        ({"key": "a", "behaviour": ["slow:nan"]}, "seconds must be"),
        ({"key": "a", "behaviour": ["status:99"]}, "status must be"),
        ({"key": "a", "behaviour": [{"do": "ok", "typo": 1}]}, "typo: no such field"),
        ({"key": "a", "behaviour": [{"do": "status", "headers": {"A": "b\r\nc"}}]}, "headers must be"),
        ({"key": "a", "behaviour": [1]}, "a name or an object"),
        ({"key": "a", "behaviour": 7}, "must be a list"),
        ({"key": "a", "match": "b*", "behaviour": []}, "not both"),
        ({"match": "b", "behaviour": []}, 'must end with "*"'),
        ({"rate": 0, "behaviour": []}, "rate must be"),
        ({"rate": True, "behaviour": []}, "rate must be"),
        ({"kay": "a", "behaviour": []}, "kay: no such field"),
        ([1], "an instruction is an object"),
    ],
)
def test_an_instruction_that_means_nothing_is_refused(told: Any, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parse_rule(told)
