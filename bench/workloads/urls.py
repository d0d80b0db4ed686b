"""Lists of URLs: one a line, the hosts taking turns, so that no contestant profits from a lucky order.

As a program it writes any number of made-up URLs without keeping them in memory (for W9):
`python3 -m workloads.urls TASKS DOMAINS`, from the folder `bench`.
"""

import pathlib
import sys
from collections.abc import Iterable, Iterator


def hosts(count: int) -> list[str]:
    """`count` loopback addresses; on Linux each 127.x.y.z answers without being set up."""
    if count > 250 * 250:
        raise ValueError(f"{count} hosts: at most {250 * 250}")
    return [f"127.0.{1 + number // 250}.{1 + number % 250}" for number in range(count)]


def in_turn(server, names: list[str], pages: int) -> list[str]:
    """Page 0 of each host, then page 1 of each, and so on."""
    return [server.url(host, page) for page in range(pages) for host in names]


def write(path: pathlib.Path, urls: Iterable[str]) -> pathlib.Path:
    """One URL a line."""
    with path.open("w") as file:
        file.writelines(f"{url}\n" for url in urls)
    return path


def made_up(tasks: int, domains: int) -> Iterator[str]:
    """`tasks` URLs over `domains` names that no resolver knows, the domains taking turns."""
    for number in range(tasks):
        yield f"http://d{number % domains}.invalid/{number // domains}"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python3 -m workloads.urls TASKS DOMAINS")
    sys.stdout.writelines(f"{url}\n" for url in made_up(int(sys.argv[1]), int(sys.argv[2])))
