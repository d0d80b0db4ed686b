/** The objects exchanged with the service. Their fields have the names of the API; see `/openapi.json`. */

/** What a request is for. Rules can set separate limits for each. */
export const INTENTS = ['fetch', 'search', 'api'] as const
export type Intent = (typeof INTENTS)[number]

/** The outcome of a request. */
export const OUTCOMES = [
  'success', 'answered', 'rate_limited', 'blocked', 'unavailable', 'server_error', 'timeout', 'network_error', 'abandoned',
] as const
export type Outcome = (typeof OUTCOMES)[number]

/** Whether a request may be sent now, or else how long to wait and why. */
export interface Decision {
  /** Whether the request may be sent now. `check` and `acquire` have then reserved the slot. */
  proceed: boolean
  /** How long to wait before asking again; 0 if the request may be sent. */
  wait_ms: number
  /** The reason, as a sentence. */
  reason: string
  /** The site whose pace applies: a host, or a group of hosts. */
  domain: string
  /** Whether an operator paused the site until further notice. */
  refused: boolean
  /** How long this call waited in line. */
  waited_ms: number
  /** The permit, to record the outcome with; null if nothing was reserved. */
  permit?: string | null
  /** How long the permit counts as in flight if it is not recorded. */
  lease_ms?: number | null
  /** What delays the request, in one word such as `min_delay`. */
  limit?: string | null
  /** Where that limit comes from, such as `rule` or `server`. */
  origin?: string | null
}

/** The outcome of a request, as the service takes it. */
export interface Report {
  /** The permit of the request. */
  permit?: string
  /** Without a permit: the URL that was fetched, */
  url?: string
  /** or its host, */
  domain?: string
  /** and what the request was for. */
  intent?: Intent
  /** The HTTP status; either this or `outcome`. */
  status?: number
  /** The outcome, for example if there was no response. */
  outcome?: Outcome
  /** The headers of the response that are about rate limits and waiting. */
  headers?: Record<string, string>
  /** The `Retry-After` header, unchanged, or a number of seconds. */
  retry_after?: string | number
  /** The `RateLimit` header, unchanged. */
  ratelimit?: string
  /** How long ago the request was sent: the pace counts from there. */
  latency_ms?: number
}

/** What recording a report changed. */
export interface Recorded {
  /** The site whose pace was updated. */
  domain: string
  /** The outcome that was recorded. */
  outcome: string
  /** `fresh` if it counted, `late` if the request was sent before the latest failure, `repeated` if it was known. */
  standing: string
  /** How long until the next request may be sent. */
  wait_ms: number
  /** Until when the site is closed because of this, or null. */
  held_until?: string | null
  /** The new learned delay, or null if it did not change. */
  adaptive_delay_seconds?: number | null
}

/** Whether a lease was extended. */
export interface Renewed {
  /** The site whose pace applies. */
  domain: string
  /** False if the permit was already recorded, or its lease had ended. */
  renewed: boolean
  /** How long the permit counts as in flight from now on. */
  lease_ms: number
}

/** Why the service refused a call: problem details (RFC 9457). */
export interface Problem {
  title?: string
  status?: number
  detail?: string
  field?: string | null
  value?: string | null
  allowed?: string | null
}
