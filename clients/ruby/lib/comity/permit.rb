# frozen_string_literal: true

module Comity
  # The right to send one request, now. Report the response, and call `done`.
  class Permit
    attr_reader :decision

    def initialize(client, decision)
      @client = client
      @decision = decision
      @granted_at = Comity.now
      @mutex = Mutex.new
    end

    # Renews the lease until `done`, so that a long request keeps its place. Only for those who are sure to call `done`: a
    # permit that is forgotten would block its site as long as the process lives.
    def keep_alive
      lease = (decision.lease_ms || 60_000) / 1000.0
      @renewal ||= Thread.new { renew_every(lease / 2, lease) } unless @done
      self
    end

    # The site whose pace applies: a host, or a group of hosts.
    def domain = decision.domain

    # Reports that the request is being written right now: the pace then counts from here.
    def sent
      @sent_at = Comity.now
    end

    # Reports a response of Faraday, Net::HTTP, HTTP.rb or Rack. Returns it, so that you can wrap the call that fetches.
    def response(response)
      status = response.respond_to?(:status) ? response.status : response.code
      headers = response.respond_to?(:headers) ? response.headers : response.to_hash
      answered(status.to_i, headers)
      response
    end

    # Reports a response by its status and headers.
    def answered(status, headers = {})
      report(Outcome.of_status(status, headers))
    end

    # Reports an outcome; for an API that says in its body that it is rate limited, for example.
    def outcome(outcome)
      OUTCOMES.include?(outcome.to_s) or raise ArgumentError, "outcome = #{outcome}: expected one of #{OUTCOMES.join(', ')}"
      report(outcome: outcome.to_s)
    end

    # Reports that the site is closed until this time: nobody sends it a request before.
    def close_until(time)
      report(status: 429, retry_after: Comity.seconds_until(time))
    end

    # Records the outcome: what was reported; or else what the error means, or a success without one. Never raises: if the
    # service is away, the result of your request is worth more than the report about it. Only the first call counts.
    def done(error = nil)
      @mutex.synchronize do
        return @recorded if @done

        @done = true
        @renewal&.kill
        @recorded = @client.record(**to_report(error))
      end
    rescue Error => e
      warn "could not record the outcome of a request: #{e.message}"
    end

    private

    def report(result)
      @result = result
      @result_at = Comity.now
    end

    def to_report(error)
      result = @result || (error ? Outcome.of_error(error) : { outcome: 'success' })
      latency = ((Comity.now - (@sent_at || started_at(result))) * 1000).round
      { permit: decision.permit, latency_ms: latency, **result }
    end

    # Without better knowledge, a success counts from its response, since a connection may have been opened first. But a
    # failure must not look more recent than it is.
    def started_at(result)
      success = result[:outcome] == 'success' || (result[:status] && result[:status] < 400)
      success ? @result_at || Comity.now : @granted_at
    end

    def renew_every(pause, lease)
      loop do
        sleep pause
        @client.renew(decision, lease: lease)
      rescue Error
        # The next one may work, and the permit can be recorded in any case.
      end
    end
  end

  module_function

  # Seconds of a clock that nobody sets.
  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  # The time as a `Retry-After`: whole seconds, never too few.
  def seconds_until(time) = [(time.to_time - Time.now).ceil, 0].max.to_s
end
