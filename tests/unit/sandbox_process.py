"""A sandbox in a process of its own, and ways to talk to it."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provider.sandbox.client import SandboxClient

LIMIT = 10.0  # seconds that a test waits for what takes milliseconds
PROJECT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Running:
    process: subprocess.Popen[str]
    url: str
    data: Path

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def client(self) -> SandboxClient:
        return SandboxClient(self.url)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(LIMIT)


def start(data: Path, *arguments: str) -> Running:
    command = [sys.executable, "-m", "provider.sandbox", "--port", "0", "--data", str(data), *arguments]
    with data.with_name("stderr").open("a") if data.parent.exists() else nullcontext() as stderr:
        process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    assert told["ready"] is True
    assert told["pid"] == process.pid
    return Running(process, told["url"], data)


@dataclass(slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def post(
    running: Running, key: str, body: bytes = b'{"a":1}', *, idempotency_key: str | None = None, seconds: float = LIMIT
) -> Answer:
    """POST /effects. Raises what http.client raises when the answer does not come whole."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=seconds)
    try:
        headers = {"Operation-Key": key, "Idempotency-Key": idempotency_key or f"idem-{key}"}
        connection.request("POST", "/effects", body, headers)
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def get(running: Running, path: str, method: str = "GET") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=LIMIT)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def tell(running: Running, key: str, *behaviour: str | dict[str, Any]) -> None:
    running.client.tell(*behaviour, key=key)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "not in time"
