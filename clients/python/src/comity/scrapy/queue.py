"""Which requests leave the scheduler: one per site at a time, until it is sent, and none for a site that has to
wait.

Waiting requests stay in the scheduler. There Scrapy can keep them on disk (`JOBDIR`), and they don't delay other
sites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, List, Optional, Tuple

from scrapy import Request
from scrapy.pqueues import DownloaderAwarePriorityQueue

from .lines import Lines

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

#: In `Request.meta`: the original `dont_filter` of a rescheduled request, which has to be true in the scheduler.
DONT_FILTER = "comity_dont_filter"


class Queue(DownloaderAwarePriorityQueue):
    """Scrapy's priority queue, without the sites that can't use another request now."""

    def __init__(self, crawler: Crawler, *args: Any, **kwargs: Any) -> None:
        super().__init__(crawler, *args, **kwargs)
        self._lines = Lines.of(crawler)
        self._downloader_interface: Any = _OpenSlots(self._downloader_interface, self._lines)

    def pop(self) -> Optional[Request]:
        request = super().pop()
        if request is not None:
            request.dont_filter = request.meta.pop(DONT_FILTER, request.dont_filter)
            self._lines.popped(self._downloader_interface.get_slot_key(request), request)
        return request


class _OpenSlots:
    """The queue's interface to the downloader, without the slots that have to wait."""

    def __init__(self, interface: Any, lines: Lines) -> None:
        self._interface = interface
        self._lines = lines

    def stats(self, possible_slots: Iterable[str]) -> List[Tuple[int, str]]:
        stats: List[Tuple[int, str]] = self._interface.stats(self._lines.open_slots(possible_slots))
        return stats

    def get_slot_key(self, request: Request) -> str:
        key: str = self._interface.get_slot_key(request)
        return key
