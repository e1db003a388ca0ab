"""What the environment says: where the database, Temporal and duly.toml are, and how this process behaves."""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from config.problems import ConfigError, Problem, UnavailableError

REPOSITORY: Final = Path(__file__).resolve().parent.parent
DEFAULT_HEALTH_PORT: Final = 8378  # beside the sandbox's 8377; neither is assigned to anything common
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

VARIABLES: Final[Mapping[str, str]] = {
    "DULY_CONFIG": "path of duly.toml",
    "DULY_CRASH_FUSE": "file that makes a crash point work once",
    "DULY_CRASH_POINT": "name=action of a crash point, for tests",
    "DULY_DATABASE_URL": "the database, postgresql://…",
    "DULY_HEALTH_PORT": "port of the worker's health endpoint",
    "DULY_HOME": "folder of the local stack",
    "DULY_LOG_LEVEL": "one of " + " ".join(LOG_LEVELS),
    "DULY_SANDBOX_URL": "base address of the sandbox provider",
    "DULY_WATCHDOG": "off: the worker runs without its watchdog, for tests and debuggers",
    "DULY_WITNESS_FILE": "file of the worker's witness against a restored ledger; kept when the worker moves",
    "DULY_WORKER_IDENTITY": "name of this worker in history",
}
"""Every DULY_* variable there is, with its meaning. duly.toml may name more."""

_NAMED_IN_CONFIG = re.compile(r"\$\{(DULY_[A-Z0-9_]+)")


@dataclass(frozen=True, slots=True)
class Environment:
    """Made by ``read``. Addresses of a local stack that runs on ``home`` stand in for variables that are not set."""

    home: Path
    config_path: Path
    database_url: str | None
    """For people's commands. None: neither a variable nor a running local stack names one."""
    worker_database_url: str | None
    """The same database with the worker's login, where the local stack made one."""
    temporal_address: str | None
    """Of the local stack. TEMPORAL_* and profiles come first: see ``config.temporal``."""
    temporal_namespace: str | None
    log_level: str
    health_port: int
    identity: str
    witness_file: Path
    watchdog: bool
    variables: Mapping[str, str] = field(repr=False)  # holds secrets
    """The environment for ``${NAME}`` in duly.toml, with the local stack's sandbox address."""

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Environment:
        """Raises ConfigError with every variable that cannot be used or is not known."""
        environ = os.environ if environ is None else environ
        home = Path(environ.get("DULY_HOME") or REPOSITORY / ".duly").absolute()
        config_path = Path(environ.get("DULY_CONFIG") or REPOSITORY / "duly.toml")
        problems = list(_unknown(environ, config_path))
        database_url = environ.get("DULY_DATABASE_URL") or None
        if database_url and not database_url.startswith(("postgresql://", "postgres://")):
            problems.append(_bad("DULY_DATABASE_URL", "is not a Postgres URL", "Write postgresql://user@host/database"))
        log_level = (environ.get("DULY_LOG_LEVEL") or "INFO").upper()
        if log_level not in LOG_LEVELS:
            problems.append(_bad("DULY_LOG_LEVEL", f"is {log_level!r}", f"Use one of {' '.join(LOG_LEVELS)}"))
        port = environ.get("DULY_HEALTH_PORT") or str(DEFAULT_HEALTH_PORT)
        if not (port.isdecimal() and int(port) < 65536):
            problems.append(_bad("DULY_HEALTH_PORT", f"is {port!r}", "Use a port number; 0 takes any free one"))
        watchdog = (environ.get("DULY_WATCHDOG") or "on").lower()
        if watchdog not in ("on", "off"):
            problems.append(_bad("DULY_WATCHDOG", f"is {watchdog!r}", "Use on or off"))
        if problems:
            raise ConfigError(problems)
        stack = _running_stack(home)
        variables = dict(environ)
        if stack.get("sandbox_url"):
            variables.setdefault("DULY_SANDBOX_URL", stack["sandbox_url"])
        return cls(
            home=home,
            config_path=config_path,
            database_url=database_url or stack.get("database_url"),
            worker_database_url=database_url or stack.get("worker_database_url"),
            temporal_address=stack.get("temporal_address"),
            temporal_namespace=stack.get("temporal_namespace"),
            log_level=log_level,
            health_port=int(port),
            identity=environ.get("DULY_WORKER_IDENTITY") or f"{socket.gethostname()}-{os.getpid()}",
            witness_file=Path(environ.get("DULY_WITNESS_FILE") or home / "witness.json").absolute(),
            watchdog=watchdog == "on",
            variables=variables,
        )

    def database(self, *, worker: bool = False) -> str:
        """The database URL. Raises UnavailableError, with the remedy, when nothing names one."""
        url = self.worker_database_url if worker else self.database_url
        if url is None:
            raise UnavailableError(
                f"no database: DULY_DATABASE_URL is not set and no local stack runs on {self.home}",
                'Run "./duly up" in another terminal, or export DULY_DATABASE_URL=postgresql://…',
            )
        return url


def _bad(name: str, what: str, remedy: str) -> Problem:
    return Problem("environment", None, name, what, remedy)


def _unknown(environ: Mapping[str, str], config_path: Path) -> list[Problem]:
    """A variable with a slip in its name would silently do nothing."""
    try:
        named = set(_NAMED_IN_CONFIG.findall(config_path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError):
        named = set()  # `load` says what is wrong with the file
    problems = []
    for name in sorted(environ):
        if name.startswith("DULY_") and name not in VARIABLES and name not in named:
            near = difflib.get_close_matches(name, VARIABLES, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            problems.append(_bad(name, "is not known", f"{hint}Known are: {', '.join(VARIABLES)}"))
    return problems


def _running_stack(home: Path) -> dict[str, Any]:
    """What a local stack on this home wrote about itself; empty when none runs, whatever a killed one left.

    A running stack holds a lock on the second file (``stack/state.py``, which this package cannot import).
    """
    try:
        text = (home / "stack.json").read_text(encoding="utf-8")
        with (home / "stack.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        found = json.loads(text)
        return dict(found) if isinstance(found, dict) else {}
    except OSError:
        pass
    return {}
