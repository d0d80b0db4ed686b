"""Runs one workload and prints its section of RESULTS.md; progress goes to standard error.

Exit codes: 0 measured (goals met or missed), 1 something could not run, 2 usage.
"""

import argparse
import importlib
import pathlib
import sys
import tempfile

from . import processes
from .bench import Bench

WORKLOADS = ("W1", "W2", "W3", "W4", "W5", "W7", "W9", "W10", "W11", "W12", "W13", "W14", "W15")


def main() -> int:
    parser = argparse.ArgumentParser(prog="workloads")
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--binaries", type=pathlib.Path, required=True,
                        help="folder with comity and the bench-… programs")
    parser.add_argument("--python", type=pathlib.Path, required=True, help="the peers' Python (W9, W11, W14 and W15 have none)")
    parser.add_argument("--runs", type=int, default=3, help="runs a median is taken of (default: 3)")
    parser.add_argument("--only", default="", help="only contestants whose name contains this (for trying out)")
    arguments = parser.parse_args()

    processes.raise_open_file_limit()
    with tempfile.TemporaryDirectory(prefix="comity-bench-") as folder, processes.ended_at_exit():
        bench = Bench(binaries=arguments.binaries.resolve(), python=arguments.python.absolute(),
                      folder=pathlib.Path(folder), runs=arguments.runs, only=arguments.only)
        workload = importlib.import_module(f".{arguments.workload.lower()}", __package__)
        try:
            print(workload.run(bench))
        except processes.CouldNotRun as problem:
            print(f"{arguments.workload}: {problem}", file=sys.stderr)
            return 1
    return 0


sys.exit(main())
