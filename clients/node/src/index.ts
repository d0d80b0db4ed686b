/**
 * Client for the decision service of Comity: ask before you fetch, and report the outcome.
 *
 * In reading order: `types` (what is exchanged), `errors`, `outcome` (the outcome of a fetch), `permit` (the right to
 * send one request), `transport` (HTTP to the service), `client` (all calls, and the wait for a permit), `fetch` (a
 * `fetch` that waits its turn). `comity/crawlee` and `comity/bullmq` are loaded only by those who import them.
 */
export { Client, type AskOptions, type ClientOptions, type PermitOptions } from './client.js'
export { ComityError, Invalid, Refused, TimedOut, Unavailable } from './errors.js'
export { politeFetch, type PoliteFetchOptions } from './fetch.js'
export type { HeadersLike, ResponseLike } from './outcome.js'
export { Permit } from './permit.js'
export { INTENTS, OUTCOMES, type Decision, type Intent, type Outcome, type Problem, type Recorded, type Renewed, type Report } from './types.js'
