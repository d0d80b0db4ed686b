"""W9 queue growth: the cost of a claim from 10,000 to 10,000,000 tasks, in SQLite and in PostgreSQL."""

import os

from . import processes, report, servers
from .bench import Bench

SIZES = os.environ.get("COMITY_BENCH_TASKS", "10000,100000,1000000,10000000")
LIMIT_SECONDS = 3600

INTRODUCTION = """
Queue growth: tasks on 100,000 domains in random order, in SQLite and in PostgreSQL. Goal: the cost of a claim grows at most
1.5 times, at least 20,000 URLs/s are added, less than 300 MB of memory is used.

Only the store is measured. It is filled in batches of 20,000, as `comity fetch` does; then follow 30 rounds of claim, settle and park,
of which the medians are shown. Each lane is claimed with one task, so that every size does the same work. Memory is the peak of the
whole process up to that point, without the server's. The size of PostgreSQL is that of its data folder, with its log.
"""


def run(bench: Bench) -> str:
    """The section for W9."""
    tables = []
    program = bench.binaries / "bench-w9"
    if bench.wants("SQLite"):
        tables.append("SQLite:\n\n" + measured([program, SIZES], bench))
    if bench.wants("PostgreSQL"):
        # Both sides share the cores, as SQLite's threads do.
        with servers.postgres(bench, processes.BOTH_CORES) as database:
            url = database.fresh_url("w9_SIZE")
            tables.append(f"{database.version()}:\n\n" + measured([program, SIZES, url, database.data], bench))
    head = report.versions(bench, (), (), "shared by all")
    return "\n\n".join([INTRODUCTION.strip(), head, *tables])


def measured(command: list, bench: Bench) -> str:
    """The table that it prints."""
    ended = processes.run(command, bench.fresh_folder(), LIMIT_SECONDS, core=processes.BOTH_CORES)
    return "\n".join(line for line in ended.output.splitlines() if line.startswith("|"))
