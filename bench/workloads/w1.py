"""W1 storm: a host that allows ten requests, then answers 429 with `Retry-After: 5` until 5 s have passed."""

from . import fetchers, judge, processes, report, servers, urls
from .bench import Bench

PAGES, IDEAL_SECONDS = 100, 45.0
LIMIT_SECONDS = 300
# With default settings, Comity sends at most one request per second, waits after each 429 and learns: slow by design.
LIMIT_SLOW_SECONDS = 2400

INTRODUCTION = f"""
Storm: fetch {PAGES} pages of a host that allows 10 requests, then answers 429 with `Retry-After: 5` until 5 s have passed
(robots.txt not counted). The ideal is nine 429s and {IDEAL_SECONDS:.0f} s. Goal: all pages and at most ten 429s, also with default settings;
with the best settings, at most 1.05 × the ideal time.

Measured in the server's log. Time runs from the start of the first request to the start of the last page. Times are medians of the runs; 429s and pages
are from the worst run. A request is early if it came more than 10 ms before a deadline stated in a response that was complete 10 ms earlier.
"""


def run(bench: Bench) -> str:
    """The section for W1."""
    rows = []
    for name, command, runs, limit in contestants(bench):
        if bench.wants(name):
            row = bench.repeat(name, lambda: once(bench, command, limit), runs)
            rows.append([name, row["runs"], row["pages_least"], row["refusals_worst"], row["early_worst"],
                         row["seconds"], row["ratio"], row["process_seconds"], goal(name, row)])
    return report.section(bench, INTRODUCTION, rows, [
        "contestant", "runs", f"pages of {PAGES}", "answers 429", "early", "time, s", "÷ ideal", "whole process, s", "goal"])


def contestants(bench: Bench):
    """Name, how to run it on a list of URLs in a folder, runs (None: as asked), time limit."""
    def ours(*options):
        return lambda file, folder: fetchers.comity(bench, folder / "store", "storm", file, *options)

    def scrapy(**settings):
        return lambda file, _folder: fetchers.scrapy(bench, file, **settings)

    def crawlee(*options):
        return lambda file, folder: fetchers.crawlee(bench, file, folder / "storage", *options)

    def requests(threads):
        return lambda file, _folder: fetchers.requests(bench, file, threads)

    return [
        ("comity, best", ours(*fetchers.BEST), None, LIMIT_SECONDS),
        ("comity, default", ours(), 1, LIMIT_SLOW_SECONDS),
        ("Scrapy, default", scrapy(), None, LIMIT_SECONDS),
        ("Scrapy, AutoThrottle", scrapy(AUTOTHROTTLE_ENABLED=True), None, LIMIT_SECONDS),
        ("Crawlee, default", crawlee(), None, LIMIT_SECONDS),
        ("Crawlee, ThrottlingRequestManager", crawlee("--throttle", "--memory"), None, LIMIT_SECONDS),
        ("requests + urllib3.Retry", requests(1), None, LIMIT_SECONDS),
        ("requests + urllib3.Retry, 8 threads", requests(8), None, LIMIT_SECONDS),
    ]


def once(bench: Bench, command, limit: float) -> dict:
    """One contestant against a fresh storm site."""
    folder = bench.fresh_folder()
    with servers.storm(bench) as storm:
        file = urls.write(folder / "urls", storm.urls(PAGES))
        line = command(file, folder)
        ended = processes.run(line, folder, limit, fetchers.accepted(line))
        requests = storm.requests()
    if not requests:
        raise processes.CouldNotRun(f"{ended.output or 'no output'}\nno request arrived")
    pages = judge.pages(requests)
    last_page = max((request.start for request in requests if request.status == 200), default=requests[0].start)
    seconds = (last_page - requests[0].start) / 1e6
    complete = pages == PAGES
    return {
        "pages_least": pages,
        "refusals_worst": judge.refusals(requests),
        "early_worst": judge.early_after_word(requests),
        "seconds": seconds,
        "ratio": seconds / IDEAL_SECONDS if complete else None,
        "process_seconds": ended.seconds,
    }


def goal(name: str, row: dict) -> bool | None:
    """Whether ours met the goal; peers have none."""
    if not name.startswith("comity"):
        return None
    kept = row["pages_least"] == PAGES and row["refusals_worst"] <= 10
    return kept and ("default" in name or row["ratio"] <= 1.05)
