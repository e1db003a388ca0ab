"""``duly up``, ``demo``, ``migrate``, ``doctor`` and ``worker``: what must be there before operations can run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import unavailable
from cli.options import Json, examples
from cli.output import print_json, print_table, say

Port = Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", help="Port on this machine.")]


def register(app: typer.Typer) -> None:
    for command, short, lines in (
        (demo, "See the main job run on this machine.", ("./duly demo", "./duly demo --once --json")),
        (up, "Start the local stack.", ("./duly up", "./duly up --no-worker --ui-port 9233")),
        (
            migrate,
            "Bring schema and kinds in the database up to date.",
            ("./duly migrate", "DULY_DATABASE_URL=postgresql://admin@db/shop ./duly migrate"),
        ),
        (
            doctor,
            "Check everything; say what to do.",
            ("./duly doctor", "./duly doctor --json | jq '.checks[] | select(.result != \"ok\")'"),
        ),
        (worker, "Run one worker.", ("./duly worker", "DULY_HEALTH_PORT=9000 ./duly worker")),
    ):
        app.command(short_help=short, epilog=examples(*lines))(command)


def demo(
    once: Annotated[bool, typer.Option("--once", help="End when every operation is accounted for.")] = False,
    as_json: Json = False,
    input_: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="CSV of orders (orderID, orderDate, requiredDate, …)."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data in $DULY_HOME/demo.")] = False,
) -> None:
    """The main job on this machine, everything included: operations scheduled, sent, one reply lost, all accounted for.

    Exit code 0 only if nothing was duplicated, lost or late.
    """
    from cli.demo import demonstrate

    demonstrate(once=once, as_json=as_json, input_path=input_, keep=keep)


def up(
    temporal_port: Port = 7233,
    ui_port: Port = 8233,
    sandbox_port: Port = 8377,
    health_port: Port = 8378,
    no_worker: Annotated[bool, typer.Option("--no-worker", help="Everything but the worker.")] = False,
) -> None:
    """Start the local stack: Postgres, Temporal with web UI, sandbox, worker. Ctrl-C stops everything.

    A database or Temporal server that the environment names (DULY_DATABASE_URL, TEMPORAL_ADDRESS) is used instead.
    """
    from cli.session import environment
    from config.settings import load
    from stack.local import Stack
    from stack.serve import serve
    from stack.state import Ports

    load(environment().config_path)  # a fault in duly.toml starts nothing

    ports = Ports(temporal=temporal_port, ui=ui_port, sandbox=sandbox_port, health=health_port)
    serve(Stack(ports=ports, with_worker=not no_worker, progress=say))


def migrate(as_json: Json = False) -> None:
    """Bring the ledger's schema up to date, and copy kinds and connections of duly.toml into it. Safe to repeat."""
    from cli.migrate import migrate_all
    from cli.session import run

    answer = run(migrate_all())
    if as_json:
        print_json(answer)
        return
    print(f"schema {answer['schema']}; kinds: {', '.join(answer['kinds'])}")
    say(answer["search_attributes"])


def doctor(as_json: Json = False) -> None:
    """Check everything an operation needs, and say what to do about what is missing. Exit code 4 if a check fails."""
    from cli.doctor import examine
    from cli.session import run

    checks: list[Any] = run(examine())
    failed = [check for check in checks if check.result == "fail"]
    if as_json:
        print_json(
            {
                "ok": not failed,
                "checks": [
                    {"check": check.name, "result": check.result, "found": check.found, "remedy": check.remedy}
                    for check in checks
                ],
            }
        )
    else:
        print_table(
            ("CHECK", "RESULT", "FOUND", "WHAT TO DO"),
            ((check.name, check.result, check.found, check.remedy) for check in checks),
        )
    if failed:
        raise unavailable(f"{len(failed)} of {len(checks)} checks failed: {', '.join(c.name for c in failed)}")


def worker() -> None:
    """Run one worker (worker.py) in the foreground. Ctrl-C or SIGTERM lets calls in flight finish."""
    from cli.passed_on import become
    from cli.session import environment
    from config.environment import REPOSITORY

    environment()  # a slip in a variable is better said before the worker starts
    become([str(REPOSITORY / "worker.py")])
