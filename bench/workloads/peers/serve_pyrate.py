"""pyrate-limiter behind HTTP: `serve_pyrate.py PORT redis REDIS_PORT|sqlite FILE [--best]`.

The JSON of `comity serve`: a check takes from the bucket of its domain. pyrate-limiter has nothing to record, so recording
costs it no more than the request. Buckets are made when first asked for and nothing is ever trimmed, in its favour; the limit
is never reached. One process; uvicorn with uvloop and httptools, orjson, hiredis.

Default: the buckets of its README, with the lock of `try_acquire_async`; SQLite as `init_from_file` opens it.
Best: on Redis the constant-state bucket, without that lock, so that connections do not wait for each other; SQLite in WAL mode
with synchronous=NORMAL.
"""

import argparse
import inspect
import sqlite3

import orjson
import redis.asyncio
import uvicorn
from pyrate_limiter import BucketFactory, Limiter, Rate, RateItem, RedisBucket, SQLiteBucket, StateBucket
from pyrate_limiter.buckets.redis_bucket import LuaScript
from pyrate_limiter.buckets.redis_state import RedisStateStore
from pyrate_limiter.buckets.sqlite_bucket import Queries

RATES = [Rate(1_000_000, 1_000)]
PERMIT = "p1." + "A" * 64


class Domains(BucketFactory):
    """A bucket for each domain."""

    def __init__(self, make):
        self.make, self.buckets = make, {}

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, self.get_named(name).now(), weight=weight)

    def get(self, item: RateItem):
        return self.get_named(item.name)

    def get_named(self, name: str):
        if (bucket := self.buckets.get(name)) is None:
            bucket = self.buckets[name] = self.make(name)
        return bucket


def on_sqlite(path: str, best: bool):
    connection = sqlite3.connect(path, isolation_level="DEFERRED", check_same_thread=False)
    if best:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    def make(name: str):
        connection.execute(Queries.CREATE_BUCKET_TABLE.format(table=name))
        connection.execute(Queries.CREATE_INDEX_ON_TIMESTAMP.format(
            index_name=f"idx_{name}_rate_item_timestamp", table_name=name))
        connection.commit()
        return SQLiteBucket(RATES, connection, table=name)

    return make


async def on_redis(port: int, best: bool):
    client = redis.asyncio.Redis(host="127.0.0.1", port=port)
    if best:
        return lambda name: StateBucket(RATES, store=RedisStateStore(client, f"bucket:{name}"))
    script = await client.script_load(LuaScript.PUT_ITEM)
    return lambda name: RedisBucket(RATES, client, f"bucket:{name}", script)


class Service:
    """The ASGI application."""

    def __init__(self, options):
        self.options, self.limiter = options, None

    async def begin(self) -> None:
        made = (await on_redis(int(self.options.place), self.options.best) if self.options.kind == "redis"
                else on_sqlite(self.options.place, self.options.best))
        self.limiter = Limiter(Domains(made))

    async def acquire(self, name: str) -> bool:
        if not self.options.best:
            return await self.limiter.try_acquire_async(name, blocking=False)
        acquired = self.limiter.try_acquire(name, blocking=False)
        return await acquired if inspect.isawaitable(acquired) else acquired

    async def __call__(self, scope, receive, send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message.get("more_body"):
                break
        asked = orjson.loads(body)
        if scope["path"] == "/v1/check":
            proceed = await self.acquire(asked["domain"])
            answer = {"proceed": proceed, "wait_ms": 0, "reason": "nothing delays this request",
                      "permit": PERMIT if proceed else None, "domain": asked["domain"], "limit": None, "origin": None,
                      "refused": False, "waited_ms": 0}
        else:
            answer = {"domain": "site-000000.example", "outcome": "success" if asked["status"] < 400 else "answered",
                      "standing": "fresh" if asked["permit"] == PERMIT else "repeated", "held_until": None,
                      "adaptive_delay_seconds": None, "wait_ms": 0}
        text = orjson.dumps(answer)
        await send({"type": "http.response.start", "status": 200, "headers": [
            (b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]})
        await send({"type": "http.response.body", "body": text})


class Server(uvicorn.Server):
    """uvicorn, beginning with the buckets on its own event loop."""

    async def serve(self, sockets=None) -> None:
        await self.config.app.begin()
        await super().serve(sockets)


parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("kind", choices=("redis", "sqlite"))
parser.add_argument("place", help="the port of Redis, or the file of SQLite")
parser.add_argument("--best", action="store_true")
options = parser.parse_args()
Server(uvicorn.Config(Service(options), port=options.port, loop="uvloop", http="httptools", lifespan="off", interface="asgi3",
                      log_level="warning", access_log=False)).run()
