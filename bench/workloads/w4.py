"""W4 polite breadth: many hosts, each with its own delay, as fast as the delays allow."""

import pathlib
import sys

from . import fetchers, processes, report, servers, urls
from .bench import Bench

SHAPES = [(200, 20, 250), (2000, 10, 1000), (100_000, 3, 10_000), (1_000_000, 2, 120_000)]
"""Hosts, pages a host, delay in milliseconds."""

PEERS_HOSTS_MAX = 2000
"""With more hosts the peers would take hours; the bare loop stands beside Comity instead."""

ONCE_FROM = 1_000_000
"""With so many hosts even Comity runs only once, because it takes minutes."""

LARGE = 100_000
"""With so many hosts, nobody can start at all of them at the same time."""

CPU_TO_BARE = 1.5
MB_PER_HOST = 0.006
LIMIT_SECONDS = 120
LIMIT_SECONDS_LARGE = 900
BARE_CONCURRENCY = 64

MEASURED = pathlib.Path(__file__).parent / "measured.py"

INTRODUCTION = f"""
Polite breadth: fetch 200 hosts × 20 pages with 250 ms between requests, 2,000 hosts × 10 pages with 1 s, 100,000 hosts × 3 pages with 10 s, and
1,000,000 hosts × 2 pages with 120 s. The ideal is (pages − 1) × delay; the polite rate is hosts ÷ delay, 10,000 requests per second for 100,000 hosts.
Goal: no early request, and at least 0.95 of the ideal; with {LARGE:,} hosts or more, which nobody can start at the same time, at least 0.95 of the polite rate,
at most {CPU_TO_BARE} × the CPU per page of the bare loop, and at most {MB_PER_HOST * 1000:g} KB of memory per host.

The server logs when the kernel received a request (`bench/judge`). The span runs from the first start to the last one overall. Early gaps are
counted per host (shorter than the delay by more than max(10 ms, 1 %)); the next column counts them by the times at which the server got around to
reading, which is what nginx logs. Medians of the runs; early gaps, pages and memory are from the worst run. Nobody fetches robots.txt. A contestant that
was not finished after {LIMIT_SECONDS} s ({LIMIT_SECONDS_LARGE} s with {LARGE:,} hosts or more) was stopped. The bare loop is that of W5; it has no pace, and opens a connection
for each request. Crawlee has no delay setting, so it gets the delay the way robots.txt would set it (ThrottlingRequestManager). With 2,000 hosts the
peers run only once, because they take minutes; with more they would take hours. With a million hosts Comity runs only once, too.
"""


def run(bench: Bench) -> str:
    """The section for W4."""
    rows = []
    with servers.judge_server(bench) as server:
        for hosts, pages, delay_ms in SHAPES:
            rows += shape(bench, server, hosts, pages, delay_ms)
    return report.section(bench, INTRODUCTION, rows, [
        "hosts × pages", "contestant", "runs", "pages", "early gaps", "early as read", "span, s", "of ideal", "requests/s",
        "÷ polite rate", "whole process, s", "CPU, s", "CPU per page, µs", "÷ bare", "memory, MB", "goal"], programs=())


