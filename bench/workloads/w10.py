"""W10 fleet: several processes on one PostgreSQL, against limiters that ask a server for each request."""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import time
from collections import defaultdict

from . import fetchers, judge, processes, report, servers, urls, w13
from .bench import Bench

COUNTS = (1, 2, 4)
SHAPES = (("polite", 100_000, 1_000), ("contended", 100, 20))
"""Name, sites, shortest delay in milliseconds: every second and every third site has twice and three times as much."""
SECONDS = int(os.environ.get("COMITY_BENCH_SECONDS", "20"))
SHARE = float(os.environ.get("COMITY_BENCH_SHARE", "1"))
"""The share of the sites, pages and tasks to measure with, for trying out."""
PAGES_SITES, PAGES_EACH, PAGES_DELAY_MS = int(100_000 * SHARE), 3, 10_000
TASKS, TASKS_SITES = int(1_000_000 * SHARE), int(100_000 * SHARE)
HAND_OVER_MS, ROUND_TRIPS, TO_PEERS, PAGES_RATE, CPU_TO_SQLITE = 1_000, 0.05, 10, 20_000, 2
LIMIT_SECONDS = 900
PEER = fetchers.PEERS / "decide.py"
PACKAGES = ("pyrate-limiter", "throttled-py", "redis", "hiredis", "psycopg", "psycopg-pool", "uvloop")
PEER_KINDS = (
    ("throttled-py GCRA on Redis", "throttled", "redis"),
    ("pyrate-limiter on Redis, GCRA", "pyrate-redis", "redis"),
    ("pyrate-limiter on Redis, default", "pyrate-log", "redis"),
    ("pyrate-limiter on PostgreSQL", "pyrate-postgres", "postgres"),
)
OURS = "comity on PostgreSQL"

INTRODUCTION = f"""
Fleet: 1, 2 and 4 processes that share one PostgreSQL. Goals: no request early; at least {TO_PEERS} times the decisions/s of the best peer; a site changes hands
within {HAND_OVER_MS / 1000:g} s (99 %); at most {ROUND_TRIPS} round trips to the database per page; claim + settle at least {PAGES_RATE:,} pages/s with 4 processes, or
at most {CPU_TO_SQLITE} times SQLite's CPU per page.

**Decisions.** Each process asks for random sites for {SECONDS} s, and sends a datagram for each request that it may send; nothing is fetched. The judge logs when
the kernel received it; a request is early if its gap is shorter than the site's delay by more than max(10 ms, 1 %). Polite: {int(SHAPES[0][1] * SHARE):,} sites at 1, 2 and 3 s, of which each
process asks for its own share, as with a shared queue. Contended: all processes ask for the same {SHAPES[1][1]} sites at 20, 40 and 60 ms. A hand-over is the time from the moment
at which a site's next request was allowed to the first request of another process. The peers fetch nothing and learn nothing either.

**Pages.** `comity fetch`, {PAGES_SITES:,} sites × {PAGES_EACH} pages at {PAGES_DELAY_MS // 1000} s, from the judge of W4. **Claim + settle.** {TASKS:,} tasks on {TASKS_SITES:,} sites, without fetching.
Round trips are counted from pg_stat_statements: each statement, and two for each transaction. That is the most there can be: some of them share one. CPU per page is that of all
processes and of PostgreSQL. PostgreSQL and Redis have their default durability; PostgreSQL runs on the servers' core, the processes on both.
"""


def run(bench: Bench) -> str:
    """The section for W10."""
    with servers.postgres(bench) as database, redis(bench) as redis_port:
        decided = decisions(bench, database, redis_port)
        fetched = pages(bench, database)
        settled = claims(bench, database)
        programs = (database.version(), w13.redis_version())
    text = report.section(bench, INTRODUCTION, decided, [
        "work", "contestant", "processes", "runs", "decisions/s", "÷ best peer", "early", "hand-over 99 %, ms", "CPU per decision, µs", "goal"],
        PACKAGES, programs, "servers on one, contestants on both")
    more = [
        report.table(["processes", "store", "runs", "pages", "early", "pages/s", "round trips per page", "CPU per page, µs", "÷ SQLite", "goal"],
                     fetched),
        report.table(["processes", "store", "runs", "claimed and settled, pages/s", "round trips per page", "CPU per page, µs", "÷ SQLite", "goal"],
                     settled),
    ]
    return "\n\n".join([text, *more])


