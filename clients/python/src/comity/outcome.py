"""The outcome of a fetch, derived from a response or from the type of an exception, never from the text of a message.

No HTTP library is imported for this: if one of its exceptions was raised, its module is loaded already.
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

#: Status and headers of a response; or an outcome, if there was no response.
Result = Union[Tuple[int, Dict[str, str]], Outcome]


def of_exception(error: BaseException) -> Result:
    """What to record if the fetch raised `error` and the caller reported nothing.

    A cancelled task and a bug in the caller's own code are "abandoned": the outcome is unknown, nothing is learned
    from it, and the site's next request need not wait for it.
    """
    if isinstance(error, ComityError):
        return "abandoned"
    response = _response_in(error)
    if response is not None:
        return response
    return _failure(error) or "abandoned"


def of_response(response: Any) -> Tuple[int, Dict[str, str]]:
    """Status and headers of a response from requests, httpx, urllib, aiohttp, Scrapy or anything with the same
    attributes."""
    status = _status(response)
    if status is None:
        raise TypeError(f"expected a response with status_code or status, got {type(response).__name__}")
    return status, rate_limit_headers(getattr(response, "headers", None))


def rate_limit_headers(headers: Optional[Any]) -> Dict[str, str]:
    """The headers about rate limits and waiting. Cookies and all others never leave the process."""
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
        # Scrapy has a list of values per name; the others repeat the pair, or have joined the values.
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


def _response_in(error: BaseException) -> Optional[Tuple[int, Dict[str, str]]]:
    # In requests, a response with a 4xx status is falsy: compare with None.
    response = getattr(error, "response", None)
    if response is not None and _status(response) is not None:
        return of_response(response)
    if isinstance(error, (urllib.error.HTTPError, *_loaded(_WITH_STATUS))) and _status(error):
        return of_response(error)
    return None


def _failure(error: BaseException) -> Optional[Literal["timeout", "network_error"]]:
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        return _failure(error.reason) or "network_error"
    if isinstance(error, _loaded(_NOT_SENT)):
        return None
    if isinstance(error, (*_TIMEOUTS, *_loaded(_TIMEOUT_NAMES))):
        return "timeout"
    if isinstance(error, (*_NETWORK_ERRORS, *_loaded(_NETWORK_ERROR_NAMES))):
        return "network_error"
    # Any other OSError may be about the caller's own files.
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return "network_error"
    return None


def _loaded(names: Mapping[str, Tuple[str, ...]]) -> Tuple[Type[BaseException], ...]:
    """The exception classes with these names, by module, as far as the modules are loaded."""
    found: List[Type[BaseException]] = []
    for module, classes in names.items():
        here = sys.modules.get(module)
        found.extend(getattr(here, name) for name in classes if hasattr(here, name))
    return tuple(found)


_TIMEOUTS = (TimeoutError, socket.timeout, asyncio.TimeoutError, concurrent.futures.TimeoutError)
_NETWORK_ERRORS = (
    ConnectionError,
    socket.gaierror,
    socket.herror,
    ssl.SSLError,
    urllib.error.URLError,
    http.client.HTTPException,
)
_ERRNOS = {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH}

# Some of these derive from a class below, but no request was sent: the connection pool was full, or the URL was
# invalid.
_NOT_SENT = {
    "httpx": ("PoolTimeout", "UnsupportedProtocol", "LocalProtocolError"),
    "http.client": ("InvalidURL", "CannotSendRequest", "ImproperConnectionState"),
    "aiohttp": ("InvalidURL",),
    "requests.exceptions": ("InvalidURL",),
}
_WITH_STATUS = {"aiohttp": ("ClientResponseError",)}
_TIMEOUT_NAMES = {
    "httpx": ("TimeoutException",),
    "requests.exceptions": ("Timeout",),
    "urllib3.exceptions": ("TimeoutError",),
    "scrapy.exceptions": ("DownloadTimeoutError",),
    "twisted.internet.error": ("TimeoutError", "TCPTimedOutError"),
    "twisted.internet.defer": ("TimeoutError",),
}
_NETWORK_ERROR_NAMES = {
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
