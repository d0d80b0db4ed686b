// Fetches URLs politely: node polite.mjs URL…
// COMITY_SERVER says where the service is, COMITY_TOKEN holds a token where it wants one.
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
    decision = await ask('/v1/acquire', { url }) // the service waits for us, up to half a minute each time
    if (decision.refused) throw new Error(decision.reason) // an operator closed the site: waiting does not help
  } while (!decision.proceed)

  const told = { permit: decision.permit }
  try {
    const answer = await fetch(url, { redirect: 'manual', signal: AbortSignal.timeout(30_000) })
    told.status = answer.status
    told.latency_ms = 0 // when it was written is not known here: the pace counts from the answer
    told.headers = Object.fromEntries(answer.headers) // those that say nothing about waiting are not read
    await answer.arrayBuffer()
  } catch (error) {
    told.outcome = error.name === 'TimeoutError' ? 'timeout' : 'network_error'
    delete told.status
    delete told.headers
    delete told.latency_ms
  }
  await ask('/v1/record', told)
  console.log(told.status ?? told.outcome, url)
}
