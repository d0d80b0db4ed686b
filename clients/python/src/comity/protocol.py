"""Every call of the service and every loop around one, without input or output.

A flow is a generator: it yields what is to be done (a call, or a pause) and is sent what came of it. The clients only
perform; so that what they do is written once, and can be tested without a network or a clock.
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
from .outcome import headers_about_waiting
from .types import Decision, Domain, Explanation, Intent, Recorded, Report

T = TypeVar("T")

SERVER = "http://127.0.0.1:7878"
#: How long one call stays in line before it is repeated, so that a service that vanished is noticed some day.
IN_LINE = 120.0
#: How long a caller in line puts up with a service that restarts.
AWAY = 30.0
#: The longest lease that the service gives, in seconds. What takes longer is renewed.
LEASE_MAX = 600.0
#: Most checks or records in one call.
BATCH = 1000
#: How long to wait before a report of many that was not heard is told again.
UNHEARD = (0.5, 1.0, 2.0, 4.0)
#: What is logged when a report did not get through.
UNRECORDED = "%s: what became of a request was not recorded: %s"
#: How httpx is to connect: as many connections as callers stand in line, and never by way of a proxy that is meant for
#: the sites.
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
    #: Seconds that the answer may take on top of the client's timeout.
    in_line: float = 0.0
    #: Says that a repeated call is the same one: a connection that breaks does not cost a second slot.
    key: Optional[str] = None


@dataclass(frozen=True)
class Pause:
    """Nothing is to be done for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Reply:
    """What the service answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Step = Union[Call, Pause]
Flow = Generator[Step, Optional[Reply], T]


def check(target: str, intent: Intent, lease: Optional[float] = None) -> Flow[Decision]:
    return (yield from _ask(_post("/v1/check", _question(target, intent, lease), keyed=True), Decision.read))


def peek(target: str, intent: Intent) -> Flow[Decision]:
    return (yield from _ask(_post("/v1/peek", _question(target, intent)), Decision.read))


def acquire(target: str, intent: Intent, max_wait: float, lease: Optional[float] = None) -> Flow[Decision]:
    body = {**_question(target, intent, lease), "max_wait_ms": max(0, round(max_wait * 1000))}
    call = _post("/v1/acquire", body, keyed=True, in_line=max_wait)
    return (yield from _ask(call, Decision.read))


def check_many(targets: Iterable[str], intent: Intent, lease: Optional[float] = None) -> Flow[List[Decision]]:
    decisions: List[Decision] = []
    for checks in _chunks([_question(target, intent, lease) for target in targets]):
        call = _post("/v1/check/batch", {"checks": checks}, keyed=True)
        decisions.extend((yield from _ask(call, _each(Decision.read))))
    return decisions


def record(report: Report) -> Flow[Recorded]:
    body = _statement(report)
    # A permit is recorded once, however often it is sent.
    call = _post("/v1/record", body, keyed="permit" not in body)
    return (yield from _ask(call, Recorded.read))


def renew(decision: Decision, lease: Optional[float]) -> Flow[bool]:
    if decision.permit is None:
        raise ValueError(f"the decision for {decision.domain} let no request go: there is nothing to renew")
    body = {"permit": decision.permit, **_lease(lease)}
    return (yield from _ask(_post("/v1/renew", body), lambda answer: bool(answer["renewed"])))


def record_many(reports: Iterable[Report]) -> Flow[List[Recorded]]:
    recorded: List[Recorded] = []
    for records in _chunks([_statement(report) for report in reports]):
        recorded.extend((yield from _record_all(records)))
    return recorded


def _record_all(records: List[Dict[str, Any]]) -> Flow[List[Recorded]]:
    """Those that the service could not hear at the moment are told again, for a while."""
    told: Dict[int, Recorded] = {}
    for pause in (*UNHEARD, None):
        left = [nth for nth in range(len(records)) if nth not in told]
        call = _post("/v1/record/batch", {"records": [records[nth] for nth in left]}, keyed=True)
        answers = yield from _ask(call, _each(Recorded.read))
        told.update((nth, one) for nth, one in zip(left, answers) if one.standing != "unheard")
        if len(told) == len(records):
            break
        if pause is None:
            unheard = len(records) - len(told)
            raise Unavailable(f"{unheard} of {len(records)} reports could not be recorded", met=True)
        yield Pause(pause)
    return [told[nth] for nth in range(len(records))]


def explain(target: str, intent: Intent) -> Flow[Explanation]:
    path = f"/v1/domains/{_segment(target)}/explain?intent={intent}"
    return (yield from _ask(Call("GET", path), Explanation.read))


def domain(target: str) -> Flow[Optional[Domain]]:
    try:
        return (yield from _ask(Call("GET", f"/v1/domains/{_segment(target)}"), Domain.read))
    except Invalid as nothing_known:
        if nothing_known.status != 404:
            raise
        return None


def obtain(
    target: str,
    intent: Intent,
    timeout: Optional[float],
    clock: Callable[[], float] = time.monotonic,
    lease: Optional[float] = None,
) -> Flow[Decision]:
    """Asks until the request may leave. A service that was never there is an error at once; one that goes away while
    we are in line, or has no room for us, gets some time to come back."""
    deadline = None if timeout is None else clock() + timeout
    met, away_since = False, None
    # The first question waits for nothing: who stands in line is not told before the time is up that the domain is
    # paused.
    max_wait = 0.0
    while True:
        asked_at = clock()
        left = IN_LINE if deadline is None else max(0.0, deadline - asked_at)
        try:
            decision = yield from acquire(target, intent, min(max_wait, left), lease)
        except Unavailable as away:
            met = met or away.met
            away_since = asked_at if away_since is None else away_since
            overdue = deadline is not None and clock() >= deadline
            if not met or overdue or clock() - away_since > AWAY:
                raise
            rest = AWAY if deadline is None else max(0.0, deadline - clock())
            yield Pause(min(away.retry_after or 0.5, AWAY, rest))
            continue
        met, away_since = True, None
        if decision.proceed:
            return decision
        if decision.refused:
            raise Refused(decision)
        if deadline is not None and clock() >= deadline:
            raise TimedOut(decision)
        # Who stops, or keeps nobody in line, answers at once; asking again at once would be a busy loop.
        if decision.limit == "stopping" or clock() - asked_at < min(max_wait, left, 0.05):
            yield Pause(min(0.5, left))
        max_wait = IN_LINE


def send(call: Call, token: Optional[str], timeout: float) -> Dict[str, Any]:
    """The keyword arguments of httpx for a call."""
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
        "timeout": httpx.Timeout(timeout, read=timeout + call.in_line),
    }


def received(response: httpx.Response) -> Reply:
    return Reply(response.status_code, response.headers, response.content)


def unreachable(error: httpx.HTTPError, server: str) -> Unavailable:
    """What an exception of httpx means for the caller."""
    broke = isinstance(error, (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError))
    said = str(error) or type(error).__name__
    return Unavailable(f"{_without_password(server)}: the decision service is not reachable: {said}", met=broke)


def server_and_token(server: Optional[str], token: Optional[str]) -> "tuple[str, Optional[str]]":
    """What was given, or the environment's, or the default."""
    chosen = server or os.environ.get("COMITY_SERVER") or SERVER
    if "://" not in chosen:
        chosen = f"http://{chosen}"
    return chosen.rstrip("/"), token or os.environ.get("COMITY_TOKEN") or None


