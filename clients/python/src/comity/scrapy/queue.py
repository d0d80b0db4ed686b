"""Which requests leave the scheduler: of each domain one at a time, until it is on the wire; of one that is held, none.

What waits stays here, where Scrapy keeps it on disk if it is told to, and takes no place from other domains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, List, Optional, Tuple

from scrapy import Request
from scrapy.pqueues import DownloaderAwarePriorityQueue

from .lines import Lines

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

#: Where a request that was put back keeps its own `dont_filter`, which has to be true on the way through the scheduler.
DONT_FILTER = "comity_dont_filter"


class Queue(DownloaderAwarePriorityQueue):
    """Scrapy's own, with domains left out that have no use for another request now."""

    def __init__(self, crawler: Crawler, *args: Any, **kwargs: Any) -> None:
        super().__init__(crawler, *args, **kwargs)
        self._lines = Lines.of(crawler)
        self._downloader_interface: Any = _Open(self._downloader_interface, self._lines)

    def pop(self) -> Optional[Request]:
        request = super().pop()
        if request is not None:
            request.dont_filter = request.meta.pop(DONT_FILTER, request.dont_filter)
            self._lines.popped(self._downloader_interface.get_slot_key(request), request)
        return request


class _Open:
    """What the queue knows of the downloader, without the slots that are closed."""

    def __init__(self, everything: Any, lines: Lines) -> None:
        self._everything = everything
        self._lines = lines

    def stats(self, possible_slots: Iterable[str]) -> List[Tuple[int, str]]:
        stats: List[Tuple[int, str]] = self._everything.stats(self._lines.open_slots(possible_slots))
        return stats

    def get_slot_key(self, request: Request) -> str:
        key: str = self._everything.get_slot_key(request)
        return key
