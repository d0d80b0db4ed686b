# frozen_string_literal: true

require 'securerandom'

module Comity
  # A client for one service. Threads may share it. A target is a URL or a site.
  class Client
    # How long one call waits in line before it is repeated, so that a service that vanished is noticed.
    WAIT_PER_CALL = 120
    # How long a caller in line waits for a service that is away, for example because it restarts.
    OUTAGE_MAX = 30
    LEASE_MAX = 600
    BATCH = 1000
    RECORD_RETRIES = [0.5, 1, 2, 4].freeze
    private_constant :WAIT_PER_CALL, :OUTAGE_MAX, :LEASE_MAX, :BATCH, :RECORD_RETRIES

    # The address of the service comes from `COMITY_SERVER`, or else it is http://127.0.0.1:7878; the token from
    # `COMITY_TOKEN`. `lease` is how long a crashed program blocks a site, by default a minute. All times are in seconds.
    def initialize(server: nil, token: nil, lease: nil, timeout: 30)
      server ||= present(ENV['COMITY_SERVER']) || 'http://127.0.0.1:7878'
      @transport = Transport.new(server, token || present(ENV['COMITY_TOKEN']), timeout)
      @lease = lease
    end

    # Asks, and reserves the slot if it is free. Doesn't wait.
    def check(target, intent: 'fetch', lease: @lease)
      Decision.read(@transport.post('/v1/check', ask(target, intent, lease), key: SecureRandom.hex))
    end

    # Asks without reserving anything.
    def peek(target, intent: 'fetch')
      Decision.read(@transport.post('/v1/peek', ask(target, intent, nil)))
    end

    # Waits in line, for at most `max_wait`.
    def acquire(target, max_wait: 30, intent: 'fetch', lease: @lease)
      body = { **ask(target, intent, lease), max_wait_ms: (max_wait * 1000).round }
      Decision.read(@transport.post('/v1/acquire', body, key: SecureRandom.hex, max_wait: max_wait))
    end

    # Asks for many, in order.
    def check_many(targets, intent: 'fetch', lease: @lease)
      targets.each_slice(BATCH).flat_map do |slice|
        checks = slice.map { |target| ask(target, intent, lease) }
        answer = @transport.post('/v1/check/batch', { checks: checks }, key: SecureRandom.hex)
        answer['results'].map { |one| Decision.read(one) }
      end
    end

    # Reports the outcome of a request: its `permit` (or a `url` or `domain`), and a `status` or an `outcome`.
    def record(**report)
      # A permit is recorded only once, however often it is sent, so it needs no idempotency key.
      Recorded.read(@transport.post('/v1/record', report, key: report[:permit] ? nil : SecureRandom.hex))
    end

    # Reports many outcomes. Those that can't be recorded at the moment are retried a few times.
    def record_many(reports)
      recorded = {}
      [*RECORD_RETRIES, nil].each do |pause|
        open = reports.each_index.reject { |nth| recorded.key?(nth) }
        open.each_slice(BATCH) do |slice|
          records = reports.values_at(*slice)
          results = @transport.post('/v1/record/batch', { records: records }, key: SecureRandom.hex)['results']
          slice.zip(results) { |nth, one| recorded[nth] = Recorded.read(one) unless one['standing'] == 'unheard' }
        end
        return recorded.sort.map(&:last) if recorded.size == reports.size

        sleep pause if pause
      end
      failed = reports.size - recorded.size
      raise Unavailable.new("#{failed} of #{reports.size} reports could not be recorded", met: true)
    end

    # Gives a permit back: the request was not sent.
    def release(decision)
      record(permit: decision.permit, outcome: 'abandoned')
    end

    # Restarts the lease, for a long request. False if it had already ended.
    def renew(decision, lease: @lease)
      @transport.post('/v1/renew', { permit: decision.permit, **lease_of(lease) })['renewed']
    end

    # Closes a site until this time, for everybody. If the service has tokens, that takes the role admin.
    def close_until(target, time, intent: 'fetch')
      record(**site(target), intent: intent, status: 429, retry_after: Comity.seconds_until(time))
    end

    # Waits until the request may be sent. Record its outcome with `done`; or use `with_permit`, which also renews the
    # lease.
    def permit(target, intent: 'fetch', timeout: nil, lease: @lease)
      Permit.new(self, wait(target, timeout, intent: intent, lease: lease))
    end

    # Waits for a permit, yields it, and records the outcome however the block ends. Returns what the block returns.
    def with_permit(target, **options)
      permit = permit(target, **options).keep_alive
      error = INTERRUPTED
      begin
        result = yield permit
        error = nil
        result
      rescue Exception => e # rubocop:disable Lint/RescueException
        error = e
        raise
      ensure
        permit.done(error)
      end
    end

    private

    # If the service was never reached, that is an error at once. If it goes away while we are in line, it gets some time
    # to come back.
    def wait(target, timeout, **options)
      deadline = timeout ? Comity.now + timeout : Float::INFINITY
      # The first call doesn't wait: if the site is paused, we learn that at once.
      max_wait = 0
      met = false
      down_since = nil
      loop do
        asked_at = Comity.now
        limit = [max_wait, [deadline - asked_at, 0].max].min
        begin
          decision = acquire(target, max_wait: limit, **options)
        rescue Unavailable => e
          met ||= e.met?
          down_since ||= asked_at
          now = Comity.now
          raise if !met || now >= deadline || now - down_since > OUTAGE_MAX

          sleep [e.retry_after || 0.5, OUTAGE_MAX, deadline - now].min
          next
        end
        met = true
        down_since = nil
        return decision if decision.proceed?
        raise Refused, decision if decision.refused?

        now = Comity.now
        raise TimedOut, decision if now >= deadline

        # A service that shuts down, or lets nobody wait in line, answers at once: no busy loop.
        at_once = max_wait.positive? && now - asked_at < [limit, 0.05].min
        sleep [0.5, deadline - now].min if decision.limit == 'stopping' || at_once
        max_wait = WAIT_PER_CALL
      end
    end

    def ask(target, intent, lease) = { **site(target), intent: intent.to_s, **lease_of(lease) }

    def site(target) = target.to_s.include?('://') ? { url: target.to_s } : { domain: target.to_s }

    def lease_of(lease) = lease ? { lease_ms: ([lease, LEASE_MAX].min * 1000).round.clamp(1, nil) } : {}

    def present(text) = text.to_s.empty? ? nil : text
  end
end
