"""Scrapy: `fetch_scrapy.py URLS [SETTING=VALUE…]`. Pages are fetched and dropped."""

import pathlib
import sys

import scrapy
from scrapy.crawler import CrawlerProcess


class Pages(scrapy.Spider):
    """Asks for each URL of the list once; Scrapy's own filter knows those of an earlier run (JOBDIR)."""

    name = "pages"

    async def start(self):
        for url in pathlib.Path(self.urls).read_text().split():
            yield scrapy.Request(url, callback=self.parse, errback=self.give_up)

    def parse(self, response):
        """The body has been read; nothing is parsed."""

    def give_up(self, failure):
        """A page that Scrapy gave up on: the server's log tells."""


urls, *settings = sys.argv[1:]
process = CrawlerProcess({"LOG_ENABLED": False, **dict(setting.split("=", 1) for setting in settings)})
process.crawl(Pages, urls=urls)
process.start()
