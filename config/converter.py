"""How arguments become payloads and back: the SDK's default way, except that an unreadable one is not dropped."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import DataConverter, DefaultPayloadConverter


class LenientPayloadConverter(DefaultPayloadConverter):
    """Where no type is expected, what cannot be read stays as it came: a signal with it still reaches its handler."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """See the base class. Raises only where a type is expected."""
        if type_hints:
            return super().from_payloads(payloads, type_hints)
        return [self._read(payload) for payload in payloads]

    def _read(self, payload: Payload) -> Any:
        try:
            return super().from_payloads([payload])[0]
        except Exception:  # noqa: BLE001 (anybody may send anything; whoever receives it says that it is unreadable)
            return RawValue(payload)


CONVERTER = dataclasses.replace(DataConverter.default, payload_converter_class=LenientPayloadConverter)
