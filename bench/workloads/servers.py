"""The servers that contestants fetch from and whose logs judge them: nginx with and without TLS, the storm site of W1 and
W3, the judge of W4."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import time

from . import judge, processes
from .bench import Bench

BLOCKED_HOST = "127.0.255.254"
"""The host that nginx answers with 429 and `Retry-After: 600` (W7)."""

PAGE_BYTES = 1024


class Nginx:
    """One nginx for any number of hosts: each 127.0.x.y is a host of its own, all on one port."""

    def __init__(self, prefix: pathlib.Path, port: int):
        self.log, self.port = prefix / "access.log", port
        self.feeds = prefix / "feeds"
        self._read = 0

    def url(self, host: str, page: int) -> str:
        """Page `page` of `host`; each page has its own address and the same body."""
        return f"http://{host}:{self.port}/{page}"

    def forget(self) -> None:
        """Requests up to now belong to an earlier run."""
        self._read = self.log.stat().st_size

    def requests(self) -> list[judge.Request]:
        """The requests since `forget`, in order of their start."""
        return judge.read_nginx(self.log, self._read)


@contextlib.contextmanager
def nginx(bench: Bench, core: int | str = processes.SERVER_CORE):
    """An unprivileged nginx in a temporary folder, on a free port."""
    prefix, port = bench.fresh_folder(), free_port()
    (prefix / "feeds").mkdir()
    with _started(prefix, port, _LOG, _plain(prefix, port), core):
        yield Nginx(prefix, port)


class NginxTls:
    """One port of an nginx with TLS, for any number of hosts below `bench.localhost`."""

    def __init__(self, prefix: pathlib.Path, name: str, port: int):
        self.log, self.port = prefix / f"{name}.log", port
        self.authority = prefix / "ca.pem"
        self._read = 0

    def url(self, host: str, page: int) -> str:
        """Page `page` of `host`; each page has its own address and the same body."""
        return f"https://{host}:{self.port}/{page}"

    def forget(self) -> None:
        """Requests up to now belong to an earlier run."""
        self._read = self.log.stat().st_size

    def connections(self) -> judge.Connections:
        """The requests since `forget`, and the connections that carried them."""
        return judge.Connections(self.log, self._read)


@contextlib.contextmanager
def nginx_tls(bench: Bench):
    """An unprivileged nginx with a certificate of its own and two free ports: one that keeps connections open, and one that
    closes them after each response, so that every request needs a handshake."""
    prefix, ports = bench.fresh_folder(), free_ports(2)
    subprocess.run([bench.binaries / "bench-certificates", prefix], check=True)
    with _started(prefix, ports[0], _LOG_TLS, _tls(prefix, *ports), processes.SERVER_CORE):
        yield NginxTls(prefix, "keeping", ports[0]), NginxTls(prefix, "closing", ports[1])


@contextlib.contextmanager
def _started(prefix: pathlib.Path, port: int, log: str, blocks: str, core: int | str):
    """nginx with these server blocks, once it listens on `port`."""
    (prefix / "page").write_bytes(b"x" * PAGE_BYTES)
    (prefix / "nginx.conf").write_text(_configuration(prefix, log, blocks))
    server = processes.start([nginx_program(), "-p", prefix, "-e", prefix / "error.log", "-c", prefix / "nginx.conf"],
                             core, prefix / "output", prefix)
    try:
        wait_for_port(port, server, prefix / "output")
        yield
    finally:
        processes.stop_server(server)


def nginx_program() -> str:
    """Where nginx is: Debian puts it where only root looks."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if not program:
        raise processes.CouldNotRun("nginx: not found; install the package nginx-light or nginx")
    return program


