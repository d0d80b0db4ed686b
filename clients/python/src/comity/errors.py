"""Errors in the communication with the service. A problem with the site itself is an outcome, not an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional

if TYPE_CHECKING:
    from .types import Decision


class ComityError(Exception):
    """Base class of all errors of this package."""


class Unavailable(ComityError):
    """The service can't be reached, did not answer in time, or answered 503. Retry later."""

    def __init__(self, message: str, *, retry_after: Optional[float] = None, met: bool = False) -> None:
        super().__init__(message)
        #: Seconds to wait before retrying, if the service sent `Retry-After`.
        self.retry_after = retry_after
        #: Whether a service was there: it answered 503, or the connection broke. False if nothing answered at all.
        self.met = met


class Invalid(ComityError):
    """The service refused a call (4xx), or the server at this address is not a Comity service. Retrying the same call
    does not help."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        #: The invalid field, if the service names one.
        self.field: Optional[str] = problem.get("field")
        #: The value of that field.
        self.value: Any = problem.get("value")
        #: What is allowed in that field.
        self.allowed: Any = problem.get("allowed")
        super().__init__(self.detail or self.title or f"the service answered HTTP {status}")


class Refused(ComityError):
    """An operator paused the site until further notice. Waiting does not help until somebody resumes it."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"{decision.domain}: {decision.reason}")
        self.decision = decision


class TimedOut(ComityError, TimeoutError):
    """No permit was granted within the caller's timeout."""

    def __init__(self, decision: Decision) -> None:
        remaining = f"{decision.wait:.1f} s remaining"
        super().__init__(f"{decision.domain}: timed out waiting for a permit, {remaining}: {decision.reason}")
        self.decision = decision
