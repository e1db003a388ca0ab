"""The tables of duly.toml that describe providers and connections: what is refused, and with what words."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from provider.http_adapter import HttpAdapter
from provider.registry import ADAPTERS, build
from provider.settings import ConnectionSettings, MissingVariableError, expand
from tests.unit.http_provider import CONNECTION, TOKEN, adapter, settings


def test_the_descriptor_says_what_the_settings_say_and_no_more() -> None:
    told = adapter(answers={"503": "not_processed"}).descriptor
    assert (told.key_carrier, told.retention_published, told.retention_safe) == ("header:Idempotency-Key", 86400, 43200)
    assert told.replays_keys
    assert told.not_processed_codes == {421, 425, 503}
    bare = HttpAdapter("m", settings('adapter = "http"\nurl = "http://a/"'), ConnectionSettings(provider="x"), {})
    assert (bare.descriptor.key_carrier, bare.descriptor.replays_keys, bare.descriptor.retention_safe) == (
        None,
        False,
        0,
    )
    assert not bare.descriptor.look_up_conclusive


def test_defaults_are_the_documented_ones() -> None:
    parsed = settings('adapter = "http"\nurl = "http://a/"')
    assert (parsed.method, parsed.call_limit, parsed.concurrency) == ("POST", 10.0, 20)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"adapter": "fax"}, "'fax' does not exist; there is: http, smtp"),
        ({"adapter": None}, "does not exist"),
        ({"url": "ftp://a/"}, "must start with http"),
        ({"url": "${SANDBOX}/{order}"}, r"\{order\} is not known here; known are \{key\}"),
        ({"call_limit": 10}, 'write for example "500ms"'),
        ({"call_limit": "0s"}, "more than nothing"),
        ({"concurrency": 0}, "greater than or equal to 1"),
        ({"concurrency": "20"}, "valid integer"),
        ({"typo": 1}, "Extra inputs"),
        ({"method": "GET"}, "POST"),
        ({"answers": {"500": "not_sent"}}, "claim what such an answer cannot prove; possible: duplicate, unknown"),
        ({"answers": {"409": "in_flight"}, "idempotency": None}, "give \\[idempotency\\] header"),
        ({"headers": {"Host": "a"}}, "written by Duly itself"),
        ({"headers": {"A b": "a"}}, "not a header name"),
        ({"headers": {"X": "a", "x": "b"}}, "there twice"),
        ({"headers": {"X": "{nope}"}}, "not known here"),
        ({"reference": {"json": "a", "header": "b"}}, "exactly one"),
        ({"reference": {}}, "exactly one"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused_with_a_remedy(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        settings(**change)


def test_a_validation_error_names_the_place() -> None:
    with pytest.raises(ValidationError) as caught:
        settings(idempotency={"header": "K", "retention": "1 day"})
    assert caught.value.errors()[0]["loc"] == ("idempotency", "retention")


def test_a_missing_variable_is_named_when_the_provider_is_used_and_not_before() -> None:
    parsed = settings()
    for environ in ({}, {"SANDBOX": ""}):
        with pytest.raises(MissingVariableError, match="SANDBOX is not set") as caught:
            build({"s": parsed}, {"main": ConnectionSettings(provider="s")}, environ)
        assert caught.value.name == "SANDBOX"


def test_variables_are_filled_in_and_defaults_used() -> None:
    environ = {"A": "1", "E": ""}
    assert expand("${A}/${B:-two}/${E:-e}/${C:-}/{key}/$A/$${A}", environ) == "1/two/e//{key}/$A/$1"


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"SANDBOX": "127.0.0.1:80"}, "not an http"),
        ({"SANDBOX": "http://"}, "not an http"),
        ({"SANDBOX": "http://a:99999"}, "not an http"),
        ({"SANDBOX": "http://a b"}, "not an http"),
        ({"SANDBOX": "http://user:pass@a"}, "no user"),
        ({"SANDBOX": "http://a/#x"}, "fragment"),
        ({"SANDBOX": "http://a", "TOKEN": "secret\n"}, "header authorization"),
        ({"SANDBOX": "http://a", "TOKEN": "secret "}, "header authorization"),
        ({"SANDBOX": "http://a", "TOKEN": "sécret"}, "header authorization"),
    ],
)
def test_a_variable_that_cannot_be_used_is_refused_without_being_shown(environ: dict[str, str], told: str) -> None:
    connection = ConnectionSettings(provider="s", headers=CONNECTION)
    with pytest.raises(ValueError, match=told) as caught:
        build({"s": settings()}, {"main": connection}, {"TOKEN": "t", **environ})
    assert "cret" not in str(caught.value)
    assert "pass@" not in str(caught.value)


def test_no_representation_shows_a_secret() -> None:
    used = adapter()
    literal = ConnectionSettings(provider="s", headers={"Authorization": "Bearer literal-secret"})
    for shown in (repr(used), str(used), repr(literal), repr(settings(headers={"X": "literal-secret"}))):
        assert TOKEN not in shown
        assert "literal-secret" not in shown


def test_a_connection_without_its_provider_is_named() -> None:
    with pytest.raises(ValueError, match="connection main: there is no provider 'nope'"):
        build({}, {"main": ConnectionSettings(provider="nope")}, {})


def test_the_idempotency_header_cannot_be_set_by_hand_too() -> None:
    connection = ConnectionSettings(provider="s", headers={"idempotency-key": "x"})
    with pytest.raises(ValueError, match="cannot be among the others"):
        build({"s": settings()}, {"main": connection}, {"SANDBOX": "http://a"})


def test_every_adapter_in_the_registry_reads_settings_of_its_own() -> None:
    for name, kind in ADAPTERS.items():
        assert "adapter" in kind.settings_type.model_fields, name
