"""A small synchronous client of the sandbox, for tests, the demo and the command line. Standard library only."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

_TIMEOUT = 10.0  # seconds; it is on this machine and answers in milliseconds


class SandboxError(Exception):
    """The sandbox refused an instruction; the text says why."""


class SandboxClient:
    """Tells the sandbox what to do and reads what it did."""

    def __init__(self, url: str) -> None:
        """``url``: where it is, such as ``http://127.0.0.1:8377``."""
        self._url = url.rstrip("/")
        # No proxy, whatever the environment says: it is on this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def tell(
        self,
        *behaviour: str | dict[str, Any],
        key: str | None = None,
        match: str | None = None,
        rate: float | None = None,
        look_up: bool = False,
    ) -> None:
        """Give the behaviours for a key, a prefix (``"order-*"``) or a share of the keys; none: as before.

        ``look_up``: how to answer look-ups, instead of requests for an effect. Raises SandboxError if it does
        not understand, OSError if it cannot be reached.
        """
        told = {"key": key, "match": match, "rate": rate}
        instruction = {name: value for name, value in told.items() if value is not None}
        self._ask("PUT", "/script", {**instruction, "look_up" if look_up else "behaviour": list(behaviour)})

    def forget(self) -> None:
        """Take back every instruction."""
        self._ask("DELETE", "/script")

    def effects(self, key: str | None = None, prefix: str | None = None) -> dict[str, list[dict[str, Any]]]:
        """Effects by business key."""
        found: dict[str, list[dict[str, Any]]] = self._get("/effects", key, prefix)["effects"]
        return found

    def count(self, key: str) -> int:
        """How many effects this key has had."""
        return len(self.effects(key=key).get(key, []))

    def requests(self, key: str | None = None, prefix: str | None = None) -> list[dict[str, Any]]:
        """Every request, with what was answered."""
        found: list[dict[str, Any]] = self._get("/requests", key, prefix)["requests"]
        return found

    def look_ups(self, key: str | None = None, prefix: str | None = None) -> list[dict[str, Any]]:
        """Every look-up and cancellation, with what was answered."""
        found: list[dict[str, Any]] = self._get("/look-ups", key, prefix)["look_ups"]
        return found

    def accepted(self, key: str | None = None, prefix: str | None = None) -> list[dict[str, Any]]:
        """What was taken for later (202) or cancelled, with its status."""
        found: list[dict[str, Any]] = self._get("/accepted", key, prefix)["accepted"]
        return found

    def expire(self, key: str | None = None, prefix: str | None = None) -> int:
        """Forget the idempotency keys of these operations, or all, as if their time were over. Returns how many."""
        return int(self._ask("DELETE", "/keys" + _query(key, prefix))["expired"])

    def cancel(self, idempotency_key: str) -> str:
        """Cancel by idempotency key. Raises SandboxError when the effect has taken place or is in flight."""
        return str(self._ask("POST", f"/effects/{quote(idempotency_key, safe='')}/cancel")["status"])

    def health(self) -> dict[str, Any]:
        """Totals. Raises OSError if it is not up."""
        found: dict[str, Any] = self._ask("GET", "/healthz")
        return found

    def _get(self, path: str, key: str | None, prefix: str | None) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("GET", path + _query(key, prefix))
        return found

    def _ask(self, method: str, path: str, document: Any = None) -> Any:
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(self._url + path, body, method=method)  # noqa: S310 - our own address
        try:
            with self._opener.open(request, timeout=_TIMEOUT) as answer:
                text = answer.read()
        except urllib.error.HTTPError as exc:
            raise SandboxError(exc.read().decode("utf-8", "replace")) from exc
        return json.loads(text) if text else None


def _query(key: str | None, prefix: str | None) -> str:
    query = urlencode({name: value for name, value in (("key", key), ("prefix", prefix)) if value is not None})
    return f"?{query}" if query else ""
