"""The right to send one request, and what is to be said of it. Nothing here talks to the service."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any, Callable, Dict, Optional, TypeVar

from . import outcome as outcomes
from .types import OUTCOMES, Decision, Outcome, Report

Response = TypeVar("Response")


class Permit:
    """Send the request at once, tell what came, and leave the block: recording happens by itself.

    What was told last is recorded. Nothing told is a success, an exception is what its type says.
    """

    def __init__(
        self, decision: Decision, *, cold: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`cold`: there is no connection to the site yet, as far as is known."""
        self.decision = decision
        self._cold = cold
        self._clock = clock
        self._granted_at = clock()
        self._told: Optional[outcomes.Told] = None
        self._told_at: Optional[float] = None
        self._took: Optional[float] = None
        self._sent_at: Optional[float] = None

    @property
    def domain(self) -> str:
        """What shares one pace with this request."""
        return self.decision.domain

    @property
    def waited(self) -> float:
        """Seconds that were spent in line."""
        return self.decision.waited

    def sent(self) -> None:
        """The request has been written. Worth saying only for who knows: the pace is counted from here then."""
        self._sent_at = self._clock()

    def response(self, response: Response) -> Response:
        """This came back. Hands the response on, so that it can stand around the call that fetches."""
        self._tell(outcomes.of_response(response), _elapsed(response))
        return response

    def answered(self, status: int, headers: Optional[Any] = None) -> None:
        """A response with this status and these headers came back."""
        self._tell((status, outcomes.headers_about_waiting(headers)))

    def outcome(self, outcome: Outcome) -> None:
        """In the service's own word, such as "timeout"; or "rate_limited" for an API that says so in its body."""
        if outcome not in OUTCOMES:
            raise ValueError(f"outcome = {outcome!r}: expected one of {', '.join(OUTCOMES)}")
        self._tell(outcome)

    def report(self, error: Optional[BaseException] = None) -> Report:
        """What is to be recorded, when the block was left with `error` or without."""
        told = self._told
        if told is None:
            told = outcomes.of_exception(error) if error is not None else "success"
        report = Report(self.decision, latency_ms=round((self._clock() - self.sent_at(error)) * 1000))
        if isinstance(told, str):
            return replace(report, outcome=told)
        status, headers = told
        # Some sites answer with a status that does not exist, such as 999.
        if not 100 <= status <= 599:
            return replace(report, outcome="server_error", headers=headers)
        return replace(report, status=status, headers=headers)

    def sent_at(self, error: Optional[BaseException] = None) -> float:
        """When the request was written, at the latest: the next one keeps its distance from there.

        Mostly only the HTTP library knows. It counts from the permit, or from where the response says; but a first
        request opens a connection before it is written, and may take any part of its time for that. After a failure
        the site is left alone anyway, and it must not look younger than it is.
        """
        if self._sent_at is not None:
            return self._sent_at
        answered_at = self._clock() if self._told_at is None else self._told_at
        if self._cold and (error is None if self._told is None else _is_success(self._told)):
            return answered_at
        return self._granted_at if self._took is None else max(self._granted_at, answered_at - self._took)

    def _tell(self, told: outcomes.Told, took: Optional[float] = None) -> None:
        self._told, self._told_at, self._took = told, self._clock(), took


class Warm:
    """Which domains were answered a short time ago, so that a connection to them may still be open."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answered_at: Dict[str, float] = {}

    def __contains__(self, domain: str) -> bool:
        return self._clock() - self._answered_at.get(domain, float("-inf")) < STAYS_WARM

    def add(self, domain: str) -> None:
        # The order is that of the last answer, so those that went cold come first.
        self._answered_at.pop(domain, None)
        self._answered_at[domain] = self._clock()
        for old in list(self._answered_at)[:2]:
            if old not in self:
                self._answered_at.pop(old, None)


def _elapsed(response: Any) -> Optional[float]:
    try:
        elapsed = response.elapsed
    except (AttributeError, RuntimeError):  # httpx does not tell before the response was read
        return None
    return elapsed.total_seconds() if isinstance(elapsed, timedelta) else None


def _is_success(told: outcomes.Told) -> bool:
    return told == "success" if isinstance(told, str) else 200 <= told[0] < 400


#: Seconds that servers commonly keep a connection open at least.
STAYS_WARM = 5.0
