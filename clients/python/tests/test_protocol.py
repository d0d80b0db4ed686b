"""The flows, in virtual time: a script of what the service does in, a sentence of what was done out."""

from __future__ import annotations

import json
from typing import Any, List, Optional

import httpx
import pytest

from comity import Decision, Invalid, Refused, Report, TimedOut, Unavailable, protocol
from comity.protocol import Call, Flow, Pause, Reply


class World:
    """Performs a flow: answers calls from a script, and lets time pass as it would."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.now = 0.0
        self.calls: List[Call] = []
        self.pauses: List[float] = []

    def clock(self) -> float:
        return self.now

    def run(self, flow: Flow[Any]) -> Any:
        try:
            step = next(flow)
            while True:
                try:
                    reply = self.perform(step)
                except Unavailable as trouble:
                    step = flow.throw(trouble)
                else:
                    step = flow.send(reply)
        except StopIteration as end:
            return end.value

    def perform(self, step: Any) -> Optional[Reply]:
        if isinstance(step, Pause):
            assert step.seconds >= 0
            self.now += step.seconds
            self.pauses.append(step.seconds)
            return None
        self.calls.append(step)
        does = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(does, Unavailable):
            raise Unavailable(str(does), retry_after=does.retry_after, met=does.met)
        if does.get("in_line"):
            self.now += step.in_line
        return Reply(does.get("status", 200), does.get("headers", {}), json.dumps(does["body"]).encode())


def decided(proceed: bool, **more: Any) -> Any:
    body = {"proceed": proceed, "wait_ms": 0 if proceed else 1480, "reason": "minimum delay", "domain": "example.org"}
    body.update(permit="p1.x" if proceed else None, limit=None, origin=None, refused=False, waited_ms=0)
    in_line = more.pop("in_line", not proceed)
    return {"body": {**body, **more}, "in_line": in_line}


def problem(status: int, **members: Any) -> Any:
    return {"status": status, "body": {"type": "about:blank", "title": "no", "status": status, **members}}


GONE = Unavailable("refused")
BROKE = Unavailable("broke", met=True)
URL = "https://example.org/"


def obtain(world: World, timeout: Optional[float] = None) -> Any:
    return world.run(protocol.obtain(URL, "fetch", timeout, world.clock))


def test_a_permit_is_waited_for_over_several_calls() -> None:
    world = World(decided(False), decided(False), decided(True))
    assert obtain(world).permit == "p1.x"
    assert [call.body["max_wait_ms"] for call in world.calls] == [0, 120_000, 120_000]
    assert world.pauses == []
    assert len({call.key for call in world.calls}) == 3, "each is a question of its own"


def test_the_callers_time_is_kept() -> None:
    world = World(decided(False))
    with pytest.raises(TimedOut) as caught:
        obtain(world, timeout=150)
    assert [call.body["max_wait_ms"] for call in world.calls] == [0, 120_000, 30_000]
    assert world.now == 150
    assert caught.value.decision.wait == 1.48
    assert isinstance(caught.value, TimeoutError)


def test_no_time_at_all_is_one_question() -> None:
    world = World(decided(False))
    with pytest.raises(TimedOut):
        obtain(world, timeout=0)
    assert [call.body["max_wait_ms"] for call in world.calls] == [0]


def test_a_paused_domain_is_not_waited_for() -> None:
    world = World(decided(False, refused=True, reason="paused by an operator"))
    with pytest.raises(Refused, match="example.org: paused"):
        obtain(world)
    assert world.now == 0, "and it is said at once"


def test_a_service_that_was_never_there_is_an_error_at_once() -> None:
    world = World(GONE)
    with pytest.raises(Unavailable):
        obtain(world)
    assert (len(world.calls), world.now) == (1, 0)


def test_a_service_that_restarts_is_waited_for() -> None:
    stopping = decided(False, limit="stopping", in_line=False)
    assert obtain(World(stopping, GONE, GONE, decided(True))).proceed
    assert obtain(World(BROKE, GONE, GONE, decided(True))).proceed, "it was killed"


def test_a_service_that_does_not_come_back_is_an_error() -> None:
    world = World(decided(False), GONE)
    with pytest.raises(Unavailable):
        obtain(world)
    assert 30 <= world.now <= 32


def test_away_is_counted_from_when_it_went_and_not_from_when_it_was_asked_first() -> None:
    world = World(decided(False), GONE, decided(False), GONE, decided(True))
    assert obtain(world).proceed


def test_a_service_without_room_says_when_to_come_back() -> None:
    full = {**problem(503, detail="too many connections"), "headers": {"retry-after": "7"}}
    world = World(full, decided(True))
    assert obtain(world).proceed
    assert world.pauses == [7]


def test_who_answers_at_once_is_not_asked_in_a_busy_loop() -> None:
    world = World(decided(False, in_line=False))
    with pytest.raises(TimedOut):
        obtain(world, timeout=10)
    assert len(world.calls) <= 25


def test_a_broken_connection_costs_no_second_slot() -> None:
    world = World(BROKE, decided(True))
    assert world.run(protocol.check("example.org", "fetch")).proceed
    first, second = world.calls
    assert first.key and first == second


def test_a_problem_is_read() -> None:
    wrong = problem(422, detail="intent: not one", field="intent", value="x", allowed=["fetch"])
    with pytest.raises(Invalid, match="intent: not one") as caught:
        World(wrong).run(protocol.check("example.org", "fetch"))
    error = caught.value
    assert (error.status, error.field, error.value, error.allowed) == (422, "intent", "x", ["fetch"])


def test_a_domain_that_nobody_knows_is_none() -> None:
    assert World(problem(404)).run(protocol.domain("example.org")) is None
    with pytest.raises(Invalid):
        World(problem(401)).run(protocol.domain("example.org"))


def test_large_batches_are_sent_in_parts() -> None:
    world = World(
        {"body": {"results": [decided(True)["body"]] * 1000}}, {"body": {"results": [decided(True)["body"]] * 5}}
    )
    targets = ["example.org"] * 1000 + [URL] * 5
    assert len(world.run(protocol.check_many(targets, "api"))) == 1005
    assert [len(call.body["checks"]) for call in world.calls] == [1000, 5]
    assert world.calls[0].body["checks"][0] == {"domain": "example.org", "intent": "api"}
    assert world.calls[1].body["checks"][0] == {"url": URL, "intent": "api"}


def test_what_is_recorded() -> None:
    answer = {"domain": "example.org", "outcome": "rate_limited", "standing": "fresh", "wait_ms": 5}
    world = World({"body": answer})
    let_go = Decision.read(decided(True)["body"])
    headers = {"Retry-After": "5", "Set-Cookie": "secret"}
    recorded = world.run(protocol.record(Report(let_go, status=429, headers=headers, latency_ms=12)))
    assert (recorded.outcome, recorded.held_until) == ("rate_limited", None)
    assert world.calls[0].body == {
        "permit": "p1.x",
        "status": 429,
        "headers": {"retry-after": "5"},
        "latency_ms": 12,
    }
    assert world.calls[0].key is None, "a permit is recorded once anyway"
    world.run(protocol.record(Report(URL, outcome="timeout", intent="api")))
    assert world.calls[1].body == {"url": URL, "intent": "api", "outcome": "timeout"}
    assert world.calls[1].key is not None


def test_reports_that_say_nothing_or_too_much_are_refused_here() -> None:
    held = Decision.read(decided(False)["body"])
    for report in (Report(URL), Report(URL, status=200, outcome="success"), Report(held, status=200)):
        with pytest.raises(ValueError):
            World(None).run(protocol.record(report))


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("example.org", "/v1/domains/example.org"),
        ("https://user@example.org:443/a?b", "/v1/domains/example.org"),
        ("http://example.org:8080/", "/v1/domains/example.org%3A8080"),
        ("http://[::1]:80/", "/v1/domains/%5B%3A%3A1%5D"),
        ("group:news", "/v1/domains/group%3Anews"),
    ],
)
def test_the_domain_of_a_url(target: str, path: str) -> None:
    world = World({"body": {"domain": "x", "wait_ms": 0, "constraints": []}})
    world.run(protocol.explain(target, "fetch"))
    assert world.calls[0].path == f"{path}/explain?intent=fetch"


def test_where_the_service_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMITY_SERVER", raising=False)
    monkeypatch.delenv("COMITY_TOKEN", raising=False)
    assert protocol.server_and_token(None, None) == ("http://127.0.0.1:7878", None)
    monkeypatch.setenv("COMITY_SERVER", "comity.internal:7878/")
    monkeypatch.setenv("COMITY_TOKEN", "t")
    assert protocol.server_and_token(None, None) == ("http://comity.internal:7878", "t")
    assert protocol.server_and_token("https://other", "mine") == ("https://other", "mine")


def test_the_callers_time_is_kept_although_the_service_asks_for_more() -> None:
    """A `Retry-After` outlived the caller's timeout."""
    world = World({**problem(503, detail="full"), "headers": {"retry-after": "30"}})
    with pytest.raises(Unavailable):
        obtain(world, timeout=1)
    assert world.now == 1


