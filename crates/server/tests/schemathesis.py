"""Hooks for schemathesis: how to generate the formats of the API description, and what no description can say."""

import functools
import itertools
import os
import re
from urllib.parse import unquote

import requests
import schemathesis
from hypothesis import strategies as st

label = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
# Host names that end in a word, so that none looks like a malformed IP address.
host = st.builds(
    lambda labels, end, port: ".".join(labels) + "." + end + port,
    st.lists(label.filter(lambda text: not text.startswith("xn--")), min_size=1, max_size=3),
    st.sampled_from(["com", "org", "example", "museum"]),
    st.sampled_from(["", "", ":8080", ":1"]),
)
url = st.builds(
    lambda scheme, host, path: f"{scheme}://{host}{path}",
    st.sampled_from(["http", "https", "HTTPS"]),
    host,
    st.from_regex(r"(/[!-~]{0,40})?", fullmatch=True),
)


@functools.cache
def permits():
    """Permits that the service granted; it accepts no others."""
    checks = [{"domain": f"permit-{nth}.example"} for nth in range(20)]
    answer = requests.post(os.environ["COMITY_URL"] + "/v1/check/batch", json={"checks": checks}, timeout=30)
    return [result["permit"] for result in answer.json()["results"]]


schemathesis.openapi.format("host", host)
schemathesis.openapi.format("http-url", url)
schemathesis.openapi.format("permit", st.deferred(lambda: st.sampled_from(permits())))

number = itertools.count()


@schemathesis.hook
def before_call(context, case, kwargs):
    """Gives each request its own key: reusing a key for another body is refused, as it should be. Makes URLs fit domains."""
    key = (case.headers or {}).get("Idempotency-Key")
    if isinstance(key, str) and re.fullmatch(r"[!-~]{1,200}", key):
        case.headers["Idempotency-Key"] = f"{next(number)}-{key}"[:200]
    # A URL to explain has to belong to the domain in the path, which no schema can say.
    url, domain = (case.query or {}).get("url"), (case.path_parameters or {}).get("domain")
    if isinstance(url, str) and isinstance(domain, str):
        case.query["url"] = re.sub(r"^(https?://)[^/]*", rf"\g<1>{unquote(domain)}", url, flags=re.IGNORECASE)
