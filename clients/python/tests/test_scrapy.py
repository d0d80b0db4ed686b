"""A real Scrapy against a real nginx, by way of a real service. The site's log is the judge."""

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
    """One Scrapy process, polite by three settings."""

    def __init__(self, folder: Path, server: str, urls: List[str], **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.out, self.log = folder / "said.json", folder / "scrapy.log"
        self.out.unlink(missing_ok=True)
        polite = {"ADDONS": json.dumps({"comity.scrapy.Comity": 500}), "COMITY_SERVER": server, "COMITY_TOKEN": ""}
        command = [sys.executable, "-m", "scrapy", "runspider", str(Path(__file__).with_name("pages.py"))]
        command += ["-a", f"urls={json.dumps(urls)}", "-a", f"out={self.out}"]
        others = {"TELNETCONSOLE_ENABLED": False, "REMOTE_CONTROL_ENABLED": False, "LOG_LEVEL": "DEBUG", **settings}
        for name, value in {**polite, **others}.items():
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
        said: Dict[str, Any] = json.loads(self.out.read_text())
        return said


def pages(site: Site, count: int, prefix: str = "page") -> List[str]:
    return [f"{site.url}/{prefix}/{number}" for number in range(count)]


def hold(service: Service, site: Site, seconds: int) -> None:
    """The site says `Retry-After` to somebody else."""
    with comity.Client(service.url) as client:
        client.record(comity.Report(site.url, status=429, retry_after=seconds))


def test_two_processes_get_all_pages_and_never_ask_early(service: Service, site: Sites, tmp_path: Path) -> None:
    limited = site(LIMITED, LIMITED_HTTP)
    spiders = [
        Spider(tmp_path / name, service.url, pages(limited, 20, name), ROBOTSTXT_OBEY=True) for name in ("one", "two")
    ]
    said = [spider.end() for spider in spiders]
    seen = limited.seen()
    refusals = [one for one in seen if one.status == 429]
    assert refusals, "the site never said 429: nothing was proved"
    for one in said:
        assert len(one["got"]) == 20 and {status for _, status in one["got"]} == {200}
        assert not [name for name in one["stats"] if name.startswith("retry/")], "pacing burnt a retry"
        assert one["reason"] == "finished" and one["failed"] == []
    assert sum(one["stats"].get("comity/refusals", 0) for one in said) == len(refusals)
    assert sum(one["stats"]["comity/permits"] for one in said) == len(seen), "every request had a permit"
    assert len(limited.pages()) == 40 + 2, "each page once, and robots.txt for each process"
    assert early(seen, delay=0.2, hold=2.0) == []


def test_a_held_site_keeps_nobody_else_waiting(service: Service, site: Sites, tmp_path: Path) -> None:
    held, free = site(OPEN), site(OPEN)
    hold(service, held, 600)
    settings = {"CONCURRENT_REQUESTS": 2, "ROBOTSTXT_OBEY": True, "CLOSESPIDER_ITEMCOUNT": 5}
    # Those of the held site come first, more than there are places.
    said = Spider(tmp_path / "spider", service.url, pages(held, 20) + pages(free, 5), **settings).end()
    assert len(free.pages()) == 5 + 1 and held.seen() == []
    # It ended long before the ten minutes: who waits hangs up when the spider closes.
    assert said["reason"] == "closespider_itemcount"
    assert early(free.seen(), delay=0.2) == []


def test_a_long_wait_is_spent_in_the_scheduler(service: Service, site: Sites, tmp_path: Path) -> None:
    held, free = site(OPEN), site(OPEN)
    began = time.time()
    hold(service, held, 30)
    settings = {"CONCURRENT_REQUESTS": 1, "COMITY_PATIENCE": 1, "COMITY_MAX_WAITING": 1}
    said = Spider(tmp_path / "spider", service.url, pages(held, 3) + pages(free, 5), **settings).end()
    assert len(said["got"]) == 8
    assert said["stats"]["comity/put_back"] == 1
    assert held.seen()[0].start >= began + 30 - 0.01
    assert free.seen()[-1].end < held.seen()[0].start, "the free site was done by then"


def test_a_job_goes_on_where_it_was_closed(service: Service, site: Sites, tmp_path: Path) -> None:
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


def test_the_spiders_own_delay_stays(service: Service, site: Sites, tmp_path: Path) -> None:
    slow = site(OPEN)
    settings = {"DOWNLOAD_DELAY": 0.6, "DOWNLOAD_DELAY_JITTER": 0, "RANDOMIZE_DOWNLOAD_DELAY": False}
    Spider(tmp_path / "spider", service.url, pages(slow, 5), **settings).end()
    assert len(slow.seen()) == 5
    assert early(slow.seen(), delay=0.6) == []


def test_a_delay_of_scrapys_own_does_not_shift_requests_together(
    service: Service, site: Sites, tmp_path: Path
) -> None:
    """What `scrapy startproject` writes: a permit that waits behind a random delay would be used too late."""
    usual = site(OPEN)
    settings = {"DOWNLOAD_DELAY": 0.2, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
    said = Spider(tmp_path / "spider", service.url, pages(usual, 20), **settings).end()
    assert len(said["got"]) == 20
    assert early(usual.seen(), delay=0.2) == []


def test_a_paused_site_is_left_alone(service: Service, site: Sites, tmp_path: Path) -> None:
    paused = site(OPEN)
    domain = paused.url.removeprefix("http://")
    httpx.patch(f"{service.url}/v1/domains/{domain}", json={"paused": True}, trust_env=False).raise_for_status()
    said = Spider(tmp_path / "spider", service.url, pages(paused, 2)).end()
    assert (said["failed"], said["got"], paused.seen()) == (["Paused", "Paused"], [], [])
    assert said["stats"]["comity/paused"] == 2


def test_a_site_that_only_refuses_does_not_loop_for_ever(service: Service, site: Sites, tmp_path: Path) -> None:
    never = site("location / { add_header Retry-After 1 always; return 429; }")
    settings = {"COMITY_MAX_REFUSALS": 2, "RETRY_ENABLED": False, "HTTPERROR_ALLOW_ALL": True}
    said = Spider(tmp_path / "spider", service.url, pages(never, 1), **settings).end()
    assert [status for _, status in said["got"]] == [429]
    assert len(never.seen()) == 3 and said["stats"]["comity/gave_up"] == 1
    assert early(never.seen(), delay=0.2, hold=1.0) == []


def test_failures_are_told_and_retried_by_scrapy(site: Sites, tmp_path: Path, request: Any) -> None:
    # The second failure costs twice that: it is not over when it is looked at.
    service = Service(tmp_path / "service", RULES.replace("[default]", '[default]\nbackoff_base = "10s"')).start()
    request.addfinalizer(service.stop)
    broken = site("location / { return 444; }")
    said = Spider(tmp_path / "spider", service.url, pages(broken, 1), RETRY_TIMES=1).end()
    assert len(said["failed"]) == 1 and said["stats"]["retry/count"] == 1
    assert len(broken.seen()) == 2 == said["stats"]["comity/permits"]
    with comity.Client(service.url) as client:
        assert client.peek(broken.url).limit == "backoff"


def test_a_restart_of_the_service_loses_nothing(service: Service, site: Sites, tmp_path: Path) -> None:
    usual = site(OPEN)
    spider = Spider(tmp_path / "spider", service.url, pages(usual, 20))
    until(lambda: len(usual.seen()) >= 5, "some pages are there")
    service.stop()
    time.sleep(1)
    service.start()
    said = spider.end()
    assert len(said["got"]) == 20 and said["failed"] == []
    assert early(usual.seen(), delay=0.2) == []


def test_without_a_service_nothing_is_sent(site: Sites, tmp_path: Path) -> None:
    usual = site(OPEN)
    nobody = f"http://127.0.0.1:{free_port()}"
    said = Spider(tmp_path / "spider", nobody, pages(usual, 3), COMITY_MAX_AWAY=1).end()
    assert (said["reason"], said["got"], usual.seen()) == ("comity_unavailable", [], [])


def test_a_permit_that_nobody_takes_is_given_back(service: Service) -> None:
    """One that came just as its request was cancelled stayed open, and its domain closed, until it expired."""
    from comity.scrapy.lines import Line, Lines

    class Cancelled(Lines):
        def __init__(self) -> None:
            self._client = comity.AsyncClient(service.url)
            self._asking, self._giving_back, self._watch = set(), set(), None

        def _closing(self) -> bool:
            return False

        async def _in_turn(self, line: Line, request: Request) -> comity.Decision:
            decision = await self._client.acquire(request.url)
            self.waits.cancel()
            return decision

        async def run(self) -> None:
            self.waits = asyncio.ensure_future(self._permit(Line(), Request("https://given-back.example/")))
            with pytest.raises(asyncio.CancelledError):
                await self.waits
            assert self._giving_back
            await self._close()
            self._watch.cancel()

    asyncio.run(Cancelled().run())
    with comity.Client(service.url) as client:
        known = client.domain("given-back.example")
        assert known is not None and known.live is not None and known.live["in_flight"] == 0
