"""The flows in virtual time, against a script of what the service does."""

from __future__ import annotations

import json
from typing import Any, List, Optional

import httpx
import pytest

from comity import Decision, Invalid, Refused, Report, TimedOut, Unavailable, protocol
from comity.protocol import Call, Flow, Pause, Reply


class World:
    """Performs a flow: answers its calls from a script, and advances the time as the real service would."""

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
                except Unavailable as error:
                    step = flow.throw(error)
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
        action = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(action, Unavailable):
            raise Unavailable(str(action), retry_after=action.retry_after, met=action.met)
        if action.get("in_line"):
            self.now += step.max_wait
        return Reply(action.get("status", 200), action.get("headers", {}), json.dumps(action["body"]).encode())


def decided(proceed: bool, **more: Any) -> Any:
    body = {"proceed": proceed, "wait_ms": 0 if proceed else 1480, "reason": "minimum delay", "domain": "example.org"}
    body.update(permit="p1.x" if proceed else None, limit=None, origin=None, refused=False, waited_ms=0)
    in_line = more.pop("in_line", not proceed)
    return {"body": {**body, **more}, "in_line": in_line}


def problem(status: int, **members: Any) -> Any:
    return {"status": status, "body": {"type": "about:blank", "title": "no", "status": status, **members}}


UNREACHABLE = Unavailable("refused")
CONNECTION_BROKE = Unavailable("broke", met=True)
URL = "https://example.org/"


def wait_for_permit(world: World, timeout: Optional[float] = None) -> Any:
    return world.run(protocol.wait_for_permit(URL, "fetch", timeout, world.clock))


def test_waiting_for_a_permit_may_take_several_calls() -> None:
    world = World(decided(False), decided(False), decided(True))
    assert wait_for_permit(world).permit == "p1.x"
    assert [call.body["max_wait_ms"] for call in world.calls] == [0, 120_000, 120_000]
    assert world.pauses == []
    assert len({call.key for call in world.calls}) == 3, "each call has its own idempotency key"


def test_the_callers_timeout_is_respected() -> None:
    world = World(decided(False))
    with pytest.raises(TimedOut) as caught:
        wait_for_permit(world, timeout=150)
    assert [call.body["max_wait_ms"] for call in world.calls] == [0, 120_000, 30_000]
    assert world.now == 150
    assert caught.value.decision.wait == 1.48
    assert isinstance(caught.value, TimeoutError)


def test_a_zero_timeout_makes_one_call() -> None:
    world = World(decided(False))
    with pytest.raises(TimedOut):
        wait_for_permit(world, timeout=0)
    assert [call.body["max_wait_ms"] for call in world.calls] == [0]


def test_a_paused_domain_is_not_waited_for() -> None:
    world = World(decided(False, refused=True, reason="paused by an operator"))
    with pytest.raises(Refused, match="example.org: paused"):
        wait_for_permit(world)
    assert world.now == 0, "it is reported at once"


def test_an_unreachable_service_is_an_error_at_once() -> None:
    world = World(UNREACHABLE)
    with pytest.raises(Unavailable):
        wait_for_permit(world)
    assert (len(world.calls), world.now) == (1, 0)


def test_a_restart_of_the_service_is_waited_for() -> None:
    stopping = decided(False, limit="stopping", in_line=False)
    assert wait_for_permit(World(stopping, UNREACHABLE, UNREACHABLE, decided(True))).proceed
    killed = World(CONNECTION_BROKE, UNREACHABLE, UNREACHABLE, decided(True))
    assert wait_for_permit(killed).proceed


def test_a_service_that_does_not_come_back_is_an_error() -> None:
    world = World(decided(False), UNREACHABLE)
    with pytest.raises(Unavailable):
        wait_for_permit(world)
    assert 30 <= world.now <= 32


def test_an_outage_counts_from_its_start_not_from_the_first_call() -> None:
    world = World(decided(False), UNREACHABLE, decided(False), UNREACHABLE, decided(True))
    assert wait_for_permit(world).proceed


def test_retry_after_of_a_full_service_is_respected() -> None:
    full = {**problem(503, detail="too many connections"), "headers": {"retry-after": "7"}}
    world = World(full, decided(True))
    assert wait_for_permit(world).proceed
    assert world.pauses == [7]


def test_a_service_that_answers_at_once_is_not_polled_in_a_busy_loop() -> None:
    world = World(decided(False, in_line=False))
    with pytest.raises(TimedOut):
        wait_for_permit(world, timeout=10)
    assert len(world.calls) <= 25


def test_a_broken_connection_reserves_no_second_slot() -> None:
    world = World(CONNECTION_BROKE, decided(True))
    assert world.run(protocol.check("example.org", "fetch")).proceed
    first, second = world.calls
    assert first.key and first == second


