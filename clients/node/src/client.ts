/** The client for the decision service: its calls, their retries, and the wait for a permit. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { Invalid, Refused, TimedOut, Unavailable } from './errors.js'
import { Permit, secondsUntil } from './permit.js'
import { Transport, type Reply } from './transport.js'
import type { Decision, Intent, Problem, Recorded, Renewed, Report } from './types.js'

export interface ClientOptions {
  /** The address of the service. Default: `COMITY_SERVER`, or else http://127.0.0.1:7878. */
  server?: string
  /** The token, if the service requires one. Default: `COMITY_TOKEN`. */
  token?: string
  /** How long an answer may take, on top of the time in line. Default: 30 s. */
  timeoutMs?: number
  /** The lease of every permit: how long a crashed program blocks the site. Default: that of the service, 60 s. */
  leaseMs?: number
}

export interface AskOptions {
  /** What the request is for. Default: `fetch`. */
  intent?: Intent
  /** The lease of the permit. */
  leaseMs?: number
  /** Leaves the line when it fires. */
  signal?: AbortSignal | undefined
}

export interface PermitOptions extends AskOptions {
  /** How long to wait for the permit. Default: as long as it takes. */
  timeoutMs?: number
}

/** How long one call waits in line before it is repeated, so that a service that vanished is noticed. */
const WAIT_PER_CALL = 120_000
/** How long a caller in line waits for a service that is away, for example because it restarts. */
const OUTAGE_MAX = 30_000
const LEASE_MAX = 600_000
const BATCH = 1000
/** The waits before reports of a batch are retried that could not be recorded. */
const RECORD_RETRIES = [500, 1000, 2000, 4000]

/** A client for one service. Share it: all its calls may run at the same time. */
export class Client {
  readonly #transport: Transport
  readonly #timeoutMs: number
  readonly #leaseMs: number | undefined

  constructor(options: ClientOptions = {}) {
    const server = options.server ?? (process.env.COMITY_SERVER || 'http://127.0.0.1:7878')
    this.#transport = new Transport(server, options.token ?? (process.env.COMITY_TOKEN || undefined))
    this.#timeoutMs = options.timeoutMs ?? 30_000
    this.#leaseMs = options.leaseMs
  }

  /** The address of the service. */
  get server(): string {
    return this.#transport.server
  }

  /** Asks, and reserves the slot if it is free. Doesn't wait. */
  check(target: string, options: AskOptions = {}): Promise<Decision> {
    return this.#post('/v1/check', this.#ask(target, options), { key: true, signal: options.signal })
  }

  /** Asks without reserving anything. */
  peek(target: string, options: AskOptions = {}): Promise<Decision> {
    return this.#post('/v1/peek', ask(target, options), { signal: options.signal })
  }