def _configuration(prefix: pathlib.Path, log: str, blocks: str) -> str:
    # Only loopback is answered: the port is bound on all addresses so that each 127.x.y.z need not be listed.
    user = "user root;" if os.geteuid() == 0 else ""
    temporary = "\n".join(f"    {kind}_temp_path {prefix}/{kind};"
                          for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""
{user}
daemon off;
worker_processes 1;
worker_rlimit_nofile 20000;
pid {prefix}/pid;
events {{ worker_connections 10000; }}
http {{
{temporary}
    # The start of a request is $msec - $request_time; a buffered log could be read too early.
    log_format starts '{log}';
    access_log {prefix}/access.log starts;
    keepalive_requests 1000000000;
    keepalive_timeout 3600s;
    default_type text/plain;
    open_file_cache max=100 inactive=1h;
    allow 127.0.0.0/8;
    deny all;
{blocks}
}}
"""


_LOG = "$msec $request_time $host $server_port $uri $status"
_LOG_TLS = f"{_LOG} $connection $ssl_session_reused $ssl_protocol"


def _plain(prefix: pathlib.Path, port: int) -> str:
    return f"""
    server {{
        listen {port} default_server backlog=4096;
        location = /robots.txt {{ access_log off; return 404; }}
        # Feeds are files that change (W11).
        location ^~ /feeds/ {{ root {prefix}; default_type application/rss+xml; open_file_cache off; }}
        # A regular expression, so that `alias` is the file itself and $uri stays what was asked for.
        location ~ ^/ {{ alias {prefix}/page; }}
    }}
    server {{
        listen {port};
        server_name {BLOCKED_HOST};
        location = /robots.txt {{ access_log off; return 404; }}
        location / {{ add_header Retry-After 600 always; return 429; }}
    }}
"""


def _tls(prefix: pathlib.Path, keeping: int, closing: int) -> str:
    return f"""
    ssl_certificate {prefix}/cert.pem;
    ssl_certificate_key {prefix}/key.pem;
    ssl_protocols TLSv1.2 TLSv1.3;
    server {{
        listen {keeping} ssl backlog=4096;
        access_log {prefix}/keeping.log starts;
        location ~ ^/ {{ alias {prefix}/page; }}
    }}
    server {{
        listen {closing} ssl backlog=4096;
        access_log {prefix}/closing.log starts;
        keepalive_timeout 0;
        location ~ ^/ {{ alias {prefix}/page; }}
    }}
"""


class Storm:
    """The site that allows ten requests, then refuses for five seconds (its rules: bench/storm)."""

    def __init__(self, log: pathlib.Path, port: int):
        self.log, self.port = log, port

    def urls(self, count: int) -> list[str]:
        """`count` pages of the site."""
        return [f"http://127.0.0.1:{self.port}/{page}" for page in range(count)]

    def requests(self) -> list[judge.Request]:
        """All requests so far but those for robots.txt, in order of their start."""
        return judge.read_storm(self.log)


@contextlib.contextmanager
def storm(bench: Bench):
    """A fresh storm site on a free port."""
    folder = bench.fresh_folder()
    output = folder / "output"
    server = processes.start([bench.binaries / "bench-storm", folder / "log"], processes.SERVER_CORE, output, folder)
    try:
        port = wait_until(lambda: output.read_text().endswith("\n") and int(output.read_text()), server, output)
        yield Storm(folder / "log", port)
    finally:
        processes.end(server)


class Judge:
    """A server for any number of hosts that logs when the kernel received each request (bench/judge)."""

    def __init__(self, log: pathlib.Path, port: int):
        self.log, self.port = log, port
        self._read = 0

    def url(self, host: str, page: int) -> str:
        """Page `page` of `host`; each page has its own address and the same body."""
        return f"http://{host}:{self.port}/{page}"

    def forget(self) -> None:
        """Requests up to now belong to an earlier run."""
        self._read = self.log.stat().st_size

    def arrivals(self) -> judge.Arrivals:
        """The requests since `forget`."""
        return judge.Arrivals(self.log, self._read)


@contextlib.contextmanager
def judge_server(bench: Bench):
    """A fresh judge on a free port."""
    folder = bench.fresh_folder()
    output = folder / "output"
    server = processes.start([bench.binaries / "bench-judge", folder / "log"], processes.SERVER_CORE, output, folder)
    try:
        port = wait_until(lambda: output.read_text().endswith("\n") and int(output.read_text()), server, output)
        yield Judge(folder / "log", port)
    finally:
        processes.end(server)


def free_port() -> int:
    """A port of loopback that nobody listens on at the moment."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many of them, all different."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def wait_for_port(port: int, server, output: pathlib.Path) -> None:
    """Returns once `server` listens there."""
    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(answers, server, output)


def wait_until(ready, server, output: pathlib.Path):
    """What `ready` returns once it is true; a server that ends first could not run."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if value := ready():
            return value
        if server.poll() is not None:
            break
        time.sleep(0.02)
    raise processes.CouldNotRun(f"{server.args[0]}: did not start:\n{output.read_text(errors='replace')}")
