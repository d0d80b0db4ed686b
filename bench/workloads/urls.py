"""Lists of URLs: one a line, the hosts taking turns, so that no contestant profits from a lucky order."""

import pathlib
from collections.abc import Iterable, Iterator


def hosts(count: int) -> list[str]:
    """`count` loopback addresses; on Linux each 127.x.y.z answers without being set up."""
    if count > 250 ** 3:
        raise ValueError(f"{count} hosts: at most {250 ** 3}")
    return [f"127.{number // 62_500}.{1 + number // 250 % 250}.{1 + number % 250}" for number in range(count)]


def secure_hosts(count: int) -> list[str]:
    """`count` names that one certificate is for (`*.bench.localhost`); a contestant needs no DNS to know where they are."""
    return [f"h{number:04}.bench.localhost" for number in range(1, count + 1)]


def in_turn(server, names: list[str], pages: int) -> Iterator[str]:
    """Page 0 of each host, then page 1 of each, and so on."""
    return (server.url(host, page) for page in range(pages) for host in names)


def write(path: pathlib.Path, urls: Iterable[str]) -> pathlib.Path:
    """One URL a line."""
    with path.open("w") as file:
        file.writelines(f"{url}\n" for url in urls)
    return path
