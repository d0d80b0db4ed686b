// Crawlee against nginx, judged by nginx.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Configuration, HttpCrawler } from '@crawlee/http'
import { polite } from 'comity/crawlee'
import { QUICK, REFUSING, World } from './world.mjs'

const crawl = async (world, urls, options = {}, settings = {}) => {
  const done = []
  const config = new Configuration({ persistStorage: false, purgeOnStart: true, logLevel: 1, availableMemoryRatio: 0.8 })
  const crawler = new HttpCrawler(polite({
    minConcurrency: 10,
    additionalMimeTypes: ['image/gif'],
    requestHandler: ({ request }) => void done.push(request.url),
    ...options,
  }, { client: world.client, ...settings }), config)
  const stats = await crawler.run(urls)
  return { done, stats }
}
const pages = (site, number) => Array.from({ length: number }, (_, page) => `${site.url}/${page}`)

test('a crawl with many workers is never early', async (t) => {
  const world = await World.start(t)
  const site = await world.site()
  const { done } = await crawl(world, pages(site, 25))
  assert.equal(new Set(done).size, 25)
  assert.deepEqual(await site.early(0.2), [])
})

test('a rate limited page goes back to the queue until the site allows it', async (t) => {
  const world = await World.start(t, QUICK)
  const site = await world.site('limited')
  const { done, stats } = await crawl(world, pages(site, 15), { maxRequestRetries: 0 })
  const requests = await site.requests()
  assert.ok(requests.some((one) => one.status === 429), 'the site has limited somebody')
  assert.equal(new Set(done).size, 15)
  assert.equal(stats.requestsFailed, 0)
  assert.deepEqual(await site.early(0.05, 2), [])
})

test('a wait longer than the patience uses up no retries', async (t) => {
  const world = await World.start(t)
  const site = await world.site()
  await world.client.closeUntil(site.url, Date.now() + 3_000)
  const { done, stats } = await crawl(world, pages(site, 3), { maxRequestRetries: 0 }, { patienceMs: 300 })
  assert.equal(done.length, 3)
  assert.equal(stats.requestsFailed, 0)
})

test('each hop of a redirect has its own permit', async (t) => {
  const world = await World.start(t)
  const site = await world.site('absolute_redirect off; location = /a { return 302 /b; } location = /b { return 302 /c; } location / { empty_gif; }')
  const { done } = await crawl(world, [`${site.url}/a`, `${site.url}/d`])
  assert.equal(done.length, 2)
  assert.equal((await site.requests()).length, 4)
  assert.deepEqual(await site.early(0.2), [])
})

test('what fails is recorded, and reaches your own handlers', async (t) => {
  const world = await World.start(t, '[default]\nmin_delay = "10ms"\nbackoff_base = "100ms"\nlearning = "off"\n')
  const broken = await world.site('location / { return 444; }')
  const failed = []
  const options = { maxRequestRetries: 1, failedRequestHandler: ({ request }) => void failed.push(request.url) }
  await crawl(world, [`${broken.url}/x`], options)
  assert.deepEqual(failed, [`${broken.url}/x`])
  assert.equal((await broken.requests()).length, 2)
  const explained = await (await fetch(`${world.server}/v1/domains/127.0.0.1:${new URL(broken.url).port}`)).json()
  assert.equal(explained.live.in_flight, 0)
})

test('a request that stays rate limited is given up in the end', async (t) => {
  const world = await World.start(t, '[default]\nmin_delay = "10ms"\nlearning = "off"\n')
  const site = await world.site('location / { add_header Retry-After 1 always; return 429; }')
  const { done, stats } = await crawl(world, [site.url], { maxRequestRetries: 0 }, { maxRateLimited: 1 })
  assert.deepEqual([done.length, stats.requestsFailed], [0, 1])
  assert.equal((await site.requests()).length, 2)
  assert.deepEqual(await site.early(0.01, 1), [])
})

test('a paused site fails without retries', async (t) => {
  const world = await World.start(t)
  const site = await world.site(REFUSING)
  const change = { method: 'PATCH', body: '{"paused": true}', headers: { 'Content-Type': 'application/json' } }
  await fetch(`${world.server}/v1/domains/${new URL(site.url).host}`, change)
  const { stats } = await crawl(world, [site.url])
  assert.equal(stats.requestsFailed, 1)
  assert.equal((await site.requests()).length, 0)
})
