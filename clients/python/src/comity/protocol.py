"""All calls to the service, with their retries and waits, but without I/O.

A flow is a generator: it yields what to do next (a call, or a pause) and is sent the result. The clients only perform
these steps. So the logic is written once for both clients, and can be tested without a network or a clock.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import dataclass
from typing import Any, Callable, Dict, Generator, Iterable, List, Mapping, Optional, TypeVar, Union
from urllib.parse import quote, urlsplit

import httpx

from .errors import Invalid, Refused, TimedOut, Unavailable
from .outcome import rate_limit_headers
from .types import Decision, Domain, Explanation, Intent, Recorded, Report

T = TypeVar("T")

SERVER = "http://127.0.0.1:7878"
#: How long one call waits in line before it is repeated, so that a service that vanished is noticed eventually.
WAIT_PER_CALL = 120.0
#: How long a caller in line waits for a service that is down, for example because it restarts.
OUTAGE_MAX = 30.0
#: The longest lease that the service allows, in seconds. For longer requests, renew the lease.
LEASE_MAX = 600.0
#: The maximum number of checks or records per call.
BATCH = 1000
#: How long to wait before each retry of reports that a batch could not record, in seconds.
RECORD_RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0)
#: The log message when an outcome could not be recorded.
NOT_RECORDED = "%s: could not record the outcome of a request: %s"
#: How httpx connects: with as many connections as there are callers in line, and never through the proxy from the
#: environment, which is meant for the sites.
CONNECTIONS: Dict[str, Any] = {
    "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
    "trust_env": False,
}


@dataclass(frozen=True)
class Call:
    """One request to the service."""

    method: str
    path: str
    body: Optional[Mapping[str, Any]] = None
    #: Seconds that the response may take on top of the client's timeout.
    max_wait: float = 0.0
    #: The idempotency key: if the connection breaks, the repeated call does not reserve a second slot.
    key: Optional[str] = None


@dataclass(frozen=True)
class Pause:
    """A wait before the next step."""

    seconds: float


@dataclass(frozen=True)
class Reply:
    """A response of the service."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Step = Union[Call, Pause]
Flow = Generator[Step, Optional[Reply], T]


def check(target: str, intent: Intent, lease: Optional[float] = None) -> Flow[Decision]:
    return (yield from _request(_post("/v1/check", _check_body(target, intent, lease), keyed=True), Decision.read))


def peek(target: str, intent: Intent) -> Flow[Decision]:
    return (yield from _request(_post("/v1/peek", _check_body(target, intent)), Decision.read))


def acquire(target: str, intent: Intent, max_wait: float, lease: Optional[float] = None) -> Flow[Decision]:
    body = {**_check_body(target, intent, lease), "max_wait_ms": max(0, round(max_wait * 1000))}
    call = _post("/v1/acquire", body, keyed=True, max_wait=max_wait)
    return (yield from _request(call, Decision.read))


def check_many(targets: Iterable[str], intent: Intent, lease: Optional[float] = None) -> Flow[List[Decision]]:
    decisions: List[Decision] = []
    for checks in _chunks([_check_body(target, intent, lease) for target in targets]):
        call = _post("/v1/check/batch", {"checks": checks}, keyed=True)
        decisions.extend((yield from _request(call, _each(Decision.read))))
    return decisions


def record(report: Report) -> Flow[Recorded]:
    body = _record_body(report)
    # A permit is recorded only once, however often it is sent, so it needs no idempotency key.
    call = _post("/v1/record", body, keyed="permit" not in body)
    return (yield from _request(call, Recorded.read))


def renew(decision: Decision, lease: Optional[float]) -> Flow[bool]:
    if decision.permit is None:
        raise ValueError(f"the decision for {decision.domain} has no permit, so there is nothing to renew")
    body = {"permit": decision.permit, **_lease(lease)}
    return (yield from _request(_post("/v1/renew", body), lambda answer: bool(answer["renewed"])))


