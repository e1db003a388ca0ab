"""A Temporal client from the environment. Importing this module does not import the SDK; ``connect`` does."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Final

from config.environment import Environment
from config.problems import ConfigError, Problem, UnavailableError

if TYPE_CHECKING:
    from temporalio.client import Client
    from temporalio.runtime import Runtime

DEFAULT_ADDRESS: Final = "127.0.0.1:7233"  # the port of every Temporal server and of `./duly up`
_LOOPBACK = ("127.", "localhost:", "[::1]:")


@functools.cache
def runtime() -> Runtime:
    """The process's one runtime. Its own log lines go to Python's logging: left alone they go to standard output."""
    from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    forwarding = LogForwardingConfig(logger=logging.getLogger("temporalio.core"), append_log_fields_to_message=False)
    levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=levels, forwarding=forwarding)))


def options(environment: Environment) -> dict[str, Any]:
    """Arguments of ``Client.connect``: TEMPORAL_* or the client profile, else the running local stack.

    Raises ConfigError when the settings cannot be read.
    """
    from temporalio.envconfig import ClientConfig
    from temporalio.service import GrpcCompression

    try:
        found: dict[str, Any] = dict(
            ClientConfig.load_client_connect_config(override_env_vars=dict(environment.variables))
        )
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        what = f"the client settings (TEMPORAL_* or the profile file) cannot be read: {error}"
        raise ConfigError([Problem("environment", None, "TEMPORAL_*", what, "Correct or unset them")]) from None
    if "target_host" not in found and environment.temporal_address:
        found["target_host"] = environment.temporal_address
        found.setdefault("namespace", environment.temporal_namespace or "default")
    found.setdefault("target_host", DEFAULT_ADDRESS)
    found.setdefault("namespace", "default")
    if found["target_host"].startswith(_LOOPBACK):
        found["grpc_compression"] = GrpcCompression.NONE  # 4 ms of CPU per workflow saved, nothing travels far
    return found


async def connect(environment: Environment, **overrides: Any) -> Client:
    """A connected client; ``overrides`` are further arguments of ``Client.connect``.

    Raises ConfigError, or UnavailableError when the server does not answer.
    """
    from temporalio.client import Client
    from temporalio.service import RPCError

    from config.converter import CONVERTER

    ours = {"runtime": runtime(), "identity": environment.identity, "data_converter": CONVERTER}
    arguments = {**ours, **options(environment), **overrides}
    try:
        return await Client.connect(**arguments)
    except (RPCError, RuntimeError, OSError) as error:
        raise UnavailableError(
            f"Temporal at {arguments['target_host']} does not answer ({_first_line(error)})",
            'Run "./duly up", or set TEMPORAL_ADDRESS to a running server',
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error)
    if "ConnectionRefused" in text:
        return "nothing listens there"
    return (text.splitlines() or [type(error).__name__])[0][:200]  # the rest is Rust's chain of causes