@pytest.mark.parametrize("body", ["<html>", {}, [], None, 7, {"results": 1}])
def test_whoever_is_not_comity_is_an_error_of_ours(body: Any) -> None:
    """What another web server answered was a `JSONDecodeError` or a `KeyError`, which nobody catches around a page."""
    for flow in (protocol.check(URL, "fetch"), protocol.record(Report(URL, status=200)), protocol.explain(URL, "fetch"),
                 protocol.record_many([Report(URL, status=200)]), protocol.domain(URL)):
        with pytest.raises(Invalid, match="is it Comity"):
            World({"body": body}).run(flow)


def test_what_is_no_json_at_all_is_one_too() -> None:
    flow = protocol.peek(URL, "fetch")
    next(flow)
    with pytest.raises(Invalid, match="is it Comity"):
        flow.send(Reply(200, {}, b"<!doctype html>"))


def recorded(*standings: str) -> Any:
    one = {"domain": "example.org", "outcome": "success", "wait_ms": 0}
    return {"body": {"results": [{**one, "standing": standing} for standing in standings]}}


def test_reports_that_were_not_heard_are_told_again() -> None:
    """The service says of some of a batch that it could not hear them, and they were dropped."""
    world = World(recorded("fresh", "unheard", "late", "unheard"), recorded("unheard", "repeated"), recorded("fresh"))
    reports = [Report(f"{nth}.example", status=200) for nth in range(4)]
    told = world.run(protocol.record_many(reports))
    assert [one.standing for one in told] == ["fresh", "fresh", "late", "repeated"]
    asked = [[record["domain"] for record in call.body["records"]] for call in world.calls]
    assert asked == [["0.example", "1.example", "2.example", "3.example"], ["1.example", "3.example"], ["1.example"]]
    assert len({call.key for call in world.calls}) == 3


def test_reports_that_are_never_heard_are_an_error() -> None:
    world = World(recorded("unheard"))
    with pytest.raises(Unavailable, match="1 of 1 reports"):
        world.run(protocol.record_many([Report(URL, status=200)]))
    assert (len(world.calls), world.now) == (5, 7.5)


def test_no_error_shows_a_password() -> None:
    error = protocol.unreachable(httpx.ConnectError("refused"), "https://me:secret@comity.example/base")
    assert str(error).startswith("https://comity.example/base: ")
