"""The process of (b) and (c): worker and starter in one, as in Duly's worker; SDK defaults.

    python -m bench.plain '{"workflow": "Floor", "temporal_address": …, "sandbox_url": …, "database_url": …}'

Each line on standard input, ``{"prefix": "x", "count": 300}``, is one run; the answer is one line on standard output,
``{"began": …, "ended": …}`` in epoch seconds of the machine. End of input ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any, TextIO

from temporalio.client import Client
from temporalio.worker import Worker

from bench.plain_activities import Activities, Order
from bench.plain_workflows import Floor, Usual
from cli.exit import OK, leave

STARTS_AT_ONCE = 10
"""As many as Duly's sweep has in flight; more do not make the server faster (measured at 10, 50 and 200)."""

LIMIT = 300.0
"""Seconds for one run, as in ``bench.site``."""

QUEUE = "bench"


async def run(settings: dict[str, Any], answers: TextIO) -> None:
    """Serve runs until the end of the input."""
    activities = Activities.make(settings["sandbox_url"], settings["database_url"])
    client = await Client.connect(settings["temporal_address"])
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Floor, Usual],
        activities=[activities.call_only, activities.claim, activities.call, activities.record],
    ):
        _say(answers, {"ready": True})
        while line := await asyncio.to_thread(sys.stdin.readline):
            _say(answers, await _one(client, activities, settings["workflow"], **json.loads(line)))
    await activities.http.aclose()
    await activities.engine.dispose()


async def _one(client: Client, activities: Activities, workflow: str, prefix: str, count: int) -> dict[str, float]:
    numbers = iter(range(count))
    began = time.time()

    async def start() -> None:
        for number in numbers:
            key = f"{prefix}:{number}"
            await client.start_workflow(workflow, Order(key, number), id=key, task_queue=QUEUE)

    await asyncio.gather(*(start() for _ in range(STARTS_AT_ONCE)))
    starting = time.time() - began
    async with asyncio.timeout(LIMIT):
        ended = max([await activities.ended.get() for _ in range(count)])
    return {"began": began, "ended": ended, "starting": starting}


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


def main() -> int:
    """0 when the input has ended."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the SDK's core writes its log to standard output
    asyncio.run(run(json.loads(sys.argv[1]), answers))
    return OK


if __name__ == "__main__":
    leave(main())
