"""The shape of ``[providers.X.look_up]``: how an HTTP provider is asked whether an effect exists, and what its
answer may prove. Everything that is not said here proves nothing.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from provider.documents import PATH
from provider.durations import Duration
from provider.table import Table, check_address
from provider.templates import PAYLOAD, check_template, placeholders_of

PLACEHOLDERS = ("key", "idempotency_key", "kind", "reference", PAYLOAD)
"""What a look-up may take from the operation. ``{reference}`` is the provider's own id, from its answer."""

IDENTIFYING = frozenset({"key", "idempotency_key", "reference"})
"""Placeholders that belong to one operation only."""

Path = Annotated[str, Field(pattern=PATH)]
Words = Annotated[list[str], Field(min_length=1)]

# The statuses that some provider uses to say "there is no such thing". Never one that can mean "you may not know"
# or "not now": 401, 403, 407, 408, 429, any 5xx. 204: an answer without content.
_ABSENT = frozenset({204, 400, 404, 409, 410, 422})
_ABSENT_BY_ITSELF = frozenset({204, 404, 410})  # RFC 9110 15.3.5, 15.5.5, 15.5.11; the others have other meanings too


class StatusSettings(Table):
    """``status``: what was found may not be done yet, or may have failed. A word in no list proves nothing."""

    path: Path
    applied: Words
    working: list[str] = Field(default_factory=list)
    """Taken and not finished: asked again later."""
    refused: list[str] = Field(default_factory=list)
    """Finished without effect."""

    @model_validator(mode="after")
    def _once(self) -> Self:
        words = [*self.applied, *self.working, *self.refused]
        twice = sorted({word for word in words if words.count(word) > 1})
        if twice:
            raise ValueError(f"{', '.join(map(repr, twice))} is in two lists")
        return self


class AbsentSettings(Table):
    """``absent``: the provider's own answer for "there is no such thing". Anything else is not absence."""

    statuses: Annotated[list[int], Field(min_length=1)] = Field(default_factory=lambda: [404])
    path: Path | None = None
    """Where the body carries an error code. Given: an answer counts only with one of ``values``."""
    values: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _own_words(self) -> Self:
        if (self.path is None) is bool(self.values):
            raise ValueError('path and values belong together: path = "error", values = ["RecordNotFound"]')
        for status in self.statuses:
            if status not in _ABSENT:
                allowed = ", ".join(map(str, sorted(_ABSENT)))
                raise ValueError(f"status {status} does not say that there is no such thing; possible: {allowed}")
            if status not in _ABSENT_BY_ITSELF and self.path is None:
                raise ValueError(f"status {status} has other meanings too: say which error code, with path and values")
            if status == 204 and self.path is not None:
                raise ValueError("status 204 has no body, so no error code: leave path and values out")
        return self


class NextSettings(Table):
    """``next``: a list that comes in pages."""

    path: Path
    """Where a page carries the address of the next one, or its cursor; nothing there: the last page."""
    parameter: Annotated[str | None, Field(min_length=1)] = None
    """Given: what ``path`` holds is a cursor, and this is the query parameter that takes it."""
    pages: Annotated[int, Field(ge=2, le=100)] = 10
    """Pages read at most; when there are more, a look-up without a match cannot tell."""


class LookUpSettings(Table):
    """``[providers.X.look_up]``."""

    url: Annotated[str, Field(min_length=1), AfterValidator(lambda text: check_address(text, PLACEHOLDERS))]
    method: Literal["GET"] = "GET"
    by: Literal["key", "reference", "search"]
    """``key``: for our own key, exactly. ``reference``: for the provider's id. ``search``: for what resembles it."""
    lag: Duration | None = None
    """Seconds after which an effect is certainly shown; None: nobody knows, so absence never concludes."""
    conclusive: bool = False
    """Whether "there is no such thing", said after the lag, is true: the provider's own store, no filter by rights."""
    items: Annotated[str | None, Field(pattern=rf"\.|{PATH}")] = None
    """Where the body holds a list; ``"."``: the body is the list. None: the body is the one object asked for."""
    page_size: Annotated[int | None, Field(ge=1, le=10_000)] = None
    """Items of a full page. A full page without a match and without a next one cannot tell."""
    next: NextSettings | None = None
    match: dict[Path, str] = Field(default_factory=dict)
    """Path in an item to what must stand there. All must match."""
    reference: Path | None = None
    """Where an item carries the provider's own id."""
    status: StatusSettings | None = None
    absent: AbsentSettings = Field(default_factory=AbsentSettings)

    @model_validator(mode="after")
    def _provable(self) -> Self:
        for template in self.match.values():
            check_template(template, PLACEHOLDERS)
        asked = placeholders_of(self.url)
        named = asked.union(*map(placeholders_of, self.match.values()))
        if self.by == "key" and not named & {"key", "idempotency_key"}:
            raise ValueError('by = "key" needs {idempotency_key} or {key} in url or match')
        if self.by == "reference" and "reference" not in named:
            raise ValueError('by = "reference" needs {reference} in url or match')
        if self.items is None:
            self._one_object(asked)
        elif not self.match:
            raise ValueError('a list needs match, such as match = { "metadata.key" = "{idempotency_key}" }')
        elif self.by != "search" and not self.identifying:
            raise ValueError(f'by = "{self.by}" in a list needs a match of the key or reference itself')
        if self.conclusive and (self.by == "search" or self.lag is None):
            raise ValueError(
                'conclusive = true needs by = "key" or "reference", and lag (how long an effect may stay invisible)'
            )
        return self

    def _one_object(self, asked: set[str]) -> None:
        if self.by == "search" or not asked & IDENTIFYING:
            raise ValueError("without items the body is the one object asked for: name it in url by key or reference")
        if self.next is not None or self.page_size is not None:
            raise ValueError("next and page_size are for lists: give items")
        if self.reference is None and not self.match:
            raise ValueError("say what makes the body an effect: give reference or match")

    @property
    def identifying(self) -> frozenset[str]:
        """The paths of ``match`` that belong to one operation only."""
        return frozenset(path for path, template in self.match.items() if placeholders_of(template) & IDENTIFYING)
