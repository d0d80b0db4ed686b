"""A real Scrapy against a real nginx, with a real decision service. Judged by the requests that arrived at the site."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import httpx
import pytest
from scrapy import Request
from servers import LIMITED, LIMITED_HTTP, OPEN, RULES, Service, Site, early, free_port, until

import comity

Sites = Callable[..., Site]


class Spider:
    """One Scrapy process with the add-on."""

    def __init__(self, folder: Path, server: str, urls: List[str], **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.out, self.log = folder / "result.json", folder / "scrapy.log"
        self.out.unlink(missing_ok=True)
        addons = json.dumps({"comity.scrapy.Comity": 500})
        comity_settings = {"ADDONS": addons, "COMITY_SERVER": server, "COMITY_TOKEN": ""}
        command = [sys.executable, "-m", "scrapy", "runspider", str(Path(__file__).with_name("pages.py"))]
        command += ["-a", f"urls={json.dumps(urls)}", "-a", f"out={self.out}"]
        others = {"TELNETCONSOLE_ENABLED": False, "REMOTE_CONTROL_ENABLED": False, "LOG_LEVEL": "DEBUG", **settings}
        for name, value in {**comity_settings, **others}.items():
            command += ["-s", f"{name}={value}"]
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def end(self, seconds: float = 240) -> Dict[str, Any]:
        try:
            self.running.wait(seconds)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()
            pytest.fail(f"the spider did not end within {seconds} s:\n{self.log.read_text()[-5000:]}")
        assert self.out.exists(), self.log.read_text()[-5000:]
        result: Dict[str, Any] = json.loads(self.out.read_text())
        return result


def pages(site: Site, count: int, prefix: str = "page") -> List[str]:
    return [f"{site.url}/{prefix}/{number}" for number in range(count)]


def hold(service: Service, site: Site, seconds: int) -> None:
    """Records that another client got a 429 with `Retry-After` from the site."""
    with comity.Client(service.url) as client:
        client.record(comity.Report(site.url, status=429, retry_after=seconds))


def test_two_processes_get_all_pages_and_never_fetch_early(service: Service, site: Sites, tmp_path: Path) -> None:
    limited = site(LIMITED, LIMITED_HTTP)
    spiders = [
        Spider(tmp_path / name, service.url, pages(limited, 20, name), ROBOTSTXT_OBEY=True) for name in ("one", "two")
    ]
    results = [spider.end() for spider in spiders]
    requests = limited.requests()
    rate_limited = [one for one in requests if one.status == 429]
    assert rate_limited, "the site never answered 429, so the test proves nothing"
    for one in results:
        assert len(one["got"]) == 20 and {status for _, status in one["got"]} == {200}
        assert not [name for name in one["stats"] if name.startswith("retry/")], "a 429 used up a retry"
        assert one["reason"] == "finished" and one["failed"] == []
    assert sum(one["stats"].get("comity/refusals", 0) for one in results) == len(rate_limited)
    assert sum(one["stats"]["comity/permits"] for one in results) == len(requests), "every request had a permit"
    assert len(limited.pages()) == 40 + 2, "each page once, and robots.txt once per process"
    assert early(requests, delay=0.2, hold=2.0) == []


def test_a_held_site_does_not_hold_up_others(service: Service, site: Sites, tmp_path: Path) -> None:
    held, free = site(OPEN), site(OPEN)
    hold(service, held, 600)
    settings = {"CONCURRENT_REQUESTS": 2, "ROBOTSTXT_OBEY": True, "CLOSESPIDER_ITEMCOUNT": 5}
    # The requests to the held site come first, and are more than the concurrency.
    result = Spider(tmp_path / "spider", service.url, pages(held, 20) + pages(free, 5), **settings).end()
    assert len(free.pages()) == 5 + 1 and held.requests() == []
    # The spider ended long before the ten minutes, because waiting requests are cancelled when it closes.
    assert result["reason"] == "closespider_itemcount"
    assert early(free.requests(), delay=0.2) == []


def test_a_long_wait_is_spent_in_the_scheduler(service: Service, site: Sites, tmp_path: Path) -> None:
    held, free = site(OPEN), site(OPEN)
    began = time.time()
    hold(service, held, 30)
    settings = {"CONCURRENT_REQUESTS": 1, "COMITY_PATIENCE": 1, "COMITY_MAX_WAITING": 1}
    result = Spider(tmp_path / "spider", service.url, pages(held, 3) + pages(free, 5), **settings).end()
    assert len(result["got"]) == 8
    assert result["stats"]["comity/put_back"] == 1
    assert held.requests()[0].start >= began + 30 - 0.01
    assert free.requests()[-1].end < held.requests()[0].start, "the free site was done by then"


def test_a_job_resumes_where_it_was_closed(service: Service, site: Sites, tmp_path: Path) -> None:
    held = site(OPEN)
    hold(service, held, 30)
    settings = {"JOBDIR": tmp_path / "job"}
    first = Spider(tmp_path / "spider", service.url, pages(held, 5), **settings)
    until(lambda: b"Spider opened" in first.log.read_bytes(), "the spider is open")
    time.sleep(1)
    first.running.send_signal(signal.SIGINT)
    assert first.end()["got"] == []
    second = Spider(tmp_path / "spider", service.url, [], **settings).end()
    assert sorted(url for url, _ in second["got"]) == pages(held, 5)


def test_the_spiders_own_delay_still_applies(service: Service, site: Sites, tmp_path: Path) -> None:
    slow = site(OPEN)
    settings = {"DOWNLOAD_DELAY": 0.6, "DOWNLOAD_DELAY_JITTER": 0, "RANDOMIZE_DOWNLOAD_DELAY": False}
    Spider(tmp_path / "spider", service.url, pages(slow, 5), **settings).end()
    assert len(slow.requests()) == 5
    assert early(slow.requests(), delay=0.6) == []


def test_scrapys_own_delay_does_not_push_requests_together(
    service: Service, site: Sites, tmp_path: Path
) -> None:
    """The settings of `scrapy startproject`: a permit that waits behind a random delay would be used too late."""
    usual = site(OPEN)
    settings = {"DOWNLOAD_DELAY": 0.2, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
    result = Spider(tmp_path / "spider", service.url, pages(usual, 20), **settings).end()
    assert len(result["got"]) == 20
    assert early(usual.requests(), delay=0.2) == []


def test_a_paused_site_is_not_fetched(service: Service, site: Sites, tmp_path: Path) -> None:
    paused = site(OPEN)
    domain = paused.url.removeprefix("http://")
    httpx.patch(f"{service.url}/v1/domains/{domain}", json={"paused": True}, trust_env=False).raise_for_status()
    result = Spider(tmp_path / "spider", service.url, pages(paused, 2)).end()
    assert (result["failed"], result["got"], paused.requests()) == (["Paused", "Paused"], [], [])
    assert result["stats"]["comity/paused"] == 2


def test_a_site_that_always_answers_429_does_not_loop_forever(service: Service, site: Sites, tmp_path: Path) -> None:
    never = site("location / { add_header Retry-After 1 always; return 429; }")
    settings = {"COMITY_MAX_REFUSALS": 2, "RETRY_ENABLED": False, "HTTPERROR_ALLOW_ALL": True}
    result = Spider(tmp_path / "spider", service.url, pages(never, 1), **settings).end()
    assert [status for _, status in result["got"]] == [429]
    assert len(never.requests()) == 3 and result["stats"]["comity/gave_up"] == 1
    assert early(never.requests(), delay=0.2, hold=1.0) == []


def test_failures_are_recorded_and_retried_by_scrapy(site: Sites, tmp_path: Path, request: Any) -> None:
    # The backoff after the second failure is twice that, so it has not ended when the test looks.
    service = Service(tmp_path / "service", RULES.replace("[default]", '[default]\nbackoff_base = "10s"')).start()
    request.addfinalizer(service.stop)
    broken = site("location / { return 444; }")
    result = Spider(tmp_path / "spider", service.url, pages(broken, 1), RETRY_TIMES=1).end()
    assert len(result["failed"]) == 1 and result["stats"]["retry/count"] == 1
    assert len(broken.requests()) == 2 == result["stats"]["comity/permits"]
    with comity.Client(service.url) as client:
        assert client.peek(broken.url).limit == "backoff"


def test_a_restart_of_the_service_loses_nothing(service: Service, site: Sites, tmp_path: Path) -> None:
    usual = site(OPEN)
    spider = Spider(tmp_path / "spider", service.url, pages(usual, 20))
    until(lambda: len(usual.requests()) >= 5, "some pages are fetched")
    service.stop()
    time.sleep(1)
    service.start()
    result = spider.end()
    assert len(result["got"]) == 20 and result["failed"] == []
    assert early(usual.requests(), delay=0.2) == []


def test_without_a_service_nothing_is_sent(site: Sites, tmp_path: Path) -> None:
    usual = site(OPEN)
    nobody = f"http://127.0.0.1:{free_port()}"
    result = Spider(tmp_path / "spider", nobody, pages(usual, 3), COMITY_MAX_AWAY=1).end()
    assert (result["reason"], result["got"], usual.requests()) == ("comity_unavailable", [], [])


def test_a_permit_of_a_cancelled_request_is_returned(service: Service) -> None:
    """A permit that arrived just as its request was cancelled stayed open, so its domain was closed until its lease
    ended."""
    from comity.scrapy.lines import Line, Lines

    class Cancelled(Lines):
        def __init__(self) -> None:
            self._client = comity.AsyncClient(service.url)
            self._asking, self._returning, self._watch = set(), set(), None

        def _closing(self) -> bool:
            return False

        async def _in_turn(self, line: Line, request: Request) -> comity.Decision:
            decision = await self._client.acquire(request.url)
            self.waiting.cancel()
            return decision

        async def run(self) -> None:
            self.waiting = asyncio.ensure_future(self._permit(Line(), Request("https://given-back.example/")))
            with pytest.raises(asyncio.CancelledError):
                await self.waiting
            assert self._returning
            await self._close()
            self._watch.cancel()

    asyncio.run(Cancelled().run())
    with comity.Client(service.url) as client:
        known = client.domain("given-back.example")
        assert known is not None and known.live is not None and known.live["in_flight"] == 0
