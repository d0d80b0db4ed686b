from __future__ import annotations

from pathlib import Path
from typing import Callable, Iterator

import pytest
from servers import Service, Site


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "service").start()
    yield service
    service.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sites = []

    def start(locations: str, http: str = "") -> Site:
        sites.append(Site(tmp_path / f"site{len(sites)}", locations, http))
        return sites[-1]

    yield start
    for one in sites:
        one.stop()