def shape(bench: Bench, server: servers.Judge, hosts: int, pages: int, delay_ms: int) -> list[list]:
    """The rows of one number of hosts; the bare loop first, because the others are compared with it."""
    file = urls.write(bench.folder / "urls", urls.in_turn(server, urls.hosts(hosts), pages))
    rows, bare = [], None
    for name, command in contestants(bench, file, hosts, delay_ms):
        is_bare = name == "bare reqwest loop"
        if not (is_bare or bench.wants(name)):
            continue
        repeats = hosts == SHAPES[0][0] or is_bare or name.startswith("comity")
        runs = None if repeats and hosts < ONCE_FROM else 1
        row = bench.repeat(name, lambda: once(bench, server, command, hosts, pages, delay_ms), runs)
        bare = row if is_bare else bare
        is_complete = not is_bare and row["pages_least"] == hosts * pages
        share = (pages - 1) * delay_ms / 1000 / row["span"] if is_complete else None
        polite = row["rate"] * delay_ms / 1000 / hosts if is_complete else None
        to_bare = row["cpu_us"] / bare["cpu_us"]
        goal = None
        if name.startswith("comity"):
            goal = is_complete and row["early_worst"] == 0 and (share >= 0.95 if hosts < LARGE else (
                polite >= 0.95 and to_bare <= CPU_TO_BARE and row["mb_worst"] <= MB_PER_HOST * hosts))
        early = [None, None] if is_bare else [row["early_worst"], row["early_as_read_worst"]]
        rows.append([f"{hosts:,} × {pages} at {delay_ms:,} ms", name, row["runs"], row["pages_least"], *early, row["span"],
                     share, row["rate"], polite, row["process_seconds"],
                     row["cpu_seconds"], row["cpu_us"], to_bare, row["mb_worst"], goal])
    return rows


def contestants(bench: Bench, file, hosts: int, delay_ms: int):
    """Name and how to run it in a folder."""
    delay = {"DOWNLOAD_DELAY": delay_ms / 1000, "RANDOMIZE_DOWNLOAD_DELAY": False}
    best = {"CONCURRENT_REQUESTS": hosts * 2, "CONCURRENT_REQUESTS_PER_DOMAIN": 1, "COOKIES_ENABLED": False,
            "RETRY_ENABLED": False, "TELNETCONSOLE_ENABLED": False, "DNSCACHE_SIZE": hosts * 2}

    def ours(*options):
        return lambda folder: fetchers.comity(bench, folder / "store", "breadth", file, *fetchers.comity_at(delay_ms, *options))

    yield "bare reqwest loop", lambda _folder: fetchers.bare(bench, file, BARE_CONCURRENCY, idle=0)
    yield "comity, default concurrency", ours()
    yield "comity, concurrency 256", ours("--concurrency", 256)
    if hosts <= PEERS_HOSTS_MAX:
        yield "Scrapy, default", lambda _folder: fetchers.scrapy(bench, file, **delay)
        yield f"Scrapy, {hosts * 2} concurrent requests", lambda _folder: fetchers.scrapy(bench, file, **delay, **best)
        yield "Crawlee, throttled, in memory, 200 concurrent", lambda folder: fetchers.crawlee(
            bench, file, folder / "storage", "--throttle", "--delay-ms", delay_ms, "--memory", "--concurrency", 200)


def once(bench: Bench, server: servers.Judge, command, hosts: int, pages: int, delay_ms: int) -> dict:
    """One contestant, all hosts."""
    folder = bench.fresh_folder()
    server.forget()
    line = command(folder)
    measured = [sys.executable, "-I", "-S", MEASURED, folder / "cost", *line]
    ended = processes.run(measured, folder, LIMIT_SECONDS if hosts <= PEERS_HOSTS_MAX else LIMIT_SECONDS_LARGE,
                          fetchers.accepted(line))
    log = server.arrivals()
    if log.requests < 2:
        raise processes.CouldNotRun(f"{ended.output or 'no output'}\nno request arrived")
    cost = folder / "cost"
    # One that was stopped has written none.
    cpu, kib = map(float, cost.read_text().split()[2:]) if cost.exists() else (ended.cpu_seconds, None)
    return {
        "pages_least": log.pages,
        "early_worst": log.early_gaps(delay_ms),
        "early_as_read_worst": log.early_gaps_as_read(delay_ms),
        "span": log.span_seconds,
        "rate": log.requests / log.span_seconds,
        "process_seconds": ended.seconds,
        "cpu_seconds": cpu,
        "cpu_us": cpu * 1e6 / log.requests,
        "mb_worst": kib and kib * 1024 / 1e6,
    }
