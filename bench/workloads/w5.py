"""W5 raw: no delay at all, concurrency 64; what bookkeeping costs against a loop that keeps none."""

import pathlib

from . import fetchers, judge, processes, report, servers, urls
from .bench import Bench

HOSTS, PAGES_A_HOST, CONCURRENCY = 50, 4000, 64
PAGES_SCRAPY, PAGES_CRAWLEE = 10_000, 2_000
LIMIT_SECONDS = 300
TO_BARE, TO_SCRAPY, TO_ONE_CORE = 0.6, 20, 1.7

OURS, ONE_CORE, TWO_CORES = "comity", "comity, one core shared with nginx", "comity, two cores shared with nginx"
SHARED = ((ONE_CORE, processes.CLIENT_CORE), (TWO_CORES, processes.BOTH_CORES))
"""Rows in which nginx runs on the same cores as the contestant."""

CONFIGURATION = """
[default]
min_delay = "0s"
in_flight = "unlimited"
learning = "off"
"""

INTRODUCTION = f"""
Raw speed: fetch {HOSTS} hosts × {PAGES_A_HOST:,} pages with no delay, `in_flight` unlimited, concurrency {CONCURRENCY}, and every result saved in the store. Goal: at
least {TO_BARE} of the pages per second of a bare reqwest loop, and at least {TO_SCRAPY} × Scrapy's (the faster of the two); with a second core, at least
{TO_ONE_CORE} × the pages per second.

Measured in nginx's log: pages ÷ time from the first start to the last. The whole process also includes its start and, for Comity, filling the
queue. Medians of the runs. Scrapy and Crawlee are slower, so they get fewer pages ({PAGES_SCRAPY:,} and {PAGES_CRAWLEE:,}) of
the same hosts. Each contestant has one core, nginx the other.

In the last two rows Comity and nginx share one core, and then two, because a server with a core of its own would leave Comity no second one on this
machine. A page takes CPU in Comity and in nginx, the same in both rows, so their ratio is 2 if the second core is used as well as the first.
"""


def run(bench: Bench) -> str:
    """The section for W5."""
    with servers.nginx(bench) as nginx:
        found = [bench.repeat(name, lambda: once(bench, nginx, command, pages))
                 for name, pages, command in contestants(bench, nginx) if bench.wants(name)]
    for name, cores in SHARED:
        if bench.wants(name):
            with servers.nginx(bench, cores) as nginx:
                total, command = ours(bench, nginx)
                found.append(bench.repeat(name, lambda: once(bench, nginx, command, total, cores)))
    named = {row["name"]: row for row in found}
    bare, one_core = named.get("bare reqwest loop"), named.get(ONE_CORE)
    scrapy = max((row["rate"] for row in found if row["name"].startswith("Scrapy")), default=None)
    rows = []
    for row in found:
        is_shared = row["name"] in (ONE_CORE, TWO_CORES)
        to_bare = row["rate"] / bare["rate"] if bare and not is_shared else None
        to_bare_whole = row["whole_rate"] / bare["whole_rate"] if bare and not is_shared else None
        to_scrapy = row["rate"] / scrapy if scrapy and not is_shared else None
        to_one_core = row["rate"] / one_core["rate"] if one_core and is_shared else None
        goal = None
        if row["name"] == OURS:
            goal = bool(row["missing_worst"] == 0 and to_bare and to_bare >= TO_BARE and to_scrapy and to_scrapy >= TO_SCRAPY)
        if row["name"] == TWO_CORES:
            goal = bool(row["missing_worst"] == 0 and to_one_core and to_one_core >= TO_ONE_CORE)
        rows.append([row["name"], row["runs"], row["pages_least"], row["missing_worst"], row["rate"], row["whole_rate"],
                     to_bare, to_bare_whole, to_scrapy, to_one_core, row["cpu_seconds"], row["cpu_us"], goal])
    return report.section(bench, INTRODUCTION, rows, [
        "contestant", "runs", "pages", "missing", "pages/s", "pages/s, whole process", "÷ bare", "÷ bare, whole process",
        "÷ Scrapy", "÷ one core", "CPU, s", "CPU per page, µs", "goal"])


def contestants(bench: Bench, nginx: servers.Nginx):
    """Name, pages, how to run it in a folder."""
    total, command = ours(bench, nginx)
    all_pages = listed(bench, nginx, total)
    scrapy_pages, crawlee_pages = listed(bench, nginx, PAGES_SCRAPY), listed(bench, nginx, PAGES_CRAWLEE)
    best = {"CONCURRENT_REQUESTS": CONCURRENCY, "COOKIES_ENABLED": False,
            "RETRY_ENABLED": False, "REDIRECT_ENABLED": False, "HTTPCOMPRESSION_ENABLED": False, "TELNETCONSOLE_ENABLED": False,
            "DOWNLOADER_STATS": False, "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}
    return [
        ("bare reqwest loop", total, lambda _folder: fetchers.bare(bench, all_pages, CONCURRENCY)),
        (OURS, total, command),
        ("Scrapy, default", PAGES_SCRAPY, lambda _folder: fetchers.scrapy(bench, scrapy_pages)),
        ("Scrapy, best", PAGES_SCRAPY, lambda _folder: fetchers.scrapy(bench, scrapy_pages, **best)),
        ("Crawlee, default", PAGES_CRAWLEE, lambda folder: fetchers.crawlee(bench, crawlee_pages, folder / "storage")),
        ("Crawlee, best", PAGES_CRAWLEE, lambda folder: fetchers.crawlee(
            bench, crawlee_pages, folder / "storage", "--memory", "--concurrency", CONCURRENCY)),
    ]


def ours(bench: Bench, nginx: servers.Nginx):
    """How many pages Comity fetches, and how to run it in a folder."""
    total = HOSTS * PAGES_A_HOST
    file, configuration = listed(bench, nginx, total), bench.folder / "comity.toml"
    configuration.write_text(CONFIGURATION)
    return total, lambda folder: fetchers.comity(
        bench, folder / "store", "raw", file, "--config", configuration, *fetchers.BEST, "--concurrency", CONCURRENCY)


def listed(bench: Bench, nginx: servers.Nginx, count: int) -> pathlib.Path:
    """A list of so many pages."""
    return urls.write(bench.folder / f"urls-{nginx.port}-{count}", urls.in_turn(nginx, urls.hosts(HOSTS), count // HOSTS))


def once(bench: Bench, nginx: servers.Nginx, command, pages: int, core: int | str = processes.CLIENT_CORE) -> dict:
    """One contestant, all pages once."""
    folder = bench.fresh_folder()
    nginx.forget()
    line = command(folder)
    ended = processes.run(line, folder, LIMIT_SECONDS, fetchers.accepted(line), core)
    requests = nginx.requests()
    served = judge.pages(requests)
    if served < 2:
        raise processes.CouldNotRun(f"{ended.output or 'no output'}\nno page was fetched")
    return {
        "pages_least": served,
        "missing_worst": pages - served,
        "rate": served / judge.span_seconds(requests),
        "whole_rate": served / ended.seconds,
        "cpu_seconds": ended.cpu_seconds,
        "cpu_us": ended.cpu_seconds * 1e6 / served,
    }