def record_many(reports: Iterable[Report]) -> Flow[List[Recorded]]:
    recorded: List[Recorded] = []
    for records in _chunks([_record_body(report) for report in reports]):
        recorded.extend((yield from _record_all(records)))
    return recorded


def _record_all(records: List[Dict[str, Any]]) -> Flow[List[Recorded]]:
    """Records a batch. Reports that the service could not record at the moment are retried a few times."""
    done: Dict[int, Recorded] = {}
    for pause in (*RECORD_RETRY_DELAYS, None):
        remaining = [nth for nth in range(len(records)) if nth not in done]
        call = _post("/v1/record/batch", {"records": [records[nth] for nth in remaining]}, keyed=True)
        results = yield from _request(call, _each(Recorded.read))
        done.update((nth, one) for nth, one in zip(remaining, results) if one.standing != "unheard")
        if len(done) == len(records):
            break
        if pause is None:
            failed = len(records) - len(done)
            raise Unavailable(f"{failed} of {len(records)} reports could not be recorded", met=True)
        yield Pause(pause)
    return [done[nth] for nth in range(len(records))]


def explain(target: str, intent: Intent) -> Flow[Explanation]:
    path = f"/v1/domains/{_segment(target)}/explain?intent={intent}"
    return (yield from _request(Call("GET", path), Explanation.read))


def domain(target: str) -> Flow[Optional[Domain]]:
    try:
        return (yield from _request(Call("GET", f"/v1/domains/{_segment(target)}"), Domain.read))
    except Invalid as nothing_known:
        if nothing_known.status != 404:
            raise
        return None


def wait_for_permit(
    target: str,
    intent: Intent,
    timeout: Optional[float],
    clock: Callable[[], float] = time.monotonic,
    lease: Optional[float] = None,
) -> Flow[Decision]:
    """Waits until the request may be sent. If the service was never reached, that is an error at once. If it goes
    down while we are in line, or has reached a limit, it gets some time to come back."""
    deadline = None if timeout is None else clock() + timeout
    met, down_since = False, None
    # The first call does not wait. If the site is paused, a call that waits in line would report that only at its
    # end.
    max_wait = 0.0
    while True:
        asked_at = clock()
        remaining = WAIT_PER_CALL if deadline is None else max(0.0, deadline - asked_at)
        try:
            decision = yield from acquire(target, intent, min(max_wait, remaining), lease)
        except Unavailable as error:
            met = met or error.met
            down_since = asked_at if down_since is None else down_since
            overdue = deadline is not None and clock() >= deadline
            if not met or overdue or clock() - down_since > OUTAGE_MAX:
                raise
            pause_max = OUTAGE_MAX if deadline is None else max(0.0, deadline - clock())
            yield Pause(min(error.retry_after or 0.5, OUTAGE_MAX, pause_max))
            continue
        met, down_since = True, None
        if decision.proceed:
            return decision
        if decision.refused:
            raise Refused(decision)
        if deadline is not None and clock() >= deadline:
            raise TimedOut(decision)
        # A service that is shutting down, or lets nobody wait in line, answers at once. Pause to avoid a busy loop.
        if decision.limit == "stopping" or clock() - asked_at < min(max_wait, remaining, 0.05):
            yield Pause(min(0.5, remaining))
        max_wait = WAIT_PER_CALL


