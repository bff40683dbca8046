"""Reads from /proc how many CPU seconds the processes of a running portal have used."""

from __future__ import annotations

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
SERVICES = ("web", "worker", "background", "beat", "watch")


def cpu_seconds(var: Path) -> dict[str, float]:
    """Returns CPU seconds by name of a group of processes, including those of their ended children.

    The groups are the services, "PostgreSQL", "Valkey", "bench" (this process), and "others" (jobs).
    """
    spent: dict[str, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            group = _group(entry, stat, var)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if group:
            fields = stat.rpartition(")")[2].split()
            # fields 11 to 14: user and system time of the process, and of its ended children
            spent[group] = spent.get(group, 0.0) + sum(map(int, fields[11:15])) / TICKS
    return spent


def machine_seconds() -> float:
    """Returns the CPU seconds that all processes of the machine have used since it started."""
    user, nice, system, _, _, irq, soft, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + soft) / TICKS


def _group(entry: Path, stat: str, var: Path) -> str:
    if int(entry.name) == os.getpid():
        return "bench"
    name = stat[stat.index("(") + 1 : stat.rindex(")")]
    if name in {"postgres", "valkey-server"}:
        command = (entry / "cmdline").read_bytes()
        if str(var).encode() in command:
            return "PostgreSQL" if name == "postgres" else "Valkey"
        parent = int(stat.rpartition(")")[2].split()[1])
        ours = str(var).encode() in Path(f"/proc/{parent}/cmdline").read_bytes()
        return "PostgreSQL" if ours and name == "postgres" else ""
    environment = (entry / "environ").read_bytes().split(b"\0")
    if f"FAIRLOT_VAR={var}".encode() not in environment:
        return ""
    service = next((item for item in environment if item.startswith(b"FAIRLOT_SERVICE=")), b"")
    found = service.decode().partition("=")[2]
    return found if found in SERVICES else "others"
