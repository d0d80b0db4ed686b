// The types work with those of the libraries: this file is compiled, not run.
import { HttpCrawler, type HttpCrawlerOptions } from '@crawlee/http'
import { DelayedError, UnrecoverableError, Worker, type Job } from 'bullmq'
import { Client, politeFetch, type Decision, type Outcome } from 'comity'
import { deferred } from 'comity/bullmq'
import { polite } from 'comity/crawlee'
import got from 'got'
import * as http from 'node:http'
import { request } from 'undici'

const client = new Client({ server: 'http://127.0.0.1:7878', leaseMs: 60_000 })

export const fetch: typeof globalThis.fetch = politeFetch(client, { intent: 'search', timeoutMs: 1000 })

export const crawler = new HttpCrawler(polite<HttpCrawlerOptions>({
  async requestHandler({ request, body }) {
    request.url.trim()
    body.toString()
  },
  preNavigationHooks: [({ request }) => void request.headers],
}, { client, patienceMs: 1000 }))

interface Page { url: string }
const settings = { client, target: (job: Job<Page>) => job.data.url, DelayedError, UnrecoverableError }
export const worker = new Worker<Page, number>('pages', deferred(settings, async (job, permit) => {
  const response = permit.response(await globalThis.fetch(job.data.url))
  return response.status
}))

export async function libraries(url: string): Promise<string> {
  await client.withPermit(url, async (permit) => permit.response(await got(url)).body)
  const page = await client.withPermit(url, async (permit) => permit.response(await request(url)))
  await client.withPermit(url, (permit) => new Promise<void>((resolve) => {
    http.get(url, (response) => resolve(void permit.response(response)))
  }))
  const outcome: Outcome = 'rate_limited'
  const decision: Decision = await client.check(url)
  const permit = await client.permit(url, { signal: AbortSignal.timeout(1000) })
  permit.outcome(outcome)
  permit.answered(429, { 'retry-after': '7' })
  await permit.done(new Error(decision.reason))
  return page.body.text()
}
