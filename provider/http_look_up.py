"""Asks an HTTP provider whether an effect exists, and says no more than the answer proves.

A hit is a hit whenever it comes. Absence is the provider's own words for it, whole, on every page; an error, no
access, a cut or overlong answer, a page that may not be the last, a match in doubt: all of these cannot tell.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from provider.documents import at, id_at, parse, text_at
from provider.http_request import Address
from provider.look_up_settings import PLACEHOLDERS, LookUpSettings
from provider.port import Finding, FindingName, Query
from provider.templates import Template
from provider.text import REFERENCE_MAX, clean, complaint
from provider.transport import Exchange, Transport
from provider.values import UnfitError, Values, values_of_query

PAGE_MAX = 1024 * 1024  # bytes of one answer: a hundred items of 10 KB

HeadersOf = Callable[[Values], list[tuple[bytes, bytes]]]


@dataclass(frozen=True, slots=True)
class Hit:
    """One item that is the operation's, or may be: then ``CANNOT_TELL`` and why."""

    name: FindingName
    reference: str | None
    why: str
    item: Any
    page: int


@dataclass(slots=True)
class Seen:
    """What one key's pages have shown so far."""

    hits: list[Hit] = field(default_factory=list)
    doubt: str = ""
    """Why what was not found may be there all the same; empty: it is not."""
    status: int | None = None
    page: int = 0

    def add(self, hit: Hit) -> None:
        """Once: a list that grows meanwhile shows an item again on the next page."""
        for place, known in enumerate(self.hits):
            if hit.reference is not None and known.reference == hit.reference:
                self.hits[place] = hit
                return
            # Without ids, two equal items on one page are two; on two pages they may be one, seen twice.
            if hit.reference is None and known.page != hit.page and known.item == hit.item:
                return
        self.hits.append(hit)


class LookUp:
    """The look-ups of one connection."""

    def __init__(
        self,
        settings: LookUpSettings,
        connection: str,
        environ: Mapping[str, str],
        secrets: set[str],
        *,
        transport: Transport,
        headers: HeadersOf,
    ) -> None:
        """Adds to ``secrets``. Raises MissingVariableError, or ValueError for what cannot be used once filled in."""
        self._settings = settings
        self._address = Address(connection, settings.url, environ, secrets, PLACEHOLDERS)
        self._match = {
            path: Template(text, environ, lambda _, value: secrets.add(value), PLACEHOLDERS)
            for path, text in settings.match.items()
        }
        self._transport = transport
        self._headers = headers
        texts = [settings.url, *settings.match.values()]
        self._by_idempotency_key = any("{idempotency_key}" in text for text in texts)

    async def ask(self, query: Query) -> Finding:
        """Every key that was used, within the query's time limit. The texts in it are not cleaned yet."""
        end = time.monotonic() + query.time_limit
        if not self._by_idempotency_key:
            return await self._ask_for("", query, end)
        if not query.idempotency_keys:
            return _cannot_tell("no request was made, so there is no key to ask for")
        return merged([await self._ask_for(key, query, end) for key in query.idempotency_keys])

    async def _ask_for(self, idempotency_key: str, query: Query, end: float) -> Finding:
        values = values_of_query(query, idempotency_key)
        try:
            expected = {path: template.fill(values) for path, template in self._match.items()}
            url: str | None = self._address.fill(values)
            headers = self._headers(values)
        except UnfitError as exc:
            return _cannot_tell(str(exc))
        seen = Seen()
        visited: set[str] = set()
        while url is not None:
            if len(visited) == (self._settings.next.pages if self._settings.next else 1):
                seen.doubt = f"more than {len(visited)} pages"
            elif url in visited:
                seen.doubt = "the pages go round in a circle"
            elif end <= time.monotonic():
                seen.doubt = f"no complete answer within {query.time_limit:g} s"
            if seen.doubt:
                break
            visited.add(url)
            exchange = await self._get(url, headers, end - time.monotonic())
            seen.page = len(visited)
            following = read(self._settings, expected, exchange, seen)
            url = None if following is None or seen.doubt else self._next(url, following, seen)
        return concluded(seen)

    async def _get(self, url: str, headers: list[tuple[bytes, bytes]], seconds: float) -> Exchange:
        exchange = await self._transport.send(
            self._settings.method, url, headers, b"",
            time_limit=seconds, send_before=math.inf, max_body=PAGE_MAX, question=True,
        )  # fmt: skip
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError  # the transport keeps quiet about it, for the sake of calls with an effect
        return exchange

    def _next(self, url: str, following: str, seen: Seen) -> str | None:
        """The next page. None, with a doubt, when it leads elsewhere: our credential has no business there."""
        assert self._settings.next is not None
        parts = urlsplit(url)
        if self._settings.next.parameter is not None:
            kept = [pair for pair in parse_qsl(parts.query, True) if pair[0] != self._settings.next.parameter]
            return urlunsplit(parts._replace(query=urlencode([*kept, (self._settings.next.parameter, following)])))
        try:
            target = urljoin(url, following)
            there = urlsplit(target)
        except ValueError:
            seen.doubt = "the next page has no readable address"
            return None
        if (there.scheme, there.netloc) != (parts.scheme, parts.netloc):
            seen.doubt = "the next page is at another server"
            return None
        return target


