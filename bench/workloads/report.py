"""Sections of RESULTS.md: what was compared, when, with which versions, and a table."""

import datetime
import os
import re
import subprocess

from . import servers
from .bench import Bench

PEERS = ("scrapy", "crawlee", "requests", "urllib3", "pyrate-limiter")


def section(bench: Bench, introduction: str, rows: list[list], columns: list[str], peers=PEERS) -> str:
    """The text kept for one workload."""
    return "\n\n".join([introduction.strip(), versions(bench, peers), table(columns, rows)])


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


def versions(bench: Bench, peers: tuple[str, ...]) -> str:
    """Date, versions and cores, on one line."""
    script = f"from importlib.metadata import version\nfor n in {peers!r}: print(n, version(n))"
    parts = [
        datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        _first_line([bench.binaries / "comity", "--version"]),
        *(_output([bench.python, "-c", script]).splitlines() if peers else []),
        re.sub(r".*nginx/", "nginx ", _first_line([servers.nginx_program(), "-v"])),
        f"{os.cpu_count()} cores (servers on one, contestants on the other)",
    ]
    return ", ".join(parts) + "."


def _output(command: list) -> str:
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=True, timeout=60)
    return done.stdout.strip()


def _first_line(command: list) -> str:
    return _output(command).splitlines()[0]
