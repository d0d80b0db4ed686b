"""Sends rate limited requests, and requests that have to wait for long, back to the scheduler.

Neither counts as a retry: Scrapy's RetryMiddleware counts only pages that fail.
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
#: In `Request.meta`: how often the request was rate limited so far.
REFUSALS = "comity_refusals"


class Middleware:
    """The middleware closest to the downloader, so that the others never see the responses it withholds."""

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
        if not self._lines.is_rate_limited(response) or request.meta.get("dont_retry", False):
            return response
        count = request.meta.get(REFUSALS, 0) + 1
        if count > self._refusals_max:
            log.warning("%s: rate limited %d times, passing the response on to the spider", request, count)
            self._stats.inc_value("comity/gave_up")
            return response
        self._stats.inc_value("comity/refusals")
        return _reschedule(request, count)

    def process_exception(
        self, request: Request, exception: Exception, spider: object = None
    ) -> Optional[Request]:
        # A request that did not come from the scheduler would be sent again at once, so it is dropped instead.
        if isinstance(exception, Postponed) and self._lines.was_popped(request):
            return _reschedule(request, request.meta.get(REFUSALS, 0))
        return None


def _reschedule(request: Request, count: int) -> Request:
    copy: Request = request.copy()
    copy.meta[REFUSALS] = count
    # The dupefilter has already seen this request. Its own `dont_filter` is restored when it leaves the queue.
    copy.meta.setdefault(DONT_FILTER, request.dont_filter)
    copy.dont_filter = True
    return copy
