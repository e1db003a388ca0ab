"""Processor time of other processes. Needs /proc, or ``ps`` where there is none (macOS: hundredths of a second)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PROC = Path("/proc")


def seconds(pid: int, *, family: bool = False) -> float:
    """User and system time so far, all threads. ``family``: with its children, those that have ended too (Postgres)."""
    pids = [pid, *(_children(pid) if family else [])]
    if not PROC.exists():
        return sum(_by_ps(one) for one in pids)
    return sum(_by_proc(one, ended_children=family and one == pid) for one in pids)


def _by_proc(pid: int, *, ended_children: bool) -> float:
    try:
        # The name, in parentheses, may hold spaces; proc(5) numbers the fields from 1, and the third follows it.
        fields = (PROC / str(pid) / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    utime, stime, cutime, cstime = (int(field) for field in fields[11:15])
    ticks = utime + stime + (cutime + cstime if ended_children else 0)
    return float(ticks / os.sysconf("SC_CLK_TCK"))


def _by_ps(pid: int) -> float:
    shown = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    total = 0.0
    for part in shown.strip().split(":") if shown.strip() else []:
        total = total * 60 + float(part)
    return total


def _children(pid: int) -> list[int]:
    shown = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = (line.split() for line in shown.splitlines())
    return [int(child) for child, parent in pairs if int(parent) == pid]
