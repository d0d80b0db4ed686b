/**
 * BullMQ defers jobs by Comity: a job whose site isn't free goes back to the delayed set until it is, and occupies no
 * worker. BullMQ itself isn't imported, except for the error that you pass in.
 */
import { Client, type AskOptions } from './client.js'
import { Refused } from './errors.js'
import { Permit } from './permit.js'

/** As much of a BullMQ job as is used here. */
interface Job {
  moveToDelayed(timestamp: number, token?: string): Promise<unknown>
}

export interface DeferOptions<J> extends Omit<AskOptions, 'signal'> {
  /** Default: a client with the settings of the environment. */
  client?: Client
  /**
   * How long a job is deferred at most while the site is busy with another request (`limit` is `lease`): how long that
   * takes, nobody knows. Default: 1 s.
   */
  busyMs?: number
  /** The URL or the site of a job. */
  target: (job: J) => string
  /** The class of that name from bullmq, which tells a worker that the job was moved. */
  DelayedError: new () => Error
  /** The class of that name from bullmq: a job for a paused site fails without retries. */
  UnrecoverableError?: new (message: string) => Error
}

/**
 * Returns a processor for a worker. It asks with `check`; if the site isn't free, the job is moved to when it is.
 * Otherwise yours runs with the permit, and the outcome is recorded. If that closes the site (a 429, or
 * `permit.closeUntil(time)`), the job is moved to when the site opens again, which doesn't use up an attempt.
 */
export function deferred<J extends Job, R>(
  options: DeferOptions<J>, processor: (job: J, permit: Permit, signal?: AbortSignal) => Promise<R>,
): (job: J, token?: string, signal?: AbortSignal) => Promise<R> {
  const client = options.client ?? new Client()
  const later = async (job: J, waitMs: number, token: string | undefined): Promise<never> => {
    await job.moveToDelayed(Date.now() + Math.max(1, waitMs), token)
    throw new options.DelayedError()
  }
  return async (job, token, signal) => {
    const { target, DelayedError: _, UnrecoverableError, client: __, busyMs = 1000, ...asked } = options
    const decision = await client.check(target(job), asked)
    if (decision.refused) {
      const refused = new Refused(decision)
      throw UnrecoverableError ? new UnrecoverableError(refused.message) : refused
    }
    if (!decision.proceed) {
      const busy = decision.limit === 'lease' || decision.limit === 'in_flight'
      return await later(job, busy ? Math.min(decision.wait_ms, busyMs) : decision.wait_ms, token)
    }

    const permit = new Permit(client, decision).keepAlive()
    let outcome: { result: R } | { error: unknown }
    try {
      outcome = { result: await processor(job, permit, signal) }
    } catch (error) {
      outcome = { error }
    }
    const recorded = await permit.done('error' in outcome ? outcome.error ?? new Error('thrown') : undefined)
    if (recorded?.outcome === 'rate_limited') return await later(job, recorded.wait_ms, token)
    if ('error' in outcome) throw outcome.error
    return outcome.result
  }
}