def _without_password(server: str) -> str:
    scheme, separator, rest = server.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"


def _ask(call: Call, read: Callable[[Any], T]) -> Flow[T]:
    try:
        reply = yield call
    except Unavailable as broke:
        if not broke.met:
            raise
        # A kept connection may have been closed just as it was used; a new one tells.
        try:
            reply = yield call
        except Unavailable as gone:
            gone.met = True
            raise
    assert reply is not None
    return _read(reply, read)


def _each(read: Callable[[Any], T]) -> Callable[[Any], List[T]]:
    return lambda answer: [read(one) for one in answer["results"]]


def _read(reply: Reply, read: Callable[[Any], T]) -> T:
    if 200 <= reply.status < 300:
        try:
            return read(json.loads(reply.body))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            detail = f"what answers there does not speak as a decision service does: is it Comity? ({error!r})"
            raise Invalid(reply.status, {"detail": detail}) from error
    try:
        problem = json.loads(reply.body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"detail": f"the service answered {reply.status}"}
    # 409 is a call of ours that is still under way, 408 one that got lost: both pass by themselves.
    if reply.status >= 500 or reply.status in (408, 409):
        said = problem.get("detail") or problem.get("title")
        raise Unavailable(f"{said}", retry_after=_seconds(reply.headers.get("retry-after")), met=True)
    raise Invalid(reply.status, problem)


def _seconds(text: Optional[str]) -> Optional[float]:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


def _post(path: str, body: Mapping[str, Any], *, keyed: bool = False, in_line: float = 0.0) -> Call:
    return Call("POST", path, body, in_line=in_line, key=uuid.uuid4().hex if keyed else None)


def _question(target: str, intent: Intent, lease: Optional[float] = None) -> Dict[str, Any]:
    return {"url" if "://" in target else "domain": target, "intent": intent, **_lease(lease)}


def _lease(lease: Optional[float]) -> Dict[str, Any]:
    return {} if lease is None else {"lease_ms": max(1, round(min(lease, LEASE_MAX) * 1000))}


def _statement(report: Report) -> Dict[str, Any]:
    if (report.status is None) == (report.outcome is None):
        raise ValueError("a report has a status or an outcome: expected exactly one of them")
    if isinstance(report.target, str):
        body = _question(report.target, report.intent or "fetch")
    elif report.target.permit is not None:
        body = {"permit": report.target.permit}
    else:
        raise ValueError(f"the decision for {report.target.domain} let no request go: there is nothing to record")
    said = {
        "status": report.status,
        "outcome": report.outcome,
        "headers": headers_about_waiting(report.headers) or None,
        "retry_after": report.retry_after,
        "ratelimit": report.ratelimit,
        "latency_ms": report.latency_ms,
    }
    body.update((name, value) for name, value in said.items() if value is not None)
    return body


def _segment(target: str) -> str:
    """A domain as part of a path; that of a URL is its host, with the port where it is not the scheme's own."""
    if "://" in target:
        url = urlsplit(target)
        target = url.netloc.rpartition("@")[2]
        target = target[: -len(f":{url.port}")] if url.port == _PORTS.get(url.scheme) and url.port else target
    return quote(target, safe="")


def _chunks(items: List[Dict[str, Any]]) -> Iterable[List[Dict[str, Any]]]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


_PORTS = {"http": 80, "https": 443}
