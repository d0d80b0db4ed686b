"""W12 wiki: a MediaWiki with many pages and revisions, archived whole; requests it takes, and revisions per second without a pace."""

import contextlib
import os
import pathlib
import shutil
import subprocess

from . import judge, processes, report, servers
from .bench import Bench, say

PAGES, REVISIONS = 1_000, 5
LIMIT_SECONDS = 900
PEERS_FOLDER = pathlib.Path(__file__).parent / "peers"
INSTALLED = pathlib.Path("/usr/share/mediawiki")

CONFIGURATION = """
robots = "ignore"

[default]
enabled = false
"""

INTRODUCTION = f"""
Wiki: archive {PAGES:,} pages with {REVISIONS} revisions each, with every revision's text, from Debian's MediaWiki with SQLite behind nginx. Goal: at most half
the requests of the better peer, and at least twice its revisions per second with pacing off.

`comity wiki archive` runs with pacing off (`enabled = false`) and saves everything. mwclient and pywikibot use their own iterators (all pages, and for each page
all revisions), with default settings and with the largest batches the wiki allows, and save nothing. Requests are counted in nginx's log. A client that
did not read every revision fails. Medians of the runs.
"""

COLUMNS = ["client", "runs", "requests", "requests/1,000 revisions", "÷ better peer", "revisions/s", "÷ better peer", "goal"]
OURS = "comity wiki archive"
PACKAGES = ("mwclient", "pywikibot")


def run(bench: Bench) -> str:
    """The section for W12."""
    with wiki(bench) as front:
        contestants = [one for one in all_contestants(bench) if bench.wants(one[0])]
        found = {name: bench.repeat(name, lambda archive=archive: once(bench, front, archive)) for name, archive in contestants}
    peers = [row for name, row in found.items() if name != OURS]
    fewest = min((row["requests"] for row in peers), default=None)
    quickest = max((row["rate"] for row in peers), default=None)
    rows = []
    for name, row in found.items():
        fewer = row["requests"] / fewest if fewest else None
        faster = row["rate"] / quickest if quickest else None
        goal = fewer <= 0.5 and faster >= 2 if name == OURS and fewer and faster else None
        rows.append([name, row["runs"], row["requests"], row["requests"] * 1000 / (PAGES * REVISIONS), fewer, row["rate"], faster, goal])
    return report.section(bench, INTRODUCTION, rows, COLUMNS, PACKAGES, (report.nginx_version(), mediawiki_version()))


def all_contestants(bench: Bench) -> list:
    """Name, and the command that archives the wiki behind a port, in a folder."""
    def comity(folder: pathlib.Path, port: int) -> list:
        (folder / "comity.toml").write_text(CONFIGURATION)
        return [bench.binaries / "comity", "--quiet", "--store", f"sqlite:{folder / 'store'}", "wiki", "archive",
                f"http://127.0.0.1:{port}/api.php"]

    def mwclient(options: list):
        return lambda folder, port: [bench.python, PEERS_FOLDER / "archive_mwclient.py", "127.0.0.1", port, *options]

    def pywikibot(options: list):
        return lambda folder, port: [bench.python, PEERS_FOLDER / "archive_pywikibot.py", f"http://127.0.0.1:{port}/api.php", *options]

    return [
        (OURS, comity),
        ("mwclient, default", mwclient([])),
        ("mwclient, best", mwclient(["--best"])),
        ("pywikibot, default", pywikibot([])),
        ("pywikibot, best", pywikibot(["--best"])),
    ]


def once(bench: Bench, front: "servers.Nginx", archive) -> dict:
    """One archive of the whole wiki."""
    folder = bench.fresh_folder()
    front.forget()
    ended = processes.run(archive(folder, front.port), folder, LIMIT_SECONDS)
    if ended.timed_out:
        raise processes.CouldNotRun(f"not done in {LIMIT_SECONDS} s")
    read = int(next(word for word in ended.output.replace(",", "").split("revisions")[0].split()[::-1] if word.isdigit()))
    if read < PAGES * REVISIONS:
        raise processes.CouldNotRun(f"only {read} revisions were read:\n{ended.output}")
    return {"requests": len(front.requests()), "rate": PAGES * REVISIONS / ended.seconds}


