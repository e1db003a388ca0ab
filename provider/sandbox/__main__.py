"""``python -m provider.sandbox``: serve (default), ``tell`` and ``effects``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import sys
from pathlib import Path

from provider.sandbox.client import SandboxClient, SandboxError
from provider.sandbox.script import BEHAVIOURS
from provider.sandbox.server import Sandbox

_UNAVAILABLE = 4  # the exit code for "something it needs is unavailable"
_REFUSED = 3
_EPILOG = "behaviours:\n" + "\n".join(f"  {name:<20} {meaning}" for name, meaning in BEHAVIOURS.items())


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] in (["tell"], ["effects"]):
        return _client_command(arguments)
    parser = argparse.ArgumentParser(
        prog="duly sandbox",
        description="Run the sandbox provider. See also: tell --help, effects --help.",
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
    effects = commands.add_parser("effects", parents=[url], help="effects by key")
    effects.add_argument("--key", help="one operation key")
    effects.add_argument("--prefix", help="keys that start so")
    effects.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    client = SandboxClient(options.url)
    try:
        if options.command == "tell":
            behaviours = [json.loads(told) if told.startswith("{") else told for told in options.behaviour]
            client.tell(*behaviours, key=options.key, match=options.match, rate=options.rate)
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


if __name__ == "__main__":
    sys.exit(main())
