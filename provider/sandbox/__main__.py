"""``python -m provider.sandbox``: serve (default), ``tell``, ``effects`` and ``expire``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provider.sandbox.behaviours import BEHAVIOURS, LOOK_UPS
from provider.sandbox.client import SandboxClient, SandboxError
from provider.sandbox.server import Sandbox

_UNAVAILABLE = 4  # the exit code for "something it needs is unavailable"
_REFUSED = 3


def _listed(title: str, known: Mapping[str, str]) -> str:
    return f"{title}:\n" + "\n".join(f"  {name:<20} {meaning}" for name, meaning in known.items())


_EPILOG = _listed("behaviours", BEHAVIOURS) + "\n\n" + _listed("look-ups", LOOK_UPS)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] in (["tell"], ["effects"], ["expire"]):
        return _client_command(arguments)
    parser = argparse.ArgumentParser(
        prog="duly sandbox",
        description="Run the sandbox provider. See also: tell --help, effects --help, expire --help.",
    )
    parser.add_argument("--port", type=int, default=8377, help="0: any free one (default %(default)s)")
    parser.add_argument("--data", type=Path, required=True, help="the file of its record, made when absent")
    # A day is what Stripe and Resend publish.
    parser.add_argument("--retention", type=float, default=86400, help="seconds a key is remembered (default a day)")
    options = parser.parse_args(arguments)
    return asyncio.run(_serve(options.port, options.data, options.retention))


async def _serve(port: int, data: Path, retention: float) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        sandbox = Sandbox(data, retention)
    except (sqlite3.Error, OSError) as exc:
        print(f"The sandbox cannot open its record {data}: {exc}. Is another one running on it?", file=sys.stderr)
        return _UNAVAILABLE
    try:
        port = await sandbox.start(port)
        url = f"http://127.0.0.1:{port}"
        print(json.dumps({"ready": True, "url": url, "pid": os.getpid(), "data": str(data)}), flush=True)
        await stopped.wait()
    except OSError as exc:
        print(f"The sandbox cannot listen on port {port}: {exc.strerror}. Give another --port.", file=sys.stderr)
        return _UNAVAILABLE
    finally:
        await sandbox.stop()
    return 0


def _client_command(arguments: list[str]) -> int:
    url = argparse.ArgumentParser(add_help=False)
    default = os.environ.get("DULY_SANDBOX_URL")
    url.add_argument("--url", default=default, required=default is None, help="default: $DULY_SANDBOX_URL")
    parser = argparse.ArgumentParser(prog="duly sandbox")
    commands = parser.add_subparsers(dest="command", required=True)
    tell = commands.add_parser(
        "tell",
        parents=[url],
        help="say what to do with a key",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tell.add_argument("--key", help="one operation key")
    tell.add_argument("--match", help='keys that start so: "order-17*"')
    tell.add_argument("--rate", type=float, help="this share of the keys: 0.1")
    tell.add_argument(
        "--behaviour", action="append", default=[], help="once per request, the last one for ever; none: as before"
    )
    tell.add_argument("--look-up", action="append", default=[], help="the same for look-ups: --look-up lag:3")
    effects = commands.add_parser("effects", parents=[url], help="effects by key")
    effects.add_argument("--key", help="one operation key")
    effects.add_argument("--prefix", help="keys that start so")
    effects.add_argument("--json", action="store_true", help="print JSON")
    expire = commands.add_parser("expire", parents=[url], help="forget idempotency keys, as if their time were over")
    expire.add_argument("--key", help="of one operation key")
    expire.add_argument("--prefix", help="of operation keys that start so; neither: of all")
    options = parser.parse_args(arguments)
    client = SandboxClient(options.url)
    try:
        if options.command == "tell":
            about = {"key": options.key, "match": options.match, "rate": options.rate}
            if options.behaviour or not options.look_up:
                client.tell(*_read(options.behaviour), **about)
            if options.look_up or not options.behaviour:
                client.tell(*_read(options.look_up), **about, look_up=True)
            return 0
        if options.command == "expire":
            print(f"{client.expire(options.key, options.prefix)} keys forgotten")
            return 0
        found = client.effects(options.key, options.prefix)
    except (SandboxError, ValueError) as exc:
        print(exc, file=sys.stderr)
        return _REFUSED
    except OSError as exc:
        print(f"There is no sandbox at {options.url}: {exc}. Start one with ./duly up.", file=sys.stderr)
        return _UNAVAILABLE
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        for key, done in found.items():
            print(f"{len(done):>4}  {key}  {', '.join(effect['id'] for effect in done)}")
    return 0


def _read(told: list[str]) -> list[Any]:
    """Names, and objects in JSON. Raises ValueError for broken JSON."""
    return [json.loads(text) if text.startswith("{") else text for text in told]


if __name__ == "__main__":
    sys.exit(main())
