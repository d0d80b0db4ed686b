"""Makes a Scrapy spider polite: every request asks Comity before it goes to the wire, and tells what came.

In reading order: `addon` (what is switched on), `queue` (which requests leave the scheduler), `downloader` (the last
step before the wire), `lines` (who waits for what; the only part that talks to the service), `middleware` (what goes
back to the scheduler), `engine` (what is needed of Scrapy's).
"""

from .addon import Comity
from .downloader import Downloader
from .lines import Paused, Postponed
from .middleware import Middleware
from .queue import Queue

__all__ = ["Comity", "Downloader", "Middleware", "Paused", "Postponed", "Queue"]
