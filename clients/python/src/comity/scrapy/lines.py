"""Who waits for what. The only part of the integration that talks to the service."""

from __future__ import annotations

import asyncio
import logging
from itertools import chain, repeat
from time import monotonic
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, Iterable, List, Optional, Set
from weakref import WeakKeyDictionary, WeakSet

from scrapy import Request, signals
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from ..aio import AsyncClient
from ..errors import ComityError, Unavailable
from ..permit import Permit, Warm
from ..protocol import IN_LINE, LEASE_MAX, UNRECORDED
from ..types import Decision, Recorded, Report
from .engine import Engine

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

log = logging.getLogger(__name__)
#: In `Request.meta`: what the request is for; what it came to; the seconds it waited.
INTENT, OUTCOME, WAITED = "comity_intent", "comity_outcome", "comity_waited"
#: A request counts as one that waits after so many seconds; the service answers within a few milliseconds otherwise.
WAITS_AFTER = 0.1


class Postponed(IgnoreRequest):
    """The request did not leave; its place is in the scheduler."""


class Paused(IgnoreRequest):
    """An operator paused the domain. The request's errback gets this."""


class Line:
    """Those of one download slot that want a permit. One at a time asks the service."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0
        #: What left the scheduler last, until it is on the wire.
        self.out: Optional[Request] = None
        #: Before this moment nothing leaves the scheduler.
        self.closed_until = 0.0
        #: Put back already since the last permit: now it stays in line, or others would always be there first.
        self.was_put_back = False
        #: Whether the last answer of the service was a permit.
        self.flows = False
        self.started_at = float("-inf")
        #: What could not be recorded while the service was away; said before anything is asked.
        self.unsaid: List[Report] = []

    def is_idle(self) -> bool:
        busy = self.turn.locked() or self.waiting or self.unsaid
        return not busy and max(self.closed_until, self.started_at + 60) < monotonic()


class Lines:
    """All lines of one crawler."""

    _all: WeakKeyDictionary[Crawler, Lines] = WeakKeyDictionary()

    @classmethod
    def of(cls, crawler: Crawler) -> Lines:
        lines = cls._all.get(crawler)
        if lines is None:
            lines = cls._all[crawler] = cls(crawler)
        return lines

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        self._engine = Engine(crawler)
        self._client = AsyncClient(settings.get("COMITY_SERVER"), settings.get("COMITY_TOKEN"))
        self._patience = settings.getfloat("COMITY_PATIENCE", 5.0)
        self._download_timeout = settings.getfloat("DOWNLOAD_TIMEOUT")
        self._away_max = settings.getfloat("COMITY_MAX_AWAY", 300.0)
        self.waiting_max = settings.getint("COMITY_MAX_WAITING", 200)
        self._lines: Dict[str, Line] = {}
        self._prune_at = 1000
        self._warm = Warm()
        self._popped: WeakSet[Request] = WeakSet()
        self._on_wire: WeakSet[Request] = WeakSet()
        self._refusals: WeakSet[Response] = WeakSet()
        self._asking: Set[asyncio.Task[Decision]] = set()
        self._giving_back: Set[asyncio.Task[Recorded]] = set()
        self._watch: Optional[asyncio.Task[None]] = None
        self._gave_up = False
        crawler.signals.connect(self._close, signals.engine_stopped)

    # What the queue asks.

    def open_slots(self, slots: Iterable[str]) -> List[str]:
        """Those whose next request may leave the scheduler."""
        now, active = monotonic(), self._engine.active
        return [slot for slot in slots if self._is_open(self._lines.get(slot), now, active)]

    def popped(self, slot: str, request: Request) -> None:
        self._popped.add(request)
        self._line(slot).out = request

    def was_popped(self, request: Request) -> bool:
        return request in self._popped

    # What the downloader asks.

    def waiting_in(self, slot_of: Callable[[Request], str], active: Iterable[Request]) -> int:
        """How many of `active` cannot leave because their slot waits for a permit, be it for its robots.txt."""
        waiting = {slot for slot, line in self._lines.items() if line.waiting}
        return sum(request not in self._on_wire and slot_of(request) in waiting for request in active)

    async def send(self, request: Request, send: Callable[[], Awaitable[Response]]) -> Response:
        """Waits for a permit, sends, and records what came."""
        # A spider that copies `meta` brings along what became of another request.
        for name in (OUTCOME, WAITED):
            request.meta.pop(name, None)
        line = self._line(self._engine.slot_of(request))
        came_at = monotonic()
        decision = await self._permit(line, request)
        cold = decision.domain not in self._warm
        permit = Permit(decision, cold=cold)
        request.meta[WAITED] = permit_waited = monotonic() - came_at
        self._engine.count("comity/permits")
        self._engine.count("comity/waited_seconds", permit_waited)
        line.started_at, line.was_put_back, line.out = monotonic(), False, None
        self._on_wire.add(request)
        self._engine.nudge()
        try:
            response = await (send() if cold else _sent(permit, send))
        except BaseException as error:
            # Also when it is cancelled once more meanwhile: a permit that stays open keeps others waiting.
            await asyncio.shield(self._settle(line, request, permit, error))
            raise
        finally:
            self._on_wire.discard(request)
        permit.answered(response.status, response.headers)
        await asyncio.shield(self._settle(line, request, permit, None))
        if _refuses(response, request.meta.get(OUTCOME)):
            self._refusals.add(response)
        return response

    # What the middleware asks.

    def is_refusal(self, response: Response) -> bool:
        """Whether the site itself said "later", just now; one out of a cache does not."""
        return response in self._refusals

    # Waiting.

    async def _permit(self, line: Line, request: Request) -> Decision:
        if self._closing():
            raise Postponed("the spider closes")
        # A task of its own: Scrapy would wait for ever for one of its tasks that is cancelled.
        asking = asyncio.ensure_future(self._in_turn(line, request))
        self._asking.add(asking)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.ensure_future(self._watch_for_the_end())
        taken = False
        try:
            await asyncio.wait({asking}, timeout=WAITS_AFTER)
            if not asking.done():
                await self._wait(line, asking)
            decision = asking.result()
            taken = True
            return decision
        except asyncio.CancelledError:
            if asking.done() and self._closing():
                raise Postponed("the spider closes") from None
            raise
        finally:
            self._asking.discard(asking)
            asking.cancel()
            if not taken:
                self._give_back(asking)

    def _give_back(self, asking: asyncio.Task[Decision]) -> None:
        """A permit that came just as its request was given up is not kept from everybody else until it expires."""
        if not asking.done() or asking.cancelled() or asking.exception() or not asking.result().proceed:
            return
        report = Report(asking.result(), outcome="abandoned")
        giving_back = asyncio.ensure_future(self._client.record(report))
        self._giving_back.add(giving_back)
        giving_back.add_done_callback(self._giving_back.discard)

    async def _wait(self, line: Line, asking: asyncio.Task[Decision]) -> None:
        line.waiting += 1
        # There is room for another domain's request now.
        self._engine.nudge()
        try:
            await asyncio.wait({asking})
        finally:
            line.waiting -= 1

    async def _in_turn(self, line: Line, request: Request) -> Decision:
        async with line.turn:
            # Scrapy counts its own delay from when a request came here; what counts for the site is when one left.
            await asyncio.sleep(line.started_at + self._engine.own_delay(request) - monotonic())
            # Where the last request got its permit, the next one mostly gets it within its patience. Elsewhere it is
            # worth asking first what there is to wait for: a domain that is paused or held is found out at once.
            first = [self._patience] if line.flows else [0.0, self._patience]
            for max_wait in chain(first, repeat(IN_LINE)):
                decision = await self._ask(line, request, max_wait)
                line.flows = decision.proceed
                if decision.proceed:
                    break
                if decision.refused:
                    self._engine.count("comity/paused")
                    raise Paused(f"{decision.domain}: {decision.reason}")
                if self._is_long(decision) and not line.was_put_back and request in self._popped:
                    self._put_back(line, decision.wait)
                    raise Postponed(decision.reason)
            return decision

    def _is_long(self, decision: Decision) -> bool:
        # What depends on others may be over at any moment; the wait is only the longest that it can take.
        return decision.wait > self._patience and decision.limit not in (
            "in_flight",
            "lease",
            "line",
            "changing_hands",
            "saving",
            "store_away",
        )

    def _put_back(self, line: Line, wait: float) -> None:
        line.was_put_back, line.closed_until = True, monotonic() + wait
        asyncio.get_running_loop().call_later(wait, self._engine.nudge)
        self._engine.count("comity/put_back")

    async def _ask(self, line: Line, request: Request, max_wait: float) -> Decision:
        away_since = None
        while True:
            try:
                await self._say_what_is_left(line)
                intent = request.meta.get(INTENT, "fetch")
                decision = await self._client.acquire(request.url, intent, max_wait, self._lease(request))
                if decision.limit != "stopping":
                    return decision
                pause = 0.5
            except Unavailable as away:
                now = monotonic()
                if away_since is None:
                    away_since = now
                    self._engine.count("comity/away")
                    log.warning("requests wait until the service is back: %s", away)
                if now - away_since > self._away_max:
                    self._give_up()
                    raise Postponed(str(away)) from away
                pause = away.retry_after or min(0.5 + (now - away_since) / 4, 10)
            await asyncio.sleep(pause)

    def _lease(self, request: Request) -> float:
        """As long as Scrapy lets the request take, and some time to record what came of it."""
        timeout = request.meta.get("download_timeout") or self._download_timeout
        return float(timeout or LEASE_MAX) + 10.0

    def _give_up(self) -> None:
        if not self._gave_up:
            self._gave_up = True
            log.error("the service did not come back within %s s, the spider is closed", self._away_max)
            self._engine.close("comity_unavailable")

    # Recording.

    async def _settle(self, line: Line, request: Request, permit: Permit, error: Optional[BaseException]) -> None:
        self._warm.add(permit.domain)
        line.started_at = max(line.started_at, permit.sent_at(error))
        report = permit.report(error)
        try:
            request.meta[OUTCOME] = (await self._client.record(report)).outcome
        except Unavailable as away:
            line.unsaid.append(report)
            log.warning("recorded later: %s", away)
        except ComityError as trouble:
            self._unrecorded(permit.domain, trouble)

    async def _say_what_is_left(self, line: Line) -> None:
        while line.unsaid:
            try:
                await self._client.record(line.unsaid[0])
            except Unavailable:
                raise
            except ComityError as trouble:
                self._unrecorded(str(line.unsaid[0].target), trouble)
            line.unsaid.pop(0)

    def _unrecorded(self, domain: str, trouble: ComityError) -> None:
        self._engine.count("comity/unrecorded")
        log.warning(UNRECORDED, domain, trouble)

    # The end.

    def _closing(self) -> bool:
        return self._gave_up or self._engine.closing

    async def _watch_for_the_end(self) -> None:
        """Who waits hangs up when the spider closes. No signal says so before everything under way is done."""
        while self._asking and not self._closing():
            await asyncio.sleep(0.2)
        for asking in self._asking:
            asking.cancel()

    async def _close(self) -> None:
        for outcome in await asyncio.gather(*self._giving_back, return_exceptions=True):
            if isinstance(outcome, ComityError):
                log.warning("a permit that was not used was not given back: %s", outcome)
        await self._client.close()

    # Lines.

    def _line(self, slot: str) -> Line:
        if slot not in self._lines:
            if len(self._lines) >= self._prune_at:
                self._lines = {slot: line for slot, line in self._lines.items() if not line.is_idle()}
                self._prune_at = max(1000, 2 * len(self._lines))
            self._lines[slot] = Line()
        return self._lines[slot]

    @staticmethod
    def _is_open(line: Optional[Line], now: float, active: Set[Request]) -> bool:
        return line is None or (line.closed_until <= now and line.out not in active)


async def _sent(permit: Permit, send: Callable[[], Awaitable[Response]]) -> Response:
    """Sends over a connection that is open, and notes when the request was written: a few turns of the loop later.
    What this process was kept from in the meantime, on a busy machine, does not bring the next request nearer."""
    sending = asyncio.ensure_future(send())
    try:
        for _ in range(10):
            await asyncio.sleep(0)
        permit.sent()
        return await sending
    finally:
        sending.cancel()


def _refuses(response: Response, outcome: Optional[str]) -> bool:
    """429, or what the service took for it, or a refusal that says until when."""
    if response.status == 429 or outcome == "rate_limited":
        return True
    return response.status in (403, 503) and b"Retry-After" in response.headers
