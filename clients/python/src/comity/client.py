"""The client for threads and plain scripts. It does the I/O; what to send, and when to retry, is decided in
`protocol`."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from types import TracebackType
from typing import Iterable, Iterator, List, Optional, Type, TypeVar

import httpx

from . import protocol
from .errors import ComityError, Unavailable
from .permit import Permit, WarmConnections
from .protocol import Flow, Pause, Reply, Step
from .types import Decision, Domain, Explanation, Intent, Recorded, Report

T = TypeVar("T")
log = logging.getLogger("comity")


class Client:
    """A client for one service. Any number of threads may share it."""

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
        self._http = httpx.Client(base_url=self.server, **protocol.CONNECTIONS)

    @contextmanager
    def permit(
        self, url: str, intent: Intent = "fetch", timeout: Optional[float] = None, lease: Optional[float] = None
    ) -> Iterator[Permit]:
        """Waits until a request to `url` may be sent. When the block ends, for whatever reason, the outcome is
        recorded.

        `timeout` is the maximum time to wait, in seconds; by default there is no limit."""
        lease = self._lease if lease is None else lease
        decision = self._run(protocol.wait_for_permit(url, intent, timeout, lease=lease))
        permit = Permit(decision, cold=decision.domain not in self._warm)
        try:
            yield permit
        except BaseException as error:
            self._settle(permit, error)
            raise
        self._settle(permit, None)

    def check(self, target: str, intent: Intent = "fetch", lease: Optional[float] = None) -> Decision:
        """Asks whether a request may be sent now, without waiting. If it may, the slot is reserved."""
        return self._run(protocol.check(target, intent, self._lease if lease is None else lease))

    def peek(self, target: str, intent: Intent = "fetch") -> Decision:
        """Like `check`, but reserves nothing."""
        return self._run(protocol.peek(target, intent))

    def acquire(
        self, target: str, intent: Intent = "fetch", max_wait: float = 30.0, lease: Optional[float] = None
    ) -> Decision:
        """Waits in line for at most `max_wait` seconds. After that, the decision may still be to wait."""
        return self._run(protocol.acquire(target, intent, max_wait, self._lease if lease is None else lease))

    def renew(self, decision: Decision, lease: Optional[float] = None) -> bool:
        """Extends the lease of a permit to `lease` seconds from now, for a request that takes longer than expected.
        Returns False if the lease had already ended."""
        return self._run(protocol.renew(decision, self._lease if lease is None else lease))

    def release(self, decision: Decision) -> Recorded:
        """Returns the permit of a request that is not sent after all, so that others need not wait for it."""
        return self.record(Report(decision, outcome="abandoned"))

    def record(self, report: Report) -> Recorded:
        """Reports the outcome of a request."""
        return self._run(protocol.record(report))

    def check_many(
        self, targets: Iterable[str], intent: Intent = "fetch", lease: Optional[float] = None
    ) -> List[Decision]:
        """Checks any number of targets. The decisions are in the order of the targets."""
        return self._run(protocol.check_many(targets, intent, self._lease if lease is None else lease))

    def record_many(self, reports: Iterable[Report]) -> List[Recorded]:
        """Records any number of reports, in order."""
        return self._run(protocol.record_many(reports))

    def explain(self, target: str, intent: Intent = "fetch") -> Explanation:
        """Everything that delays the next request, and why."""
        return self._run(protocol.explain(target, intent))

    def domain(self, target: str) -> Optional[Domain]:
        """What is known about a site, or None."""
        return self._run(protocol.domain(target))

    def close(self) -> None:
        """Closes the connections to the service."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def _settle(self, permit: Permit, error: Optional[BaseException]) -> None:
        self._warm.add(permit.domain)
        try:
            self.record(permit.report(error))
        except ComityError as failure:
            # The caller's own result or exception matters more, so this is only logged.
            log.warning(protocol.NOT_RECORDED, permit.domain, failure)

    def _run(self, flow: Flow[T]) -> T:
        try:
            step = next(flow)
            while True:
                try:
                    reply = self._perform(step)
                except Unavailable as failure:
                    step = flow.throw(failure)
                else:
                    step = flow.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result

    def _perform(self, step: Step) -> Optional[Reply]:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            arguments = protocol.request_arguments(step, self._token, self._timeout)
            return protocol.to_reply(self._http.request(**arguments))
        except httpx.HTTPError as error:
            raise protocol.unreachable(error, self.server) from error
