"""Outcomes of fetches, with real HTTP libraries and real sockets."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import ssl
import threading
import urllib.request
from typing import Any, Callable, Dict, Iterator

import aiohttp
import httpx
import pytest
import requests
from servers import free_port

from comity import Decision, Permit, TimedOut
from comity.outcome import rate_limit_headers, of_exception, of_response
from comity.permit import WarmConnections

Fetch = Callable[[str], Any]


def with_requests(url: str) -> Any:
    response = requests.get(url, timeout=3)
    response.raise_for_status()
    return response


def with_httpx(url: str) -> Any:
    response = httpx.get(url, timeout=3)
    response.raise_for_status()
    return response


def with_urllib(url: str) -> Any:
    response = urllib.request.urlopen(url, timeout=3)
    response.read()
    return response


def with_aiohttp(url: str) -> Any:
    async def fetch() -> Any:
        timeout = aiohttp.ClientTimeout(total=3)
        async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:
            async with session.get(url) as response:
                await response.read()
                return response

    return asyncio.run(fetch())


EVERY = pytest.mark.parametrize("fetch", [with_requests, with_httpx, with_urllib, with_aiohttp])


@contextlib.contextmanager
def server(answer: bytes) -> Iterator[str]:
    """A server that answers every connection with these bytes and closes it. Without bytes, it never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            kept.append(connection)
            if answer:
                # The client may already be gone, and the test over, when this thread gets to run.
                with contextlib.suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    listener.close()
    for connection in kept:
        connection.close()


def caught(fetch: Fetch, url: str) -> BaseException:
    with pytest.raises(Exception) as error:
        fetch(url)
    return error.value


@EVERY
def test_no_response_in_time_is_a_timeout(fetch: Fetch) -> None:
    with server(b"") as url:
        assert of_exception(caught(fetch, url)) == "timeout"


@EVERY
def test_a_refused_connection_is_a_network_error(fetch: Fetch) -> None:
    assert of_exception(caught(fetch, f"http://127.0.0.1:{free_port()}/")) == "network_error"


@EVERY
@pytest.mark.parametrize("answer", [b"\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"])
def test_a_broken_connection_is_a_network_error(fetch: Fetch, answer: bytes) -> None:
    with server(answer) as url:
        assert of_exception(caught(fetch, url)) == "network_error"


@EVERY
def test_an_exception_with_a_response_is_recorded_as_that_response(fetch: Fetch) -> None:
    answer = b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
    with server(answer) as url:
        assert of_exception(caught(fetch, url)) == (429, {"retry-after": "7"})


@EVERY
def test_status_and_rate_limit_headers_are_read(fetch: Fetch) -> None:
    with server(b"HTTP/1.1 200 OK\r\nRateLimit: a;r=1;t=2\r\nRateLimit: b;r=3;t=4\r\nContent-Length: 0\r\n\r\n") as url:
        assert of_response(fetch(url)) == (200, {"ratelimit": "a;r=1;t=2, b;r=3;t=4"})


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TimeoutError(), "timeout"),
        (socket.timeout(), "timeout"),
        (asyncio.TimeoutError(), "timeout"),
        (concurrent.futures.TimeoutError(), "timeout"),
        (socket.gaierror(), "network_error"),
        (ssl.SSLError(), "network_error"),
        (OSError(113, "no route to host"), "network_error"),
        # Not about the site, whatever the message says.
        (ValueError("connection timed out"), "abandoned"),
        (FileNotFoundError("timeout"), "abandoned"),
        (asyncio.CancelledError(), "abandoned"),
        (KeyboardInterrupt(), "abandoned"),
        (httpx.PoolTimeout("all in use"), "abandoned"),
        (httpx.UnsupportedProtocol("gopher"), "abandoned"),
        (requests.exceptions.InvalidURL("no host"), "abandoned"),
    ],
)
def test_exceptions_are_classified_by_type_not_by_message(error: BaseException, outcome: str) -> None:
    assert of_exception(error) == outcome


def test_errors_of_comity_are_not_blamed_on_the_site() -> None:
    assert of_exception(TimedOut(decision())) == "abandoned"


def test_headers_of_every_shape() -> None:
    shapes: Any = [
        {"Retry-After": "5"},
        {b"Retry-After": [b"5"]},
        [("RETRY-AFTER", "5"), ("Cookie", "no")],
        httpx.Headers({"retry-after": "5"}),
    ]
    assert [rate_limit_headers(shape) for shape in shapes] == [{"retry-after": "5"}] * 4
    assert rate_limit_headers(None) == {}


def decision() -> Decision:
    return Decision(True, "example.org", "", 0, 0, "p1.x", None, None, False)


def reported(permit: Permit, error: Any = None) -> Dict[str, Any]:
    report = permit.report(error)
    return {name: value for name, value in vars(report).items() if value and name not in ("target", "latency_ms")}


def test_what_a_permit_reports() -> None:
    assert reported(Permit(decision())) == {"outcome": "success"}
    assert reported(Permit(decision()), TimeoutError()) == {"outcome": "timeout"}
    permit = Permit(decision())
    permit.answered(503, {"Retry-After": "9"})
    expected = {"status": 503, "headers": {"retry-after": "9"}}
    assert reported(permit, ValueError()) == expected, "what was reported wins over the exception"
    permit.outcome("rate_limited")
    assert reported(permit) == {"outcome": "rate_limited"}, "what was reported last wins"
    permit.answered(999)
    assert reported(permit) == {"status": 999}
    permit.answered(1000)
    assert reported(permit) == {"outcome": "server_error"}
    with pytest.raises(ValueError, match="expected one of success, "):
        permit.outcome("fine")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got str"):
        permit.response("a page")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_pace_counts_from_the_permit() -> None:
    clock = Clock()
    permit = Permit(decision(), clock=clock)
    clock.now += 0.25
    permit.answered(200)
    clock.now += 3
    assert permit.report().latency_ms == 3250, "processing the page is no reason to wait longer"


def test_the_pace_counts_from_the_start_that_the_response_states() -> None:
    clock = Clock()
    permit = Permit(decision(), clock=clock)
    clock.now += 0.25
    with server(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as url:
        response = permit.response(with_httpx(url))
    assert 0 < response.elapsed.total_seconds() < 0.25
    assert permit.report().latency_ms == round(response.elapsed.total_seconds() * 1000)


def test_the_pace_counts_from_the_response_if_a_connection_had_to_be_opened() -> None:
    clock = Clock()
    permit = Permit(decision(), cold=True, clock=clock)
    clock.now += 0.25
    permit.answered(200)
    clock.now += 3
    assert permit.report().latency_ms == 3000
    permit.answered(429)
    assert permit.report().latency_ms == 3250, "a failure must not look more recent than it is"


def test_the_pace_counts_from_sent_if_the_caller_reports_it() -> None:
    clock = Clock()
    permit = Permit(decision(), cold=True, clock=clock)
    clock.now += 0.25
    permit.sent()
    clock.now += 1
    permit.answered(200)
    assert permit.report().latency_ms == 1000


def test_connections_are_warm_for_a_while() -> None:
    clock = Clock()
    warm = WarmConnections(clock)
    assert "a.example" not in warm
    warm.add("a.example")
    clock.now += 4
    assert "a.example" in warm
    clock.now += 4
    assert "a.example" not in warm
    for number in range(100):
        warm.add(f"{number}.example")
        clock.now += 1
    assert len(vars(warm)["_answered_at"]) < 10, "old entries are removed"
