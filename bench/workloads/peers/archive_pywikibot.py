"""pywikibot archives a wiki: `archive_pywikibot.py API_URL [--best]`. Every page, every revision with its text, by its own iterators.

As it comes it keeps its own throttle; at its best that is off and it asks for as many as the wiki gives.
Prints how many revisions it read.
"""

import argparse
import os
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("api")
parser.add_argument("--best", action="store_true")
options = parser.parse_args()

# It wants a folder with settings.
os.environ["PYWIKIBOT_NO_USER_CONFIG"] = "2"
os.environ["PYWIKIBOT_DIR"] = tempfile.mkdtemp()

import pywikibot  # noqa: E402
from pywikibot import config, family  # noqa: E402

if options.best:
    config.minthrottle = 0
    config.put_throttle = 0
    config.step = -1

from urllib.parse import urlsplit  # noqa: E402

place = urlsplit(options.api)


class Bench(family.SingleSiteFamily):
    """The wiki of the benchmark."""

    name = "bench"
    domain = place.netloc

    def protocol(self, code):
        return "http"

    def scriptpath(self, code):
        return ""

    def ignore_certificate_error(self, code):
        return True


family.Family._families = {"bench": Bench()}
site = pywikibot.Site("bench", fam=Bench())
revisions = 0
for page in site.allpages(namespace=0):
    for _ in page.revisions(content=True):
        revisions += 1
print(revisions)
