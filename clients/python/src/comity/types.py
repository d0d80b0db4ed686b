"""What the service says, and what it is told. Fields that a newer service adds are ignored."""

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
    """May a request leave now?"""

    #: Yes, and the slot is taken. Of a peek: it could.
    proceed: bool
    domain: str
    #: Why, in words.
    reason: str
    wait_ms: int
    waited_ms: int
    #: What names this request when it is recorded.
    permit: Optional[str]
    #: What holds the request back, such as "min_delay", and whose limit that is, such as "rule" or "server".
    limit: Optional[str]
    origin: Optional[str]
    #: An operator paused the domain until it is resumed.
    refused: bool
    #: How long the permit keeps its place when nobody records it.
    lease_ms: Optional[int] = None

    @property
    def wait(self) -> float:
        """Seconds until asking again makes sense."""
        return self.wait_ms / 1000

    @property
    def waited(self) -> float:
        """Seconds that were spent in line."""
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
    """What became of a request: exactly one of `status` and `outcome`."""

    #: The decision that let it go; or a URL or domain, for a request that nobody asked for.
    target: Union[Decision, str]
    status: Optional[int] = None
    outcome: Optional[Outcome] = None
    intent: Optional[Intent] = None
    #: Those that say nothing about waiting stay here; they are nobody else's business.
    headers: Optional[Mapping[str, str]] = None
    retry_after: Union[str, int, None] = None
    ratelimit: Optional[str] = None
    #: How long ago the request was sent: the pace is counted from there.
    latency_ms: Optional[int] = None


@dataclass(frozen=True)
class Recorded:
    """What the service made of a report."""

    domain: str
    outcome: str
    #: "fresh"; "late" for a request that left before the latest trouble; "repeated" for a permit already recorded.
    #: What a batch calls "unheard" is told again, and does not come out here.
    standing: str
    #: RFC 3339, or None.
    held_until: Optional[str]
    adaptive_delay_seconds: Optional[float]
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
    """One limit on the next request."""

    limit: str
    origin: str
    #: Whether it is this one that makes the request wait.
    binds: bool
    until: Optional[str]
    wait_ms: int
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
    """Every limit on the next request to a domain."""

    domain: str
    wait_ms: int
    constraints: Tuple[Constraint, ...]

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Explanation:
        constraints = tuple(Constraint.read(one) for one in answer["constraints"])
        return cls(domain=answer["domain"], wait_ms=answer["wait_ms"], constraints=constraints)


@dataclass(frozen=True)
class Domain:
    """What the service knows of a domain."""

    domain: str
    #: The learned delay, and the shortest that was found safe; 0 is nothing learnt.
    adaptive_delay_seconds: float
    adaptive_delay_floor_seconds: float
    #: Whether answers leave the learned delay as it is.
    pinned: bool
    #: Whether an operator closed it, and until when; None is until it is resumed.
    paused: bool
    paused_until: Optional[str]
    #: Until when its server asked to be left alone.
    server_until: Optional[str]
    #: What its pace is at the moment, as the service says it; None when another process decides for it.
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
