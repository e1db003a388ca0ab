"""The three that are compared. Each runs operations ``prefix:0`` to ``prefix:count-1`` in one worker process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Protocol

from bench.site import Site
from config.environment import REPOSITORY
from stack.database import WORKER_LOGIN, as_user
from stack.process import Process, StackError


class Contestant(Protocol):
    """Started for one run on a fresh server, and stopped after it."""

    @property
    def pid(self) -> int:
        """The process whose processor time counts: worker and starter, or worker and dispatcher."""

    def run(self, prefix: str, count: int) -> tuple[float, float]:
        """When it began and when the last operation was done, in epoch seconds. Raises StackError."""

    def stop(self) -> None:
        """Ends the process."""


class Duly:
    """(a): ``worker.py`` as deployed. Began: the commit of the one transaction that schedules. Ended: last ending."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._worker: Process = site.stack.start_worker()

    @property
    def pid(self) -> int:
        """Of worker.py, which holds the dispatcher."""
        return self._worker.pid

    def run(self, prefix: str, count: int) -> tuple[float, float]:
        """Schedule all, due now, and wait for their endings in the ledger."""
        site = self._site
        site.sql(
            "SELECT duly.schedule(key => %s || ':' || n, kind => 'bench', due_at => now(), "
            "payload => jsonb_build_object('order_id', n), deadline => now() + interval '1 hour') "
            "FROM generate_series(0, %s - 1) AS n",
            prefix, count,
        )  # fmt: skip
        (began,) = site.sql("SELECT extract(epoch FROM clock_timestamp())::float AS at")
        site.wait(self.all_ended, "every operation to end", self._worker)
        (done,) = site.sql(
            "SELECT count(*) FILTER (WHERE state = 'delivered') AS delivered, "
            "extract(epoch FROM max(ended_at))::float AS at FROM duly.operation WHERE starts_with(key, %s)",
            f"{prefix}:",
        )
        if done["delivered"] != count:
            alerts = site.sql("SELECT alert, name, why FROM duly.alerts LIMIT 3")
            raise StackError(f"{done['delivered']} of {count} operations were delivered; the ledger says: {alerts}")
        return began["at"], done["at"]

    def stop(self) -> None:
        """Drains nothing: everything has ended."""
        self._site.stack.stop_worker(self._worker, kill=True)

    def all_ended(self) -> bool:
        """Whether the ledger has nothing open."""
        return not self._site.sql("SELECT 1 FROM duly.operation WHERE wake_at IS NOT NULL LIMIT 1")


class Plain:
    """(b) and (c): ``bench.plain``. Began: the first start. Ended: the last activity of the last operation."""

    def __init__(self, site: Site, workflow: str) -> None:
        self._site = site
        self._workflow = workflow
        # The same database login as Duly's worker has.
        self._database = as_user(site.addresses["database_url"], WORKER_LOGIN)
        log = site.stack.home / "logs" / "plain.log"
        settings = {"workflow": workflow, **site.addresses, "database_url": self._database}
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.plain", json.dumps(settings)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=REPOSITORY,
            )  # fmt: skip
        self._log = log
        self._answer()

    @property
    def pid(self) -> int:
        """Worker and starter in one."""
        return self._process.pid

    def run(self, prefix: str, count: int) -> tuple[float, float]:
        """Rows first, for those that want them, then the starts, which are measured."""
        if self._workflow == "Usual":
            self._site.sql(
                "INSERT INTO bench.operation (key, order_id) "
                "SELECT %s || ':' || n, n FROM generate_series(0, %s - 1) AS n",
                prefix, count,
            )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prefix": prefix, "count": count}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return answer["began"], answer["ended"]

    def stop(self) -> None:
        """The end of its input ends it."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise StackError(f"bench.plain ended (code {self._process.returncode}):\n{self._log.read_text()[-2000:]}")
        found: dict[str, Any] = json.loads(line)
        return found