def decisions(bench: Bench, database, redis_port: int) -> list[list]:
    """Rows of all contestants, the peers first, because ours are compared with them."""
    rows = []
    for shape, sites, delay_ms in SHAPES:
        sites = max(100, int(sites * SHARE))
        best = {}
        for name, kind, server in [*PEER_KINDS, (OURS, None, "postgres")]:
            if not bench.wants(name):
                continue
            for count in COUNTS:
                step = count if shape == "polite" else 1
                row = bench.repeat(f"{shape}, {name}, {count}", lambda: decide(
                    bench, database, redis_port, kind, count, sites, step, delay_ms))
                to_best, goal = None, None
                if kind:
                    best[count] = max(best.get(count, 0), row["rate"])
                elif count in best:
                    to_best = row["rate"] / best[count]
                    slow = row["hand_over_ms"] or 0
                    goal = row["early_worst"] == 0 and slow <= HAND_OVER_MS and to_best >= TO_PEERS
                rows.append([shape, name, count, row["runs"], row["rate"], to_best, row["early_worst"], row["hand_over_ms"],
                             row["cpu_us"], goal])
    return rows


def decide(bench: Bench, database, redis_port: int, kind, count: int, sites: int, step: int, delay_ms: int) -> dict:
    """One contestant with so many processes."""
    folder = bench.fresh_folder()
    url = database.fresh_url()
    with datagrams(bench) as (port, log):
        numbers = [sites, step]
        if kind:
            place = redis_port if kind != "pyrate-postgres" else database.fresh_database()
            commands = [[bench.python, PEER, kind, place, port, process, *numbers, SECONDS, delay_ms] for process in range(count)]
            if place == redis_port:
                subprocess.run(["redis-cli", "-p", str(redis_port), "flushall"], check=True, stdout=subprocess.DEVNULL)
        else:
            commands = [[bench.binaries / "bench-fleet", "decide", url, port, process, *numbers, count, SECONDS, delay_ms]
                        for process in range(count)]
        before = database.cpu_seconds()
        ended = together(commands, folder)
        cpu = sum(one.cpu_seconds for one in ended) + database.cpu_seconds() - before
    counted = [json.loads(one.output.splitlines()[-1]) for one in ended]
    decided = sum(one["decisions"] for one in counted)
    early, hand_overs, seen = judged(log, delay_ms)
    if seen < decided * 0.999:
        raise processes.CouldNotRun(f"the judge received {seen} of {decided} datagrams")
    return {
        "rate": sum(one["decisions"] / one["seconds"] for one in counted),
        "early_worst": early,
        "hand_over_ms": statistics.quantiles(hand_overs, n=100)[98] if len(hand_overs) > 100 else None,
        "cpu_us": cpu * 1e6 / max(1, decided),
    }


def judged(log: pathlib.Path, delay_ms: int) -> tuple[int, list[float], int]:
    """Early requests, hand-overs in milliseconds, and how many datagrams there were."""
    arrived = defaultdict(list)
    seen = 0
    with log.open() as lines:
        for line in lines:
            at, site, process = map(int, line.split())
            arrived[site].append((at, process))
            seen += 1
    early, hand_overs = 0, []
    for site, moments in arrived.items():
        delay = delay_ms * (site % 3 + 1)
        shortest = delay * 1000 - judge.tolerance_us(delay)
        moments.sort()
        for (before, one), (after, other) in zip(moments, moments[1:]):
            early += after - before < shortest
            if one != other:
                hand_overs.append(max(0, after - before - delay * 1000) / 1000)
    return early, hand_overs, seen


@contextlib.contextmanager
def datagrams(bench: Bench):
    """The judge of decisions: its port, and its log, complete when this block ends."""
    folder = bench.fresh_folder()
    log, output = folder / "log", folder / "output"
    with output.open("wb") as written:
        child = subprocess.Popen([bench.binaries / "bench-fleet", "judge", log], stdin=subprocess.PIPE, stdout=written)
    try:
        yield servers.wait_until(lambda: output.read_text().endswith("\n") and int(output.read_text()), child, output), log
    finally:
        child.stdin.close()
        child.wait(30)


def pages(bench: Bench, database) -> list[list]:
    """Rows of `comity fetch`."""
    rows, sqlite = [], None
    with servers.judge_server(bench) as server:
        file = urls.write(bench.folder / "pages", urls.in_turn(server, urls.hosts(PAGES_SITES), PAGES_EACH))
        for count, store in [(1, "SQLite"), *((count, "PostgreSQL") for count in COUNTS)]:
            if not bench.wants(f"pages {store} {count}"):
                continue
            row = bench.repeat(f"pages, {store}, {count}", lambda: fetch(bench, server, database, file, count, store))
            sqlite = row["cpu_us"] if store == "SQLite" else sqlite
            goal = None
            if store == "PostgreSQL":
                goal = row["early_worst"] == 0 and row["round_trips"] <= ROUND_TRIPS and row["pages_least"] == PAGES_SITES * PAGES_EACH
            rows.append([count, store, row["runs"], row["pages_least"], row["early_worst"], row["rate"], row["round_trips"],
                         row["cpu_us"], row["cpu_us"] / sqlite if sqlite else None, goal])
    return rows


