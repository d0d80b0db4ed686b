"""requests with urllib3's Retry: `fetch_requests.py URLS --threads N`. One session, each thread takes the next URL."""

import argparse
import concurrent.futures
import pathlib

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

parser = argparse.ArgumentParser()
parser.add_argument("urls", type=pathlib.Path)
parser.add_argument("--threads", type=int, default=1)
options = parser.parse_args()

session = requests.Session()
session.trust_env = False
retry = Retry(total=10, status_forcelist=[429, 503], respect_retry_after_header=True)
session.mount("http://", HTTPAdapter(max_retries=retry, pool_maxsize=options.threads))


def fetch(url: str) -> None:
    try:
        session.get(url).content
    except requests.exceptions.RetryError:
        pass  # The server's log tells which page is missing.


with concurrent.futures.ThreadPoolExecutor(options.threads) as threads:
    list(threads.map(fetch, options.urls.read_text().split()))
