"""``python -m bench``, also as ``./duly bench``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from bench.measure import NAMES, Lateness, Run, lateness, run, summary
from bench.site import Site
from cli.exit import OK, UNAVAILABLE, leave
from stack.process import StackError

BUSY = 0.5  # load average; from there on others take a share that shows in the numbers
INTERRUPTED = 130  # what shells report for Ctrl-C


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Ends the process with 2 for what it does not understand."""
    parser = argparse.ArgumentParser(
        prog="duly bench",
        description="Measures Duly against a bare Temporal workflow and against the usual three activities, on a local "
        "stack of its own. Nothing is kept but the JSON file.",
        epilog="example: duly bench --operations 300 --repeat 3 --json bench.json",
    )
    parser.add_argument("--operations", type=int, default=300, metavar="N", help="operations in one run (%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, metavar="R", help="runs of each; medians count (%(default)s)")
    parser.add_argument("--rate", type=float, default=20, help="operations a second in the steady run (%(default)g)")
    parser.add_argument("--seconds", type=float, default=20, help="length of the steady run (%(default)g); 0: none")
    parser.add_argument("--only", choices=list(NAMES), action="append", help="measure only this; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there; - is standard output")
    parser.add_argument("--quick", action="store_true", help="one short run of each, to see that it works")
    chosen = parser.parse_args(arguments)
    if chosen.quick:
        chosen.operations, chosen.repeat, chosen.seconds = 50, 1, 3
    if chosen.operations < 1 or chosen.repeat < 1 or chosen.rate <= 0 or chosen.seconds < 0:
        parser.error("give numbers above zero")
    return chosen


def measure(chosen: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Runs in turn, each round in another order, so that noise and order hit all alike."""
    machine = _machine()
    names = [name for name in NAMES if not chosen.only or name in chosen.only]
    runs: list[Run] = []
    late: Lateness | None = None
    with Site(lambda text: console.print(f"  {text}", style="dim", highlight=False)) as site:
        for number in range(chosen.repeat):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                one = run(site, name, number, chosen.operations)
                console.print(
                    f"round {number + 1} of {chosen.repeat}: {name} {one.rate:.1f} operations/s, "
                    f"{one.cpu_ms['worker']:.1f} ms of worker CPU each"
                )
                runs.append(one)
        if "duly" in names and chosen.seconds:
            console.print(f"steady: {chosen.rate:g} operations a second for {chosen.seconds:g} s")
            late = lateness(site, chosen.rate, chosen.seconds)
    return {
        "operations": chosen.operations, "repeat": chosen.repeat, "machine": machine, **summary(runs, late),
    }  # fmt: skip


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load_before": os.getloadavg()[0],  # what others did to this machine in the minute before
    }


def show(found: dict[str, Any], console: Console) -> None:
    """The tables for people."""
    table = Table(title=f"{found['operations']} operations, median of {found['repeat']} runs; CPU in ms per operation")
    table.add_column("")
    for heading in ("op/s", "worker", "Temporal", "Postgres", "provider", "eager"):
        table.add_column(heading, justify="right")
    for name, values in found["contestants"].items():
        used = values["cpu_ms"]
        table.add_row(
            name, f"{values['operations_per_second']:.1f}",
            *(f"{used[part]:.1f}" for part in ("worker", "temporal", "postgres", "sandbox")),
            f"{values['eager_starts']:.0%}",
        )  # fmt: skip
    for name, ratio in found["ratios"].items():
        table.add_row(name, f"{ratio['operations_per_second']:.2f}", f"{ratio['worker_cpu']:.2f}", style="bold")
    for name in found["contestants"]:
        console.print(f"{name:6} {NAMES[name]}", highlight=False)
    console.print(table)
    if (load := found["machine"]["load_before"]) > BUSY:
        console.print(f"The machine was busy (load {load:.1f}): compare within this run only.", style="bold")
    if late := found.get("lateness"):
        console.print(
            f"Lateness of {late['operations']} operations at {late['per_second']:g} a second, due time to request: "
            f"median {late['median_ms']:.0f} ms, 99th percentile {late['p99_ms']:.0f} ms, "
            f"longest {late['max_ms']:.0f} ms; early: {late['early']}"
        )


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    chosen = options(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    progress = Console(stderr=True)
    try:
        found = measure(chosen, progress)
    except StackError as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    text = json.dumps(found, indent=2)
    if chosen.json and str(chosen.json) == "-":
        print(text)
        return OK
    show(found, Console())
    if chosen.json:
        chosen.json.write_text(text + "\n", encoding="utf-8")
    return OK


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
