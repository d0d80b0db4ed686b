/** A `fetch` that waits its turn. Redirects are followed here, since each hop is a request that needs its own permit. */
import { AsyncLocalStorage } from 'node:async_hooks'
import { subscribe } from 'node:diagnostics_channel'
import { Client, type PermitOptions } from './client.js'
import type { Permit } from './permit.js'

export interface PoliteFetchOptions extends PermitOptions {
  /** The `fetch` to send with. Default: the global one at the time of the call. */
  fetch?: typeof globalThis.fetch
}

const REDIRECTS_MAX = 20
/** A body that nobody reads for this long no longer counts as in flight. */
const UNREAD_MS = 5_000

/**
 * Returns a `fetch` that asks `client` before every request, hop by hop, and records the outcome: when the body has been
 * read, was cancelled or failed, or isn't being read.
 */
export function politeFetch(client: Client = new Client(), options: PoliteFetchOptions = {}): typeof globalThis.fetch {
  return async (input, init) => {
    let request = new Request(input, init)
    const follow = request.redirect === 'follow'
    const { signal } = request
    for (let hop = 0; ; hop += 1) {
      const permit = (await client.permit(request.url, { ...options, signal })).keepAlive()
      // A request can be sent once only; a redirect may have to repeat it.
      const again = follow && request.body !== null ? request.clone() : request
      let response: Response
      try {
        const send = options.fetch ?? globalThis.fetch
        response = await sending.run(permit, () => send(request, follow ? { redirect: 'manual' } : {}))
      } catch (error) {
        await permit.done(error)
        throw error
      }
      permit.response(response)
      const next = follow ? redirected(again, response) : undefined
      if (next === undefined) return await until(permit, response, hop > 0)
      await response.body?.cancel()
      await permit.done()
      if (hop === REDIRECTS_MAX) throw new TypeError('fetch failed', { cause: new Error('redirect count exceeded') })
      request = next
    }
  }
}

/** The request that a redirect leads to, as the Fetch Standard has it; nothing if the response isn't a redirect. */
function redirected(request: Request, response: Response): Request | undefined {
  const location = response.headers.get('location')
  if (location === null || ![301, 302, 303, 307, 308].includes(response.status)) return undefined
  const to = new URL(location, request.url)
  if (to.protocol !== 'http:' && to.protocol !== 'https:') throw new TypeError('fetch failed', { cause: new Error(`redirect to ${to.protocol}`) })
  const headers = new Headers(request.headers)
  if (to.origin !== new URL(request.url).origin) {
    for (const secret of ['authorization', 'proxy-authorization', 'cookie', 'host']) headers.delete(secret)
  }
  const { status } = response
  const becomesGet = ((status === 301 || status === 302) && request.method === 'POST')
    || (status === 303 && request.method !== 'GET' && request.method !== 'HEAD')
  const { signal, referrer, referrerPolicy, integrity, mode, credentials } = request
  const common = { headers, signal, referrer, referrerPolicy, integrity, mode, credentials }
  if (becomesGet) {
    for (const name of ['content-encoding', 'content-language', 'content-location', 'content-type', 'content-length']) headers.delete(name)
    return new Request(to, { ...common, method: 'GET' })
  }
  const body = request.body === null ? {} : { body: request.body, duplex: 'half' as const }
  return new Request(to, { ...common, method: request.method, ...body })
}

/** The response, whose permit ends with its body. A failure is recorded at once: everybody has to know. */
async function until(permit: Permit, response: Response, wasRedirected: boolean): Promise<Response> {
  if (response.body === null || response.status >= 400) {
    await permit.done()
    return response
  }
  const reader = (response.body as ReadableStream<Uint8Array>).getReader()
  let unread: NodeJS.Timeout | undefined
  const rest = (): void => {
    unread = setTimeout(() => void permit.done(), UNREAD_MS)
    unread.unref()
  }
  rest()
  const body = new ReadableStream<Uint8Array>({
    async pull(controller) {
      clearTimeout(unread)
      try {
        const { done, value } = await reader.read()
        if (done) {
          await permit.done()
          controller.close()
        } else {
          controller.enqueue(value)
          rest()
        }
      } catch (error) {
        permit.broke(error)
        await permit.done()
        controller.error(error)
      }
    },
    async cancel(reason) {
      clearTimeout(unread)
      await Promise.all([reader.cancel(reason), permit.done()])
    },
  }, { highWaterMark: 0 })
  const wrapped = new Response(body, response)
  Object.defineProperties(wrapped, {
    url: { value: response.url },
    redirected: { value: wasRedirected || response.redirected },
    type: { value: response.type },
  })
  return wrapped
}

/** The permit of the request that is being sent. */
const sending = new AsyncLocalStorage<Permit>()
const permits = new WeakMap<object, Permit>()

// The moment after which a request was written, which only undici knows. (`sendHeaders` is before that: a busy process may
// write it much later.) Without it, the pace counts from the response.
subscribe('undici:request:create', (message) => {
  const permit = sending.getStore()
  if (permit) permits.set((message as { request: object }).request, permit)
})
subscribe('undici:request:bodySent', (message) => {
  permits.get((message as { request: object }).request)?.sent()
})
