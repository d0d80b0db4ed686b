"""Client for the decision service of Comity: ask before you fetch, and report the outcome.

Modules in reading order: `types` (requests and responses of the service), `errors`, `outcome` (the outcome of a
fetch), `permit` (the right to send one request), `protocol` (all calls, retries and waits, without I/O), `client` and
`aio` (the same over HTTP, for threads and for asyncio), `scrapy` (an add-on, imported only if you use it).
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
