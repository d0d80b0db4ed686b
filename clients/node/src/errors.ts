/** Errors in the communication with the service. A problem with the site itself is an outcome, not an error. */
import type { Decision, Problem } from './types.js'

/** The base class of all errors of this package. */
export class ComityError extends Error {
  override name = 'ComityError'
}

/** The service can't be reached, did not answer in time, or answered 503. Retry later. */
export class Unavailable extends ComityError {
  override name = 'Unavailable'
  /**
   * @param retryAfterMs how long to wait before retrying, if the service said so
   * @param met whether a service was there at all: it answered, or the connection broke
   */
  constructor(message: string, readonly met: boolean, readonly retryAfterMs?: number, options?: ErrorOptions) {
    super(message, options)
  }
}

/** The service refused a call (4xx), or the server at this address isn't Comity. Retrying the same call doesn't help. */
export class Invalid extends ComityError {
  override name = 'Invalid'
  readonly field: string | undefined
  readonly value: string | undefined
  readonly allowed: string | undefined

  constructor(readonly status: number, problem: Problem) {
    super(problem.detail ?? problem.title ?? `the service answered HTTP ${status}`)
    this.field = problem.field ?? undefined
    this.value = problem.value ?? undefined
    this.allowed = problem.allowed ?? undefined
  }
}

/** An operator paused the site until further notice. Waiting doesn't help until somebody resumes it. */
export class Refused extends ComityError {
  override name = 'Refused'
  constructor(readonly decision: Decision) {
    super(`${decision.domain}: ${decision.reason}`)
  }
}

/** No permit was granted within the caller's timeout. */
export class TimedOut extends ComityError {
  override name = 'TimedOut'
  constructor(readonly decision: Decision) {
    const left = `${(decision.wait_ms / 1000).toFixed(1)} s remaining`
    super(`${decision.domain}: timed out waiting for a permit, ${left}: ${decision.reason}`)
  }
}
