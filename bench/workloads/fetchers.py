"""The command line of each contestant: ours and the peers.

A contestant gets a file of URLs and a folder of its own. No parsing, no robots.txt, no output of pages for any of them,
unless a workload says otherwise.
"""

import pathlib

from .bench import Bench

PEERS = pathlib.Path(__file__).parent / "peers"

BEST = ["--delay", "0", "--learning", "off", "--robots", "ignore"]
"""Ours with nothing but the server's word to hold it back."""


def accepted(command: list) -> tuple[int, ...]:
    """Exit codes of a contestant that ran: ours says 1 for pages that failed, which the server's log shows as missing."""
    return (0, 1) if pathlib.Path(command[0]).name == "comity" else (0,)


def comity(bench: Bench, store: pathlib.Path, job: str, urls: pathlib.Path | None, *options) -> list:
    """`comity fetch`; without `urls` it goes on with the job as it stands in the store."""
    given = ["--input", urls] if urls else []
    return [bench.binaries / "comity", "fetch", *given, "--store", f"sqlite:{store}", "--job", job,
            "--format", "none", "--json", "--quiet", *options]


def comity_at(delay_ms: int, *options) -> list:
    """Options for a fixed delay that nothing else stretches."""
    return ["--delay", f"{delay_ms}ms", "--learning", "off", "--robots", "ignore", *options]


def scrapy(bench: Bench, urls: pathlib.Path, **settings) -> list:
    """Scrapy with its defaults and these settings."""
    return [bench.python, PEERS / "fetch_scrapy.py", urls, *(f"{key}={value}" for key, value in settings.items())]


def crawlee(bench: Bench, urls: pathlib.Path, storage: pathlib.Path, *options) -> list:
    """Crawlee's HttpCrawler with its defaults (files in `storage`) and these options."""
    return [bench.python, PEERS / "fetch_crawlee.py", urls, storage, *options]


def requests(bench: Bench, urls: pathlib.Path, threads: int) -> list:
    """requests with urllib3's Retry, which waits as Retry-After says."""
    return [bench.python, PEERS / "fetch_requests.py", urls, "--threads", threads]


def pyrate(bench: Bench, urls: pathlib.Path, bucket: pathlib.Path, delay_ms: int, buffer_ms: int) -> list:
    """requests behind pyrate-limiter's SQLite bucket, which processes share by its file lock."""
    return [bench.python, PEERS / "fetch_pyrate.py", urls, bucket, "--delay-ms", delay_ms, "--buffer-ms", buffer_ms]


def bare(bench: Bench, urls: pathlib.Path, concurrency: int, idle: int | None = None) -> list:
    """A reqwest loop that remembers nothing: the limit. It keeps `idle` connections per host for the next request."""
    return [bench.binaries / "bench-bare", urls, concurrency, *([] if idle is None else [idle])]
