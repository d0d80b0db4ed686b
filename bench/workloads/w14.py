"""W14 TLS: many TLS hosts with few pages each, against a loop with the same TLS; what handshakes cost."""

from . import fetchers, judge, processes, report, servers, urls
from .bench import Bench
from .w5 import CONFIGURATION

HOSTS, PAGES_A_HOST, CONCURRENCY = 2_000, 5, 64
PAGES = HOSTS * PAGES_A_HOST
CPU_TO_BARE = 1.3
LIMIT_SECONDS = 120

BARE, OURS = "bare reqwest loop", "comity"

INTRODUCTION = f"""
TLS: fetch {HOSTS:,} hosts × {PAGES_A_HOST} pages over HTTPS with no delay, `in_flight` unlimited, concurrency {CONCURRENCY}, and every result saved in the store. Goal: every
page, and at most {CPU_TO_BARE} × the CPU per page of a bare reqwest loop with the same TLS (rustls with ring, certificates verified).

nginx has one ECDSA P-256 certificate for all hosts and offers HTTP/1.1 only. One of its ports keeps connections open, so a client needs one handshake
per host; the other closes them after each response, so it needs one per page. nginx's log shows how many connections were opened, each with a
handshake, and how many of them resumed an earlier session, which saves the certificate and its verification. The hosts take turns: a client that
remembers the sessions of all hosts resumes {PAGES - HOSTS:,} on the port that closes, and one that remembers only the latest few resumes none. The bare loop has
the default settings of rustls. CPU is that of the whole process, and includes its start and, for Comity, filling the queue. Medians of the runs; missing
pages are from the worst run.
"""

COLUMNS = ["connections are", "contestant", "runs", "pages", "missing", "pages/s", "connections", "sessions resumed", "share resumed", "TLS",
           "CPU, s", "CPU per page, µs", "÷ bare", "goal"]


def run(bench: Bench) -> str:
    """The section for W14."""
    rows = []
    with servers.nginx_tls(bench) as (keeping, closing):
        for name, nginx in (("kept open", keeping), ("closed after each page", closing)):
            rows += on_port(bench, name, nginx)
    return report.section(bench, INTRODUCTION, rows, COLUMNS, peers=())


def on_port(bench: Bench, port: str, nginx: servers.NginxTls) -> list[list]:
    """The rows of one port; the bare loop first, because Comity is compared with it."""
    file = urls.write(bench.folder / "urls", urls.in_turn(nginx, urls.secure_hosts(HOSTS), PAGES_A_HOST))
    rows, bare = [], None
    for name, command in contestants(bench, file):
        is_bare = name == BARE
        if not (is_bare or bench.wants(name)):
            continue
        row = bench.repeat(f"{name}, connections {port}", lambda: once(bench, nginx, command))
        bare = row if is_bare else bare
        to_bare = row["cpu_us"] / bare["cpu_us"]
        goal = None if is_bare else row["missing_worst"] == 0 and to_bare <= CPU_TO_BARE
        rows.append([port, name, row["runs"], row["pages_least"], row["missing_worst"], row["rate"], row["opened"], row["resumed"],
                     row["resumed"] / row["opened"], row["protocols"], row["cpu_seconds"], row["cpu_us"], to_bare, goal])
    return rows


def contestants(bench: Bench, file):
    """Name and how to run it in a folder."""
    configuration = bench.folder / "comity.toml"
    configuration.write_text(CONFIGURATION)
    return [
        (BARE, lambda _folder: fetchers.bare(bench, file, CONCURRENCY)),
        (OURS, lambda folder: fetchers.comity(
            bench, folder / "store", "tls", file, "--config", configuration, *fetchers.BEST, "--concurrency", CONCURRENCY)),
    ]


def once(bench: Bench, nginx: servers.NginxTls, command) -> dict:
    """One contestant, all pages once."""
    folder = bench.fresh_folder()
    nginx.forget()
    line = command(folder)
    trusting = ["env", "-u", "SSL_CERT_DIR", f"SSL_CERT_FILE={nginx.authority}", *line]
    ended = processes.run(trusting, folder, LIMIT_SECONDS, fetchers.accepted(line))
    log = nginx.connections()
    served = judge.pages(log.requests)
    if served < 2:
        raise processes.CouldNotRun(f"{ended.output or 'no output'}\nno page was fetched")
    return {
        "pages_least": served,
        "missing_worst": PAGES - served,
        "rate": served / judge.span_seconds(log.requests),
        "opened": log.opened,
        "resumed": log.resumed,
        "protocols": log.protocols,
        "cpu_seconds": ended.cpu_seconds,
        "cpu_us": ended.cpu_seconds * 1e6 / served,
    }
