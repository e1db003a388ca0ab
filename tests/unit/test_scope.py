"""What an idempotency key is unique within, and what fingerprints the bytes of a request."""

from __future__ import annotations

from typing import Any

import pytest

from provider import http_request
from provider.http_adapter import HttpAdapter
from provider.registry import build
from provider.settings import ConnectionSettings
from tests.unit.http_provider import CONNECTION, settings

ENVIRON = {"SANDBOX": "https://api.example:8443/v1", "TOKEN": "tok-9f8e7d"}


def made(
    environ: dict[str, str] | None = None,
    connection: dict[str, str] | None = None,
    name: str = "main",
    provider: str = "sandbox",
    **more: Any,
) -> HttpAdapter:
    own = ConnectionSettings(provider=provider, headers=CONNECTION if connection is None else connection)
    adapter = build({provider: settings(**more)}, {name: own}, {**ENVIRON, **(environ or {})})[name]
    assert isinstance(adapter, HttpAdapter)
    return adapter


def test_the_scope_names_provider_connection_and_host_and_does_not_show_the_credential() -> None:
    provider, connection, host, fingerprint = made().scope.split("/")
    assert (provider, connection, host) == ("sandbox", "main", "api.example:8443")
    assert len(fingerprint) == 12
    assert int(fingerprint, 16) >= 0
    assert "tok" not in made().scope


def test_the_same_account_is_the_same_scope_in_another_process() -> None:
    # A worker that starts anew must find its own attempts in scope: nothing random, nothing of Python's hash.
    assert made().scope == "sandbox/main/api.example:8443/b98fea943905"


@pytest.mark.parametrize(
    "change",
    [
        {"environ": {"TOKEN": "tok-other"}},
        {"environ": {"SANDBOX": "https://eu.api.example:8443/v1"}},
        {"environ": {"SANDBOX": "https://api.example/v1"}},
        {"name": "second"},
        {"provider": "other"},
        {"connection": {**CONNECTION, "Account": "acct_2"}},
        {"connection": {"Authorization": "Bearer literal"}},
        {"connection": {}},
        {"headers": {"X-Tenant": "${TENANT:-a}"}},
        {"url": "${SANDBOX}/bot${TOKEN}/send"},
    ],
    ids=str,
)
def test_another_account_region_or_credential_is_another_scope(change: dict[str, Any]) -> None:
    assert made(**change).scope != made().scope


def test_a_token_in_the_address_counts_and_is_not_shown() -> None:
    one, two = (made({"BOT": bot}, url="${SANDBOX}/bot${BOT}/send") for bot in ("secret-one", "secret-two"))
    assert one.scope != two.scope
    assert one.rendering == two.rendering
    assert "secret" not in one.scope + two.scope


@pytest.mark.parametrize(
    "change",
    [{"environ": {"TOKEN": "tok-other"}}, {"connection": {**CONNECTION, "Account": "2"}}, {"call_limit": "3s"}],
)
def test_a_new_token_is_the_same_rendering(change: dict[str, Any]) -> None:
    assert made(**change).rendering == made().rendering


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PUT"},
        {"url": "${SANDBOX}/other"},
        {"environ": {"SANDBOX": "https://api.example:8443/v2"}},
        {"headers": {"Operation-Key": "{key}", "Api-Version": "2026-10"}},
        {"headers": {"Operation-Key": "k-{key}"}},
        {"idempotency": {"header": "X-Key", "retention": "24h"}},
        {"idempotency": {"header": "Idempotency-Key", "retention": "24h", "quoted": True}},
        {"idempotency": None, "answers": {}},
    ],
    ids=str,
)
def test_what_changes_the_bytes_changes_the_rendering(change: dict[str, Any]) -> None:
    assert made(**change).rendering != made().rendering


def test_a_new_rule_for_bodies_changes_the_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    before = made().rendering
    monkeypatch.setattr(http_request, "BODY_RULE", http_request.BODY_RULE + 1)
    assert made().rendering != before


def test_the_bytes_of_a_body_are_those_of_its_rule() -> None:
    # If this fails, bodies have changed: count BODY_RULE up, or repeats of older attempts are no repeats.
    payload = {"b": [1, 2.5, None, True], "a": {"z": "Zoë 愛\n", "y": 1e22}, "": "<&>\u2028"}
    assert http_request.BODY_RULE == 1
    assert (
        http_request.body_of(payload)
        == '{"":"<&>\u2028","a":{"y":1e+22,"z":"Zoë 愛\\n"},"b":[1,2.5,null,true]}'.encode()
    )


def test_without_a_credential_the_scope_says_so() -> None:
    assert made(connection={}).scope.endswith("/none")


def test_username_and_password_are_not_for_http() -> None:
    connection = ConnectionSettings(provider="s", username="u", password="${P}")
    with pytest.raises(ValueError, match="connection main: an HTTP provider takes its credential from headers"):
        build({"s": settings()}, {"main": connection}, ENVIRON)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"username": "u", "password": "secret"}, "does not belong in a file"),
        ({"username": "u"}, "belong together"),
        ({"password": "${P}"}, "belong together"),
    ],
)
def test_a_password_in_the_file_is_refused(table: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ConnectionSettings.model_validate({"provider": "s", **table})


def test_an_error_about_a_password_does_not_show_it() -> None:
    with pytest.raises(ValueError, match="password") as caught:
        ConnectionSettings.model_validate({"provider": "s", "username": "u", "password": "hunter-22"})
    assert "hunter-22" not in str(caught.value)
