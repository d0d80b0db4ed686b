"""The client for threads and plain scripts. What it says and how it goes on is in `protocol`; this performs it."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from types import TracebackType
from typing import Iterable, Iterator, List, Optional, Type, TypeVar

import httpx

from . import protocol
from .errors import ComityError, Unavailable
from .permit import Permit, Warm
from .protocol import Flow, Pause, Reply, Step
from .types import Decision, Domain, Explanation, Intent, Recorded, Report

T = TypeVar("T")
log = logging.getLogger("comity")


class Client:
    """Talks to one service. May be shared by any number of threads."""

    def __init__(
        self,
        server: Optional[str] = None,
        token: Optional[str] = None,
        timeout: float = 10.0,
        lease: Optional[float] = None,
    ) -> None:
        """`timeout` is for one answer of the service, on top of the time in line. `lease` is how long a request of yours may
        take: a permit that nobody records, because the program died, keeps its place for so many seconds. By default the
        service decides (a minute)."""
        self.server, self._token = protocol.server_and_token(server, token)
        self._timeout = timeout
        self._lease = lease
        self._warm = Warm()
        self._http = httpx.Client(base_url=self.server, **protocol.CONNECTIONS)

    @contextmanager
    def permit(
        self, url: str, intent: Intent = "fetch", timeout: Optional[float] = None, lease: Optional[float] = None
    ) -> Iterator[Permit]:
        """Waits until a request to `url` may leave, and records what became of it when the block is left, in whatever way."""
        decision = self._run(protocol.obtain(url, intent, timeout, lease=self._lease if lease is None else lease))
        permit = Permit(decision, cold=decision.domain not in self._warm)
        try:
            yield permit
        except BaseException as error:
            self._settle(permit, error)
            raise
        self._settle(permit, None)

    def check(self, target: str, intent: Intent = "fetch", lease: Optional[float] = None) -> Decision:
        """May a request leave now? When it may, the slot is taken."""
        return self._run(protocol.check(target, intent, self._lease if lease is None else lease))

    def peek(self, target: str, intent: Intent = "fetch") -> Decision:
        """The same, and takes nothing."""
        return self._run(protocol.peek(target, intent))

    def acquire(
        self, target: str, intent: Intent = "fetch", max_wait: float = 30.0, lease: Optional[float] = None
    ) -> Decision:
        """Waits in line for at most `max_wait` seconds. The decision may still be not to proceed."""
        return self._run(protocol.acquire(target, intent, max_wait, self._lease if lease is None else lease))

    def renew(self, decision: Decision, lease: Optional[float] = None) -> bool:
        """The request takes longer than expected: its permit keeps its place from now on for `lease` seconds. False when
        it lost its place already."""
        return self._run(protocol.renew(decision, self._lease if lease is None else lease))

    def release(self, decision: Decision) -> Recorded:
        """The request is not sent after all: others need not wait for it."""
        return self.record(Report(decision, outcome="abandoned"))

    def record(self, report: Report) -> Recorded:
        """Tells what became of a request."""
        return self._run(protocol.record(report))

    def check_many(
        self, targets: Iterable[str], intent: Intent = "fetch", lease: Optional[float] = None
    ) -> List[Decision]:
        """Many checks, in order."""
        return self._run(protocol.check_many(targets, intent, self._lease if lease is None else lease))

    def record_many(self, reports: Iterable[Report]) -> List[Recorded]:
        """Many reports, in order."""
        return self._run(protocol.record_many(reports))

    def explain(self, target: str, intent: Intent = "fetch") -> Explanation:
        """Every limit on the next request."""
        return self._run(protocol.explain(target, intent))

    def domain(self, target: str) -> Optional[Domain]:
        """What is known of a domain; None when nothing is."""
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
        except ComityError as trouble:
            # The fetch is over, and its result or its error is what the caller came for.
            log.warning(protocol.UNRECORDED, permit.domain, trouble)

    def _run(self, flow: Flow[T]) -> T:
        try:
            step = next(flow)
            while True:
                try:
                    reply = self._perform(step)
                except Unavailable as trouble:
                    step = flow.throw(trouble)
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
            return protocol.received(self._http.request(**protocol.send(step, self._token, self._timeout)))
        except httpx.HTTPError as error:
            raise protocol.unreachable(error, self.server) from error