def request_arguments(call: Call, token: Optional[str], timeout: float) -> Dict[str, Any]:
    """The keyword arguments of `httpx.Client.request` for a call."""
    headers = {"Accept": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if call.key is not None:
        headers["Idempotency-Key"] = call.key
    return {
        "method": call.method,
        "url": call.path,
        "headers": headers,
        "json": call.body,
        "timeout": httpx.Timeout(timeout, read=timeout + call.max_wait),
    }


def to_reply(response: httpx.Response) -> Reply:
    return Reply(response.status_code, response.headers, response.content)


def unreachable(error: httpx.HTTPError, server: str) -> Unavailable:
    """The error for an exception of httpx."""
    broke = isinstance(error, (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError))
    cause = str(error) or type(error).__name__
    return Unavailable(f"{_without_password(server)}: the decision service can't be reached: {cause}", met=broke)


def server_and_token(server: Optional[str], token: Optional[str]) -> "tuple[str, Optional[str]]":
    """The arguments, or else the environment variables, or else the defaults."""
    chosen = server or os.environ.get("COMITY_SERVER") or SERVER
    if "://" not in chosen:
        chosen = f"http://{chosen}"
    return chosen.rstrip("/"), token or os.environ.get("COMITY_TOKEN") or None


def _without_password(server: str) -> str:
    scheme, separator, rest = server.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"


def _request(call: Call, read: Callable[[Any], T]) -> Flow[T]:
    try:
        reply = yield call
    except Unavailable as broke:
        if not broke.met:
            raise
        # A kept-alive connection may have been closed just as it was used. Retry once on a new one.
        try:
            reply = yield call
        except Unavailable as gone:
            gone.met = True
            raise
    assert reply is not None
    return _parse(reply, read)


def _each(read: Callable[[Any], T]) -> Callable[[Any], List[T]]:
    return lambda answer: [read(one) for one in answer["results"]]


def _parse(reply: Reply, read: Callable[[Any], T]) -> T:
    if 200 <= reply.status < 300:
        try:
            return read(json.loads(reply.body))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            detail = f"unexpected response from the server at this address: is it Comity? ({error!r})"
            raise Invalid(reply.status, {"detail": detail}) from error
    try:
        problem = json.loads(reply.body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"detail": f"the service answered HTTP {reply.status}"}
    # 409: our own call with the same key is still in progress. 408: the request got lost. Both are temporary.
    if reply.status >= 500 or reply.status in (408, 409):
        reason = problem.get("detail") or problem.get("title")
        raise Unavailable(f"{reason}", retry_after=_seconds(reply.headers.get("retry-after")), met=True)
    raise Invalid(reply.status, problem)


def _seconds(text: Optional[str]) -> Optional[float]:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


def _post(path: str, body: Mapping[str, Any], *, keyed: bool = False, max_wait: float = 0.0) -> Call:
    return Call("POST", path, body, max_wait=max_wait, key=uuid.uuid4().hex if keyed else None)


def _check_body(target: str, intent: Intent, lease: Optional[float] = None) -> Dict[str, Any]:
    return {"url" if "://" in target else "domain": target, "intent": intent, **_lease(lease)}


def _lease(lease: Optional[float]) -> Dict[str, Any]:
    return {} if lease is None else {"lease_ms": max(1, round(min(lease, LEASE_MAX) * 1000))}


def _record_body(report: Report) -> Dict[str, Any]:
    if (report.status is None) == (report.outcome is None):
        raise ValueError("expected exactly one of status and outcome in a report")
    if isinstance(report.target, str):
        body = _check_body(report.target, report.intent or "fetch")
    elif report.target.permit is not None:
        body = {"permit": report.target.permit}
    else:
        raise ValueError(f"the decision for {report.target.domain} has no permit, so there is nothing to record")
    fields = {
        "status": report.status,
        "outcome": report.outcome,
        "headers": rate_limit_headers(report.headers) or None,
        "retry_after": report.retry_after,
        "ratelimit": report.ratelimit,
        "latency_ms": report.latency_ms,
    }
    body.update((name, value) for name, value in fields.items() if value is not None)
    return body


def _segment(target: str) -> str:
    """A site as a path segment. For a URL that is its host, with its port unless that is the scheme's default."""
    if "://" in target:
        url = urlsplit(target)
        target = url.netloc.rpartition("@")[2]
        target = target[: -len(f":{url.port}")] if url.port == _PORTS.get(url.scheme) and url.port else target
    return quote(target, safe="")


def _chunks(items: List[Dict[str, Any]]) -> Iterable[List[Dict[str, Any]]]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


_PORTS = {"http": 80, "https": 443}
