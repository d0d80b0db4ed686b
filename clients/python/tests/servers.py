"""Real servers for the tests, each on a free port in a temporary folder: the decision service, and nginx as the site.

Tests are judged by what arrived at the site; a missing server fails the test. The time of a request is the kernel's
timestamp of its arrival. The times in nginx's log are less exact: on a busy machine, nginx handles some requests
later than others.

The standard library is enough for this module: the tests of the other clients use it too, through `clients/world`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, List, Optional, Tuple

RULES = """
[default]
min_delay = "200ms"
learning = "off"

# Long enough that nothing ends before a test looks at it.
[domains."*.long.example"]
min_delay = "5m"
backoff_base = "10m"
backoff_max = "10m"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Waits until a condition is true, and fails the test if that takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def _get(url: str) -> bytes:
    # Without the proxy from the environment.
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as answer:
        body: bytes = answer.read()
        return body


class Service:
    """`comity serve`."""

    def __init__(self, folder: Path, rules: str = RULES) -> None:
        self.binary = os.environ.get("COMITY_BIN", "")
        assert self.binary and Path(self.binary).is_file(), "COMITY_BIN must be the path of the comity binary"
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.rules = rules
        self._running: Optional[subprocess.Popen[bytes]] = None

    def start(self) -> Service:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "comity.toml"
        config.write_text(self.rules)
        # The service must not inherit the tests' own COMITY_ variables.
        env = {name: value for name, value in os.environ.items() if not name.startswith("COMITY_")}
        store = f"sqlite:{self.folder / 'comity.db'}"
        command = [self.binary, "--config", config, "--store", store, "serve", "--listen", f"127.0.0.1:{self.port}"]
        with (self.folder / "serve.log").open("ab") as out:
            self._running = subprocess.Popen(command, env=env, cwd=self.folder, stdout=out, stderr=out)
        until(self._is_ready, f"the service is ready; see {out.name}")
        return self

    def stop(self) -> None:
        if self._running is not None:
            self._running.send_signal(signal.SIGTERM)
            self._running.wait(120)
            self._running = None

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None

    def waiting(self, domain: str) -> int:
        """How many callers wait in line for a domain."""
        try:
            known = json.loads(_get(f"{self.url}/v1/domains/{domain}"))
        except urllib.error.HTTPError:
            return 0
        return int((known.get("live") or {}).get("waiting", 0))

    def _is_ready(self) -> bool:
        assert self._running is not None and self._running.poll() is None, (self.folder / "serve.log").read_text()
        try:
            _get(f"{self.url}/readyz")
        except OSError:
            return False
        return True


@dataclass(frozen=True)
class SiteRequest:
    """One request to the site: when it arrived, when its response was ready, and the status of that."""

    start: float
    end: float
    status: int
    path: str


