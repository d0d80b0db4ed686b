"""What `ADDONS = {"comity.scrapy.Comity": 500}` switches on. The settings themselves are read in `lines`."""

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
        # Nearest to the wire: a refusal is neither cached nor counted as a failure on its way back.
        settings.setdefault_in_component_priority_dict("DOWNLOADER_MIDDLEWARES", Middleware, 1000)
        # Two lines for each request, unless somebody wants them. Newer versions of Scrapy do the same.
        if logging.getLogger("httpx").level == logging.NOTSET:
            logging.getLogger("httpx").setLevel(logging.WARNING)


def _replace(settings: BaseSettings, name: str, ours: type) -> None:
    """Puts ours in the place of one of Scrapy's own, even where a project spells out the default."""
    there = load_object(settings[name])
    if issubclass(there, ours):
        return
    if there.__module__.split(".")[0] != "scrapy":
        log.warning("%s = %r is not Scrapy's own: %s", name, settings[name], _LOST[name])
        return
    at_least = SETTINGS_PRIORITIES["addon"]
    settings.set(name, ours, max(at_least, settings.getpriority(name) or 0))


_LOST = {
    "DOWNLOADER": "nothing asks Comity unless it derives from comity.scrapy.Downloader",
    "SCHEDULER_PRIORITY_QUEUE": "many requests of a domain that has to wait may hold up the others",
}
