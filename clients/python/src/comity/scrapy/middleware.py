"""What goes back to the scheduler instead of to the spider: refusals, and requests whose turn did not come.

Neither is a retry. Scrapy's RetryMiddleware keeps its count for pages that fail.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Optional, Union

from scrapy import Request
from scrapy.http import Response

from .lines import Lines, Postponed
from .queue import DONT_FILTER

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

log = logging.getLogger(__name__)
#: How often a request was refused so far.
REFUSALS = "comity_refusals"


class Middleware:
    """Stands nearest to the wire, so that the others never see what it sends back."""

    def __init__(self, crawler: Crawler) -> None:
        self._lines = Lines.of(crawler)
        self._stats = crawler.stats
        self._refusals_max = crawler.settings.getint("COMITY_MAX_REFUSALS", 20)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Middleware:
        return cls(crawler)

    def process_response(
        self, request: Request, response: Response, spider: object = None
    ) -> Union[Request, Response]:
        if not self._lines.is_refusal(response) or request.meta.get("dont_retry", False):
            return response
        refusals = request.meta.get(REFUSALS, 0) + 1
        if refusals > self._refusals_max:
            log.warning("%s: refused %d times, handed to the spider's own retries", request, refusals)
            self._stats.inc_value("comity/gave_up")
            return response
        self._stats.inc_value("comity/refusals")
        return _again(request, refusals)

    def process_exception(
        self, request: Request, exception: Exception, spider: object = None
    ) -> Optional[Request]:
        # One that did not come from the scheduler would be sent again at once; it is ignored instead.
        if isinstance(exception, Postponed) and self._lines.was_popped(request):
            return _again(request, request.meta.get(REFUSALS, 0))
        return None


def _again(request: Request, refusals: int) -> Request:
    again: Request = request.copy()
    again.meta[REFUSALS] = refusals
    # The dupefilter has seen it. What the spider had said about filtering is put back when it leaves the queue.
    again.meta.setdefault(DONT_FILTER, request.dont_filter)
    again.dont_filter = True
    return again
