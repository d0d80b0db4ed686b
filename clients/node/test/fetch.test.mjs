// The fetch wrapper, judged by the site.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { politeFetch } from 'comity'
import { QUICK, REFUSING, World } from './world.mjs'

test('50 concurrent callers share one pace, and none is early', async (t) => {
  const world = await World.start(t)
  const site = await world.site()
  const fetch = politeFetch(world.client)
  await Promise.all(Array.from({ length: 50 }, async (_, page) => {
    const response = await fetch(`${site.url}/${page}`)
    assert.equal(response.status, 200)
    await response.arrayBuffer()
  }))
  assert.equal(new Set(await site.pages()).size, 50)
  assert.deepEqual(await site.early(0.2), [])
})

test('a 429 with Retry-After holds every caller', async (t) => {
  const world = await World.start(t, QUICK)
  const site = await world.site('limited')
  const fetch = politeFetch(world.client)
  await Promise.all(Array.from({ length: 15 }, async (_, page) => {
    for (let status = 429; status === 429;) {
      const response = await fetch(`${site.url}/${page}`)
      await response.arrayBuffer()
      status = response.status
    }
  }))
  const requests = await site.requests()
  assert.ok(requests.some((one) => one.status === 429), 'the site has limited somebody')
  assert.equal(new Set(await site.pages()).size, 15)
  assert.deepEqual(await site.early(0.05, 2), [])
})

test('each hop of a redirect has its own permit', async (t) => {
  const world = await World.start(t)
  const site = await world.site('absolute_redirect off; location = /a { return 302 /b?$request_method; } location / { empty_gif; }')
  const response = await politeFetch(world.client)(`${site.url}/a`)
  assert.deepEqual([response.status, response.redirected], [200, true])
  assert.ok(response.url.endsWith('/b?GET'))
  await response.arrayBuffer()
  assert.equal((await site.requests()).length, 2)
  assert.deepEqual(await site.early(0.2), [])
  const manual = await politeFetch(world.client)(`${site.url}/a`, { redirect: 'manual' })
  assert.equal(manual.status, 302)
})

test('a redirect loop ends, and its last permit is recorded', async (t) => {
  const world = await World.start(t, '[default]\nmin_delay = "0s"\n')
  const site = await world.site('absolute_redirect off; location / { return 302 /; }')
  await assert.rejects(politeFetch(world.client)(site.url), TypeError)
  assert.equal((await world.client.check(site.url)).proceed, true)
})

test('a body counts as in flight until it is read, cancelled or left alone', async (t) => {
  const world = await World.start(t, '[default]\nmin_delay = "0s"\n')
  const site = await world.site()
  const fetch = politeFetch(world.client)
  const free = async () => {
    const decision = await world.client.check(site.url)
    if (decision.proceed) await world.client.release(decision)
    return decision.proceed
  }
  for (const end of ['arrayBuffer', 'cancel', 'nothing']) {
    const response = await fetch(site.url)
    assert.equal(await free(), false, end)
    if (end === 'arrayBuffer') assert.ok((await response.arrayBuffer()).byteLength > 0)
    if (end === 'cancel') await response.body.cancel()
    await world.until(free, end)
  }
})

test('a request that is cancelled or fails returns its permit', async (t) => {
  const world = await World.start(t)
  const site = await world.site(REFUSING)
  const limited = await politeFetch(world.client)(site.url)
  assert.equal(limited.status, 429)
  assert.equal((await world.client.peek(site.url)).limit, 'retry_after')

  const hangs = () => new Promise((_, reject) => setTimeout(() => reject(new DOMException('x', 'AbortError')), 50))
  await assert.rejects(politeFetch(world.client, { fetch: hangs })('http://slow.long.example/'), { name: 'AbortError' })
  assert.equal((await world.client.peek('slow.long.example')).limit, 'min_delay')

  const dead = await world.site('location / { return 444; }')
  await assert.rejects(politeFetch(world.client)(dead.url), TypeError)
  assert.equal((await world.client.peek(dead.url)).limit, 'backoff')
})

test('bodies of requests are sent once, and again for a 307', async (t) => {
  const world = await World.start(t)
  const answers = [
    () => new Response(null, { status: 307, headers: { Location: 'http://b.example/' } }),
    () => new Response(null, { status: 303, headers: { Location: 'http://c.example/' } }),
    () => new Response('done'),
  ]
  const seen = []
  const fake = async (request) => {
    seen.push([request.url, request.method, await request.text(), request.headers.get('authorization')])
    return answers.shift()()
  }
  const init = { method: 'POST', body: 'hello', headers: { Authorization: 'secret' } }
  const response = await politeFetch(world.client, { fetch: fake })('http://a.example/', init)
  assert.equal(await response.text(), 'done')
  assert.deepEqual(seen, [
    ['http://a.example/', 'POST', 'hello', 'secret'],
    ['http://b.example/', 'POST', 'hello', null],
    ['http://c.example/', 'GET', '', null],
  ])
})

for (const example of ['got', 'undici']) {
  test(`examples/${example}.mjs waits its turn`, async (t) => {
    const world = await World.start(t)
    const site = await world.site()
    const script = fileURLToPath(new URL(`../examples/${example}.mjs`, import.meta.url))
    const urls = Array.from({ length: 5 }, (_, page) => `${site.url}/${page}`)
    const env = { ...process.env, COMITY_SERVER: world.server }
    const run = () => promisify(execFile)(process.execPath, [script, ...urls], { env })
    const [first] = await Promise.all([run(), run()])
    assert.equal(first.stdout.trim().split('\n').length, 5)
    assert.equal((await site.pages()).length, 10)
    assert.deepEqual(await site.early(0.2), [])
  })
}
