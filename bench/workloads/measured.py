"""Runs one command and writes what it cost: `measured.py FILE COMMAND…` (run with `python3 -I -S`, so that it is small).

Linux counts the memory of whoever starts a program as the first peak of that program. Started from here, that is 10 MB
and not whatever the benchmark itself took.

Writes one line: when it began (Unix time), wall seconds, CPU seconds, peak memory in KiB. Ends with the command's exit code.
"""

import os
import sys
import time

file, *command = sys.argv[1:]
began, start = time.time(), time.monotonic()
child = os.posix_spawnp(command[0], command, os.environ)
_, status, usage = os.wait4(child, 0)
seconds = time.monotonic() - start
with open(file, "w") as output:
    print(began, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, file=output)
code = os.waitstatus_to_exitcode(status)
sys.exit(code if code >= 0 else 128 - code)
