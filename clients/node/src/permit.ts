/** The right to send one request, and what to report about it. */
import type { Client } from './client.js'
import { ofError, ofResponse, ofStatus, type HeadersLike, type ResponseLike, type Result } from './outcome.js'
import { OUTCOMES, type Decision, type Outcome, type Recorded, type Report } from './types.js'

/** The right to send one request. Send it at once, report the response, and call `done`. */
export class Permit {
  readonly #client: Client
  readonly #grantedAt = performance.now()
  #result: Result | undefined
  #resultAt: number | undefined
  #sentAt: number | undefined
  #renewal: NodeJS.Timeout | undefined
  #recorded: Promise<Recorded | undefined> | undefined

  constructor(client: Client, readonly decision: Decision) {
    this.#client = client
  }

  /**
   * Renews the lease until `done`, so that a long request keeps its place. Only for those who are sure to call `done`: a
   * permit that is forgotten would block its site as long as the process lives.
   */
  keepAlive(): this {
    if (this.#recorded !== undefined || this.#renewal !== undefined) return this
    const lease = this.decision.lease_ms ?? 60_000
    const renew = (): void => void this.#client.renew(this.decision, lease).catch(() => undefined)
    this.#renewal = setInterval(renew, Math.max(lease / 2, 10))
    this.#renewal.unref()
    return this
  }

  /** The site whose pace applies: a host, or a group of hosts. */
  get domain(): string {
    return this.decision.domain
  }

  /** Reports that the request is being written right now: the pace then counts from here. */
  sent(msAgo = 0): void {
    this.#sentAt = performance.now() - msAgo
  }

  /** Reports the response. Returns it, so that you can wrap the call that fetches. */
  response<R extends ResponseLike>(response: R): R {
    this.#set(ofResponse(response))
    return response
  }

  /** Reports a response by its status and headers. */
  answered(status: number, headers?: HeadersLike): void {
    this.#set(ofStatus(status, headers))
  }

  /** Reports an outcome, such as `timeout`; or `rate_limited` for an API that says so in its body. */
  outcome(outcome: Outcome): void {
    if (!OUTCOMES.includes(outcome)) throw new TypeError(`outcome = ${outcome}: expected one of ${OUTCOMES.join(', ')}`)
    this.#set({ outcome })
  }

  /** Reports that the site is closed until this time: nobody sends it a request before. */
  closeUntil(time: Date | number): void {
    this.#set({ status: 429, headers: { 'retry-after': String(secondsUntil(time)) } })
  }

  /** Reports that the body broke off after its response had been reported. */
  broke(error: unknown): void {
    const result = ofError(error)
    if ('outcome' in result && result.outcome !== 'abandoned') this.#set(result)
  }

  /**
   * Records the outcome: what was reported; or else what the error means, or a success without one. Never throws: if the
   * service is away, the result of your request is worth more than the report about it. Only the first call counts.
   */
  done(error?: unknown): Promise<Recorded | undefined> {
    clearInterval(this.#renewal)
    this.#recorded ??= this.#client.record(this.report(error)).catch((failure: Error) => {
      process.emitWarning(`could not record the outcome of a request: ${failure.message}`, 'ComityWarning')
      return undefined
    })
    return this.#recorded
  }

  /** What `done` records. */
  report(error?: unknown): Report {
    const result = this.#result ?? (error === undefined ? { outcome: 'success' as const } : ofError(error))
    const report: Report = { latency_ms: Math.max(0, Math.round(performance.now() - this.#startedAt(result))) }
    if (this.decision.permit) report.permit = this.decision.permit
    return Object.assign(report, result)
  }

  /**
   * The latest time at which the request can have been written. Without better knowledge that is the time of the
   * response, since a connection may have been opened first; but a failure must not look more recent than it is.
   */
  #startedAt(result: Result): number {
    if (this.#sentAt !== undefined) return this.#sentAt
    const success = 'status' in result ? result.status < 400 : result.outcome === 'success'
    return success ? this.#resultAt ?? performance.now() : this.#grantedAt
  }

  #set(result: Result): void {
    this.#result = result
    this.#resultAt = performance.now()
  }
}

/** The time as a `Retry-After`: whole seconds, never too few. */
export function secondsUntil(time: Date | number): number {
  return Math.max(0, Math.ceil((Number(time) - Date.now()) / 1000))
}