@contextlib.contextmanager
def wiki(bench: Bench):
    """A wiki with its pages, behind nginx."""
    folder, port, front_port = bench.fresh_folder(), servers.free_port(), servers.free_port()
    tree = folder / "mediawiki"
    say("a wiki: copying, installing, importing")
    subprocess.run(["cp", "-rL", INSTALLED, tree], stderr=subprocess.DEVNULL, check=False)
    (tree / "LocalSettings.php").unlink(missing_ok=True)
    php = ["php", tree / "maintenance/install.php", "--dbtype", "sqlite", "--dbname", "wiki", "--dbpath", folder / "data", "--scriptpath", "",
           "--server", f"http://127.0.0.1:{front_port}", "--pass", "a-long-password", "Bench", "admin"]
    subprocess.run([str(part) for part in php], check=True, stdout=subprocess.DEVNULL)
    dump = folder / "dump.xml"
    dump.write_text(pages())
    subprocess.run(["php", str(tree / "maintenance/importDump.php"), str(dump)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    configuration = folder / "nginx.conf"
    configuration.write_text(_front(folder, port, front_port))
    os.environ["PHP_CLI_SERVER_WORKERS"] = "4"
    with contextlib.ExitStack() as stack:
        for command, where in (
            (["php", "-S", f"127.0.0.1:{port}", "-t", tree], port),
            ([servers.nginx_program(), "-p", folder, "-e", folder / "error.log", "-c", configuration], front_port),
        ):
            server = processes.start(command, processes.SERVER_CORE, folder / f"output-{where}", folder)
            stack.callback(processes.stop_server, server)
            servers.wait_for_port(where, server, folder / f"output-{where}")
        yield servers.Nginx(folder, front_port)


def _front(folder: pathlib.Path, port: int, front_port: int) -> str:
    user = "user root;" if os.geteuid() == 0 else ""
    return f"""
{user} daemon off; worker_processes 1; pid {folder}/pid;
events {{ worker_connections 256; }}
http {{
    proxy_temp_path {folder}/proxy; client_body_temp_path {folder}/body; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    log_format starts '$msec $request_time $host $server_port $uri $status';
    access_log {folder}/access.log starts;
    server {{
        listen 127.0.0.1:{front_port};
        location / {{ proxy_pass http://127.0.0.1:{port}; proxy_set_header Host 127.0.0.1:{front_port}; proxy_buffers 16 1m; }}
    }}
}}
"""


def pages() -> str:
    """The pages as a dump."""
    def revision(page: int, nth: int) -> str:
        text = f"page {page}, revision {nth}: " + "some words of wikitext, " * (20 + nth)
        return (f"<revision><timestamp>20{10 + nth:02}-01-{page % 28 + 1:02}T00:{page % 60:02}:00Z</timestamp><contributor><username>Somebody"
                f"</username><id>0</id></contributor><model>wikitext</model><format>text/x-wiki</format>"
                f'<text xml:space="preserve">{text}</text></revision>')

    each = (f"<page><title>Page {page}</title><ns>0</ns>{''.join(revision(page, nth) for nth in range(REVISIONS))}</page>"
            for page in range(PAGES))
    return f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11">{"".join(each)}</mediawiki>'


def mediawiki_version() -> str:
    """Debian's."""
    if not shutil.which("dpkg-query"):
        return "mediawiki"
    shown = subprocess.run(["dpkg-query", "-W", "mediawiki"], capture_output=True, text=True, check=False).stdout.split()
    return " ".join(shown) or "mediawiki"
