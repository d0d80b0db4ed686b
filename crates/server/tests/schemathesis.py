"""What schemathesis cannot know by itself: the formats of the description, and that a key is for one request."""

import functools
import itertools
import os
import re

import requests
import schemathesis
from hypothesis import strategies as st

label = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
# Names that end in a word: an address would have to be one.
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
    """Some that the service gave out: no other is taken."""
    checks = [{"domain": f"permit-{nth}.example"} for nth in range(20)]
    answer = requests.post(os.environ["COMITY_URL"] + "/v1/check/batch", json={"checks": checks}, timeout=30)
    return [result["permit"] for result in answer.json()["results"]]


schemathesis.openapi.format("host", host)
schemathesis.openapi.format("http-url", url)
schemathesis.openapi.format("permit", st.deferred(lambda: st.sampled_from(permits())))

number = itertools.count()


@schemathesis.hook
def before_call(context, case, kwargs):
    """The same key with another body is refused, as it should be; here each request has its own."""
    key = (case.headers or {}).get("Idempotency-Key")
    if isinstance(key, str) and re.fullmatch(r"[!-~]{1,200}", key):
        case.headers["Idempotency-Key"] = f"{next(number)}-{key}"[:200]
