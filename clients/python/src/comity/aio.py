"""The client for asyncio. It does the I/O; what to send, and when to retry, is decided in `protocol`."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from types import TracebackType
from typing import AsyncIterator, Iterable, List, Optional, Type, TypeVar

import httpx

from . import protocol
from .errors import ComityError, Unavailable
from .permit import Permit, WarmConnections
from .protocol import Flow, Pause, Reply, Step
from .types import Decision, Domain, Explanation, Intent, Recorded, Report

T = TypeVar("T")
log = logging.getLogger("comity")


class AsyncClient:
    """A client for one service. Any number of tasks of one event loop may share it."""

    def __init__(
        self,
        server: Optional[str] = None,
        token: Optional[str] = None,
        timeout: float = 10.0,
        lease: Optional[float] = None,
    ) -> None:
        """`server` defaults to `COMITY_SERVER` or http://127.0.0.1:7878, `token` to `COMITY_TOKEN`.

        `timeout` limits how long the service may take to answer, in seconds, on top of the time in line. `lease` is
        how long your requests may take, in seconds: if your program dies, its permits count as in flight for that
        long. By default the service decides (a minute)."""
        self.server, self._token = protocol.server_and_token(server, token)
        self._timeout = timeout
        self._lease = lease
        self._warm = WarmConnections()
        self._http = httpx.AsyncClient(base_url=self.server, **protocol.CONNECTIONS)

    @asynccontextmanager
    async def permit(
        self, url: str, intent: Intent = "fetch", timeout: Optional[float] = None, lease: Optional[float] = None
    ) -> AsyncIterator[Permit]:
        """Waits until a request to `url` may be sent. When the block ends, for whatever reason, the outcome is
        recorded.

        `timeout` is the maximum time to wait, in seconds; by default there is no limit."""
        lease = self._lease if lease is None else lease
        decision = await self._wait_for_permit(protocol.wait_for_permit(url, intent, timeout, lease=lease))
        permit = Permit(decision, cold=decision.domain not in self._warm)
        try:
            yield permit
        except BaseException as error:
            # Shielded, so that the outcome is recorded even if the task is cancelled again.
            await asyncio.shield(self._settle(permit, error))
            raise
        await asyncio.shield(self._settle(permit, None))

    async def check(self, target: str, intent: Intent = "fetch", lease: Optional[float] = None) -> Decision:
        """Asks whether a request may be sent now, without waiting. If it may, the slot is reserved."""
        return await self._run(protocol.check(target, intent, self._lease if lease is None else lease))

    async def peek(self, target: str, intent: Intent = "fetch") -> Decision:
        """Like `check`, but reserves nothing."""
        return await self._run(protocol.peek(target, intent))

    async def acquire(
        self, target: str, intent: Intent = "fetch", max_wait: float = 30.0, lease: Optional[float] = None
    ) -> Decision:
        """Waits in line for at most `max_wait` seconds. After that, the decision may still be to wait."""
        return await self._run(protocol.acquire(target, intent, max_wait, self._lease if lease is None else lease))

    async def renew(self, decision: Decision, lease: Optional[float] = None) -> bool:
        """Extends the lease of a permit to `lease` seconds from now, for a request that takes longer than expected.
        Returns False if the lease had already ended."""
        return await self._run(protocol.renew(decision, self._lease if lease is None else lease))

    async def release(self, decision: Decision) -> Recorded:
        """Returns the permit of a request that is not sent after all, so that others need not wait for it."""
        return await self.record(Report(decision, outcome="abandoned"))

    async def record(self, report: Report) -> Recorded:
        """Reports the outcome of a request."""
        return await self._run(protocol.record(report))

    async def check_many(
        self, targets: Iterable[str], intent: Intent = "fetch", lease: Optional[float] = None
    ) -> List[Decision]:
        """Checks any number of targets. The decisions are in the order of the targets."""
        return await self._run(protocol.check_many(targets, intent, self._lease if lease is None else lease))

    async def record_many(self, reports: Iterable[Report]) -> List[Recorded]:
        """Records any number of reports, in order."""
        return await self._run(protocol.record_many(reports))

    async def explain(self, target: str, intent: Intent = "fetch") -> Explanation:
        """Everything that delays the next request, and why."""
        return await self._run(protocol.explain(target, intent))

    async def domain(self, target: str) -> Optional[Domain]:
        """What is known about a site, or None."""
        return await self._run(protocol.domain(target))

    async def close(self) -> None:
        """Closes the connections to the service."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    async def _wait_for_permit(self, flow: Flow[Decision]) -> Decision:
        """Waits for a permit. If the task is cancelled just as the permit arrives, the permit is returned."""
        asking = asyncio.ensure_future(self._run(flow))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.cancel()
            await asyncio.wait({asking})
            if not asking.cancelled() and asking.exception() is None:
                await asyncio.shield(self._settle(Permit(asking.result()), asyncio.CancelledError()))
            raise

    async def _settle(self, permit: Permit, error: Optional[BaseException]) -> None:
        self._warm.add(permit.domain)
        try:
            await self.record(permit.report(error))
        except ComityError as failure:
            # The caller's own result or exception matters more, so this is only logged.
            log.warning(protocol.NOT_RECORDED, permit.domain, failure)

    async def _run(self, flow: Flow[T]) -> T:
        try:
            step = next(flow)
            while True:
                try:
                    reply = await self._perform(step)
                except Unavailable as failure:
                    step = flow.throw(failure)
                else:
                    step = flow.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _perform(self, step: Step) -> Optional[Reply]:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            arguments = protocol.request_arguments(step, self._token, self._timeout)
            return protocol.to_reply(await self._http.request(**arguments))
        except httpx.HTTPError as error:
            raise protocol.unreachable(error, self.server) from error
