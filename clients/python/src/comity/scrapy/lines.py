"""Waiting for permits, with one line per download slot. The only part of the add-on that talks to the service."""

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
from ..permit import Permit, WarmConnections
from ..protocol import LEASE_MAX, NOT_RECORDED, WAIT_PER_CALL
from ..types import Decision, Recorded, Report
from .engine import Engine

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

log = logging.getLogger(__name__)
#: In `Request.meta`: what the request is for, its outcome, and the seconds it waited.
INTENT, OUTCOME, WAITED = "comity_intent", "comity_outcome", "comity_waited"
#: A request counts as waiting after this many seconds. If there is nothing to wait for, the service answers within
#: milliseconds.
WAITS_AFTER = 0.1


class Postponed(IgnoreRequest):
    """The request was not sent. It goes back to the scheduler."""


class Paused(IgnoreRequest):
    """An operator paused the site. The request's errback gets this."""


class Line:
    """The requests of one download slot that wait for a permit. They ask the service one at a time."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0
        #: The request that left the scheduler last, until it is sent.
        self.leaving: Optional[Request] = None
        #: No request leaves the scheduler before this time.
        self.closed_until = 0.0
        #: Whether a request was sent back to the scheduler since the last permit. The next one then stays in line;
        #: otherwise other processes would always be first.
        self.was_rescheduled = False
        #: Whether the last decision of the service was a permit.
        self.last_granted = False
        #: When the latest request was sent.
        self.started_at = float("-inf")
        #: Reports that could not be recorded while the service was down. They are recorded before the next permit.
        self.backlog: List[Report] = []

    def is_idle(self) -> bool:
        busy = self.turn.locked() or self.waiting or self.backlog
        return not busy and max(self.closed_until, self.started_at + 60) < monotonic()


class Lines:
    """The lines of all slots of one crawler."""

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
        self._outage_max = settings.getfloat("COMITY_MAX_AWAY", 300.0)
        self.waiting_max = settings.getint("COMITY_MAX_WAITING", 200)
        self._lines: Dict[str, Line] = {}
        self._prune_at = 1000
        self._warm = WarmConnections()
        self._popped: WeakSet[Request] = WeakSet()
        self._on_wire: WeakSet[Request] = WeakSet()
        self._rate_limited: WeakSet[Response] = WeakSet()
        self._asking: Set[asyncio.Task[Decision]] = set()
        self._returning: Set[asyncio.Task[Recorded]] = set()
        self._watch: Optional[asyncio.Task[None]] = None
        self._gave_up = False
        crawler.signals.connect(self._close, signals.engine_stopped)

    # Called by the queue.

    def open_slots(self, slots: Iterable[str]) -> List[str]:
        """The slots whose next request may leave the scheduler."""
        now, active = monotonic(), self._engine.active
        return [slot for slot in slots if self._is_open(self._lines.get(slot), now, active)]

    def popped(self, slot: str, request: Request) -> None:
        self._popped.add(request)
        self._line(slot).leaving = request

    def was_popped(self, request: Request) -> bool:
        return request in self._popped

    # Called by the downloader.

    def waiting_in(self, slot_of: Callable[[Request], str], active: Iterable[Request]) -> int:
        """How many of the `active` requests can't be sent because their slot waits for a permit, if only for its
        robots.txt."""
        waiting = {slot for slot, line in self._lines.items() if line.waiting}
        return sum(request not in self._on_wire and slot_of(request) in waiting for request in active)

    async def send(self, request: Request, send: Callable[[], Awaitable[Response]]) -> Response:
        """Waits for a permit, sends the request, and records the outcome."""
        # A spider may have copied `meta` from another request, with that request's outcome.
        for name in (OUTCOME, WAITED):
            request.meta.pop(name, None)
        line = self._line(self._engine.slot_of(request))
        arrived_at = monotonic()
        decision = await self._permit(line, request)
        cold = decision.domain not in self._warm
        permit = Permit(decision, cold=cold)
        request.meta[WAITED] = waited = monotonic() - arrived_at
        self._engine.count("comity/permits")
        self._engine.count("comity/waited_seconds", waited)
        line.started_at, line.was_rescheduled, line.leaving = monotonic(), False, None
        self._on_wire.add(request)
        self._engine.nudge()
        try:
            response = await (send() if cold else _sent(permit, send))
        except BaseException as error:
            # Shielded, so that the outcome is recorded even if the task is cancelled again. An open permit would keep
            # others waiting.
            await asyncio.shield(self._settle(line, request, permit, error))
            raise
        finally:
            self._on_wire.discard(request)
        permit.answered(response.status, response.headers)
        await asyncio.shield(self._settle(line, request, permit, None))
        if _is_rate_limited(response, request.meta.get(OUTCOME)):
            self._rate_limited.add(response)
        return response

    # Called by the middleware.

    def is_rate_limited(self, response: Response) -> bool:
        """Whether this response from the site was rate limited. A response from a cache never is."""
        return response in self._rate_limited

    # Waiting.

    async def _permit(self, line: Line, request: Request) -> Decision:
        if self._closing():
            raise Postponed("the spider is closing")
        # A separate task, because Scrapy would wait forever for one of its own tasks that is cancelled.
        asking = asyncio.ensure_future(self._in_turn(line, request))
        self._asking.add(asking)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.ensure_future(self._cancel_on_close())
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
                raise Postponed("the spider is closing") from None
            raise
        finally:
            self._asking.discard(asking)
            asking.cancel()
            if not taken:
                self._return_permit(asking)

    def _return_permit(self, asking: asyncio.Task[Decision]) -> None:
        """Returns a permit that arrived just as its request was cancelled, so that others need not wait for its lease
        to end."""
        if not asking.done() or asking.cancelled() or asking.exception() or not asking.result().proceed:
            return
        report = Report(asking.result(), outcome="abandoned")
        returning = asyncio.ensure_future(self._client.record(report))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)

    async def _wait(self, line: Line, asking: asyncio.Task[Decision]) -> None:
        line.waiting += 1
        # A request to another site can leave the scheduler now.
        self._engine.nudge()
        try:
            await asyncio.wait({asking})
        finally:
            line.waiting -= 1

    async def _in_turn(self, line: Line, request: Request) -> Decision:
        async with line.turn:
            # Scrapy counts its own delay from when a request got here, but for the site it matters when the last one
            # was sent.
            await asyncio.sleep(line.started_at + self._engine.own_delay(request) - monotonic())
            # If the last request got its permit, the next one usually gets it within COMITY_PATIENCE. Otherwise ask
            # without waiting first: that shows at once whether the site is paused or closed.
            first = [self._patience] if line.last_granted else [0.0, self._patience]
            for max_wait in chain(first, repeat(WAIT_PER_CALL)):
                decision = await self._ask(line, request, max_wait)
                line.last_granted = decision.proceed
                if decision.proceed:
                    break
                if decision.refused:
                    self._engine.count("comity/paused")
                    raise Paused(f"{decision.domain}: {decision.reason}")
                if self._is_long(decision) and not line.was_rescheduled and request in self._popped:
                    self._reschedule_line(line, decision.wait)
                    raise Postponed(decision.reason)
            return decision

    def _is_long(self, decision: Decision) -> bool:
        # These limits depend on others and may end at any moment: the wait is only an upper bound.
        return decision.wait > self._patience and decision.limit not in (
            "in_flight",
            "lease",
            "line",
            "changing_hands",
            "saving",
            "store_away",
        )

    def _reschedule_line(self, line: Line, wait: float) -> None:
        line.was_rescheduled, line.closed_until = True, monotonic() + wait
        asyncio.get_running_loop().call_later(wait, self._engine.nudge)
        self._engine.count("comity/put_back")

    async def _ask(self, line: Line, request: Request, max_wait: float) -> Decision:
        down_since = None
        while True:
            try:
                await self._record_backlog(line)
                intent = request.meta.get(INTENT, "fetch")
                decision = await self._client.acquire(request.url, intent, max_wait, self._lease(request))
                if decision.limit != "stopping":
                    return decision
                pause = 0.5
            except Unavailable as error:
                now = monotonic()
                if down_since is None:
                    down_since = now
                    self._engine.count("comity/away")
                    log.warning("waiting for the decision service: %s", error)
                if now - down_since > self._outage_max:
                    self._give_up()
                    raise Postponed(str(error)) from error
                pause = error.retry_after or min(0.5 + (now - down_since) / 4, 10)
            await asyncio.sleep(pause)

    def _lease(self, request: Request) -> float:
        """Scrapy's download timeout, plus some time to record the outcome."""
        timeout = request.meta.get("download_timeout") or self._download_timeout
        return float(timeout or LEASE_MAX) + 10.0

    def _give_up(self) -> None:
        if not self._gave_up:
            self._gave_up = True
            message = "the decision service was down for more than %s s (COMITY_MAX_AWAY): closing the spider"
            log.error(message, self._outage_max)
            self._engine.close("comity_unavailable")

    # Recording.

    async def _settle(self, line: Line, request: Request, permit: Permit, error: Optional[BaseException]) -> None:
        self._warm.add(permit.domain)
        line.started_at = max(line.started_at, permit.sent_at(error))
        report = permit.report(error)
        try:
            request.meta[OUTCOME] = (await self._client.record(report)).outcome
        except Unavailable as failure:
            line.backlog.append(report)
            log.warning("%s: will record the outcome later: %s", permit.domain, failure)
        except ComityError as failure:
            self._unrecorded(permit.domain, failure)

    async def _record_backlog(self, line: Line) -> None:
        """Records the reports that could not be recorded while the service was down."""
        while line.backlog:
            try:
                await self._client.record(line.backlog[0])
            except Unavailable:
                raise
            except ComityError as error:
                target = line.backlog[0].target
                self._unrecorded(target if isinstance(target, str) else target.domain, error)
            line.backlog.pop(0)

    def _unrecorded(self, domain: str, error: ComityError) -> None:
        self._engine.count("comity/unrecorded")
        log.warning(NOT_RECORDED, domain, error)

    # Closing.

    def _closing(self) -> bool:
        return self._gave_up or self._engine.closing

    async def _cancel_on_close(self) -> None:
        """Cancels all waits when the spider closes. Scrapy's signals come too late: only when all requests are
        finished."""
        while self._asking and not self._closing():
            await asyncio.sleep(0.2)
        for asking in self._asking:
            asking.cancel()

    async def _close(self) -> None:
        for outcome in await asyncio.gather(*self._returning, return_exceptions=True):
            if isinstance(outcome, ComityError):
                log.warning("could not return an unused permit: %s", outcome)
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
        return line is None or (line.closed_until <= now and line.leaving not in active)


async def _sent(permit: Permit, send: Callable[[], Awaitable[Response]]) -> Response:
    """Sends over an open connection, and notes when the request was written: a few iterations of the event loop
    later. So if this process was delayed before, on a busy machine, the next request still keeps its distance."""
    sending = asyncio.ensure_future(send())
    try:
        for _ in range(10):
            await asyncio.sleep(0)
        permit.sent()
        return await sending
    finally:
        sending.cancel()


def _is_rate_limited(response: Response, outcome: Optional[str]) -> bool:
    """Whether the site rate limited the request: 429, or an outcome that the service classified so, or 403 or 503 with
    `Retry-After`."""
    if response.status == 429 or outcome == "rate_limited":
        return True
    return response.status in (403, 503) and b"Retry-After" in response.headers
