"""``duly demo``: the main job on real parts, on this machine, with one reply lost on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import typer

from cli.demo_account import Account, account
from cli.demo_orders import Order, read_orders
from cli.demo_shop import KIND, Shop, one_more
from cli.errors import unavailable
from cli.output import print_json, print_table, say
from config.environment import REPOSITORY
from config.settings import load
from provider.sandbox.client import SandboxClient
from stack.local import Stack
from stack.place import temporary_home
from stack.process import StackError
from stack.state import Addresses, Ports, default_home
from stack.temporal import HEADLESS

OWN_ORDERS: Final = REPOSITORY / "examples" / "orders.csv"
LOOK_SECONDS: Final = 0.1  # between looks at the ledger
PATIENCE: Final = 60.0  # seconds without any progress; one operation takes a tenth of a second
VISIBILITY_SECONDS: Final = 10.0  # Temporal's list lags behind its workflows, by milliseconds as a rule
WALK_IN_SECONDS: Final = 4.0  # a new order now and then, so that the pages show something moving
INTERRUPTED: Final = 130  # what shells report for Ctrl-C

MOVING: Final = ("scheduled", "calling", "accepted")


def demonstrate(*, once: bool, as_json: bool, input_path: Path | None, keep: bool) -> None:
    """Runs it all. Ends with ``typer.Exit`` of the right code."""
    orders = read_orders(input_path or OWN_ORDERS)
    _own_environment()
    load(REPOSITORY / "duly.toml")
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    code = INTERRUPTED
    try:
        with _home(keep) as home, _stack(home, headless=once, quick=not keep) as stack:
            result = _Demo(stack, orders).run()
            code = 0 if result.account.good else 1
            print_json(result.account.as_dict()) if as_json else _tell(result, stays=not once)
            if not once:
                _stay(stack, result)
    except KeyboardInterrupt:
        say("stopped")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    raise typer.Exit(code)


def _own_environment() -> None:
    """The demo brings everything; what the shell points at is not touched."""
    for name in [name for name in os.environ if name.startswith(("DULY_", "TEMPORAL_"))]:
        if name != "DULY_HOME":
            del os.environ[name]
    os.environ["DULY_CONFIG"] = str(REPOSITORY / "duly.toml")


@contextlib.contextmanager
def _home(keep: bool) -> Iterator[Path]:
    if keep:
        yield default_home() / "demo"
        return
    with temporary_home() as home:
        yield home


@contextlib.contextmanager
def _stack(home: Path, *, headless: bool, quick: bool) -> Iterator[Stack]:
    stack = Stack(
        home,
        ports=Ports.free(),
        external=False,
        quick=quick,
        progress=say,
        temporal_arguments=HEADLESS if headless else (),
    )
    try:
        stack.start()
        yield stack
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not cut the stopping short
        stack.stop()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class Result:
    """What the story is told from."""

    account: Account
    shop: Shop
    lost_reply: str
    lost_effect: str
    rolled_back: str
    seconds: float
    workflows: int
    addresses: Addresses
    home: Path


class _Demo:
    """One run on a started stack."""

    def __init__(self, stack: Stack, orders: list[Order]) -> None:
        assert stack.addresses is not None
        self.stack = stack
        self.orders = orders
        self.addresses = stack.addresses
        self.sandbox = SandboxClient(stack.addresses.sandbox_url)
        self.shop = Shop(stack.addresses.database_url)

    def run(self) -> Result:
        """Schedules, waits, counts."""
        lost = self.orders[min(2, len(self.orders) - 1)]
        self.sandbox.tell("commit_then_close", key=lost.key)
        say(f"sandbox: told to carry out {lost.key} and to close the connection without an answer")
        started = time.monotonic()
        created = sum(self.shop.take(order) for order in self.orders)
        undone = Order(
            "order-rolled-back:confirmation:1", "rolled-back", lost.time_allowed, {"order_id": "rolled-back"}
        )
        self.shop.take(undone, change_of_mind=True)
        kept = len(self.orders) - created
        say(
            f"shop: {created} orders stored, each with its operation in the same transaction"
            + (f" ({kept} were there from an earlier run)" if kept else "")
            + "; one more rolled back"
        )
        self._wait()
        seconds = time.monotonic() - started
        ledger = self.shop.ledger()
        workflows = asyncio.run(self._workflows(len(ledger)))
        effects = self.sandbox.effects()
        return Result(
            account=account(ledger, effects, self.sandbox.requests(), workflows),
            shop=self.shop,
            lost_reply=lost.key,
            lost_effect=effects[lost.key][0]["id"] if effects.get(lost.key) else "?",
            rolled_back=undone.key,
            seconds=seconds,
            workflows=len(workflows),
            addresses=self.addresses,
            home=self.stack.home,
        )

    def _wait(self) -> None:
        """Until every operation has ended or is unknown. Raises CommandError when nothing moves any more."""
        seen: dict[str, int] = {}
        moved = told = time.monotonic()
        while True:
            states = self.shop.states()
            now = time.monotonic()
            if states != seen:
                seen, moved = states, now
            open_ = sum(states.get(state, 0) for state in MOVING)
            if not open_ or now - told > 1:  # a line a second is enough
                say("ledger: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
                told = now
            if not open_:
                return
            if now - moved > PATIENCE:
                raise unavailable(
                    f"nothing has moved for {PATIENCE:.0f} s and {open_} operations are still open",
                    f"See the logs in {self.stack.home / 'logs'} (with --keep they stay)",
                )
            time.sleep(LOOK_SECONDS)

    async def _workflows(self, expected: int) -> set[str]:
        """Keys that Temporal has workflows of."""
        from config.environment import Environment
        from config.temporal import connect

        client = await connect(Environment.read(self.stack.environment()))
        end = time.monotonic() + VISIBILITY_SECONDS
        while True:
            found = {run.id async for run in client.list_workflows("WorkflowType = 'Operation'")}
            if len(found) >= expected or time.monotonic() > end:
                return found
            await asyncio.sleep(LOOK_SECONDS)


def _tell(result: Result, *, stays: bool) -> None:
    counts = result.account
    lost = counts.operations - result.workflows
    print()
    print_table(("WHAT", "COUNT"), counts.as_dict().items())
    print()
    print(
        f"{counts.operations} orders were stored, each with its confirmation in the same transaction, and carried out"
    )
    print(f"in {result.seconds:.1f} s. Counted from three records: the ledger, the provider's own effects, Temporal")
    print(f"({result.workflows} workflows{f', {lost} not listed yet' if lost > 0 else ''}).")
    print(f"{result.rolled_back} was rolled back: no record has ever seen it.")
    print(f"{result.lost_reply}: the provider did it ({result.lost_effect}) and its answer was lost on purpose.")
    print("Duly cannot know that, so it says unknown: not failed, not sent again, until somebody settles it.")
    if stays:
        print("\nTry, in another terminal:\n")
        print(f"  export DULY_HOME={result.home}")
        print("  ./duly list --state unknown")
        print(f"  ./duly show {result.lost_reply}")
        print("  ./duly sandbox effects")
        print(f"  ./duly resolve {result.lost_reply} --delivered {result.lost_effect} --reason 'seen at the provider'")
        print(f"\nTemporal  {result.addresses.ui_url}")
        print(f"Sandbox   {result.addresses.sandbox_url}")
        print(f"Postgres  psql '{result.addresses.database_url}'")
    else:
        print("\nTry ./duly demo (stays up, to look around) or ./duly up, then ./duly schedule --help.")
    sys.stdout.flush()


def _stay(stack: Stack, result: Result) -> None:
    """A new order every few seconds, and a new worker for one that was killed, until Ctrl-C."""
    say(f"a new {KIND} every {WALK_IN_SECONDS:.0f} s; Ctrl-C stops everything")
    number = int(time.time())  # no earlier run on kept data has used it
    following = time.monotonic()
    while True:
        for part in (stack.postgres, stack.temporal, stack.sandbox):
            if part and not part.running:
                raise StackError(f"{part.name} ended (code {part.exit_code}); {part.log} says:\n{part.log_tail()}")
        for worker in [one for one in stack.workers if not one.running]:
            stack.workers.remove(worker)
            say(f"the worker ended (code {worker.exit_code}); starting another one")
            stack.start_worker(health_port=stack.ports.health)
            stack.write_state()
        if time.monotonic() >= following:
            number += 1
            result.shop.take(one_more(number))
            following += WALK_IN_SECONDS
        time.sleep(LOOK_SECONDS)
