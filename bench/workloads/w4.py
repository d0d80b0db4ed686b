"""W4 polite breadth: many hosts, each with its own delay, as fast as the delays allow."""

from . import fetchers, judge, processes, report, servers, urls
from .bench import Bench

SHAPES = [(200, 20, 250), (2000, 10, 1000)]
"""Hosts, pages a host, delay in milliseconds."""

LIMIT_SECONDS = 120

INTRODUCTION = f"""
Polite breadth: fetch 200 hosts × 20 pages with 250 ms between requests, and 2,000 hosts × 10 pages with 1 s. The ideal is (pages − 1) × delay: 4.75 s and
9 s. Goal: at least 0.95 of the ideal, no early request.

Measured in nginx's log. The span runs from the first start to the last one overall. Early gaps are counted per host (shorter than the delay
by more than max(10 ms, 1 %)). Medians of the runs; early gaps and pages are from the worst run. Nobody fetches robots.txt. A contestant that
was not finished after {LIMIT_SECONDS} s was stopped. Crawlee has no delay setting, so it gets the delay the way robots.txt would set it (ThrottlingRequestManager).
With 2,000 hosts the peers run only once, because they take minutes.
"""


def run(bench: Bench) -> str:
    """The section for W4."""
    rows = []
    with servers.nginx(bench) as nginx:
        for hosts, pages, delay_ms in SHAPES:
            ideal = (pages - 1) * delay_ms / 1000
            file = urls.write(bench.folder / "urls", urls.in_turn(nginx, urls.hosts(hosts), pages))
            for name, command in contestants(bench, file, hosts, delay_ms):
                if not bench.wants(name):
                    continue
                row = bench.repeat(name, lambda: once(bench, nginx, command, delay_ms, hosts * pages, ideal),
                                   None if name.startswith("comity") or hosts == SHAPES[0][0] else 1)
                goal = None
                if name.startswith("comity"):
                    goal = row["share"] is not None and row["share"] >= 0.95 and row["early_worst"] == 0
                rows.append([f"{hosts} × {pages} at {delay_ms} ms", name, row["runs"], row["pages_least"],
                             row["early_worst"], row["span"], row["share"], row["process_seconds"], row["cpu_seconds"], goal])
    return report.section(bench, INTRODUCTION, rows, [
        "hosts × pages", "contestant", "runs", "pages", "early gaps", "span, s", "of ideal", "whole process, s", "CPU, s", "goal"])


def contestants(bench: Bench, file, hosts: int, delay_ms: int):
    """Name and how to run it in a folder."""
    delay = {"DOWNLOAD_DELAY": delay_ms / 1000, "RANDOMIZE_DOWNLOAD_DELAY": False}
    best = {"CONCURRENT_REQUESTS": hosts * 2, "CONCURRENT_REQUESTS_PER_DOMAIN": 1, "COOKIES_ENABLED": False,
            "RETRY_ENABLED": False, "TELNETCONSOLE_ENABLED": False, "DNSCACHE_SIZE": hosts * 2}

    def ours(*options):
        return lambda folder: fetchers.comity(bench, folder / "store", "breadth", file, *fetchers.comity_at(delay_ms, *options))

    return [
        ("comity, default concurrency", ours()),
        ("comity, concurrency 256", ours("--concurrency", 256)),
        ("Scrapy, default", lambda _folder: fetchers.scrapy(bench, file, **delay)),
        (f"Scrapy, {hosts * 2} concurrent requests", lambda _folder: fetchers.scrapy(bench, file, **delay, **best)),
        ("Crawlee, throttled, in memory, 200 concurrent", lambda folder: fetchers.crawlee(
            bench, file, folder / "storage", "--throttle", "--delay-ms", delay_ms, "--memory", "--concurrency", 200)),
    ]


def once(bench: Bench, nginx: servers.Nginx, command, delay_ms: int, pages: int, ideal: float) -> dict:
    """One contestant, all hosts."""
    folder = bench.fresh_folder()
    nginx.forget()
    line = command(folder)
    ended = processes.run(line, folder, LIMIT_SECONDS, fetchers.accepted(line))
    requests = nginx.requests()
    if len(requests) < 2:
        raise processes.CouldNotRun(f"{ended.output or 'no output'}\nno request arrived")
    complete = judge.pages(requests) == pages
    span = judge.span_seconds(requests)
    return {
        "pages_least": judge.pages(requests),
        "early_worst": judge.early_gaps(requests, delay_ms),
        "span": span,
        "share": ideal / span if complete else None,
        "process_seconds": ended.seconds,
        "cpu_seconds": ended.cpu_seconds,
    }
