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

    def was_asked(self) -> bool:
        """Whether a request has arrived since `forget`."""
        return self.log.stat().st_size > self._read

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


class Postgres:
    """A PostgreSQL with pg_stat_statements, for any number of stores."""

    def __init__(self, folder: pathlib.Path, programs: pathlib.Path, port: int, server):
        self.data, self._programs, self._port, self._server = folder / "data", programs, port, server
        self._stores = 0

    def fresh_url(self, schema: str | None = None) -> str:
        """A store that does not exist yet."""
        self._stores += 1
        return f"postgres://postgres@127.0.0.1:{self._port}/postgres?schema={schema or f'bench_{self._stores}'}&sslmode=disable"

    def fresh_database(self) -> str:
        """An empty database, for libpq."""
        self._stores += 1
        self.query(f"CREATE DATABASE peer_{self._stores}")
        return f"host=127.0.0.1 port={self._port} user=postgres dbname=peer_{self._stores} sslmode=disable"

    def query(self, sql: str) -> str:
        """What psql prints."""
        command = [self._programs / "psql", "-h", "127.0.0.1", "-p", self._port, "-U", "postgres", "-X", "-qAt", "-v", "ON_ERROR_STOP=1",
                   "-c", sql, "postgres"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode:
            raise processes.CouldNotRun(f"psql: {sql}: {done.stderr}")
        return done.stdout.strip()

    def forget_statements(self) -> None:
        """Statements up to now belong to an earlier run."""
        self.query("SELECT pg_stat_statements_reset()")

    def round_trips(self) -> int:
        """The statements since then and two for each transaction, of which some share a round trip."""
        return int(self.query("""
            SELECT coalesce(sum(calls) FILTER (WHERE query ~* '^(SELECT|INSERT|UPDATE|DELETE|WITH|LOCK|NOTIFY|LISTEN)' AND query NOT LIKE '%pg_current_xact_id()%'), 0)
                + 2 * coalesce(sum(calls) FILTER (WHERE query ~* '^BEGIN'), 0)
            FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'"""))

    def cpu_seconds(self) -> float:
        """User and system time of the server so far, with those of its processes that ended."""
        ticks = 0
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(stat.parent.name) == self._pid():
                    # Its own, and those of its children that were waited for.
                    ticks += sum(map(int, fields[11:15]))
                elif int(fields[1]) == self._pid():
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _pid(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def version(self) -> str:
        """The number alone."""
        return f"PostgreSQL {self.query('SHOW server_version').split()[0]}"


@contextlib.contextmanager
def postgres(bench: Bench, core: int | str = processes.SERVER_CORE):
    """An unprivileged PostgreSQL in a temporary folder, on a free port, as durable as it comes."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        raise processes.CouldNotRun("PostgreSQL: not found; install the package postgresql")
    folder, port, programs = bench.fresh_folder(), free_port(), found[-1]
    as_user = []
    if os.geteuid() == 0:
        # It refuses to run as root, and its user must reach the folder.
        as_user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(folder, "postgres")
        bench.folder.chmod(0o755)
    data = folder / "data"
    subprocess.run([*as_user, programs / "initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "-D", data],
                   check=True, stdout=subprocess.DEVNULL)
    with (data / "postgresql.conf").open("a") as settings:
        settings.write(f"port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = 200\n"
                       "shared_buffers = 512MB\nmax_wal_size = 4GB\nshared_preload_libraries = 'pg_stat_statements'\n"
                       "max_locks_per_transaction = 1024\n")
    server = processes.start([*as_user, programs / "postgres", "-D", data], core, folder / "output", folder)
    try:
        wait_for_port(port, server, folder / "output")
        database = Postgres(folder, programs, port, server)
        wait_until(lambda: _answers(database), server, folder / "output")
        database.query("CREATE EXTENSION pg_stat_statements")
        yield database
    finally:
        processes.stop_server(server)


def _answers(database: Postgres) -> bool:
    with contextlib.suppress(processes.CouldNotRun):
        return database.query("SELECT 1") == "1"
    return False
