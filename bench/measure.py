"""One run of one contestant, and lateness at a steady rate. Medians are over runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from bench.contestants import Contestant, Duly, Plain
from bench.site import Site
from stack.process import StackError

WARM_UP = 20
"""Operations before those that are measured: imports, connections, the server's first task queue partitions."""

LEAD = 3.0
"""Seconds from scheduling to the first due time of the steady run: the worker is idle when it begins."""

NAMES = {
    "duly": "Duly: from the commit of the schedule to the recorded ending",
    "floor": "a bare workflow with one activity, the call; no ledger",
    "usual": "a workflow with three activities: claim, call, record",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One run. Processor time in milliseconds per operation, by process."""

    name: str
    operations: int
    seconds: float
    cpu_ms: dict[str, float]
    eager_starts: int

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds


@dataclass(frozen=True, slots=True)
class Lateness:
    """From due time to the request at the provider, in milliseconds."""

    operations: int
    per_second: float
    median_ms: float
    p99_ms: float
    max_ms: float
    early: int
    """Requests before their due time: never."""
    worker_cpu_ms: float


def contestant(site: Site, name: str) -> Contestant:
    """Started, on a fresh server."""
    site.fresh_temporal()
    return Duly(site) if name == "duly" else Plain(site, name.capitalize())


def run(site: Site, name: str, number: int, count: int) -> Run:
    """One run of ``count`` operations. Raises StackError when any of them is missing or doubled at the provider."""
    entered = contestant(site, name)
    try:
        prefix = f"{name}-{number}"
        entered.run(f"{prefix}-warm", WARM_UP)
        site.wait(lambda: site.closed() == WARM_UP, "the warm-up to close")
        before = site.processor_seconds(entered.pid)
        began, ended = entered.run(prefix, count)
        # To the end of the workflows: what comes after the last recorded ending is part of the cost.
        site.wait(lambda: site.closed() == WARM_UP + count, "every workflow to close")
        after = site.processor_seconds(entered.pid)
        _check(site, prefix, count)
        used = {part: (after[part] - before[part]) * 1000 / count for part in after}
        return Run(name, count, ended - began, used, site.eager_starts(prefix, count))
    finally:
        entered.stop()


def _check(site: Site, prefix: str, count: int) -> None:
    effects = site.sandbox.effects(prefix=f"{prefix}:")
    if len(effects) != count or any(len(of_one) != 1 for of_one in effects.values()):
        raise StackError(f"{prefix}: {count} operations, {len(effects)} keys with effects at the provider")


def lateness(site: Site, per_second: float, seconds: float) -> Lateness:
    """Operations due one after the other, scheduled ahead in one transaction."""
    count = math.ceil(per_second * seconds)
    site.fresh_temporal()
    duly = Duly(site)
    try:
        duly.run("steady-warm", WARM_UP)
        before = site.processor_seconds(duly.pid)["worker"]
        site.sql(
            "SELECT duly.schedule(key => 'steady:' || n, kind => 'bench', "
            "payload => jsonb_build_object('order_id', n), "
            "due_at => t.begin + n * interval '1 second' / %s, deadline => t.begin + interval '1 hour') "
            "FROM (SELECT now() + %s * interval '1 second' AS begin) AS t, "
            "generate_series(0, %s - 1) AS n",
            per_second, LEAD, count,
        )  # fmt: skip
        site.wait(duly.all_ended, "every operation to end")
        used = site.processor_seconds(duly.pid)["worker"] - before
        due = site.sql("SELECT key, due_at FROM duly.operation WHERE starts_with(key, 'steady:')")
        return _lateness(due, site.sandbox.requests(prefix="steady:"), per_second, used)
    finally:
        duly.stop()


def _lateness(
    due: Sequence[dict[str, Any]], requests: Sequence[dict[str, Any]], per_second: float, used: float
) -> Lateness:
    arrived = {request["key"]: request["at"] for request in requests}
    if len(requests) != len(due) or len(arrived) != len(due):
        raise StackError(f"{len(due)} operations, {len(requests)} requests at the provider")
    times: list[tuple[str, datetime]] = [(row["key"], row["due_at"]) for row in due]
    late = sorted((arrived[key] - at.timestamp()) * 1000 for key, at in times)
    return Lateness(
        len(late), per_second, statistics.median(late), late[math.ceil(len(late) * 0.99) - 1], late[-1],
        sum(one < 0 for one in late), used * 1000 / len(late),
    )  # fmt: skip


def summary(runs: Sequence[Run], late: Lateness | None) -> dict[str, Any]:
    """What is printed and written: medians, ratios, and every run."""
    found: dict[str, Any] = {
        "contestants": {},
        "ratios": {},
        "runs": [{**asdict(one), "rate": one.rate} for one in runs],
    }
    for name in NAMES:
        own = [one for one in runs if one.name == name]
        if own:
            found["contestants"][name] = {
                "operations_per_second": statistics.median(one.rate for one in own),
                "cpu_ms": {part: statistics.median(one.cpu_ms[part] for one in own) for part in own[0].cpu_ms},
                "eager_starts": statistics.median(one.eager_starts / one.operations for one in own),
            }
    medians = found["contestants"]
    for other in ("floor", "usual"):
        if "duly" in medians and other in medians:
            found["ratios"][f"duly/{other}"] = {
                "operations_per_second": medians["duly"]["operations_per_second"]
                / medians[other]["operations_per_second"],
                "worker_cpu": medians["duly"]["cpu_ms"]["worker"] / medians[other]["cpu_ms"]["worker"],
            }
    if late:
        found["lateness"] = asdict(late)
    return found
