"""Sections of RESULTS.md: what was compared, when, with which versions, and a table."""

import datetime
import os
import re
import subprocess

from . import servers
from .bench import Bench

PEERS = ("scrapy", "crawlee", "requests", "urllib3", "pyrate-limiter")
PINNED = "servers on one, contestants on the other"


def section(bench: Bench, introduction: str, rows: list[list], columns: list[str], peers=PEERS, programs=None,
            pinned: str = PINNED) -> str:
    """The text kept for one workload; `programs` are the versions of what was used beside (default: nginx)."""
    return "\n\n".join([introduction.strip(), versions(bench, peers, programs or (nginx_version(),), pinned),
                        table(columns, rows)])


def table(columns: list[str], rows: list[list]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value) -> str:
    """One value as a person reads it: an absent one is a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "met" if value else "missed"
    if isinstance(value, float):
        if value == int(value) and abs(value) >= 10:
            return f"{int(value)}"
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.2f}"
    return str(value)


def nginx_version() -> str:
    """The number alone."""
    return re.sub(r".*nginx/", "nginx ", first_line([servers.nginx_program(), "-v"]))


def versions(bench: Bench, peers: tuple[str, ...], programs: tuple[str, ...], pinned: str) -> str:
    """Date, versions and cores, on one line."""
    script = f"from importlib.metadata import version\nfor n in {peers!r}: print(n, version(n))"
    parts = [
        datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        first_line([bench.binaries / "comity", "--version"]),
        *(_output([bench.python, "-c", script]).splitlines() if peers else []),
        *programs,
        f"{os.cpu_count()} cores ({pinned})",
    ]
    return ", ".join(parts) + "."


def first_line(command: list, check: bool = True) -> str:
    """What a program says first; with `check`, it must end well."""
    return _output(command, check).splitlines()[0]


def _output(command: list, check: bool = True) -> str:
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=check, timeout=60)
    return done.stdout.strip()
