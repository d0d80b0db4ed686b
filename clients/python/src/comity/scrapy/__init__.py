"""Scrapy add-on: every request gets a permit from Comity before it is sent, and its outcome is recorded.

Modules in reading order: `addon` (what is enabled), `queue` (which requests leave the scheduler), `downloader` (the
last step before sending), `lines` (waiting for permits; the only part that talks to the service), `middleware` (which
requests go back to the scheduler), `engine` (access to Scrapy's engine).
"""

from .addon import Comity
from .downloader import Downloader
from .lines import Paused, Postponed
from .middleware import Middleware
from .queue import Queue

__all__ = ["Comity", "Downloader", "Middleware", "Paused", "Postponed", "Queue"]
