"""The last step before a request is sent, and the limit on concurrent requests.

The permit is requested here and not in a middleware, because a request that has one must be sent at once: after the
middlewares it may still wait in Scrapy's own queue of its slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Awaitable, Callable

from scrapy import Request
from scrapy.core.downloader import Downloader as ScrapyDownloader
from scrapy.http import Response
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.httpobj import urlparse_cached

from .lines import Lines

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred


class Downloader(ScrapyDownloader):
    """Scrapy's downloader, except that requests waiting for a permit don't count as concurrent requests."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._lines = Lines.of(crawler)
        self.handlers: Any = _PacedHandlers(self.handlers, self._lines)

    def needs_backout(self) -> bool:
        if not super().needs_backout():
            return False
        waiting = self._lines.waiting_in(self.get_slot_key, self.active)
        return waiting >= self._lines.waiting_max or len(self.active) - waiting >= self.total_concurrency

    def get_slot_key(self, request: Request) -> str:
        """Scrapy's slot key, plus the port unless that is the scheme's default: to the service, another port is another
        site."""
        key = super().get_slot_key(request)
        url = urlparse_cached(request)
        try:
            port = url.port
        except ValueError:
            return key
        if key != url.hostname or key in self.per_slot_settings or port in (None, _PORTS.get(url.scheme)):
            return key
        return f"{key}:{port}"


class _PacedHandlers:
    """Scrapy's download handlers, which wait for a permit first. Files and data URLs need none."""

    def __init__(self, handlers: Any, lines: Lines) -> None:
        self._handlers = handlers
        self._lines = lines

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handlers, name)

    async def download_request_async(self, request: Request) -> Response:
        return await self._send(request, lambda: self._handlers.download_request_async(request))

    def download_request(self, request: Request, spider: Any = None) -> Deferred[Response]:
        """The same, for Scrapy 2.13."""

        async def send() -> Response:
            response: Response = await maybe_deferred_to_future(self._handlers.download_request(request, spider))
            return response

        return deferred_from_coro(self._send(request, send))

    async def _send(self, request: Request, send: Callable[[], Awaitable[Response]]) -> Response:
        if urlparse_cached(request).scheme not in _PORTS:
            return await send()
        return await self._lines.send(request, send)


_PORTS = {"http": 80, "https": 443}
