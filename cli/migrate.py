"""What ``duly migrate`` does: schema, kinds and connections, search attributes."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import RetryConfig
from temporalio.service import RPCError

from cli.session import environment
from config import search_attributes
from config.environment import Environment
from config.problems import UnavailableError
from config.settings import load
from config.temporal import connect
from ledger.migrate import migrate
from reconcile.configure import configure


async def migrate_all() -> dict[str, Any]:
    """Everything that a version of Duly needs in its servers. Temporal may be away: that is said, not failed."""
    env = environment()
    settings = load(env.config_path)  # a fault in it changes nothing
    url = env.database()
    schema = await asyncio.to_thread(migrate, url)
    await configure(url, settings)
    return {
        "schema": schema,
        "kinds": sorted(settings.kinds),
        "connections": sorted(settings.connections),
        "search_attributes": await _attributes(env),
    }


async def _attributes(env: Environment) -> str:
    try:
        client = await connect(env, retry_config=RetryConfig(max_retries=1, max_elapsed_time_millis=1000))
        added = await search_attributes.register(client)
    except UnavailableError as error:
        return f"search attributes were not registered: {error.what}. Run ./duly migrate again when it is up."
    except RPCError as error:
        return (
            f"search attributes were not registered: {error.message}. On Temporal Cloud add them with tcld or the web "
            f"page: {', '.join(f'{name} ({kind})' for name, kind in search_attributes.SEARCH_ATTRIBUTES.items())}"
        )
    return f"search attributes registered: {', '.join(added)}" if added else "search attributes are registered"
