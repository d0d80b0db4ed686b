"""Access to Scrapy's engine. The two private names that the add-on needs are used only here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Set

from scrapy import Request

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


class Engine:
    """The engine of a crawler. It does not exist yet when this object is created."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        if not _asyncio():
            raise RuntimeError(
                "comity.scrapy requires the asyncio reactor, Scrapy's default: remove the setting TWISTED_REACTOR"
            )

    @property
    def active(self) -> Set[Request]:
        """The requests that have left the scheduler and are not finished."""
        active: Set[Request] = self._downloader.active
        return active

    def slot_of(self, request: Request) -> str:
        slot: str = self._downloader.get_slot_key(request)
        return slot

    def own_delay(self, request: Request) -> float:
        """The delay from the spider's own settings: DOWNLOAD_DELAY or AutoThrottle."""
        slot = self._downloader.slots.get(self.slot_of(request))
        return slot.download_delay() if slot is not None else 0.0

    def count(self, name: str, by: float = 1) -> None:
        stats: Any = self._crawler.stats
        stats.inc_value(name, by)

    def nudge(self) -> None:
        """Makes the engine ask the scheduler for requests now. Otherwise it does so only every five seconds."""
        slot = self._slot
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()

    @property
    def closing(self) -> bool:
        slot = self._slot
        return slot is not None and slot.closing is not None

    def close(self, reason: str) -> None:
        engine: Any = self._crawler.engine
        if hasattr(engine, "close_spider_async"):
            asyncio.ensure_future(engine.close_spider_async(reason=reason))
        else:
            engine.close_spider(self._crawler.spider, reason)

    @property
    def _slot(self) -> Any:
        return getattr(self._crawler.engine, "_slot", None)

    @property
    def _downloader(self) -> Any:
        engine: Any = self._crawler.engine
        return engine.downloader


def _asyncio() -> bool:
    try:
        from scrapy.utils.asyncio import is_asyncio_available
    except ImportError:  # Scrapy 2.13
        from scrapy.utils.reactor import is_asyncio_reactor_installed as is_asyncio_available
    return bool(is_asyncio_available())
