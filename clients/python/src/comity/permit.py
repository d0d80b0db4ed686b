"""The right to send one request, and what to report about it. Nothing here talks to the service."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any, Callable, Dict, Optional, TypeVar

from . import outcome as outcomes
from .types import OUTCOMES, Decision, Outcome, Report

Response = TypeVar("Response")


class Permit:
    """The right to send one request. Send it at once, report the response, and leave the block: recording is automatic.

    What was reported last is recorded. If nothing was reported, the outcome is a success, or depends on the type of the
    exception that ended the block.
    """

    def __init__(
        self, decision: Decision, *, cold: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`cold` means that there is probably no open connection to the site yet."""
        self.decision = decision
        self._cold = cold
        self._clock = clock
        self._granted_at = clock()
        self._result: Optional[outcomes.Result] = None
        self._result_at: Optional[float] = None
        self._took: Optional[float] = None
        self._sent_at: Optional[float] = None

    @property
    def domain(self) -> str:
        """The site whose pace applies: a host, or a group of hosts."""
        return self.decision.domain

    @property
    def waited(self) -> float:
        """Seconds that the call waited in line."""
        return self.decision.waited

    def sent(self) -> None:
        """Reports that the request is being written right now: the pace then counts from here. Call this only if you
        know that moment exactly."""
        self._sent_at = self._clock()

    def response(self, response: Response) -> Response:
        """Reports the response. Returns it, so that you can wrap the call that fetches."""
        self._set_result(outcomes.of_response(response), _elapsed(response))
        return response

    def answered(self, status: int, headers: Optional[Any] = None) -> None:
        """Reports a response by its status and headers."""
        self._set_result((status, outcomes.rate_limit_headers(headers)))

    def outcome(self, outcome: Outcome) -> None:
        """Reports an outcome, such as "timeout"; or "rate_limited" for an API that reports it in its body."""
        if outcome not in OUTCOMES:
            raise ValueError(f"outcome = {outcome!r}: expected one of {', '.join(OUTCOMES)}")
        self._set_result(outcome)

    def report(self, error: Optional[BaseException] = None) -> Report:
        """What to record when the block ended, with `error` or without."""
        result = self._result
        if result is None:
            result = outcomes.of_exception(error) if error is not None else "success"
        report = Report(self.decision, latency_ms=round((self._clock() - self.sent_at(error)) * 1000))
        if isinstance(result, str):
            return replace(report, outcome=result)
        status, headers = result
        # No server can send another status, so it was made up by whoever called.
        if not 100 <= status <= 999:
            return replace(report, outcome="server_error", headers=headers)
        return replace(report, status=status, headers=headers)

    def sent_at(self, error: Optional[BaseException] = None) -> float:
        """The latest time at which the request can have been written. The delay to the next request counts from there.

        Usually only the HTTP library knows that time. So it is the start that the response states, or else the time
        of the permit. But the first request to a site opens a connection before it is written, which may take any
        part of the total time; so it is the time of the response then. That is only done after a success: after a
        failure the site is left alone anyway, and the failure must not look more recent than it is.
        """
        if self._sent_at is not None:
            return self._sent_at
        answered_at = self._clock() if self._result_at is None else self._result_at
        if self._cold and (error is None if self._result is None else _is_success(self._result)):
            return answered_at
        return self._granted_at if self._took is None else max(self._granted_at, answered_at - self._took)

    def _set_result(self, result: outcomes.Result, took: Optional[float] = None) -> None:
        self._result, self._result_at, self._took = result, self._clock(), took


class WarmConnections:
    """Remembers which sites answered recently, so that a connection to them is probably still open."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answered_at: Dict[str, float] = {}

    def __contains__(self, domain: str) -> bool:
        return self._clock() - self._answered_at.get(domain, float("-inf")) < KEEP_ALIVE

    def add(self, domain: str) -> None:
        # Ordered by the time of the last response, so those that are no longer warm come first.
        self._answered_at.pop(domain, None)
        self._answered_at[domain] = self._clock()
        for old in list(self._answered_at)[:2]:
            if old not in self:
                self._answered_at.pop(old, None)


def _elapsed(response: Any) -> Optional[float]:
    try:
        elapsed = response.elapsed
    except (AttributeError, RuntimeError):  # in httpx it is not available before the response was read
        return None
    return elapsed.total_seconds() if isinstance(elapsed, timedelta) else None


def _is_success(result: outcomes.Result) -> bool:
    return result == "success" if isinstance(result, str) else 200 <= result[0] < 400


#: Seconds for which servers usually keep an idle connection open, at least.
KEEP_ALIVE = 5.0
