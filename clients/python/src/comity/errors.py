"""What can go wrong between a program and the service. Trouble with the site itself is an outcome, not an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional

if TYPE_CHECKING:
    from .types import Decision


class ComityError(Exception):
    """Every error of this package."""


class Unavailable(ComityError):
    """The service cannot be reached, did not answer in time, or said 503. Asking again later may help."""

    def __init__(self, message: str, *, retry_after: Optional[float] = None, met: bool = False) -> None:
        super().__init__(message)
        #: Seconds to wait before asking again, when the service said so.
        self.retry_after = retry_after
        #: Whether somebody was there: a 503, or a connection that broke. False when nobody answered at all.
        self.met = met


class Invalid(ComityError):
    """The service refused a call (4xx), or what answered is no service of ours. Asking again with the same words does
    not help."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.title = str(problem.get("title", ""))
        self.detail = str(problem.get("detail", ""))
        #: The field that is wrong, its value, and what it may be; where the service names them.
        self.field: Optional[str] = problem.get("field")
        self.value: Any = problem.get("value")
        self.allowed: Any = problem.get("allowed")
        super().__init__(self.detail or self.title or f"the service answered {status}")


class Refused(ComityError):
    """An operator paused the domain. It stays so until somebody resumes it; waiting does not help."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"{decision.domain}: {decision.reason}")
        self.decision = decision


class TimedOut(ComityError, TimeoutError):
    """The slot did not come within the time that the caller gave."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(f"{decision.domain}: {decision.wait:.1f} s left: {decision.reason}")
        self.decision = decision
