"""The workloads that need servers and peers: W1, W2, W3, W4, W5, W7, W11 to W15 (run by `bench/run`).

Reading order: `w1.py` (a whole workload on one page), `fetchers.py` (the command line of each contestant),
`servers.py` (nginx, the storm site, the judge), `judge.py` (what the server's log says), `processes.py` (starting, measuring and
ending), `report.py` (medians and tables). `peers/` runs inside the peers' own Python environment. `followed.py` is
for W11 and W15, `measured.py` for W4 and W11.

Standard library only. Everything listens on and talks to loopback addresses.
"""