def fetch(bench: Bench, server, database, file, count: int, store: str) -> dict:
    """One job by so many processes: the first brings it, the others join once its first request has arrived."""
    folder = bench.fresh_folder()
    server.forget()
    url = database.fresh_url() if store == "PostgreSQL" else f"sqlite:{folder / 'store'}"
    options = ["--store", url, "--job", "fleet", "--format", "none", "--json", "--quiet", *fetchers.comity_at(PAGES_DELAY_MS)]
    bring = [bench.binaries / "comity", "fetch", "--input", file, *options, "--concurrency", 256]
    join = [bench.binaries / "comity", "fetch", *options, "--concurrency", 256]
    database.forget_statements()
    before = database.cpu_seconds()
    ended = together([bring] + [join] * (count - 1), folder, server.was_asked)
    cpu = sum(one.cpu_seconds for one in ended) + (database.cpu_seconds() - before if store == "PostgreSQL" else 0)
    log = server.arrivals()
    return {
        "pages_least": log.pages,
        "early_worst": log.early_gaps(PAGES_DELAY_MS),
        "rate": log.requests / log.span_seconds,
        "round_trips": database.round_trips() / log.requests if store == "PostgreSQL" else None,
        "cpu_us": cpu * 1e6 / log.requests,
    }


def claims(bench: Bench, database) -> list[list]:
    """Rows of claim + settle alone."""
    rows, sqlite = [], None
    for count, store in [(1, "SQLite"), *((count, "PostgreSQL") for count in COUNTS)]:
        if not bench.wants(f"claims {store} {count}"):
            continue
        row = bench.repeat(f"claim + settle, {store}, {count}", lambda: claim(bench, database, count, store))
        sqlite = row["cpu_us"] if store == "SQLite" else sqlite
        to_sqlite = row["cpu_us"] / sqlite if sqlite else None
        goal = None
        if store == "PostgreSQL" and count == COUNTS[-1] and to_sqlite:
            goal = row["rate"] >= PAGES_RATE or to_sqlite <= CPU_TO_SQLITE
        rows.append([count, store, row["runs"], row["rate"], row["round_trips"], row["cpu_us"], to_sqlite, goal])
    return rows


def claim(bench: Bench, database, count: int, store: str) -> dict:
    """So many processes work through one job."""
    folder = bench.fresh_folder()
    url = database.fresh_url() if store == "PostgreSQL" else f"sqlite:{folder / 'store'}"
    program = bench.binaries / "bench-fleet"
    processes.run([program, "fill", url, TASKS, TASKS_SITES], folder, LIMIT_SECONDS)
    database.forget_statements()
    before = database.cpu_seconds()
    ended = together([[program, "work", url, process, SECONDS] for process in range(count)], folder)
    cpu = sum(one.cpu_seconds for one in ended) + (database.cpu_seconds() - before if store == "PostgreSQL" else 0)
    counted = [json.loads(one.output.splitlines()[-1]) for one in ended]
    done = sum(one["pages"] for one in counted)
    return {
        "rate": sum(one["pages"] / one["seconds"] for one in counted),
        "round_trips": database.round_trips() / max(1, done) if store == "PostgreSQL" else None,
        "cpu_us": cpu * 1e6 / max(1, done),
    }


def together(commands: list[list], folder: pathlib.Path, is_ready=lambda: True) -> list[processes.Ended]:
    """Processes at the same time, on both cores; the first alone until `is_ready`."""
    began, children = time.time(), []
    for number, command in enumerate(commands):
        place = folder / f"process-{number}"
        place.mkdir()
        children.append((command, place, processes.start(command, processes.BOTH_CORES, place / "output", place)))
        while not is_ready() and not processes.has_ended(children[0][2]) and time.time() < began + LIMIT_SECONDS:
            time.sleep(0.02)
    ended = [processes.wait(child, place / "output", began, LIMIT_SECONDS) for _, place, child in children]
    for (command, _, _), one in zip(children, ended):
        processes.check(command, one, (0, 1) if "fetch" in command else (0,))
    return ended


@contextlib.contextmanager
def redis(bench: Bench):
    """A Redis that saves now and then, as it comes."""
    folder, port = bench.fresh_folder(), servers.free_port()
    command = [w13.redis_program(), "--bind", "127.0.0.1", "--port", port, "--dir", folder]
    with w13.listening(command, port, folder / "redis", folder):
        yield port
