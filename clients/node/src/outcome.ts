/** The outcome of a fetch, derived from a response, or from the kind of an error; never from the text of a message. */
import { ComityError } from './errors.js'
import type { Outcome } from './types.js'

/** Headers as the HTTP libraries have them. */
export type HeadersLike =
  | Iterable<readonly [string, string]>
  | Readonly<Record<string, string | readonly string[] | undefined>>

/** A response of fetch, undici, got, axios, node:http, Playwright or Puppeteer. */
export interface ResponseLike {
  status?: number | (() => number)
  statusCode?: number | undefined
  headers?: unknown
}

/** What came back: a status with headers, or an outcome if there was no response. */
export type Result = { status: number; headers: Record<string, string> } | { outcome: Outcome }

export function ofResponse(response: ResponseLike): Result {
  const status = statusOf(response)
  if (status === undefined) throw new TypeError('expected a response with status or statusCode')
  const { headers } = response
  const read = typeof headers === 'function' ? (headers as () => HeadersLike).call(response) : headers
  return ofStatus(status, read as HeadersLike | undefined)
}

export function ofStatus(status: number, headers?: HeadersLike): Result {
  // No server can send another status, so it was made up by whoever called.
  if (!(status >= 100 && status <= 999)) return { outcome: 'server_error' }
  return { status, headers: rateLimitHeaders(headers) }
}

/**
 * What to record if the fetch failed with this error and nothing was reported. A cancelled request, and a bug in the
 * caller's own code, are `abandoned`: nothing is learned from it.
 */
export function ofError(error: unknown): Result {
  if (error instanceof ComityError || typeof error !== 'object' || error === null) return { outcome: 'abandoned' }
  const { response } = error as { response?: ResponseLike }
  if (typeof response === 'object' && response !== null && statusOf(response) !== undefined) return ofResponse(response)
  return { outcome: failure(error, 0) ?? 'abandoned' }
}

/** The headers about rate limits and waiting. Cookies and all others never leave the process. */
export function rateLimitHeaders(headers: HeadersLike | undefined): Record<string, string> {
  const kept: Record<string, string> = {}
  if (headers === undefined || headers === null) return kept
  const pairs = Symbol.iterator in headers ? (headers as Iterable<readonly [string, string]>) : Object.entries(headers)
  for (const [given, values] of pairs) {
    const name = given.toLowerCase()
    if (!/^(date$|retry-after$|ratelimit|x-rate)/.test(name)) continue
    for (const value of Array.isArray(values) ? values : [values]) {
      if (value !== undefined) kept[name] = name in kept ? `${kept[name]}, ${value}` : String(value)
    }
  }
  return kept
}

function statusOf(response: ResponseLike): number | undefined {
  const status = typeof response.status === 'function' ? response.status() : response.status ?? response.statusCode
  return typeof status === 'number' ? status : undefined
}

function failure(error: object, depth: number): Outcome | undefined {
  const { name, code, cause } = error as { name?: unknown; code?: unknown; cause?: unknown }
  if (name === 'AbortError' || code === 'ABORT_ERR' || code === 'ERR_CANCELED') return 'abandoned'
  if (name === 'TimeoutError' || (typeof code === 'string' && TIMEOUTS.test(code))) return 'timeout'
  if (typeof code === 'string' && NETWORK.test(code)) return 'network_error'
  // fetch throws `TypeError: fetch failed`, and the cause says why.
  return typeof cause === 'object' && cause !== null && depth < 5 ? failure(cause, depth + 1) : undefined
}

const TIMEOUTS = /^(ETIMEDOUT|ESOCKETTIMEDOUT|ECONNABORTED|UND_ERR_(HEADERS|BODY|CONNECT)_TIMEOUT)$/
const NETWORK =
  /^(ECONN(REFUSED|RESET)|ENOTFOUND|EAI_|EPIPE|E(HOST|NET)(UNREACH|DOWN)|UND_ERR_(SOCKET|RESPONSE|RES_)|HPE_|ERR_(TLS|SSL|HTTP2|STREAM_PREMATURE_CLOSE)|CERT_|UNABLE_TO_|SELF_SIGNED|DEPTH_ZERO)/
