"""A TCP proxy between worker and Postgres: it can cut a COMMIT before or after the server sees it, be away, be silent.

It listens on loopback and connects to the server's unix socket. Threads and blocking sockets: two per connection.
"""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, quote, urlsplit

COMMIT = re.compile(rb"Q\x00\x00\x00\x0bCOMMIT\x00", re.DOTALL)
"""The whole message, as psycopg sends it (simple query, length 11), so that no statement with that word is meant."""

CHUNK = 65536


class Cut(Enum):
    """Where the line breaks."""

    SILENCE = "nothing comes through any more, from the statement on, and nothing is cut"
    BEFORE = "the server never sees the COMMIT"
    REPLY = "the server carries out the COMMIT and its answer is lost"


@dataclass
class Order:
    """Cut the first COMMIT that follows ``statement`` on the same connection. Carried out once.

    ``stay_away``: from then on nobody is connected. With SILENCE the statement itself is the place.
    """

    statement: bytes
    where: Cut
    stay_away: bool
    carried_out: threading.Event = field(default_factory=threading.Event)

    def fulfil(self) -> bool:
        """Whether this caller is the one to carry it out."""
        with _LOCK:
            if self.carried_out.is_set():
                return False
            self.carried_out.set()
            return True


_LOCK = threading.Lock()


@dataclass(eq=False)
class _Line:
    """One connection, both ends."""

    client: socket.socket
    server: socket.socket
    armed: Order | None = None
    swallow: Order | None = None

    def close(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class TcpProxy:
    """Use as a context manager; ``url`` goes where the server's own URL would."""

    def __init__(self, url: str) -> None:
        """``url`` names the server by the folder of its unix socket, as in ``postgresql://me@/db?host=/folder``."""
        parts = urlsplit(url)
        self._target = parse_qs(parts.query)["host"][0] + "/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        user = quote(parts.username or "postgres")
        self.url = f"postgresql://{user}@127.0.0.1:{port}{parts.path}?sslmode=disable"
        self.refused = 0
        """Connections that were turned away because the server was not there or the proxy had been told to."""
        self.held = 0
        """Pieces that came while there was silence."""
        self._away = threading.Event()
        self._dead: set[_Line] = set()
        self._gone = threading.Event()
        self._flowing = threading.Event()
        self._flowing.set()
        self._order: Order | None = None
        self._lines: set[_Line] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.go_away()
        self._flowing.set()
        self._gone.set()
        # A blocked accept() is not ended by close() alone.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self, where: Cut, statement: str, *, stay_away: bool = False) -> Order:
        """See ``Order``, which tells when it has happened."""
        self._order = Order(statement.encode(), where, stay_away)
        return self._order

    def go_away(self) -> None:
        """Cut every line, and turn new ones away until ``come_back``."""
        self._away.set()
        with _LOCK:
            lines = list(self._lines)
        for line in lines:
            line.close()

    def lose_the_open_lines(self) -> None:
        """Those fall silent for good, uncut; new ones work: a server that moved to another host."""
        with _LOCK:
            self._dead |= self._lines

    def go_silent(self) -> None:
        """Nothing is cut and nothing comes through, as when a host is gone. What is sent waits until ``come_back``."""
        self._flowing.clear()

    def come_back(self) -> None:
        """Forward again."""
        self._away.clear()
        self._flowing.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = socket.socket(socket.AF_UNIX)
            try:
                if self._away.is_set():
                    raise ConnectionRefusedError
                server.connect(self._target)
            except OSError:
                self.refused += 1
                client.close()
                server.close()
                continue
            line = _Line(client, server)
            with _LOCK:
                self._lines.add(line)
            if self._away.is_set():  # told so while this one was being opened
                self._forget(line)
                continue
            threading.Thread(target=self._to_server, args=(line,), daemon=True).start()
            threading.Thread(target=self._to_client, args=(line,), daemon=True).start()

    def _to_server(self, line: _Line) -> None:
        with suppress(OSError):
            while chunk := line.client.recv(CHUNK):
                self._hold(line)
                order = self._order
                if order and order.statement in chunk:
                    line.armed = order
                    if order.where is Cut.SILENCE and order.fulfil():
                        self.go_silent()
                        self._hold(line)
                found = COMMIT.search(chunk) if order and line.armed is order else None
                if order and found and not order.carried_out.is_set():
                    if order.where is Cut.BEFORE and order.fulfil():
                        self._end(line, order)
                        return
                    line.swallow = order  # before the server can answer
                line.server.sendall(chunk)
        self._forget(line)

    def _to_client(self, line: _Line) -> None:
        with suppress(OSError):
            while chunk := line.server.recv(CHUNK):
                self._hold(line)
                if line.swallow and line.swallow.fulfil():
                    self._end(line, line.swallow)
                    return
                line.client.sendall(chunk)
        self._forget(line)

    def _hold(self, line: _Line) -> None:
        self.held += line in self._dead or not self._flowing.is_set()
        self._flowing.wait()
        if line in self._dead:
            self._gone.wait()

    def _end(self, line: _Line, order: Order) -> None:
        if order.stay_away:
            self.go_away()
        self._forget(line)

    def _forget(self, line: _Line) -> None:
        line.close()
        with _LOCK:
            self._lines.discard(line)
