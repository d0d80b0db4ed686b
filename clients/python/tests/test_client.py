"""Both clients against the real service."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Callable, List

import httpx
import pytest
from servers import OPEN, RULES, Service, Site, early, free_port, until

import comity

Sites = Callable[..., Site]
REFUSING = "location / { add_header Retry-After 600 always; return 429; }"


def test_threads_share_one_client_and_one_pace(service: Service, site: Sites) -> None:
    fast = site(OPEN)
    errors: List[BaseException] = []

    def fetch(client: comity.Client, number: int) -> None:
        try:
            for page in range(2):
                url = f"{fast.url}/{number}/{page}"
                with client.permit(url) as permit:
                    permit.response(httpx.get(url, trust_env=False))
        except BaseException as error:
            errors.append(error)

    with comity.Client(service.url) as client:
        threads = [threading.Thread(target=fetch, args=(client, number)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert len(fast.pages()) == 12
    assert early(fast.requests(), delay=0.2) == []


def test_tasks_share_one_client_and_one_pace(service: Service, site: Sites) -> None:
    fast = site(OPEN)

    async def main() -> None:
        async with comity.AsyncClient(service.url) as client, httpx.AsyncClient(trust_env=False) as http:

            async def fetch(page: int) -> None:
                url = f"{fast.url}/{page}"
                async with client.permit(url) as permit:
                    permit.response(await http.get(url))

            await asyncio.gather(*map(fetch, range(8)))

    asyncio.run(main())
    assert len(fast.pages()) == 8
    assert early(fast.requests(), delay=0.2) == []


def test_retry_after_is_respected(service: Service, site: Sites) -> None:
    refusing = site(REFUSING)
    with comity.Client(service.url) as client:
        with pytest.raises(httpx.HTTPStatusError):
            with client.permit(refusing.url):
                httpx.get(refusing.url, trust_env=False).raise_for_status()
        until(lambda: client.peek(refusing.url).limit == "retry_after", "the response is saved")
        decision = client.peek(refusing.url)
        assert not decision.proceed and 300 < decision.wait <= 600
        assert decision.origin == "server"
        with pytest.raises(comity.TimedOut) as caught:
            with client.permit(refusing.url, timeout=0.3):
                pytest.fail("nothing may be sent")
        assert caught.value.decision.limit == "retry_after"


def test_an_exception_is_recorded_and_propagates(service: Service) -> None:
    with comity.Client(service.url) as client:
        with pytest.raises(httpx.ConnectError):
            with client.permit("http://broken.long.example/"):
                raise httpx.ConnectError("refused")
        assert client.peek("broken.long.example").limit == "backoff"
        with pytest.raises(ZeroDivisionError):
            with client.permit("http://fine.long.example/"):
                1 / 0
        assert client.peek("fine.long.example").limit == "min_delay", "a bug in our own code is not the site's fault"


def test_check_and_record_by_hand(service: Service) -> None:
    with comity.Client(service.url) as client:
        assert client.peek("http://example.org/").proceed
        decision = client.check("http://www.example.org/a")
        assert decision.proceed and decision.permit and decision.domain == "example.org"
        assert not client.check("example.org").proceed
        recorded = client.record(comity.Report(decision, status=200, latency_ms=3))
        assert (recorded.domain, recorded.outcome, recorded.standing) == ("example.org", "success", "fresh")
        assert client.record(comity.Report(decision, status=200)).standing == "repeated"
        decision = client.acquire("example.org", max_wait=30)
        assert decision.proceed
        recorded = client.record(comity.Report(decision, status=429, headers={"Retry-After": "600"}))
        assert recorded.outcome == "rate_limited" and recorded.held_until is not None
        decision = client.acquire("example.org", max_wait=0)
        assert not decision.proceed and decision.wait > 300


def test_batches(service: Service) -> None:
    with comity.Client(service.url) as client:
        decisions = client.check_many(["a.example", "http://b.example/", "a.example"])
        assert [one.proceed for one in decisions] == [True, True, False]
        reports = [comity.Report(one, status=200) for one in decisions if one.proceed]
        assert [one.domain for one in client.record_many(reports)] == ["a.example", "b.example"]
        assert client.check_many([]) == []


def test_domain_and_explain(service: Service) -> None:
    with comity.Client(service.url) as client:
        assert client.domain("http://nobody.example/") is None
        client.record(comity.Report(client.check("example.org"), status=200))
        known = client.domain("http://example.org/page")
        assert known is not None and known.domain == "example.org"
        explanation = client.explain("http://example.org/")
        assert explanation.domain == "example.org"
        (delay,) = [one for one in explanation.constraints if one.limit == "min_delay"]
        assert delay.origin == "rule" and delay.text


def test_a_paused_domain_is_refused(service: Service) -> None:
    answer = httpx.patch(f"{service.url}/v1/domains/example.org", json={"paused": True}, trust_env=False)
    answer.raise_for_status()
    with comity.Client(service.url) as client:
        with pytest.raises(comity.Refused) as caught:
            with client.permit("http://example.org/"):
                pytest.fail("nothing may be sent")
    assert caught.value.decision.refused


def test_an_invalid_call_is_refused(service: Service) -> None:
    with comity.Client(service.url) as client:
        with pytest.raises(comity.Invalid) as caught:
            client.check("example.org", intent="guess")  # type: ignore[arg-type]
        assert caught.value.status == 422 and caught.value.field == "intent"
        with pytest.raises(comity.Invalid):
            client.check("ftp://example.org/")


def test_a_token_is_sent(tmp_path: Path) -> None:
    service = Service(tmp_path / "service")
    command = [service.binary, "serve", "--make-token", "use"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env={})
    service.rules = RULES + "\n" + made.stderr[made.stderr.index("[serve]") :]
    service.start()
    try:
        with comity.Client(service.url, token=made.stdout.strip()) as client:
            with client.permit("http://recorded.long.example/"):
                pass
            assert client.peek("recorded.long.example").limit == "min_delay", "it was recorded"
        with comity.Client(service.url, token="guessed") as client:
            with pytest.raises(comity.Invalid) as caught:
                client.check("example.org")
        assert caught.value.status == 401
    finally:
        service.stop()


def test_without_a_service_nothing_is_sent() -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with comity.Client(nobody) as client:
        with pytest.raises(comity.Unavailable, match=nobody):
            with client.permit("http://example.org/"):
                pytest.fail("nothing may be sent")


def test_a_service_that_went_down_hides_neither_results_nor_exceptions(service: Service, caplog: Any) -> None:
    with comity.Client(service.url) as client:
        with client.permit("http://one.example/") as permit:
            permit.answered(200)
            service.stop()
        service.start()
        with pytest.raises(ZeroDivisionError):
            with client.permit("http://two.example/"):
                service.stop()
                1 / 0
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 2 and warnings[1].startswith("two.example: could not record the outcome of a request")


def test_callers_in_line_wait_for_a_restart(service: Service) -> None:
    with comity.Client(service.url) as client:
        held_until = client.record(comity.Report("example.org", status=429, retry_after=15)).held_until
        assert held_until is not None
        granted_at: List[float] = []

        def wait() -> None:
            with client.permit("http://example.org/"):
                granted_at.append(time.time())

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: service.waiting("example.org") == 1, "the caller is in line")
        service.stop()
        time.sleep(0.5)
        service.start()
        waiting.join(240)
    hold_end = datetime.fromisoformat(held_until.replace("Z", "+00:00")).timestamp()
    assert granted_at and granted_at[0] >= hold_end - 0.01, "Retry-After still applies"


def test_a_cancelled_task_leaves_the_line(service: Service) -> None:
    async def in_line(count: int) -> None:
        await asyncio.to_thread(until, lambda: service.waiting("example.org") == count, f"{count} in line")

    async def main() -> None:
        async with comity.AsyncClient(service.url) as client:
            on_the_wire = await client.acquire("example.org")
            first = asyncio.ensure_future(client.acquire("example.org"))
            await in_line(1)
            second = asyncio.ensure_future(client.acquire("example.org"))
            await in_line(2)
            first.cancel()
            await in_line(1)
            await client.record(comity.Report(on_the_wire, status=200))
            # If the first had kept its place, it would have got the only permit, and nobody would use it.
            assert (await asyncio.wait_for(second, 60)).proceed

    asyncio.run(main())


def test_an_interrupted_script_leaves_the_line(service: Service) -> None:
    # The parent process of these tests may have set SIGINT to be ignored.
    handle_sigint = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script = f"import comity\nprint('asks', flush=True)\ncomity.Client({service.url!r}).acquire('example.org')"
    script = handle_sigint + script
    with comity.Client(service.url) as client:
        on_the_wire = client.check("example.org")
        waiting = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert waiting.stdout is not None
        waiting.stdout.readline()
        until(lambda: service.waiting("example.org") == 1, "the script is in line")
        waiting.send_signal(signal.SIGINT)
        _, stderr = waiting.communicate(timeout=120)
        assert b"KeyboardInterrupt" in stderr
        client.record(comity.Report(on_the_wire, status=200))
        assert client.acquire("example.org", max_wait=30).proceed


def in_flight(client: comity.Client, domain: str) -> Any:
    known = client.domain(domain)
    assert known is not None and known.live is not None
    return known.live["in_flight"]


def test_a_permit_has_the_requested_lease(service: Service) -> None:
    """B80"""
    with comity.Client(service.url, lease=30) as client:
        decision = client.check("leased.long.example")
        assert decision.lease_ms == 30_000
        waits = client.check("leased.long.example")
        assert waits.permit is None and waits.lease_ms is None
        assert client.renew(decision, lease=900), "the lease is capped at what the service allows"
        assert any(one.limit == "lease" and one.wait_ms > 300_000 for one in client.explain("leased.long.example").constraints)
        assert client.release(decision).outcome == "abandoned"
        assert not client.renew(decision), "the permit was released"
        assert in_flight(client, "leased.long.example") == 0
        with client.permit("http://own.long.example/", lease=120) as permit:
            assert permit.decision.lease_ms == 120_000


@pytest.mark.parametrize("error", [KeyError("ours"), KeyboardInterrupt(), SystemExit(1), httpx.ReadTimeout("late")])
def test_a_block_that_ends_with_an_exception_leaves_no_permit_open(service: Service, error: BaseException) -> None:
    """B80"""
    with comity.Client(service.url) as client:
        with pytest.raises(type(error)):
            with client.permit("http://left.example/"):
                raise error
        assert in_flight(client, "left.example") == 0


def test_a_cancelled_task_leaves_no_permit_open(service: Service) -> None:
    """B80: cancelled in its block, again while it records, and just as its permit arrives."""

    async def fetch(client: comity.AsyncClient, url: str, entered: asyncio.Event) -> None:
        async with client.permit(url):
            entered.set()
            await asyncio.sleep(600)

    class Slow(comity.AsyncClient):
        async def record(self, report: comity.Report) -> comity.Recorded:
            self.recording.set()
            await asyncio.sleep(0.2)
            return await super().record(report)

    class Late(comity.AsyncClient):
        async def _perform(self, step: Any) -> Any:
            reply = await super()._perform(step)
            if getattr(step, "path", "") == "/v1/acquire":
                asyncio.get_running_loop().call_soon(self.fetching.cancel)
            return reply

    async def main() -> None:
        async with Slow(service.url) as client:
            entered, client.recording = asyncio.Event(), asyncio.Event()
            fetching = asyncio.ensure_future(fetch(client, "http://twice.example/", entered))
            await entered.wait()
            fetching.cancel()
            await client.recording.wait()
            fetching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetching
            await asyncio.sleep(1)
        async with Late(service.url) as client:
            client.fetching = asyncio.ensure_future(fetch(client, "http://as-it-comes.example/", asyncio.Event()))
            with pytest.raises(asyncio.CancelledError):
                await client.fetching

    asyncio.run(main())
    with comity.Client(service.url) as client:
        for domain in ("twice.example", "as-it-comes.example"):
            until(lambda: in_flight(client, domain) == 0, f"{domain} has no open permit")