  /** Waits in line, for at most `maxWaitMs`. */
  acquire(target: string, options: AskOptions & { maxWaitMs?: number } = {}): Promise<Decision> {
    const maxWaitMs = Math.max(0, Math.round(options.maxWaitMs ?? 30_000))
    const body = { ...this.#ask(target, options), max_wait_ms: maxWaitMs }
    return this.#post('/v1/acquire', body, { key: true, signal: options.signal, maxWaitMs })
  }

  /** Asks for many, in order. */
  async checkMany(targets: Iterable<string>, options: AskOptions = {}): Promise<Decision[]> {
    const found: Decision[] = []
    for (const checks of chunks(Array.from(targets, (target) => this.#ask(target, options)))) {
      const settings = { key: true, signal: options.signal }
      found.push(...(await this.#post<{ results: Decision[] }>('/v1/check/batch', { checks }, settings)).results)
    }
    return found
  }

  /** Reports the outcome of a request. */
  record(report: Report): Promise<Recorded> {
    // A permit is recorded only once, however often it is sent, so it needs no idempotency key.
    return this.#post('/v1/record', report, { key: report.permit === undefined })
  }

  /** Reports many outcomes. Those that can't be recorded at the moment are retried a few times. */
  async recordMany(reports: Iterable<Report>): Promise<Recorded[]> {
    const all: Recorded[] = []
    for (const records of chunks([...reports])) all.push(...(await this.#recordAll(records)))
    return all
  }

  /** Gives a permit back: the request was not sent. */
  release(decision: Decision): Promise<Recorded> {
    return this.record({ permit: permitOf(decision), outcome: 'abandoned' })
  }

  /** Restarts the lease, for a long request. False if it had already ended. */
  async renew(decision: Decision, leaseMs = this.#leaseMs): Promise<boolean> {
    const body = { permit: permitOf(decision), ...lease(leaseMs) }
    return (await this.#post<Renewed>('/v1/renew', body, {})).renewed
  }

  /** Closes a site until this time, for everybody who asks. Requires the role `admin` if the service has tokens. */
  closeUntil(target: string, time: Date | number, options: AskOptions = {}): Promise<Recorded> {
    const named = site(target)
    const intent = options.intent ?? 'fetch'
    return this.record({ ...named, intent, status: 429, retry_after: secondsUntil(time) })
  }

  /** Waits until the request may be sent. End it with `done`; or use `withPermit`, which also renews the lease. */
  async permit(target: string, options: PermitOptions = {}): Promise<Permit> {
    return new Permit(this, await this.#wait(target, options))
  }

  /** Waits for a permit, runs `send` with it, and records the outcome, also if `send` throws. */
  async withPermit<R>(target: string, send: (permit: Permit) => R | Promise<R>, options: PermitOptions = {}): Promise<R> {
    const permit = (await this.permit(target, options)).keepAlive()
    let result: R
    try {
      result = await send(permit)
    } catch (error) {
      await permit.done(error ?? new Error('thrown without a value'))
      throw error
    }
    await permit.done()
    return result
  }

  /** Closes idle connections to the service. */
  close(): void {
    this.#transport.close()
  }

  /**
   * If the service was never reached, that is an error at once. If it goes away while we are in line, it gets some time
   * to come back.
   */
  async #wait(target: string, options: PermitOptions): Promise<Decision> {
    const deadline = performance.now() + (options.timeoutMs ?? Infinity)
    // The first call doesn't wait: if the site is paused, we learn that at once.
    let maxWaitMs = 0
    let met = false
    let downSince: number | undefined
    for (;;) {
      const askedAt = performance.now()
      const waitMs = Math.min(maxWaitMs, Math.max(0, deadline - askedAt))
      let decision: Decision
      try {
        decision = await this.acquire(target, { ...options, maxWaitMs: waitMs })
      } catch (error) {
        if (!(error instanceof Unavailable)) throw error
        met ||= error.met
        downSince ??= askedAt
        const now = performance.now()
        if (!met || now >= deadline || now - downSince > OUTAGE_MAX) throw error
        const pause = Math.min(error.retryAfterMs ?? 500, OUTAGE_MAX, deadline - now)
        await sleep(pause, undefined, { signal: options.signal })
        continue
      }
      met = true
      downSince = undefined
      if (decision.proceed) {
        if (!options.signal?.aborted) return decision
        await this.release(decision).catch(() => undefined)
        throw options.signal.reason
      }
      if (decision.refused) throw new Refused(decision)
      const now = performance.now()
      if (now >= deadline) throw new TimedOut(decision)
      // A service that shuts down, or lets nobody wait in line, answers at once: no busy loop.
      if (decision.limit === 'stopping' || (maxWaitMs > 0 && now - askedAt < Math.min(waitMs, 50))) {
        await sleep(Math.min(500, deadline - now), undefined, { signal: options.signal })
      }
      maxWaitMs = WAIT_PER_CALL
    }
  }

  async #recordAll(records: Report[]): Promise<Recorded[]> {
    const done: Recorded[] = []
    let open = records.map((_, nth) => nth)
    for (const pause of [...RECORD_RETRIES, undefined]) {
      const batch = { records: open.map((nth) => records[nth]) }
      const { results } = await this.#post<{ results: Recorded[] }>('/v1/record/batch', batch, { key: true })
      const unheard: number[] = []
      open.forEach((nth, at) => {
        const result = results[at]
        if (result === undefined || result.standing === 'unheard') unheard.push(nth)
        else done[nth] = result
      })
      open = unheard
      if (open.length === 0) break
      if (pause === undefined) {
        throw new Unavailable(`${open.length} of ${records.length} reports could not be recorded`, true)
      }
      await sleep(pause)
    }
    return done
  }

  #ask(target: string, options: AskOptions): object {
    return { ...ask(target, options), ...lease(options.leaseMs ?? this.#leaseMs) }
  }

  async #post<T>(
    path: string, body: unknown, settings: { key?: boolean; signal?: AbortSignal | undefined; maxWaitMs?: number },
  ): Promise<T> {
    const timeoutMs = this.#timeoutMs + (settings.maxWaitMs ?? 0)
    const key = settings.key ? { key: randomUUID() } : {}
    return read(await this.#transport.send({ method: 'POST', path, body, timeoutMs, signal: settings.signal, ...key }))
  }
}

function read<T>(reply: Reply): T {
  let answer: unknown
  try {
    answer = JSON.parse(reply.body)
  } catch {
    answer = undefined
  }
  const object = typeof answer === 'object' && answer !== null
  if (reply.status >= 200 && reply.status < 300) {
    if (object) return answer as T
    throw new Invalid(reply.status, { detail: 'unexpected response from the server at this address: is it Comity?' })
  }
  const problem = object ? (answer as Problem) : {}
  // 409: our own call with the same key is still in progress. 408: the request got lost. Both are temporary.
  if (reply.status >= 500 || reply.status === 408 || reply.status === 409) {
    const message = problem.detail ?? problem.title ?? `the service answered HTTP ${reply.status}`
    const seconds = reply.retryAfter === undefined ? NaN : Number(reply.retryAfter)
    throw new Unavailable(message, true, seconds >= 0 ? seconds * 1000 : undefined)
  }
  throw new Invalid(reply.status, problem)
}

function ask(target: string, options: AskOptions): object {
  return { ...site(target), intent: options.intent ?? 'fetch' }
}

function site(target: string): { url: string } | { domain: string } {
  return target.includes('://') ? { url: target } : { domain: target }
}

function lease(ms: number | undefined): object {
  return ms === undefined ? {} : { lease_ms: Math.max(1, Math.round(Math.min(ms, LEASE_MAX))) }
}

function permitOf(decision: Decision): string {
  if (!decision.permit) throw new TypeError(`the decision for ${decision.domain} has no permit`)
  return decision.permit
}

function* chunks<T>(items: T[]): Generator<T[]> {
  for (let start = 0; start < items.length; start += BATCH) yield items.slice(start, start + BATCH)
}
