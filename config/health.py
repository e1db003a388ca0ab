"""The worker's health endpoint, in a thread of its own: it answers also when the event loop is stuck.

``/live`` speaks of this process only: a provider's or a server's outage must not restart the fleet.
``/ready`` says whether this worker can do its work now, and why not.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STUCK_AFTER = 10.0
"""Seconds without a turn of the event loop after which the process is not live: twice the SDK's deadlock limit (2 s)
and more than any pause of a busy two-core machine seen here."""


@dataclass
class Health:
    """What the endpoint answers. ``tick`` is called by the loop; ``why_not`` None means ready."""

    why_not: str | None = "starting"
    facts: dict[str, Any] = field(default_factory=dict)
    last_tick: float = field(default_factory=time.monotonic)

    def tick(self) -> None:
        """The event loop is turning."""
        self.last_tick = time.monotonic()

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and body for one of the two paths."""
        stuck = time.monotonic() - self.last_tick
        if stuck > STUCK_AFTER:
            return 503, {"status": "stuck", "seconds": round(stuck, 1)}
        if path == "/live":
            return 200, {"status": "live"}
        if path == "/ready":
            if self.why_not:
                return 503, {"status": "not ready", "why": self.why_not, **self.facts}
            return 200, {"status": "ready", **self.facts}
        return 404, {"status": "not found", "paths": ["/live", "/ready"]}


def serve(health: Health, host: str, port: int) -> ThreadingHTTPServer:
    """Start answering; ``server_port`` of the result is the port taken. Raises OSError when it is not free."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = health.answer(self.path)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class names it so)
            """Probes come every few seconds and say nothing."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
