"""The objects exchanged with the service. Fields added by a newer service are ignored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Mapping, Optional, Tuple, Union, get_args

Intent = Literal["fetch", "search", "api"]
Outcome = Literal[
    "success", "answered", "rate_limited", "blocked", "unavailable", "server_error", "timeout", "network_error",
    "abandoned",
]
OUTCOMES: Tuple[str, ...] = get_args(Outcome)


@dataclass(frozen=True)
class Decision:
    """Whether a request may be sent now, or else how long to wait and why."""

    #: Whether the request may be sent now. `check` and `acquire` have then reserved the slot.
    proceed: bool
    #: The site whose pace applies: a host, or a group of hosts.
    domain: str
    #: The reason, as a sentence.
    reason: str
    #: Milliseconds to wait before asking again.
    wait_ms: int
    #: Milliseconds that the call waited in line.
    waited_ms: int
    #: The permit, to record the outcome with; None if nothing was reserved.
    permit: Optional[str]
    #: What delays the request, such as "min_delay"; None if nothing does.
    limit: Optional[str]
    #: Where that limit comes from, such as "rule" or "server".
    origin: Optional[str]
    #: Whether an operator paused the site until further notice.
    refused: bool
    #: How long the permit counts as in flight if it is not recorded.
    lease_ms: Optional[int] = None

    @property
    def wait(self) -> float:
        """Seconds to wait before asking again."""
        return self.wait_ms / 1000

    @property
    def waited(self) -> float:
        """Seconds that the call waited in line."""
        return self.waited_ms / 1000

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Decision:
        return cls(
            proceed=answer["proceed"],
            domain=answer["domain"],
            reason=answer["reason"],
            wait_ms=answer["wait_ms"],
            waited_ms=answer.get("waited_ms", 0),
            permit=answer.get("permit"),
            limit=answer.get("limit"),
            origin=answer.get("origin"),
            refused=answer.get("refused", False),
            lease_ms=answer.get("lease_ms"),
        )


@dataclass(frozen=True)
class Report:
    """The outcome of a request. Set exactly one of `status` and `outcome`."""

    #: The decision that granted the request; or a URL or site, for a request sent without asking.
    target: Union[Decision, str]
    #: The HTTP status of the response.
    status: Optional[int] = None
    #: The outcome, for example if there was no response.
    outcome: Optional[Outcome] = None
    #: What the request was for, if `target` is a URL or site.
    intent: Optional[Intent] = None
    #: The headers of the response. Only those about rate limits and waiting are sent to the service.
    headers: Optional[Mapping[str, str]] = None
    #: The `Retry-After` header of the response.
    retry_after: Union[str, int, None] = None
    #: The `RateLimit` header of the response.
    ratelimit: Optional[str] = None
    #: How long ago the request was sent, in milliseconds: the pace counts from there.
    latency_ms: Optional[int] = None


@dataclass(frozen=True)
class Recorded:
    """What recording a report changed."""

    #: The site whose pace was updated.
    domain: str
    #: The outcome that was recorded.
    outcome: str
    #: "fresh" if it counted; "late" if the request was sent before the latest failure; "repeated" if the permit was
    #: already recorded. (Reports of a batch that the service calls "unheard" are retried, so that value does not
    #: occur here.)
    standing: str
    #: Until when the site is closed because of this (RFC 3339), or None.
    held_until: Optional[str]
    #: The new learned delay, or None if it did not change.
    adaptive_delay_seconds: Optional[float]
    #: Milliseconds until the next request may be sent.
    wait_ms: int

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Recorded:
        return cls(
            domain=answer["domain"],
            outcome=answer["outcome"],
            standing=answer["standing"],
            held_until=answer.get("held_until"),
            adaptive_delay_seconds=answer.get("adaptive_delay_seconds"),
            wait_ms=answer["wait_ms"],
        )


@dataclass(frozen=True)
class Constraint:
    """One constraint on the next request."""

    #: The constraint, in one word such as "min_delay".
    limit: str
    #: Where it comes from, such as "rule" or "server".
    origin: str
    #: Whether it delays a request now.
    binds: bool
    #: When it ends or ended (RFC 3339); None if the site is paused until it is resumed.
    until: Optional[str]
    #: Milliseconds until it ends.
    wait_ms: int
    #: The constraint as a sentence.
    text: str

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Constraint:
        return cls(
            limit=answer["limit"],
            origin=answer["origin"],
            binds=answer["binds"],
            until=answer.get("until"),
            wait_ms=answer["wait_ms"],
            text=answer["text"],
        )


@dataclass(frozen=True)
class Explanation:
    """Everything that delays, or could delay, the next request to a site."""

    #: The site whose pace applies: a host, or a group of hosts.
    domain: str
    #: Milliseconds until the next request may be sent.
    wait_ms: int
    #: All constraints; the one that decides comes first.
    constraints: Tuple[Constraint, ...]

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Explanation:
        constraints = tuple(Constraint.read(one) for one in answer["constraints"])
        return cls(domain=answer["domain"], wait_ms=answer["wait_ms"], constraints=constraints)


@dataclass(frozen=True)
class Domain:
    """What the service knows about a site."""

    #: The name of the site: a host, or a group of hosts.
    domain: str
    #: The learned delay; 0 if nothing was learned.
    adaptive_delay_seconds: float
    #: The lowest learned delay known to be safe.
    adaptive_delay_floor_seconds: float
    #: Whether the learned delay is pinned, so that responses don't change it.
    pinned: bool
    #: Whether an operator paused the site.
    paused: bool
    #: When the pause ends (RFC 3339); None if it is not paused, or paused until it is resumed.
    paused_until: Optional[str]
    #: Until when the server asked not to be sent requests (RFC 3339), or None.
    server_until: Optional[str]
    #: The current pace, as in the API; None if another process is in charge of the site and did not publish it.
    live: Optional[Mapping[str, Any]]

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Domain:
        return cls(
            domain=answer["domain"],
            adaptive_delay_seconds=answer["adaptive_delay_seconds"],
            adaptive_delay_floor_seconds=answer["adaptive_delay_floor_seconds"],
            pinned=answer["pinned"],
            paused=answer["paused"],
            paused_until=answer.get("paused_until"),
            server_until=answer.get("server_until"),
            live=answer.get("live"),
        )
