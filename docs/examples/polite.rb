# Fetches URLs politely: ruby polite.rb URL…
# COMITY_SERVER is the URL of the service, COMITY_TOKEN its token if it requires one.
require 'json'
require 'net/http'

SERVER = URI(ENV.fetch('COMITY_SERVER', 'http://127.0.0.1:7878'))

def ask(path, body)
  headers = { 'Content-Type' => 'application/json' }
  headers['Authorization'] = "Bearer #{ENV['COMITY_TOKEN']}" if ENV['COMITY_TOKEN']
  answer = JSON.parse(Net::HTTP.post(SERVER + path, body.to_json, headers).body)
  raise answer['detail'] if answer['detail']

  answer
end

ARGV.each do |url|
  # Blocks until it is our turn, for up to 30 s per call.
  decision = {}
  until decision['proceed']
    decision = ask('/v1/acquire', { url: url })
    raise decision['reason'] if decision['refused'] # an operator paused the site: waiting won't help
  end

  report = begin
    at = URI(url)
    # No automatic retries: each would need its own permit.
    options = { use_ssl: at.scheme == 'https', max_retries: 0 }
    Net::HTTP.start(at.hostname, at.port, options) do |site|
      began = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      answer = site.get(at.request_uri)
      took = Process.clock_gettime(Process::CLOCK_MONOTONIC) - began
      { status: answer.code.to_i, retry_after: answer['Retry-After'], latency_ms: (took * 1000).to_i }.compact
    end
  rescue Timeout::Error
    { outcome: 'timeout' }
  rescue StandardError
    { outcome: 'network_error' }
  end
  ask('/v1/record', report.merge(permit: decision['permit']))
  puts "#{report[:status] || report[:outcome]} #{url}"
end
