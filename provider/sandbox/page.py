"""The sandbox's page for people: effects by key. No script, nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

KEYS_MAX = 500  # rows shown: what a browser draws at once and a person scrolls through
BODY_MAX = 300  # characters of a payload shown

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #8886; }
td { overflow-wrap: anywhere; }
.many { color: #c22; font-weight: bold; }
code { font: 13px ui-monospace, monospace; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CSP = f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


def effects_page(
    effects: Mapping[str, Sequence[Mapping[str, Any]]],
    accepted: Sequence[Mapping[str, Any]],
    totals: Mapping[str, int],
    prefix: str,
) -> bytes:
    """The page, as UTF-8. ``effects`` by key and ``accepted``, as the store gives them."""
    latest = list(effects.items())[-KEYS_MAX:][::-1]
    left_out = len(effects) - len(latest)
    summary = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in totals.items())
    rows = "\n".join(_row(key, found) for key, found in latest)
    note = f"<p>The latest {KEYS_MAX} keys; {left_out} older ones are not shown.</p>" if left_out else ""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Duly sandbox: effects</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head><body>
<h1>Effects by key</h1>
<p>What this provider really did. {escape(summary)}.</p>
<form method="get" action="/"><label>Keys that start with
<input name="prefix" value="{escape(prefix)}"></label> <button>Show</button></form>
{note}<table><thead><tr><th>key</th><th>effects</th><th>when (UTC)</th><th>id</th><th>payload</th></tr></thead>
<tbody>
{rows or '<tr><td colspan="5">None yet.</td></tr>'}
</tbody></table>
{_accepted(accepted)}
<p>As JSON: <a href="/effects">effects</a>, <a href="/requests">requests</a>, <a href="/look-ups">look-ups</a>,
<a href="/accepted">accepted</a>, <a href="/script">script</a>.</p>
</body></html>
""".encode("utf-8", "replace")


def _accepted(accepted: Sequence[Mapping[str, Any]]) -> str:
    if not accepted:
        return ""
    rows = "\n".join(
        f"<tr><td><code>{escape(one['operation_key'] or '')}</code></td><td>{escape(one['status'])}</td>"
        f"<td>{_when(one['at'])}</td><td>{escape(one['id'])}</td></tr>"
        for one in accepted[: -KEYS_MAX - 1 : -1]
    )
    return f"""<h2>Accepted for later, or cancelled</h2>
<table><thead><tr><th>key</th><th>status</th><th>taken (UTC)</th><th>id</th></tr></thead>
<tbody>
{rows}
</tbody></table>"""


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _row(key: str, found: Sequence[Mapping[str, Any]]) -> str:
    many = ' class="many"' if len(found) > 1 else ""
    last = found[-1]
    body = json.dumps(last["body"], ensure_ascii=False)
    shown = body if len(body) <= BODY_MAX else body[:BODY_MAX] + "…"
    ids = "<br>".join(escape(effect["id"]) for effect in found[:20])  # of a key gone wild, the first 20
    return (
        f"<tr><td><code>{escape(key)}</code></td><td{many}>{len(found)}</td><td>{_when(last['at'])}</td>"
        f"<td>{ids}</td><td><code>{escape(shown)}</code></td></tr>"
    )
