"""What a fetch came to, told from a response or an exception by its type, never by words in a message.

No HTTP library is imported for this: whoever raised an exception has loaded its module already.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import http.client
import socket
import ssl
import sys
import urllib.error
from typing import Any, Dict, Iterable, List, Literal, Mapping, Optional, Tuple, Type, Union

from .errors import ComityError
from .types import Outcome

#: Status and headers of an answer; or a word, where there is none.
Told = Union[Tuple[int, Dict[str, str]], Outcome]


def of_exception(error: BaseException) -> Told:
    """What is to be recorded when nothing was told and `error` came out of the fetch.

    A cancelled task and a mistake in the caller's own code are "abandoned": nothing is known of the request, nothing
    is learnt from it, and the domain's next one need not wait for it.
    """
    if isinstance(error, ComityError):
        return "abandoned"
    answer = _answer_in(error)
    if answer is not None:
        return answer
    return _breakdown(error) or "abandoned"


def of_response(response: Any) -> Tuple[int, Dict[str, str]]:
    """Status and headers of a response of requests, httpx, urllib, aiohttp, Scrapy or anything of their shape."""
    status = _status(response)
    if status is None:
        raise TypeError(f"expected a response with status_code or status, got {type(response).__name__}")
    return status, headers_about_waiting(getattr(response, "headers", None))


def headers_about_waiting(headers: Optional[Any]) -> Dict[str, str]:
    """The headers that the service reads; cookies and the rest never leave the process."""
    kept: Dict[str, str] = {}
    for name, value in _pairs(headers):
        name = _text(name).lower()
        if name in ("date", "retry-after") or name.startswith(("ratelimit", "x-rate")):
            kept[name] = f"{kept[name]}, {value}" if name in kept else value
    return kept


def _pairs(headers: Optional[Any]) -> Iterable[Tuple[Any, str]]:
    if headers is None:
        return
    for name, value in headers.items() if hasattr(headers, "items") else headers:
        # Scrapy keeps a list for each name; the others repeat the pair or have joined it.
        for one in value if isinstance(value, (list, tuple)) else [value]:
            yield name, _text(one)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _status(thing: Any) -> Optional[int]:
    for name in ("status_code", "status", "code"):
        value = getattr(thing, name, None)
        if isinstance(value, int):
            return int(value)
    return None


def _answer_in(error: BaseException) -> Optional[Tuple[int, Dict[str, str]]]:
    # A response that a library hangs on its exception is falsy for a 4xx in requests: compare with None.
    response = getattr(error, "response", None)
    if response is not None and _status(response) is not None:
        return of_response(response)
    if isinstance(error, (urllib.error.HTTPError, *_loaded(_ANSWERED))) and _status(error):
        return of_response(error)
    return None


def _breakdown(error: BaseException) -> Optional[Literal["timeout", "network_error"]]:
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        return _breakdown(error.reason) or "network_error"
    if isinstance(error, _loaded(_NEVER_LEFT)):
        return None
    if isinstance(error, (*_TIMEOUTS, *_loaded(_TIMEOUT_NAMES))):
        return "timeout"
    if isinstance(error, (*_BREAKS, *_loaded(_BREAK_NAMES))):
        return "network_error"
    # Other OSErrors may well be about the caller's own files.
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return "network_error"
    return None


def _loaded(names: Mapping[str, Tuple[str, ...]]) -> Tuple[Type[BaseException], ...]:
    found: List[Type[BaseException]] = []
    for module, classes in names.items():
        here = sys.modules.get(module)
        found.extend(getattr(here, name) for name in classes if hasattr(here, name))
    return tuple(found)


_TIMEOUTS = (TimeoutError, socket.timeout, asyncio.TimeoutError, concurrent.futures.TimeoutError)
_BREAKS = (
    ConnectionError,
    socket.gaierror,
    socket.herror,
    ssl.SSLError,
    urllib.error.URLError,
    http.client.HTTPException,
)
_ERRNOS = {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH}

# Some derive from a class below, and yet no request left: the caller's pool was full, or the URL made no sense.
_NEVER_LEFT = {
    "httpx": ("PoolTimeout", "UnsupportedProtocol", "LocalProtocolError"),
    "http.client": ("InvalidURL", "CannotSendRequest", "ImproperConnectionState"),
    "aiohttp": ("InvalidURL",),
    "requests.exceptions": ("InvalidURL",),
}
_ANSWERED = {"aiohttp": ("ClientResponseError",)}
_TIMEOUT_NAMES = {
    "httpx": ("TimeoutException",),
    "requests.exceptions": ("Timeout",),
    "urllib3.exceptions": ("TimeoutError",),
    "scrapy.exceptions": ("DownloadTimeoutError",),
    "twisted.internet.error": ("TimeoutError", "TCPTimedOutError"),
    "twisted.internet.defer": ("TimeoutError",),
}
_BREAK_NAMES = {
    "httpx": ("TransportError",),
    "requests.exceptions": ("ConnectionError", "ChunkedEncodingError"),
    "urllib3.exceptions": ("ProtocolError", "NewConnectionError", "SSLError", "ProxyError", "MaxRetryError"),
    "aiohttp": ("ClientConnectionError", "ClientPayloadError"),
    "scrapy.exceptions": (
        "CannotResolveHostError",
        "DownloadConnectionRefusedError",
        "DownloadFailedError",
        "ResponseDataLossError",
    ),
    "twisted.internet.error": ("ConnectError", "ConnectionClosed", "DNSLookupError"),
    "twisted.web.client": ("ResponseFailed", "ResponseNeverReceived"),
}
