"""requests behind pyrate-limiter: `fetch_pyrate.py URLS BUCKET --delay-ms N --buffer-ms N`.

The bucket is a SQLite file with a file lock, pyrate-limiter's way to share a rate between processes.
"""

import argparse
import pathlib

import requests
from pyrate_limiter import limiter_factory

parser = argparse.ArgumentParser()
parser.add_argument("urls", type=pathlib.Path)
parser.add_argument("bucket")
parser.add_argument("--delay-ms", type=int, required=True)
parser.add_argument("--buffer-ms", type=int, required=True)
options = parser.parse_args()

limiter = limiter_factory.create_sqlite_limiter(
    rate_per_duration=1, duration=options.delay_ms, db_path=options.bucket, buffer_ms=options.buffer_ms,
    use_file_lock=True)
session = requests.Session()
session.trust_env = False
for url in options.urls.read_text().split():
    limiter.try_acquire("host")
    session.get(url).content
limiter.close()
