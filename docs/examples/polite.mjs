// Fetches URLs politely: node polite.mjs URL…
// COMITY_SERVER is the URL of the service, COMITY_TOKEN its token if it requires one.
const server = process.env.COMITY_SERVER ?? 'http://127.0.0.1:7878'
const token = process.env.COMITY_TOKEN

async function ask(path, body) {
  const headers = { 'Content-Type': 'application/json', ...(token && { Authorization: `Bearer ${token}` }) }
  const answer = await fetch(server + path, { method: 'POST', headers, body: JSON.stringify(body) })
  const read = await answer.json()
  if (!answer.ok) throw new Error(read.detail)
  return read
}

for (const url of process.argv.slice(2)) {
  let decision
  do {
    decision = await ask('/v1/acquire', { url }) // blocks until it is our turn, for up to 30 s per call
    if (decision.refused) throw new Error(decision.reason) // an operator paused the site: waiting won't help
  } while (!decision.proceed)

  const report = { permit: decision.permit }
  try {
    const answer = await fetch(url, { redirect: 'manual', signal: AbortSignal.timeout(30_000) })
    report.status = answer.status
    report.latency_ms = 0 // we don't know when it was sent, so the pace counts from the response
    report.headers = Object.fromEntries(answer.headers) // the service ignores headers that are not about waiting
    await answer.arrayBuffer()
  } catch (error) {
    report.outcome = error.name === 'TimeoutError' ? 'timeout' : 'network_error'
    delete report.status
    delete report.headers
    delete report.latency_ms
  }
  await ask('/v1/record', report)
  console.log(report.status ?? report.outcome, url)
}
