"""Asks a Comity service before a request leaves, and tells it what came back.

In reading order: `types` (what the service says), `errors`, `outcome` (what a fetch came to), `permit` (the right to
send one request), `protocol` (every call and every loop, without any input or output), `client` and `aio` (the same,
over HTTP), `scrapy` (an add-on; imported only by those who use it).
"""

from .aio import AsyncClient
from .client import Client
from .errors import ComityError, Invalid, Refused, TimedOut, Unavailable
from .permit import Permit
from .types import Constraint, Decision, Domain, Explanation, Intent, Outcome, Recorded, Report

__all__ = [
    "AsyncClient",
    "Client",
    "ComityError",
    "Constraint",
    "Decision",
    "Domain",
    "Explanation",
    "Intent",
    "Invalid",
    "Outcome",
    "Permit",
    "Recorded",
    "Refused",
    "Report",
    "TimedOut",
    "Unavailable",
]
