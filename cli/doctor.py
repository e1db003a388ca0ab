"""What ``duly doctor`` looks at. Each check says what it found and, if that is not well, what to do."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeTaskQueueRequest
from temporalio.client import RetryConfig
from temporalio.service import RPCError

from cli.errors import explain
from config import search_attributes
from config.environment import Environment
from config.problems import ConfigError, UnavailableError
from config.settings import Settings, load
from config.temporal import connect
from ledger import database, queries
from ledger import migrate as schema
from reconcile.configure import differing
from workflows.contract import task_queue

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine
    from temporalio.client import Client

SKEW_SECONDS: Final = 30  # the same bound at which a jump of the database's clock stops sending
PATIENCE_SECONDS: Final = 10  # for one server's answers; each takes milliseconds

RISKY: Final = {
    "fsync": "a crash of the machine loses claims, and what was sent is sent again",
    "full_page_writes": "a crash of the machine can corrupt the ledger",
    "synchronous_commit": "a crash loses the latest schedules (claims raise it themselves)",
}


@dataclass(frozen=True, slots=True)
class Check:
    """``result`` is ok, warn or fail."""

    name: str
    result: str
    found: str
    remedy: str = ""


async def examine() -> list[Check]:
    """Every check, in the order in which things depend on each other. What depends on a failed one is left out."""
    try:
        env = Environment.read()
    except ConfigError as error:
        return [Check("environment", "fail", str(error), "Correct the variables")]
    settings, checks = _configuration(env)
    checks += await _database(env, settings)
    checks += await _temporal(env, settings)
    return checks


def _configuration(env: Environment) -> tuple[Settings | None, list[Check]]:
    try:
        settings = load(env.config_path)
    except ConfigError as error:
        return None, [Check("configuration", "fail", str(error), "Correct the lines")]
    found = f"{env.config_path}: {len(settings.kinds)} kinds, {len(settings.connections)} connections"
    checks = [Check("configuration", "ok", found)]
    try:
        load(env.config_path, env.variables)
    except ConfigError as error:
        remedy = "Export them where workers run; a running local stack sets DULY_SANDBOX_URL"
        checks.append(Check("secrets", "fail", str(error), remedy))
    else:
        checks.append(Check("secrets", "ok", "every ${NAME} has a value"))
    return settings, checks


async def _database(env: Environment, settings: Settings | None) -> list[Check]:
    try:
        url = env.database()
        engine = database.connect(url, pool_size=1)
    except (UnavailableError, ArgumentError) as error:
        found = explain(error)
        assert found is not None
        return [Check("database", "fail", found.what, found.remedy)]
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            checks = await _server(engine)
            checks += await _schema(engine, url, settings)
            return checks
    except (SQLAlchemyError, OSError) as error:
        found = explain(error)
        return [Check("database", "fail", found.what if found else str(error), found.remedy if found else "")]
    except TimeoutError:
        return [
            Check("database", "fail", f"no answer in {PATIENCE_SECONDS} s", "Is the host in DULY_DATABASE_URL right?")
        ]
    finally:
        await engine.dispose()


async def _server(engine: AsyncEngine) -> list[Check]:
    names = ", ".join(f"current_setting('{name}') AS {name}" for name in RISKY)
    statement = text(
        f"SELECT {names}, current_setting('server_version') AS version, clock_timestamp() AS now, "
        "current_setting('transaction_read_only') AS read_only, session_user AS login"
    )
    async with engine.begin() as connection:
        before = time.time()
        row: dict[str, Any] = dict((await connection.execute(statement)).mappings().one())
        after = time.time()
    checks = [Check("database", "ok", f"PostgreSQL {row['version']}, login {row['login']}")]
    if row["read_only"] == "on":
        checks.append(Check("writable", "fail", "it only reads", "Point DULY_DATABASE_URL at the primary"))
    for name, danger in RISKY.items():
        if row[name] in ("off", "local"):
            serious = name != "synchronous_commit"
            checks.append(
                Check(
                    name, "fail" if serious else "warn", f"{row[name]}: {danger}", f"Set {name} = on in postgresql.conf"
                )
            )
    if all(row[name] not in ("off", "local") for name in RISKY):
        checks.append(Check("durability", "ok", ", ".join(f"{name} {row[name]}" for name in RISKY)))
    skew = row["now"] - datetime.fromtimestamp((before + after) / 2, UTC)
    found = f"the database is {skew.total_seconds():+.1f} s from this machine"
    late = abs(skew) > timedelta(seconds=SKEW_SECONDS)
    checks.append(Check("clock", "warn" if late else "ok", found, "Set both clocks (NTP)" if late else ""))
    return checks


async def _schema(engine: AsyncEngine, url: str, settings: Settings | None) -> list[Check]:
    current, head = await asyncio.to_thread(schema.current, url), schema.head()
    if current != head:
        found = "there is none" if current is None else f"{current}; this program needs {head}"
        return [Check("schema", "fail", found, "Run ./duly migrate")]
    checks = [Check("schema", "ok", f"{current}")]
    state = await queries.ledger(engine)
    if state["quarantine"]:
        checks.append(Check("quarantine", "fail", state["quarantine"], "Nothing is sent until an owner settles it"))
    if settings is not None:
        checks.append(await _kinds(engine, settings))
    held = [f"{row['name']}: {row['held']}" for row in (await queries.configuration(engine))[1] if row["held"]]
    if held:
        checks.append(Check("connections", "warn", "held: " + "; ".join(held), "Mend it, then ./duly release NAME"))
    return checks


async def _kinds(engine: AsyncEngine, settings: Settings) -> Check:
    names = await differing(engine, settings)
    if names:
        return Check("kinds", "fail", f"the ledger differs from duly.toml: {', '.join(names)}", "Run ./duly migrate")
    return Check("kinds", "ok", f"the ledger has the {len(settings.kinds)} of duly.toml")


async def _temporal(env: Environment, settings: Settings | None) -> list[Check]:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            client = await connect(env, retry_config=RetryConfig(max_retries=1, max_elapsed_time_millis=1000))
            checks = [Check("temporal", "ok", f"{client.service_client.config.target_host} answers")]
            checks += await _namespace(client)
            if checks[-1].result != "fail":
                checks.append(await _attributes(client))
                checks += [
                    await _queue(client, task_queue(name)) for name in (settings.used_providers() if settings else [])
                ]
            return checks
    except (UnavailableError, ConfigError) as error:
        found = explain(error)
        assert found is not None
        return [Check("temporal", "fail", found.what, found.remedy)]
    except RPCError as error:
        return [Check("temporal", "fail", error.message, "See the server's log")]
    except TimeoutError:
        return [Check("temporal", "fail", f"no answer in {PATIENCE_SECONDS} s", "Is TEMPORAL_ADDRESS right?")]


async def _namespace(client: Client) -> list[Check]:
    try:
        answer = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError as error:
        remedy = f"temporal operator namespace create --namespace {client.namespace}"
        return [Check("namespace", "fail", f"{client.namespace}: {error.message}", remedy)]
    days = answer.config.workflow_execution_retention_ttl.ToSeconds() / 86400
    return [Check("namespace", "ok", f"{client.namespace}, keeps closed workflows {days:g} days")]


async def _attributes(client: Client) -> Check:
    try:
        wrong = search_attributes.wrong(await search_attributes.registered(client))
    except RPCError as error:
        # Some services do not show them to everybody; workers then use none.
        return Check("search attributes", "warn", f"cannot be listed: {error.message}", "Workers do without them")
    if not wrong:
        return Check("search attributes", "ok", f"all {len(search_attributes.SEARCH_ATTRIBUTES)} are registered")
    found = ", ".join(f"{name} is {kind}" for name, kind in wrong.items())
    if set(wrong.values()) == {"missing"}:
        return Check("search attributes", "warn", found, "Run ./duly migrate (workers do without them meanwhile)")
    return Check(
        "search attributes", "fail", found, "Remove those of another type from the namespace, then ./duly migrate"
    )


async def _queue(client: Client, queue: str) -> Check:
    polling = {}
    for kind in ("WORKFLOW", "ACTIVITY"):
        answer = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=client.namespace,
                task_queue=TaskQueue(name=queue),
                task_queue_type=TaskQueueType.Value(f"TASK_QUEUE_TYPE_{kind}"),
            )
        )
        polling[kind] = {poller.identity for poller in answer.pollers}
    both = sorted(polling["WORKFLOW"] & polling["ACTIVITY"])
    if both:
        return Check(f"workers on {queue}", "ok", ", ".join(both))
    return Check(f"workers on {queue}", "fail", "nobody polls it, so nothing is sent", "Start one: ./duly worker")
