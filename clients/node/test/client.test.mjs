// The client against the real service.
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, Invalid, Refused, TimedOut, Unavailable } from 'comity'
import { World } from './world.mjs'

test('check reserves the slot and record reports the outcome', async (t) => {
  const { client } = await World.start(t)
  assert.equal((await client.peek('http://example.org/')).proceed, true)
  const decision = await client.check('http://www.example.org/a')
  assert.equal(decision.proceed, true)
  assert.equal(decision.domain, 'example.org')
  assert.equal((await client.check('example.org')).proceed, false)
  const recorded = await client.record({ permit: decision.permit, status: 200, latency_ms: 3 })
  assert.deepEqual([recorded.outcome, recorded.standing], ['success', 'fresh'])
  assert.equal((await client.record({ permit: decision.permit, status: 200 })).standing, 'repeated')
  const next = await client.acquire('example.org')
  const limited = await client.record({ permit: next.permit, status: 429, retry_after: '600' })
  assert.equal(limited.outcome, 'rate_limited')
  assert.ok(limited.held_until && limited.wait_ms > 300_000)
})

test('batches are answered in order', async (t) => {
  const { client } = await World.start(t)
  const decisions = await client.checkMany(['a.example', 'http://b.example/', 'a.example'])
  assert.deepEqual(decisions.map((one) => one.proceed), [true, true, false])
  const reports = decisions.filter((one) => one.proceed).map((one) => ({ permit: one.permit, status: 200 }))
  assert.deepEqual((await client.recordMany(reports)).map((one) => one.domain), ['a.example', 'b.example'])
  assert.deepEqual(await client.checkMany([]), [])
})

test('however a block ends, its permit is recorded', async (t) => {
  const { client } = await World.start(t)
  const outcomes = {
    'broken.long.example': [() => { throw Object.assign(new Error('x'), { code: 'ECONNREFUSED' }) }, 'backoff'],
    'slow.long.example': [() => { throw new DOMException('x', 'TimeoutError') }, 'backoff'],
    'limited.long.example': [(permit) => permit.answered(429, { 'Retry-After': '600' }), 'retry_after'],
    'thrown.long.example': [() => { throw { response: { statusCode: 429, headers: { 'retry-after': '600' } } } }, 'retry_after'],
    'mine.long.example': [() => { throw new RangeError('my own bug') }, 'min_delay'],
    'cancelled.long.example': [() => { throw new DOMException('x', 'AbortError') }, 'min_delay'],
    'fine.long.example': [() => 'a page', 'min_delay'],
  }
  for (const [domain, [send, limit]] of Object.entries(outcomes)) {
    await client.withPermit(domain, send).catch(() => undefined)
    assert.equal((await client.peek(domain)).limit, limit, domain)
  }
})

test('a permit that was released blocks nobody', async (t) => {
  const { client } = await World.start(t, '[default]\nmin_delay = "0s"\n')
  const decision = await client.check('example.org')
  assert.equal((await client.check('example.org')).limit, 'lease')
  await client.release(decision)
  assert.equal((await client.check('example.org')).proceed, true)
})

test('the lease of a long request is renewed until it ends', async (t) => {
  const { client } = await World.start(t, '[default]\nmin_delay = "0s"\n')
  const decision = await client.withPermit('example.org', async (permit) => {
    await sleep(6_000)
    assert.equal((await client.check('example.org')).limit, 'lease')
    assert.equal(await client.renew(permit.decision), true)
    return permit.decision
  }, { leaseMs: 4_000 })
  assert.equal(await client.renew(decision), false)
})

test('a permit that is forgotten blocks its site no longer than its lease', async (t) => {
  const { client } = await World.start(t, '[default]\nmin_delay = "0s"\n')
  await client.permit('example.org', { leaseMs: 500 })
  assert.equal((await client.acquire('example.org')).proceed, true)
})

test('closeUntil closes a site for everybody', async (t) => {
  const { client } = await World.start(t)
  await client.closeUntil('api.example.org', Date.now() + 600_000)
  const decision = await client.check('http://api.example.org/v2')
  assert.equal(decision.limit, 'retry_after')
  assert.ok(decision.wait_ms > 500_000)
})

test('a timeout and a pause are errors that say why', async (t) => {
  const world = await World.start(t)
  const { client } = world
  await client.closeUntil('closed.example', Date.now() + 600_000)
  await assert.rejects(client.permit('closed.example', { timeoutMs: 300 }), (error) => {
    return error instanceof TimedOut && error.decision.limit === 'retry_after' && /remaining/.test(error.message)
  })
  const change = { method: 'PATCH', body: '{"paused": true}', headers: { 'Content-Type': 'application/json' } }
  assert.equal((await fetch(`${world.server}/v1/domains/paused.example`, change)).status, 200)
  await assert.rejects(client.permit('paused.example'), Refused)
})

test('an invalid call names the field', async (t) => {
  const { client } = await World.start(t)
  await assert.rejects(client.check('example.org', { intent: 'post' }), (error) => {
    return error instanceof Invalid && error.status === 422 && error.field === 'intent' && /fetch/.test(error.allowed)
  })
})

test('a caller who cancels leaves the line', async (t) => {
  const world = await World.start(t)
  await world.client.closeUntil('example.org', Date.now() + 600_000)
  const abort = new AbortController()
  const waiting = world.client.permit('example.org', { signal: abort.signal })
  const inLine = async () => (await world.do('waiting', { domain: 'example.org' })).waiting
  await world.until(async () => (await inLine()) === 1, 'in line')
  abort.abort()
  await assert.rejects(waiting, { name: 'AbortError' })
  await world.until(async () => (await inLine()) === 0, 'out of line')
})

test('a service that is away is a clear error', async () => {
  const client = new Client({ server: 'http://127.0.0.1:1' })
  for (const call of [client.check('example.org'), client.permit('example.org')]) {
    await assert.rejects(call, (error) => {
      return error instanceof Unavailable && !error.met
        && /^http:\/\/127\.0\.0\.1:1: the decision service can't be reached: .*ECONNREFUSED/.test(error.message)
    })
  }
})

test('a caller in line survives a restart of the service', async (t) => {
  const world = await World.start(t)
  await world.client.withPermit('example.org', (permit) => permit.answered(429, { 'retry-after': '3' }))
  const waiting = world.client.permit('example.org')
  await world.until(async () => (await world.do('waiting', { domain: 'example.org' })).waiting === 1, 'in line')
  await world.do('stop')
  await world.do('start')
  assert.equal((await (await waiting).done()).outcome, 'success')
})

test('the token is sent, and nothing but headers about waiting is reported', async (t) => {
  const seen = []
  const server = createServer((request, response) => {
    let body = ''
    request.on('data', (more) => (body += more)).on('end', () => {
      seen.push({ token: request.headers.authorization, body: JSON.parse(body) })
      response.end('{"proceed": true, "permit": "p1.x", "domain": "example.org"}')
    })
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const client = new Client({ server: `http://127.0.0.1:${server.address().port}`, token: 'secret' })
  t.after(() => client.close())
  await client.withPermit('https://example.org/', (permit) => {
    permit.response(new Response('', { status: 503, headers: { 'Set-Cookie': 'a=b', 'Retry-After': '7', 'X-RateLimit-Reset': '9' } }))
  })
  assert.deepEqual(seen.map((one) => one.token), ['Bearer secret', 'Bearer secret'])
  assert.deepEqual(seen[1].body.headers, { 'retry-after': '7', 'x-ratelimit-reset': '9' })
})
