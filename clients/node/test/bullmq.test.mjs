// BullMQ against a real Redis, judged by the site.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { DelayedError, Queue, UnrecoverableError, Worker } from 'bullmq'
import { deferred } from 'comity/bullmq'
import { QUICK, World } from './world.mjs'

/** Few enough requests per second that deferred jobs are limited, too. */
const LIMITED = `
  limit_req zone=pages burst=4 nodelay;
  limit_req_status 429;
  error_page 429 @later;
  location / { empty_gif; }
  location @later { internal; add_header Retry-After 2 always; return 429; }
`

const freePort = () => new Promise((resolve) => {
  const probe = createServer().listen(0, '127.0.0.1', () => {
    const { port } = probe.address()
    probe.close(() => resolve(port))
  })
})

const redis = async (t) => {
  const port = await freePort()
  const folder = await mkdtemp(join(tmpdir(), 'comity-redis-'))
  const server = spawn('redis-server', ['--port', port, '--bind', '127.0.0.1', '--save', '', '--dir', folder])
  const ended = new Promise((resolve) => server.once('exit', resolve))
  await new Promise((resolve, reject) => {
    server.once('error', reject)
    server.stdout.on('data', (text) => /Ready to accept/.test(text) && resolve())
  })
  t.after(async () => {
    server.kill()
    await ended
    await rm(folder, { recursive: true })
  })
  return { host: '127.0.0.1', port }
}

const work = async (t, world, processor, concurrency = 5) => {
  const connection = await redis(t)
  const queue = new Queue('pages', { connection })
  const settings = { client: world.client, target: (job) => job.data.url, DelayedError, UnrecoverableError }
  const workers = [1, 2].map(() => new Worker('pages', deferred(settings, processor), { connection, concurrency }))
  const failed = []
  for (const worker of workers) worker.on('failed', (job, error) => failed.push(error.message))
  t.after(async () => {
    await Promise.all(workers.map((worker) => worker.close(true)))
    await queue.close()
  })
  return { queue, failed }
}

test('jobs are deferred until their site is free, and use up no attempts', async (t) => {
  const world = await World.start(t, QUICK)
  const site = await world.site(LIMITED, 'limit_req_zone $server_port zone=pages:1m rate=1r/s;')
  const { queue, failed } = await work(t, world, async (job, permit) => {
    const response = permit.response(await fetch(job.data.url))
    await response.arrayBuffer()
    return response.status
  })
  await queue.addBulk(Array.from({ length: 15 }, (_, page) => ({ name: 'page', data: { url: `${site.url}/${page}` }, opts: { attempts: 1 } })))
  await world.until(async () => (await queue.getCompletedCount()) === 15, 'all jobs done')
  assert.deepEqual(failed, [])
  assert.ok((await site.requests()).some((one) => one.status === 429), 'the site has limited somebody')
  assert.equal(new Set(await site.pages()).size, 15)
  assert.deepEqual(await site.early(0.05, 2), [])
})

test('a job that closes its key defers the others until then', async (t) => {
  const world = await World.start(t)
  const ran = []
  const { queue } = await work(t, world, async (job, permit) => {
    ran.push([job.data.url, Date.now()])
    if (ran.length === 1) permit.closeUntil(Date.now() + 3_000)
  })
  await queue.add('call', { url: 'api.example.org' })
  await world.until(() => ran.length === 1, 'the first call')
  await queue.add('call', { url: 'api.example.org' })
  await world.until(async () => (await queue.getCompletedCount()) === 2, 'both jobs done')
  assert.equal(ran.length, 3)
  assert.ok(ran[1][1] - ran[0][1] >= 2_990)
})

test('a job for a paused site fails, and says why', async (t) => {
  const world = await World.start(t)
  const change = { method: 'PATCH', body: '{"paused": true}', headers: { 'Content-Type': 'application/json' } }
  await fetch(`${world.server}/v1/domains/paused.example`, change)
  const { queue, failed } = await work(t, world, () => assert.fail('nothing may be sent'))
  await queue.add('page', { url: 'http://paused.example/' }, { attempts: 3 })
  await world.until(() => failed.length === 1, 'the job failed')
  assert.match(failed[0], /paused/)
})
