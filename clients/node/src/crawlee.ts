/**
 * Crawlee asks before every navigation, and every outcome is recorded. Crawlee itself isn't imported: its hooks are
 * plain functions, and these work for its HTTP, Cheerio, JSDOM, Playwright and Puppeteer crawlers.
 */
import { Client } from './client.js'
import { ComityError, Refused, TimedOut } from './errors.js'
import type { ResponseLike } from './outcome.js'
import type { Permit } from './permit.js'
import type { Intent } from './types.js'

export interface CrawleeOptions {
  /** Default: a client with the settings of the environment. */
  client?: Client
  /** How long a request waits in line before it goes back to the queue. Default: 30 s. */
  patienceMs?: number
  /** How often one request may be rate limited before Crawlee gets the response. Default: 20. */
  maxRateLimited?: number
  /** What the requests are for. Default: `fetch`. */
  intent?: Intent
}

/** The site answered 429 (or 403 or 503 with `Retry-After`): the request goes back to the queue. */
export class RateLimited extends ComityError {
  override name = 'RateLimited'
}

interface Context {
  request: { url: string; retryCount: number; noRetry: boolean; userData: Record<string, any> }
  response?: unknown
}
interface Got {
  hooks?: { beforeRedirect?: unknown[] }
}
type Hook = (context: any, goto: any) => unknown
type Handler = (context: any, error: any) => unknown
interface Hooks {
  preNavigationHooks?: Hook[]
  postNavigationHooks?: Hook[]
  errorHandler?: Handler
  failedRequestHandler?: Handler
  requestHandler?: unknown
}

/** The permit of a navigation. After a redirect it is that of the hop. */
interface Navigation {
  permit: Permit
  abort: AbortController
}

/**
 * Returns the options of a crawler, with hooks added to yours:
 *
 *     const crawler = new CheerioCrawler(polite({ requestHandler }))
 */
export function polite<O extends object>(options: O, settings: CrawleeOptions = {}): O {
  const client = settings.client ?? new Client()
  const patience = settings.patienceMs ?? 30_000
  const limit = settings.maxRateLimited ?? 20
  const intent = settings.intent ?? 'fetch'
  const given = options as Hooks
  const navigations = new WeakMap<object, Navigation>()

  /** The last of the hooks before a navigation, so that what yours take doesn't delay the permit's request. */
  const before: Hook = async (context: Context, goto: Got | undefined) => {
    const { request } = context
    let permit: Permit
    try {
      permit = (await client.permit(request.url, { intent, timeoutMs: patience })).keepAlive()
    } catch (error) {
      if (error instanceof Refused) request.noRetry = true
      // The wait for a site doesn't use up the retries. Crawlee adds one to this.
      if (error instanceof TimedOut) request.retryCount -= 1
      throw error
    }
    const navigation = { permit, abort: new AbortController() }
    navigations.set(request, navigation)
    // Crawlers without a browser follow redirects here, hop by hop.
    if (typeof goto !== 'object' || goto === null) return
    const beforeRedirect = async (next: { url: URL | string }, response: ResponseLike): Promise<void> => {
      settle(navigation.permit, response)
      await navigation.permit.done()
      const { signal } = navigation.abort
      navigation.permit = (await client.permit(String(next.url), { intent, signal })).keepAlive()
    }
    goto.hooks = { ...goto.hooks, beforeRedirect: [...(goto.hooks?.beforeRedirect ?? []), beforeRedirect] }
  }

  /** The first of the hooks after a navigation. */
  const after: Hook = async (context: Context) => {
    const navigation = navigations.get(context.request)
    if (navigation === undefined) return
    navigations.delete(context.request)
    const { response } = context
    if (typeof response === 'object' && response !== null) settle(navigation.permit, response)
    const recorded = await navigation.permit.done()
    const status = statusOf(response)
    const held = status === 429 || ((status === 403 || status === 503) && recorded?.held_until != null)
    if (!held) return
    const { userData } = context.request
    const times = (userData.comityRateLimited ?? 0) + 1
    userData.comityRateLimited = times
    if (times > limit) return
    context.request.retryCount -= 1
    ;(response as { destroy?: () => void }).destroy?.()
    throw new RateLimited(`${navigation.permit.domain}: rate limited (${status}), next request in ${(recorded?.wait_ms ?? 0) / 1000} s`)
  }

  /** Whatever ended a navigation without a response. */
  const onError = (handler: Handler | undefined): Handler => async (context: Context, error: unknown) => {
    const navigation = navigations.get(context.request)
    if (navigation !== undefined) {
      navigations.delete(context.request)
      navigation.abort.abort()
      const { response } = context
      if (statusOf(response) !== undefined) settle(navigation.permit, response as ResponseLike)
      else if (/tim(ed|e)[ -]?out/i.test(String((error as Error)?.name))) navigation.permit.outcome('timeout')
      await navigation.permit.done(error)
    }
    return await handler?.(context, error)
  }

  return {
    ...options,
    preNavigationHooks: [...(given.preNavigationHooks ?? []), before],
    postNavigationHooks: [after, ...(given.postNavigationHooks ?? [])],
    errorHandler: onError(given.errorHandler),
    failedRequestHandler: onError(given.failedRequestHandler),
  }
}

/** Reports the response, and when its request was written, if the library knows. */
function settle(permit: Permit, response: ResponseLike & { timings?: { upload?: number } }): void {
  permit.response(response)
  const written = response.timings?.upload
  if (typeof written === 'number') permit.sent(Math.max(0, Date.now() - written))
}

function statusOf(response: unknown): number | undefined {
  if (typeof response !== 'object' || response === null) return undefined
  const { status, statusCode } = response as ResponseLike
  return typeof status === 'function' ? (status as () => number).call(response) : status ?? statusCode
}
