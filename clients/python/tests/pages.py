"""The spider that the tests run: fetches the URLs it is given, and writes what it got to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, AsyncIterator, Iterator

import scrapy


class Pages(scrapy.Spider):
    name = "pages"

    def __init__(self, urls: str, out: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.urls = json.loads(urls)
        self.out = Path(out)
        self.got: list[list[Any]] = []
        self.failed: list[str] = []

    async def start(self) -> AsyncIterator[scrapy.Request]:
        for url in self.urls:
            yield scrapy.Request(url, errback=self.fail)

    def parse(self, response: Any) -> Iterator[Any]:
        self.got.append([response.url, response.status])
        if response.request.dont_filter:
            self.failed.append("dont_filter was not restored")
        yield {"url": response.url}

    def fail(self, failure: Any) -> None:
        self.failed.append(type(failure.value).__name__)

    def closed(self, reason: str) -> None:
        result = {"got": self.got, "failed": self.failed, "reason": reason, "stats": self.crawler.stats.get_stats()}
        self.out.write_text(json.dumps(result, default=str))
