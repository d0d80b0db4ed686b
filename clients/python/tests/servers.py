"""The real things, each started on a free port in a temporary folder: the decision service, and nginx as the site.

What the site saw is the judge; a server that is missing fails the test.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, List, Optional

import httpx

RULES = """
[default]
min_delay = "200ms"
learning = "off"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(true: Callable[[], bool], what: str, seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)


class Service:
    """`comity serve`."""

    def __init__(self, folder: Path, rules: str = RULES) -> None:
        self.binary = os.environ.get("COMITY_BIN", "")
        assert self.binary and Path(self.binary).is_file(), "COMITY_BIN has to name the comity binary"
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.rules = rules
        self._running: Optional[subprocess.Popen[bytes]] = None

    def start(self) -> Service:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "comity.toml"
        config.write_text(self.rules)
        # The tests' own variables are not settings of the service.
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
            self._running.wait(15)
            self._running = None

    def kill(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None

    def _is_ready(self) -> bool:
        assert self._running is not None and self._running.poll() is None, (self.folder / "serve.log").read_text()
        try:
            return httpx.get(f"{self.url}/readyz", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False


@dataclass(frozen=True)
class Seen:
    """One request, as nginx logged it."""

    start: float
    end: float
    status: int
    path: str


class Site:
    """nginx on 127.0.0.1, with `locations` of the caller."""

    def __init__(self, folder: Path, locations: str, http: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        folder.mkdir(parents=True)
        (folder / "nginx.conf").write_text(_CONF % {**vars(self), "locations": locations, "http": http})
        nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        assert nginx, "nginx is not installed"
        self._running = subprocess.Popen([nginx, "-p", folder, "-e", folder / "error.log", "-c", folder / "nginx.conf"])
        until(self._is_up, "nginx is up")

    def stop(self) -> None:
        self._running.terminate()
        self._running.wait(15)

    def seen(self) -> List[Seen]:
        """Every request so far, in the order in which they started."""
        seen = []
        for line in (self.folder / "access.log").read_text().splitlines():
            end, took, status, path = line.split(" ", 3)
            seen.append(Seen(float(end) - float(took), float(end), int(status), path))
        return sorted(seen, key=lambda one: one.start)

    def pages(self) -> List[str]:
        """The paths that were answered with 200."""
        return [one.path for one in self.seen() if one.status == 200]

    def _is_up(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def early(seen: List[Seen], delay: float, hold: float = 0.0) -> List[str]:
    """The starts that came too soon: after another start, or after a 429 that asked for `hold` seconds."""
    found = []
    for before, this in zip(seen, seen[1:]):
        gap = this.start - before.start
        if gap < delay - max(0.010, delay / 100):
            found.append(f"{this.path}: {gap:.3f} s after {before.path}")
    for refusal in (one for one in seen if one.status == 429):
        for this in seen:
            gap = this.start - refusal.end
            if 0 < gap < hold - max(0.010, hold / 100):
                found.append(f"{this.path}: {gap:.3f} s after the refusal of {refusal.path}")
    return found


#: A page from memory: the workers of nginx may not read a temporary folder.
OPEN = "location / { empty_gif; }"
#: At most so much at once, then 429 with `Retry-After`.
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
    log_format starts '$msec $request_time $status $request_uri';
    access_log %(folder)s/access.log starts;
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
