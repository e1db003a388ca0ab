"""What every table of duly.toml has in common."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import BaseModel, ConfigDict

from provider.templates import PLACEHOLDERS, check_template


class Table(BaseModel):
    """A table of duly.toml: exact types, nothing unknown, never changed."""

    # An error must not quote what was written: it may be a secret.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


def check_address(text: str, placeholders: Collection[str] = PLACEHOLDERS) -> str:
    """The template of an address. Raises ValueError for one that cannot become http(s)."""
    if not text.startswith(("http://", "https://", "${")):
        raise ValueError(f"{text!r} must start with http://, https:// or a ${{NAME}} that does")
    return check_template(text, placeholders)