class RecordingProxy:
    """A proxy in front of a site that records each request with the kernel's timestamp of its arrival."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.requests: List[SiteRequest] = []
        self._listener = socket.socket()
        # Connections inherit this, so data that arrives before they are accepted has a timestamp too.
        self._listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(100)
        self.port: int = self._listener.getsockname()[1]
        self._over = False
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def stop(self) -> None:
        self._over = True
        # Wakes up the accepting thread, which then ends.
        with socket.socket() as waker:
            waker.connect_ex(("127.0.0.1", self.port))
        self._accepting.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._over:
                client.close()
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.to)) as site:
            try:
                while self._exchange(client, site):
                    pass
            except OSError:
                return

    def _exchange(self, client: socket.socket, site: socket.socket) -> bool:
        """Forwards one request and its response. Returns whether there may be another request."""
        request, start = b"", 0.0
        while not request.endswith(b"\r\n\r\n"):
            more, notes, _, _ = client.recvmsg(65_536, 256)
            if not more:
                return False
            if not request:
                start = _arrived(notes)
            request += more
        site.sendall(request)
        response = _read_response(site)
        # For the status 444, nginx closes the connection without a response.
        status = int(response.split(b" ", 2)[1]) if response else 444
        path = request.split(b" ", 2)[1].decode()
        self.requests.append(SiteRequest(start, time.time(), status, path))
        client.sendall(response)
        return bool(response)


def _arrived(notes: List[Tuple[int, int, bytes]]) -> float:
    for level, kind, value in notes:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack("qq", value[:16])
            return float(seconds) + float(nanoseconds) / 1e9
    # The kernel starts to record timestamps shortly after the first socket has asked for them.
    return time.time()


def _read_response(site: socket.socket) -> bytes:
    """Reads a complete response with a Content-Length; empty if there is none."""
    response = b""
    while b"\r\n\r\n" not in response:
        more = site.recv(65_536)
        if not more:
            return b""
        response += more
    head, _, body = response.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    left = int(lengths[0]) - len(body) if lengths else 0
    while left > 0:
        more = site.recv(65_536)
        assert more, "nginx closed the connection in the middle of a response"
        response, left = response + more, left - len(more)
    return response


class Site:
    """nginx on 127.0.0.1, with these `locations`."""

    def __init__(self, folder: Path, locations: str, http: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        folder.mkdir(parents=True)
        (folder / "nginx.conf").write_text(_CONF % {**vars(self), "locations": locations, "http": http})
        nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        assert nginx, "nginx is not installed"
        self._running = subprocess.Popen([nginx, "-p", folder, "-e", folder / "error.log", "-c", folder / "nginx.conf"])
        until(self._is_up, "nginx is up")
        self._proxy = RecordingProxy(self.port)
        self.url = f"http://127.0.0.1:{self._proxy.port}"

    def stop(self) -> None:
        self._proxy.stop()
        self._running.terminate()
        self._running.wait(120)

    def requests(self) -> List[SiteRequest]:
        """All requests so far, in the order in which they arrived."""
        return sorted(self._proxy.requests, key=lambda one: one.start)

    def pages(self) -> List[str]:
        """The paths that were answered with 200."""
        return [one.path for one in self.requests() if one.status == 200]

    def _is_up(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def early(requests: List[SiteRequest], delay: float, hold: float = 0.0) -> List[str]:
    """The requests that came too early: after the request before, or after a 429 that asked for `hold` seconds."""
    found = []
    for before, this in zip(requests, requests[1:]):
        gap = this.start - before.start
        if gap < delay - max(0.010, delay / 100):
            found.append(f"{this.path}: {gap:.3f} s after {before.path}")
    for limited in (one for one in requests if one.status == 429):
        for this in requests:
            gap = this.start - limited.end
            if 0 < gap < hold - max(0.010, hold / 100):
                found.append(f"{this.path}: {gap:.3f} s after the 429 for {limited.path}")
    return found


#: Every message gets the time of its arrival, in nanoseconds. Python has no name for this option.
SO_TIMESTAMPNS = 35

#: A page from memory, because the workers of nginx may not read a temporary folder.
OPEN = "location / { empty_gif; }"
#: A burst of four, then 429 with `Retry-After`.
LIMITED = """
    location / {
        limit_req zone=pages burst=4 nodelay;
        limit_req_status 429;
        error_page 429 @later;
        empty_gif;
    }
    location @later {
        internal;
        add_header Retry-After 2 always;
        return 429;
    }
"""
LIMITED_HTTP = "limit_req_zone $server_port zone=pages:1m rate=3r/s;"

_CONF = """
daemon off;
worker_processes 1;
pid %(folder)s/pid;
error_log %(folder)s/error.log;
events {}
http {
    access_log %(folder)s/access.log;
    client_body_temp_path %(folder)s/body;
    proxy_temp_path %(folder)s/proxy;
    fastcgi_temp_path %(folder)s/fastcgi;
    uwsgi_temp_path %(folder)s/uwsgi;
    scgi_temp_path %(folder)s/scgi;
    default_type text/plain;
    %(http)s
    server {
        listen 127.0.0.1:%(port)d;
        location = /robots.txt { return 200 "User-agent: *\\nAllow: /\\n"; }
        %(locations)s
    }
}
"""
