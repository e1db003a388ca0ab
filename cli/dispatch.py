"""``duly sweep`` and ``duly retry-table``: what starts workflows, and what follows each outcome."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.errors import unavailable, usage
from cli.options import Json, examples
from cli.output import age, print_json, print_table


def register(app: typer.Typer) -> None:
    app.command(
        short_help="Start workflows for what is due.",
        epilog=examples("./duly sweep --once", "./duly sweep --once --limit 1000 --json"),
    )(sweep)
    app.command(
        "retry-table",
        short_help="What follows each outcome.",
        epilog=examples("./duly retry-table", "./duly retry-table --json"),
    )(retry_table)


def sweep(
    once: Annotated[bool, typer.Option("--once", help="One bounded batch. Loops run in workers.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many operations.")] = 100,
    as_json: Json = False,
) -> None:
    """Start workflows for operations that need one now. Prints starts accepted, never effects done."""
    if not once:
        raise usage("--once is missing", "The loop runs in every worker; this command takes one batch")
    from cli.session import run

    report = run(_sweep(limit))
    if as_json:
        print_json(report)
    if report["broker_trouble"]:
        raise unavailable(
            f"starts accepted: {report['starts_accepted']}; then Temporal: {report['broker_trouble']}",
            'Rows not started wait for the next sweep. See "./duly doctor"',
        )
    if as_json:
        return
    oldest = report["oldest_eligible_s"]
    print(f"starts accepted: {report['starts_accepted']} of {report['taken']} taken")
    print("oldest eligible: " + ("none was due" if oldest is None else f"waited {age(oldest)}"))
    for name, meaning in (
        ("failed", "refused by Temporal, backing off: see ./duly list"),
        ("forgotten", "Temporal has a run that the ledger does not know: now unknown, not sent"),
    ):
        if report[name]:
            print(f"{name}: {report[name]} ({meaning})")


async def _sweep(limit: int) -> dict[str, Any]:
    from dataclasses import asdict

    from activities.attempt import ATTEMPT_MARGIN, RECORD_PATIENCE
    from cli.session import environment, ledger
    from config.search_attributes import registered, usable
    from config.temporal import connect
    from reconcile.sweep import Sweep

    env = environment()
    async with ledger(env, pool_size=10) as engine:
        client = await connect(env)
        sweep_ = Sweep(
            engine,
            client,
            f"sweep {env.identity}",
            RECORD_PATIENCE + ATTEMPT_MARGIN,
            usable(await registered(client)),
            batch=limit,
        )
        return asdict(await sweep_.once())


def retry_table(as_json: Json = False) -> None:
    """Print what follows each outcome of an attempt, and each kind's waits."""
    from cli.session import environment
    from config.settings import load
    from reconcile.policy import TABLE

    settings = load(environment().config_path)
    rules = [
        {
            "outcome": str(outcome),
            "examples": rule.example,
            "then": rule.then,
            "ends_as": rule.ends_as and str(rule.ends_as),
            "counts": rule.counts,
            "alert": rule.alert,
            "delay": rule.delay,
        }
        for outcome, rule in TABLE.items()
    ]
    kinds = [
        {
            "kind": name,
            "max_attempts": policy.max_attempts,
            "backoff_base_s": policy.backoff_base,
            "backoff_cap_s": policy.backoff_cap,
            "call_limit_s": policy.call_limit,
            "lease_s": policy.lease,
            "settle_s": policy.settle,
        }
        for name, policy in ((name, settings.policy(name)) for name in sorted(settings.kinds))
    ]
    if as_json:
        print_json({"outcomes": rules, "kinds": kinds})
        return
    print_table(
        ("OUTCOME", "EXAMPLES", "THEN", "ENDS AS", "COUNTS", "DELAY", "ALERT"),
        (
            (r["outcome"], r["examples"], r["then"], r["ends_as"] or "", "yes" if r["counts"] else "no", r["delay"],
             r["alert"])
            for r in rules
        ),
    )  # fmt: skip
    print("\nAnything not listed is unknown.\n")
    print_table(
        ("KIND", "MAX ATTEMPTS", "BACKOFF", "CALL LIMIT", "LEASE", "SETTLE"),
        (
            (
                k["kind"],
                k["max_attempts"],
                f"{k['backoff_base_s']:g} s doubling to {k['backoff_cap_s']:g} s",
                f"{k['call_limit_s']:g} s",
                f"{k['lease_s']:g} s",
                f"{k['settle_s']:g} s",
            )
            for k in kinds
        ),
    )
