/**
 * One HTTP request to the service. It uses `node:http` rather than `fetch`, so that a dispatcher, a proxy or a wrapper
 * that is meant for the sites never applies to the service.
 */
import * as http from 'node:http'
import * as https from 'node:https'
import { Unavailable } from './errors.js'

export interface Call {
  method: 'GET' | 'POST'
  path: string
  body?: unknown
  /** The idempotency key: if the connection breaks, the repeated call doesn't reserve a second slot. */
  key?: string
  /** How long the response may take. */
  timeoutMs: number
  signal?: AbortSignal | undefined
}

export interface Reply {
  status: number
  retryAfter: string | undefined
  body: string
}

export class Transport {
  readonly server: string
  readonly #base: URL
  readonly #agent: http.Agent
  readonly #headers: Record<string, string>

  constructor(server: string, token: string | undefined) {
    this.#base = new URL(server.includes('://') ? server : `http://${server}`)
    this.server = this.#base.origin
    const secure = this.#base.protocol === 'https:'
    this.#agent = secure ? new https.Agent({ keepAlive: true }) : new http.Agent({ keepAlive: true })
    this.#headers = { Accept: 'application/json', ...(token ? { Authorization: `Bearer ${token}` } : {}) }
  }

  close(): void {
    this.#agent.destroy()
  }

  async send(call: Call): Promise<Reply> {
    try {
      return await this.#once(call)
    } catch (error) {
      // A kept-alive connection may have been closed just as it was used. Retry once.
      if (!(error instanceof Unavailable && error.met)) throw error
      return await this.#once(call)
    }
  }

  #once(call: Call): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const body = call.body === undefined ? undefined : Buffer.from(JSON.stringify(call.body))
      const headers: http.OutgoingHttpHeaders = { ...this.#headers }
      if (body) Object.assign(headers, { 'Content-Type': 'application/json', 'Content-Length': body.length })
      if (call.key) headers['Idempotency-Key'] = call.key
      const { signal } = call
      if (signal?.aborted) return reject(signal.reason)

      const send = this.#base.protocol === 'https:' ? https.request : http.request
      const url = new URL(this.#base.pathname.replace(/\/$/, '') + call.path, this.#base)
      const request = send(url, { method: call.method, headers, agent: this.#agent })
      let met = false
      const abort = (): void => void request.destroy(signal?.reason)
      const timer = setTimeout(() => {
        request.destroy(new Error(`no answer within ${call.timeoutMs / 1000} s`))
      }, call.timeoutMs)
      const end = (): void => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', abort)
      }
      const fail = (error: Error): void => {
        end()
        if (signal?.aborted) return reject(signal.reason)
        const why = error.message || (error as NodeJS.ErrnoException).code
        const message = `${this.server}: the decision service can't be reached: ${why}`
        reject(new Unavailable(message, met, undefined, { cause: error }))
      }
      signal?.addEventListener('abort', abort, { once: true })
      request.on('socket', (socket) => {
        if (!socket.connecting) met = true
        else socket.once('connect', () => (met = true))
      })
      request.on('error', fail)
      request.on('response', (response) => {
        const chunks: Buffer[] = []
        response.on('data', (chunk: Buffer) => chunks.push(chunk))
        response.on('error', fail)
        response.on('end', () => {
          end()
          const retryAfter = response.headers['retry-after']
          resolve({ status: response.statusCode ?? 0, retryAfter, body: Buffer.concat(chunks).toString() })
        })
      })
      request.end(body)
    })
  }
}
