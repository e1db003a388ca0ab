"""``[providers.X.look_up]``: what may be declared, and what the descriptor says of it."""

from __future__ import annotations

from typing import Any

import pytest

from provider.registry import describe
from tests.unit.http_provider import settings

BY_KEY: dict[str, Any] = {"url": "http://a/effects/{idempotency_key}", "by": "key", "reference": "id"}
LIST: dict[str, Any] = {
    "url": "http://a/effects?key={key}",
    "by": "key",
    "items": "data",
    "match": {"meta.key": "{idempotency_key}"},
}


def test_the_descriptor_says_how_it_can_be_asked_and_is_cautious_otherwise() -> None:
    told = describe(settings(look_up={**BY_KEY, "lag": "3s", "conclusive": True}))
    assert (told.look_up_by, told.look_up_lag, told.look_up_conclusive) == ("key", 3.0, True)
    told = describe(settings(look_up=BY_KEY))
    assert (told.look_up_by, told.look_up_lag, told.look_up_conclusive) == ("key", None, False)
    told = describe(settings())
    assert (told.look_up_by, told.look_up_lag, told.look_up_conclusive) == (None, None, False)


def test_a_lag_of_nothing_is_known_and_conclusive() -> None:
    assert describe(settings(look_up={**BY_KEY, "lag": "0s", "conclusive": True})).look_up_lag == 0.0


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({**BY_KEY, "conclusive": True}, "conclusive = true needs"),
        ({**LIST, "by": "search", "lag": "1s", "conclusive": True}, "conclusive = true needs"),
        ({**BY_KEY, "by": "text"}, "key"),
        ({**BY_KEY, "url": "http://a/effects"}, 'by = "key" needs'),
        ({**BY_KEY, "by": "reference"}, 'by = "reference" needs'),
        ({**BY_KEY, "url": "ftp://a/{key}"}, "must start with http"),
        (
            {**BY_KEY, "url": "http://a/{key}/{attempt}"},
            r"\{attempt\} is not known here; known are .*\{payload.FIELD\}",
        ),
        ({**BY_KEY, "url": "http://a/{key}/{payload}"}, "is not known here"),
        ({**BY_KEY, "method": "POST"}, "GET"),
        ({**BY_KEY, "reference": None}, "give reference or match"),
        ({**BY_KEY, "by": "search", "url": "http://a/{kind}"}, "name it in url"),
        ({**BY_KEY, "url": "http://a/{kind}", "match": {"k": "{key}"}}, "name it in url"),
        ({**BY_KEY, "page_size": 10}, "give items"),
        ({**BY_KEY, "next": {"path": "next"}}, "give items"),
        ({**LIST, "match": {}}, "a list needs match"),
        ({**LIST, "match": {"text": "{payload.text}"}}, "needs a match of the key or reference itself"),
        ({**LIST, "match": {"a..b": "{key}"}}, "match"),
        ({**LIST, "match": {"a": "{nope}"}}, "is not known here"),
        ({**LIST, "next": {"path": "next", "pages": 1}}, "greater than or equal to 2"),
        ({**BY_KEY, "status": {"path": "s", "applied": []}}, "at least 1"),
        ({**BY_KEY, "status": {"path": "s", "applied": ["a"], "refused": ["a"]}}, "'a' is in two lists"),
        ({**BY_KEY, "absent": {"statuses": [401]}}, "does not say that there is no such thing"),
        ({**BY_KEY, "absent": {"statuses": [403]}}, "does not say that there is no such thing"),
        ({**BY_KEY, "absent": {"statuses": [429]}}, "does not say that there is no such thing"),
        ({**BY_KEY, "absent": {"statuses": [500]}}, "does not say that there is no such thing"),
        ({**BY_KEY, "absent": {"statuses": [400]}}, "say which error code"),
        ({**BY_KEY, "absent": {"path": "error"}}, "belong together"),
        ({**BY_KEY, "absent": {"values": ["x"]}}, "belong together"),
        ({**BY_KEY, "absent": {"statuses": [204], "path": "e", "values": ["x"]}}, "204 has no body"),
        ({**BY_KEY, "absent": {"statuses": []}}, "at least 1"),
        ({**BY_KEY, "typo": 1}, "Extra inputs"),
    ],
)
def test_what_an_answer_cannot_prove_cannot_be_declared(table: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        settings(look_up=table)


@pytest.mark.parametrize(
    "table",
    [
        LIST,
        {**LIST, "items": "."},
        {**LIST, "by": "search", "match": {"text": "{payload.text}"}},
        {**BY_KEY, "by": "reference", "url": "http://a/{reference}"},
        {**BY_KEY, "absent": {"statuses": [400], "path": "error", "values": ["RecordNotFound"]}},
        {**LIST, "next": {"path": "cursor", "parameter": "cursor", "pages": 3}, "page_size": 20},
    ],
)
def test_what_providers_offer_can_be_declared(table: dict[str, Any]) -> None:
    assert settings(look_up=table).look_up is not None