def read(settings: LookUpSettings, expected: Mapping[str, str], exchange: Exchange, seen: Seen) -> str | None:
    """One answer: adds to ``seen`` and returns what names the next page."""
    seen.status = exchange.status
    if exchange.status is None:
        seen.doubt = f"could not ask: {exchange.detail}"
        return None
    document = parse(exchange.body) if exchange.body else None
    if seen.page == 1 and _says_absent(settings, exchange, document):
        return None
    if exchange.status != 200:
        seen.doubt = complaint(exchange.status, exchange.body, document)
        return None
    if exchange.body is None or exchange.truncated:
        seen.doubt = "the answer is not whole" + (f": {exchange.detail}" if exchange.detail else "")
        return None
    if settings.items is None:
        if isinstance(document, Mapping):
            _read_one(settings, expected, document, seen)
        else:
            seen.doubt = "the answer is no JSON object"
        return None
    items = document if settings.items == "." else at(document, settings.items)
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        seen.doubt = "the answer has no list of objects where one should be"
        return None
    for item in items:
        _read_item(settings, expected, item, seen)
    following = text_at(document, settings.next.path) if settings.next is not None else None
    if following:
        return following
    # An empty list is certainly complete; another one, if it could have been longer.
    full = len(items) >= settings.page_size if settings.page_size is not None else settings.next is None
    if items and full:
        seen.doubt = f"a page of {len(items)} items without a next one may not be all"
    return None


def _says_absent(settings: LookUpSettings, exchange: Exchange, document: Any) -> bool:
    absent = settings.absent
    if exchange.status not in absent.statuses or exchange.body is None or exchange.truncated:
        return False
    return absent.path is None or text_at(document, absent.path) in absent.values


def _read_one(settings: LookUpSettings, expected: Mapping[str, str], item: Mapping[str, Any], seen: Seen) -> None:
    """The one object asked for. It must look like an effect, and like ours."""
    wrong = [path for path, text in expected.items() if text_at(item, path) != text]
    if wrong:
        seen.add(Hit(FindingName.CANNOT_TELL, None, f"what was found differs in {', '.join(wrong)}", item, seen.page))
    elif settings.reference is not None and _reference(settings, item) is None:
        seen.add(Hit(FindingName.CANNOT_TELL, None, f"what was found has no {settings.reference}", item, seen.page))
    else:
        seen.add(_judged(settings, item, seen.page))


def _read_item(settings: LookUpSettings, expected: Mapping[str, str], item: Mapping[str, Any], seen: Seen) -> None:
    """One of a list. Under our key but otherwise different is a doubt; anything else is somebody else's."""
    wrong = [path for path, text in expected.items() if text_at(item, path) != text]
    if not wrong:
        seen.add(_judged(settings, item, seen.page))
    elif settings.identifying and not settings.identifying & set(wrong):
        why = f"found under this operation's own key, but it differs in {', '.join(wrong)}"
        seen.add(Hit(FindingName.CANNOT_TELL, _reference(settings, item), why, item, seen.page))


def _judged(settings: LookUpSettings, item: Mapping[str, Any], page: int) -> Hit:
    reference, status = _reference(settings, item), settings.status
    if status is None:
        return Hit(FindingName.APPLIED, reference, "", item, page)
    word = text_at(item, status.path)
    for name, words in (
        (FindingName.APPLIED, status.applied),
        (FindingName.WORKING, status.working),
        (FindingName.REFUSED, status.refused),
    ):
        if word in words:
            return Hit(name, reference, f"{status.path} is {word}", item, page)
    return Hit(FindingName.CANNOT_TELL, reference, f"{status.path} is {word}, which no list names", item, page)


def _reference(settings: LookUpSettings, item: Mapping[str, Any]) -> str | None:
    found = id_at(item, settings.reference) if settings.reference is not None else None
    return clean(found, limit=REFERENCE_MAX) or None if found else None


def concluded(seen: Seen) -> Finding:
    """What all pages of one key prove together."""

    def finding(name: FindingName, hit: Hit | None, detail: str) -> Finding:
        return Finding(name, hit.reference if hit else None, detail, seen.status)

    live = [hit for hit in seen.hits if hit.name in (FindingName.APPLIED, FindingName.WORKING)]
    unclear = next((hit for hit in seen.hits if hit.name is FindingName.CANNOT_TELL), None)
    if len(live) > 1:
        return finding(FindingName.SEVERAL, None, f"{len(live)}: {_named(live)}")
    if unclear is not None:
        return finding(FindingName.CANNOT_TELL, unclear, unclear.why)
    if live:
        rest = f"the rest was not read: {seen.doubt}" if seen.doubt else ""
        return finding(live[0].name, live[0], "; ".join(filter(None, (live[0].why, rest))))
    if seen.doubt:
        return finding(FindingName.CANNOT_TELL, None, seen.doubt)
    if seen.hits:
        return finding(FindingName.REFUSED, seen.hits[-1], seen.hits[-1].why)
    return finding(FindingName.ABSENT, None, "")


def _named(hits: Sequence[Hit]) -> str:
    return ", ".join(hit.reference or "one without a reference" for hit in hits)


def merged(findings: Sequence[Finding]) -> Finding:
    """Findings under several keys of one operation, newest first, as one. In doubt under one key is in doubt."""
    applied = [finding for finding in findings if finding.name is FindingName.APPLIED]
    if len(applied) > 1:
        references = ", ".join(finding.reference or "one without a reference" for finding in applied)
        return Finding(FindingName.SEVERAL, None, f"one under each of {len(applied)} keys: {references}")
    order = (
        FindingName.SEVERAL,
        FindingName.CANNOT_TELL,
        FindingName.WORKING,
        FindingName.APPLIED,
        FindingName.ABSENT,  # a refusal under one key says nothing about the other
        FindingName.REFUSED,
    )
    return min(findings, key=lambda finding: order.index(finding.name))


def _cannot_tell(why: str) -> Finding:
    return Finding(FindingName.CANNOT_TELL, None, why)
