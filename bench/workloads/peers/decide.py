"""One process of a fleet of peers: `decide.py KIND PLACE JUDGE PROCESS SITES STEP SECONDS DELAY_MS`.

It does what `bench-fleet decide` does: asks for random sites, and sends the judge a datagram for each request that may go. Nothing is
fetched, and nothing is recorded, because the peers learn nothing. A refusal is asked again when the peer says so, or 10 ms later.

throttled      throttled-py's GCRA in a Lua script, asyncio, uvloop, hiredis
pyrate-redis   pyrate-limiter's constant-state GCRA bucket, asyncio, uvloop, hiredis
pyrate-log     pyrate-limiter's bucket of its README: a sorted set for each site
pyrate-postgres  pyrate-limiter's bucket in PostgreSQL: a table for each site, made when it is first asked for
"""

import asyncio
import inspect
import json
import random
import socket
import sys
import threading
import time
from datetime import timedelta

KIND, PLACE = sys.argv[1:3]
JUDGE, PROCESS, SITES, STEP, SECONDS, DELAY_MS = map(int, sys.argv[3:])
KINDS, WORKERS, THREADS = 3, 64, 8
RETRY_SECONDS = 0.01


class Sender:
    """Tells the judge, and counts."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(("127.0.0.1", JUDGE))
        self.decisions = 0

    def send(self, site: int) -> None:
        self.socket.send(site.to_bytes(4, "big") + bytes([PROCESS]))
        self.decisions += 1


def pick(numbers: random.Random) -> int:
    return numbers.randrange(SITES // STEP) * STEP + PROCESS % STEP


def delay_ms(site: int) -> int:
    return DELAY_MS * (site % KINDS + 1)


async def asked(sender: Sender, until: float, ask) -> None:
    """All workers; `ask` returns how long to wait, 0 if the request may go."""
    async def worker(seed: int) -> None:
        numbers = random.Random(seed)
        while time.monotonic() < until:
            site = pick(numbers)
            while wait := await ask(site):
                if time.monotonic() + wait > until:
                    return
                await asyncio.sleep(wait)
            sender.send(site)

    await asyncio.gather(*(worker(PROCESS * 1000 + nth) for nth in range(WORKERS)))


async def throttled(sender: Sender, until: float) -> None:
    from throttled.asyncio import RateLimiterType, RedisStore, Throttled, rate_limiter

    store = RedisStore(server=f"redis://127.0.0.1:{PLACE}/0")
    limiters = [Throttled(using=RateLimiterType.GCRA.value, store=store,
                          # Its periods are whole seconds: a thousand requests in as many seconds as there are milliseconds between two.
                          quota=rate_limiter.per_duration(timedelta(seconds=DELAY_MS * (kind + 1)), limit=1000, burst=1))
                for kind in range(KINDS)]

    async def ask(site: int) -> float:
        result = await limiters[site % KINDS].limit(f"s{site}")
        return max(result.state.retry_after, 0.001) if result.limited else 0

    await asked(sender, until, ask)


async def pyrate_redis(sender: Sender, until: float) -> None:
    import redis.asyncio
    from pyrate_limiter import Rate, RateItem, RedisBucket, StateBucket
    from pyrate_limiter.buckets.redis_bucket import LuaScript
    from pyrate_limiter.buckets.redis_state import RedisStateStore

    client = redis.asyncio.Redis(host="127.0.0.1", port=int(PLACE))
    script = await client.script_load(LuaScript.PUT_ITEM)
    buckets = {}

    def bucket(site: int):
        if site not in buckets:
            rates = [Rate(1, delay_ms(site))]
            buckets[site] = (StateBucket(rates, store=RedisStateStore(client, f"bucket:{site}")) if KIND == "pyrate-redis"
                             else RedisBucket(rates, client, f"bucket:{site}", script))
        return buckets[site]

    async def ask(site: int) -> float:
        one = bucket(site)
        moment = one.now()
        moment = await moment if inspect.isawaitable(moment) else moment
        admitted = one.put(RateItem(f"s{site}", moment))
        return 0 if (await admitted if inspect.isawaitable(admitted) else admitted) else RETRY_SECONDS

    await asked(sender, until, ask)


def pyrate_postgres(sender: Sender, until: float) -> None:
    from psycopg_pool import ConnectionPool
    from pyrate_limiter import PostgresBucket, Rate, RateItem

    pool = ConnectionPool(PLACE, min_size=THREADS, max_size=THREADS, timeout=60)
    buckets, lock = {}, threading.Lock()

    def worker(seed: int) -> None:
        numbers = random.Random(seed)
        while time.monotonic() < until:
            site = pick(numbers)
            if site not in buckets:
                made = PostgresBucket(pool, f"s{site}", [Rate(1, delay_ms(site))])
                with lock:
                    buckets.setdefault(site, made)
            bucket = buckets[site]
            while not bucket.put(RateItem(f"s{site}", bucket.now())):
                if time.monotonic() > until:
                    return
                time.sleep(RETRY_SECONDS)
            sender.send(site)

    threads = [threading.Thread(target=worker, args=(PROCESS * 1000 + nth,)) for nth in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()


def main() -> None:
    sender, began = Sender(), time.monotonic()
    until = began + SECONDS
    if KIND == "pyrate-postgres":
        pyrate_postgres(sender, until)
    else:
        import uvloop
        uvloop.run((throttled if KIND == "throttled" else pyrate_redis)(sender, until))
    print(json.dumps({"decisions": sender.decisions, "seconds": time.monotonic() - began}))


main()
