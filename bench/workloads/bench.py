"""What a workload is given: where the binaries are, how many runs, a folder of its own."""

import itertools
import pathlib
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Bench:
    """One invocation of `bench/run` for one workload."""

    binaries: pathlib.Path
    python: pathlib.Path
    folder: pathlib.Path
    runs: int
    only: str = ""
    _numbers: itertools.count = field(default_factory=itertools.count)

    def fresh_folder(self) -> pathlib.Path:
        """An empty folder, removed with everything else at the end."""
        folder = self.folder / str(next(self._numbers))
        folder.mkdir()
        return folder

    def wants(self, name: str) -> bool:
        """Whether this contestant takes part (always, unless `--only` narrows it)."""
        return self.only.lower() in name.lower()

    def repeat(self, name: str, once: Callable[[], dict], runs: int | None = None) -> dict:
        """The runs of one contestant as one row: the median of times and rates, the worst of violations.

        A key ending in `_worst` keeps its largest value; one ending in `_least` its smallest; text its last.
        """
        rows = []
        for number in range(runs or self.runs):
            say(f"{name}: run {number + 1} of {runs or self.runs}")
            rows.append(once())
            say(f"  {rows[-1]}")
        return {"name": name, "runs": len(rows)} | {key: _combine(key, [row[key] for row in rows]) for key in rows[0]}


def _combine(key: str, values: list):
    present = [value for value in values if value is not None]
    if not present:
        return None
    if isinstance(present[0], str):
        return present[-1]
    if key.endswith("_worst"):
        return max(present)
    if key.endswith("_least"):
        return min(present)
    return statistics.median(present)


def say(text: str) -> None:
    """Progress, for the person who waits."""
    print(text, file=sys.stderr, flush=True)
