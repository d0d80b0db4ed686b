"""The add-on that `ADDONS = {"comity.scrapy.Comity": 500}` enables. Its settings are read in `lines` and
`middleware`."""

from __future__ import annotations

import logging

from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.misc import load_object

from .downloader import Downloader
from .middleware import Middleware
from .queue import Queue

log = logging.getLogger(__name__)


class Comity:
    """The add-on."""

    def update_settings(self, settings: BaseSettings) -> None:
        _replace(settings, "DOWNLOADER", Downloader)
        _replace(settings, "SCHEDULER_PRIORITY_QUEUE", Queue)
        # Closest to the downloader, so that a rate limited response is neither cached nor counted as a failure.
        settings.setdefault_in_component_priority_dict("DOWNLOADER_MIDDLEWARES", Middleware, 1000)
        # By default httpx would log two lines per request. Newer versions of Scrapy do the same.
        if logging.getLogger("httpx").level == logging.NOTSET:
            logging.getLogger("httpx").setLevel(logging.WARNING)


def _replace(settings: BaseSettings, name: str, ours: type) -> None:
    """Replaces one of Scrapy's own classes, even if the project sets the default explicitly."""
    current = load_object(settings[name])
    if issubclass(current, ours):
        return
    if current.__module__.split(".")[0] != "scrapy":
        log.warning("%s = %r is not Scrapy's own class and is kept: %s", name, settings[name], _CONSEQUENCES[name])
        return
    priority_min = SETTINGS_PRIORITIES["addon"]
    settings.set(name, ours, max(priority_min, settings.getpriority(name) or 0))


_CONSEQUENCES = {
    "DOWNLOADER": "requests are not paced by Comity unless it derives from comity.scrapy.Downloader",
    "SCHEDULER_PRIORITY_QUEUE": "many requests to a site that has to wait may delay other sites",
}
