"""What the sandbox can be told to do with one request, or with one look-up. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

BEHAVIOURS: Mapping[str, str] = {
    "ok": "commit and answer 201; a repeat of a key is answered as the first time",
    "commit_then_close": "commit, then close the connection without an answer",
    "commit_then_stall": "commit, then say nothing (:SECONDS, else until the client goes)",
    "close_before_commit": "close the connection without an effect",
    "cut_body": "commit, answer 201, close in the middle of the body",
    "status": "answer any status (:STATUS), with headers and body; an effect only if commit is true",
    "stored_error": "answer an error (:STATUS, default 500) and again for every repeat of the key; an effect only if "
    "commit is true",
    "accept": "answer 202; the effect comes later (:SECONDS, default 1)",
    "accept_then_fail": "answer 202; it fails later (:SECONDS, default 1), without effect",
    "slow": "wait (:SECONDS, default 1), then as ok; the same key meanwhile is answered 409",
    "reset": "reset the connection (RST); an effect only if commit is true",
    "throttle": "answer 429 with Retry-After (:SECONDS, default 2)",
    "deny": "answer 401",
    "in_flight_409": "answer 409, as if the key were being processed",
    "ignore_keys": "take the key and ignore it: each request is a new effect",
}

LOOK_UPS: Mapping[str, str] = {
    "ok": "answer what is true",
    "lag": "as ok, but nothing of the last :SECONDS (default 3) is visible yet",
    "absent": "say that there is nothing, although there may be",
    "present": "say that it is there, although it is not",
    "wrong": "answer with somebody else's effect",
    "several": "show two where there is one or none; asked for one of them: 409",
    "full_page": "a list full of somebody else's, and no next page; asked for one: as wrong",
    "outage": "answer an error (:STATUS, default 503)",
    "stall": "say nothing (:SECONDS, else until the client goes)",
    "deny": "answer 401",
    "cut_body": "close in the middle of the body",
}

# The field that the short form "name:value" fills.
_SHORT = {
    "accept": "seconds",
    "accept_then_fail": "seconds",
    "commit_then_stall": "seconds",
    "lag": "seconds",
    "outage": "status",
    "slow": "seconds",
    "stall": "seconds",
    "status": "status",
    "stored_error": "status",
    "throttle": "retry_after",
}
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 5.1
_VALUE = re.compile(r"[\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one request is treated. Which fields count depends on ``do``."""

    do: str
    seconds: float | None = None
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    commit: bool = False
    retry_after: str = "2"


OK = Behaviour("ok")


def parse_behaviour(told: Any, known: Mapping[str, str] = BEHAVIOURS) -> Behaviour:
    """A behaviour from ``"name"``, ``"name:value"`` or an object with ``do``. Raises ValueError with the choices."""
    values: dict[str, Any]
    if isinstance(told, str):
        name, colon, value = told.partition(":")
        values = {"do": name}
        if colon:
            if name not in _SHORT:
                raise ValueError(f"{name} takes no value")
            values[_SHORT[name]] = value
    elif isinstance(told, Mapping):
        values = dict(told)
    else:
        raise ValueError(f"a behaviour is a name or an object, not {told!r}")  # noqa: TRY004 - all one to who told us
    if values.get("do") not in known:
        raise ValueError(f"{values.get('do')!r} is no behaviour; there are: {', '.join(known)}")
    unknown = values.keys() - {known_field.name for known_field in fields(Behaviour)}
    if unknown:
        raise ValueError(f"{', '.join(sorted(map(str, unknown)))}: no such field of a behaviour")
    if values["do"] == "outage":
        values.setdefault("status", 503)
    return Behaviour(**{name: _checked(name, value) for name, value in values.items()})


def _checked(name: str, value: Any) -> Any:
    if name == "seconds":
        seconds = float(value)
        if not 0 <= seconds <= 86400:  # a day: nobody waits longer, and infinity is a slip
            raise ValueError("seconds must be from 0 to 86400")
        return seconds
    if name == "status":
        if not 200 <= int(value) <= 599:
            raise ValueError("status must be from 200 to 599")
        return int(value)
    if name == "headers":
        if not isinstance(value, Mapping) or not all(
            isinstance(text, str) and _TOKEN.fullmatch(header) and _VALUE.fullmatch(text)
            for header, text in value.items()
        ):
            raise ValueError("headers must be an object of names and printable texts")
        return dict(value)
    if name == "commit":
        if not isinstance(value, bool):
            raise ValueError("commit must be true or false")
        return value
    if name == "retry_after" and not _VALUE.fullmatch(str(value)):
        raise ValueError("retry_after must be printable")
    return str(value)
