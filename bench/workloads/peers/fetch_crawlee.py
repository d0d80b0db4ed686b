"""Crawlee's HttpCrawler: `fetch_crawlee.py URLS FOLDER [options]`. Pages are fetched and dropped."""

import argparse
import asyncio
import logging
import pathlib

from crawlee import ConcurrencySettings, service_locator
from crawlee.configuration import Configuration
from crawlee.crawlers import HttpCrawler, HttpCrawlingContext
from crawlee.request_loaders import ThrottlingRequestManager
from crawlee.storage_clients import FileSystemStorageClient, MemoryStorageClient
from crawlee.storages import RequestQueue
from yarl import URL


async def main(options: argparse.Namespace) -> None:
    urls = pathlib.Path(options.urls).read_text().split()
    service_locator.set_configuration(
        Configuration(storage_dir=options.folder, purge_on_start=not options.keep))
    service_locator.set_storage_client(MemoryStorageClient() if options.memory else FileSystemStorageClient())

    settings = {}
    if options.concurrency:
        settings["concurrency_settings"] = ConcurrencySettings(
            desired_concurrency=options.concurrency, max_concurrency=options.concurrency)
    if options.throttle:
        settings["request_manager"] = await throttled(urls, options.delay_ms)

    async def read(context: HttpCrawlingContext) -> None:
        await context.http_response.read()

    crawler = HttpCrawler(request_handler=read, configure_logging=False, **settings)
    await crawler.run(urls, purge_request_queue=not options.keep)


async def throttled(urls: list[str], delay_ms: int) -> ThrottlingRequestManager:
    """Crawlee's per-domain throttle, over all hosts of the list; the delay is what robots.txt would ask for."""
    firsts = {URL(url).host: url for url in urls}
    manager = ThrottlingRequestManager(
        inner=await RequestQueue.open(), domains=list(firsts), request_manager_opener=RequestQueue.open)
    if delay_ms:
        for url in firsts.values():
            manager.set_crawl_delay(url, delay_ms / 1000)
    return manager


parser = argparse.ArgumentParser()
parser.add_argument("urls")
parser.add_argument("folder")
parser.add_argument("--keep", action="store_true", help="go on with what an earlier run left")
parser.add_argument("--memory", action="store_true", help="keep the queue in memory")
parser.add_argument("--concurrency", type=int, default=0)
parser.add_argument("--throttle", action="store_true", help="use ThrottlingRequestManager")
parser.add_argument("--delay-ms", type=int, default=0, help="minimum delay of each host (with --throttle)")
logging.disable()  # Its warnings about each 429 would cost it time.
asyncio.run(main(parser.parse_args()))
