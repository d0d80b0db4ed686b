"""mwclient archives a wiki: `archive_mwclient.py HOST PORT [--best]`. Every page, every revision with its text, by its own iterators.

As it comes it asks for 50 at once where it may and waits for nobody; at its best it asks for as many as the wiki gives.
Prints how many revisions it read.
"""

import argparse

import mwclient

parser = argparse.ArgumentParser()
parser.add_argument("host")
parser.add_argument("port", type=int)
parser.add_argument("--best", action="store_true")
options = parser.parse_args()

site = mwclient.Site(f"{options.host}:{options.port}", path="/", scheme="http", clients_useragent="bench (loopback)",
                     force_login=False)
most = {"api_chunk_size": 500} if options.best else {}
revisions = 0
for page in site.allpages(namespace=0, **most):
    for revision in page.revisions(prop="ids|timestamp|flags|comment|user|sha1|content", slots="main", **({"api_chunk_size": 50} if options.best else {})):
        revisions += "slots" in revision
print(revisions)