def test_problem_details_are_read() -> None:
    wrong = problem(422, detail="intent: not one", field="intent", value="x", allowed=["fetch"])
    with pytest.raises(Invalid, match="intent: not one") as caught:
        World(wrong).run(protocol.check("example.org", "fetch"))
    error = caught.value
    assert (error.status, error.field, error.value, error.allowed) == (422, "intent", "x", ["fetch"])


def test_an_unknown_domain_is_none() -> None:
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


def test_the_body_of_a_record() -> None:
    answer = {"domain": "example.org", "outcome": "rate_limited", "standing": "fresh", "wait_ms": 5}
    world = World({"body": answer})
    granted = Decision.read(decided(True)["body"])
    headers = {"Retry-After": "5", "Set-Cookie": "secret"}
    recorded = world.run(protocol.record(Report(granted, status=429, headers=headers, latency_ms=12)))
    assert (recorded.outcome, recorded.held_until) == ("rate_limited", None)
    assert world.calls[0].body == {
        "permit": "p1.x",
        "status": 429,
        "headers": {"retry-after": "5"},
        "latency_ms": 12,
    }
    assert world.calls[0].key is None, "a permit is recorded only once anyway"
    world.run(protocol.record(Report(URL, outcome="timeout", intent="api")))
    assert world.calls[1].body == {"url": URL, "intent": "api", "outcome": "timeout"}
    assert world.calls[1].key is not None


def test_invalid_reports_are_refused_by_the_client() -> None:
    without_permit = Decision.read(decided(False)["body"])
    for report in (Report(URL), Report(URL, status=200, outcome="success"), Report(without_permit, status=200)):
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


def test_server_and_token_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMITY_SERVER", raising=False)
    monkeypatch.delenv("COMITY_TOKEN", raising=False)
    assert protocol.server_and_token(None, None) == ("http://127.0.0.1:7878", None)
    monkeypatch.setenv("COMITY_SERVER", "comity.internal:7878/")
    monkeypatch.setenv("COMITY_TOKEN", "t")
    assert protocol.server_and_token(None, None) == ("http://comity.internal:7878", "t")
    assert protocol.server_and_token("https://other", "mine") == ("https://other", "mine")


def test_the_callers_timeout_is_respected_even_if_retry_after_is_longer() -> None:
    """A long `Retry-After` made the call exceed the caller's timeout."""
    world = World({**problem(503, detail="full"), "headers": {"retry-after": "30"}})
    with pytest.raises(Unavailable):
        wait_for_permit(world, timeout=1)
    assert world.now == 1


@pytest.mark.parametrize("body", ["<html>", {}, [], None, 7, {"results": 1}])
def test_another_server_at_the_address_raises_invalid(body: Any) -> None:
    """Responses of other web servers raised `JSONDecodeError` or `KeyError`, which callers don't expect."""
    for flow in (protocol.check(URL, "fetch"), protocol.record(Report(URL, status=200)), protocol.explain(URL, "fetch"),
                 protocol.record_many([Report(URL, status=200)]), protocol.domain(URL)):
        with pytest.raises(Invalid, match="is it Comity"):
            World({"body": body}).run(flow)


def test_a_response_that_is_not_json_raises_invalid() -> None:
    flow = protocol.peek(URL, "fetch")
    next(flow)
    with pytest.raises(Invalid, match="is it Comity"):
        flow.send(Reply(200, {}, b"<!doctype html>"))


def recorded(*standings: str) -> Any:
    one = {"domain": "example.org", "outcome": "success", "wait_ms": 0}
    return {"body": {"results": [{**one, "standing": standing} for standing in standings]}}


def test_unheard_reports_are_retried() -> None:
    """Reports of a batch that the service could not record at the moment were dropped."""
    world = World(recorded("fresh", "unheard", "late", "unheard"), recorded("unheard", "repeated"), recorded("fresh"))
    reports = [Report(f"{nth}.example", status=200) for nth in range(4)]
    results = world.run(protocol.record_many(reports))
    assert [one.standing for one in results] == ["fresh", "fresh", "late", "repeated"]
    sent = [[record["domain"] for record in call.body["records"]] for call in world.calls]
    assert sent == [["0.example", "1.example", "2.example", "3.example"], ["1.example", "3.example"], ["1.example"]]
    assert len({call.key for call in world.calls}) == 3


def test_reports_that_stay_unheard_are_an_error() -> None:
    world = World(recorded("unheard"))
    with pytest.raises(Unavailable, match="1 of 1 reports"):
        world.run(protocol.record_many([Report(URL, status=200)]))
    assert (len(world.calls), world.now) == (5, 7.5)


def test_no_error_shows_a_password() -> None:
    error = protocol.unreachable(httpx.ConnectError("refused"), "https://me:secret@comity.example/base")
    assert str(error).startswith("https://comity.example/base: ")
