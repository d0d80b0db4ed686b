"""What the server's log says. Times are integers: microseconds UTC, taken at the *start* of a request."""

import pathlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

DEADLINE_TOLERANCE_US = 10_000
"""A request is early only when it came more than this before a deadline, and more than this after the answer that stated it."""

STORM_RETRY_AFTER_US = 5_000_000


@dataclass(frozen=True)
class Request:
    """One line of a server's log."""

    start: int
    done: int
    host: str
    path: str
    status: int


def read_nginx(log: pathlib.Path, offset: int) -> list[Request]:
    """Lines `$msec $request_time $host $server_port $uri $status` from `offset` on, by start."""
    return sorted((_request(fields) for fields in _fields(log, offset)), key=lambda request: request.start)


class Connections:
    """The log of an nginx with TLS: lines as above, and `$connection $ssl_session_reused $ssl_protocol` behind them."""

    def __init__(self, log: pathlib.Path, offset: int):
        requests, numbers, resumed, protocols = [], set(), set(), set()
        for fields in _fields(log, offset):
            *request, number, reused, protocol = fields
            requests.append(_request(request))
            numbers.add(int(number))
            protocols.add(protocol)
            if reused == "r":
                resumed.add(number)
        self.requests = sorted(requests, key=lambda request: request.start)
        # nginx counts connections, so this includes those between that carried no request.
        self.opened = max(numbers) - min(numbers) + 1 if numbers else 0
        self.resumed = len(resumed)
        self.protocols = ", ".join(sorted(protocols))


def _fields(log: pathlib.Path, offset: int) -> Iterator[list[str]]:
    with log.open() as lines:
        lines.seek(offset)
        for line in lines:
            if not line.endswith("\n"):
                break  # nginx is writing this one.
            yield line.split()


def _request(fields: list[str]) -> Request:
    done, took, host, port, path, status = fields
    done_us = _microseconds(done)
    return Request(done_us - _microseconds(took), done_us, f"{host}:{port}", path, int(status))


class Arrivals:
    """The log of the judge of W4, `arrived read host path` a line: when the kernel received each request, and when the
    server read it. A million hosts must fit into memory, so only times are kept."""

    def __init__(self, log: pathlib.Path, offset: int):
        self._arrived, self._read = defaultdict(list), defaultdict(list)
        self.requests, pages = 0, set()
        with log.open() as lines:
            lines.seek(offset)
            for line in lines:
                arrived, read, host, path = line.split()
                self._arrived[host].append(int(arrived))
                self._read[host].append(int(read))
                pages.add(hash((host, path)))
                self.requests += 1
        self.pages = len(pages)

    @property
    def span_seconds(self) -> float:
        """From the first start to the last."""
        moments = self._arrived.values()
        return (max(map(max, moments)) - min(map(min, moments))) / 1e6

    def early_gaps(self, delay_ms: int) -> int:
        """How many requests followed the one before, on the same host, too soon."""
        return _early_gaps(self._arrived, delay_ms)

    def early_gaps_as_read(self, delay_ms: int) -> int:
        """The same, if it were judged by when the server got around to reading."""
        return _early_gaps(self._read, delay_ms)


def read_storm(log: pathlib.Path) -> list[Request]:
    """Lines `start done status deadline early path`, by start; robots.txt is not counted.

    The site's own mark is strict: it also marks requests that were on their way when the answer left.
    `early_after_word` looks at who could have known.
    """
    requests = []
    with log.open() as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            start, done, status, _deadline, _early, path = line.split()
            if path != "/robots.txt":
                requests.append(Request(int(start), int(done), "storm", path, int(status)))
    return sorted(requests, key=lambda request: request.start)


def pages(requests: list[Request]) -> int:
    """How many different pages were served."""
    return len({(request.host, request.path) for request in requests if request.status == 200})


def refusals(requests: list[Request]) -> int:
    """How many answers were 429."""
    return sum(request.status == 429 for request in requests)


def span_seconds(requests: list[Request]) -> float:
    """From the first start to the last."""
    return (requests[-1].start - requests[0].start) / 1e6 if requests else 0.0


def tolerance_us(delay_ms: int) -> int:
    """A gap is early only when it is shorter than the delay by more than this: max(10 ms, 1 %)."""
    return max(10_000, delay_ms * 1000 // 100)


def early_gaps(requests: list[Request], delay_ms: int) -> int:
    """How many requests followed the one before, on the same host, too soon."""
    starts = defaultdict(list)
    for request in requests:
        starts[request.host].append(request.start)
    return _early_gaps(starts, delay_ms)


def _early_gaps(starts: dict[str, list[int]], delay_ms: int) -> int:
    shortest = delay_ms * 1000 - tolerance_us(delay_ms)
    return sum(after - before < shortest
               for moments in map(sorted, starts.values())
               for before, after in zip(moments, moments[1:]))


def early_after_word(requests: list[Request]) -> int:
    """Storm: how many requests came before a deadline that an answer complete 10 ms earlier had stated."""
    return sum(request.start < stated_before(requests, request.start - DEADLINE_TOLERANCE_US) - DEADLINE_TOLERANCE_US
               for request in requests)


def stated_before(requests: list[Request], moment: int) -> int:
    """Storm: the latest deadline stated by answers that were complete at `moment` (0: none)."""
    return max((request.start + STORM_RETRY_AFTER_US for request in requests
                if request.status == 429 and request.done <= moment), default=0)


def _microseconds(seconds: str) -> int:
    """nginx prints milliseconds as a decimal fraction: exact, without a float in between."""
    whole, fraction = seconds.split(".")
    return int(whole) * 1_000_000 + int(fraction.ljust(6, "0"))
