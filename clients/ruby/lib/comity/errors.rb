# frozen_string_literal: true

module Comity
  # An error in the communication with the service. A problem with the site itself is an outcome, not an error.
  class Error < StandardError
  end

  # The service can't be reached, did not answer in time, or answered 503. Retry later.
  class Unavailable < Error
    # How long to wait before retrying, in seconds, if the service said so.
    attr_reader :retry_after

    def initialize(message, met:, retry_after: nil)
      super(message)
      @met = met
      @retry_after = retry_after
    end

    # Whether a service was there at all: it answered, or the connection broke.
    def met? = @met
  end

  # The service refused the call (4xx), or the server at this address isn't Comity. Retrying the same call doesn't help.
  class Invalid < Error
    attr_reader :status, :field, :value, :allowed

    def initialize(status, problem)
      super(problem['detail'] || problem['title'] || "the service answered HTTP #{status}")
      @status = status
      @field, @value, @allowed = problem.values_at('field', 'value', 'allowed')
    end
  end

  # An operator paused the site until further notice. Waiting doesn't help until somebody resumes it.
  class Refused < Error
    attr_reader :decision

    def initialize(decision)
      super("#{decision.domain}: #{decision.reason}")
      @decision = decision
    end
  end

  # No permit was granted within the caller's timeout.
  class TimedOut < Error
    attr_reader :decision

    def initialize(decision)
      wait = format('%.1f', decision.wait)
      super("#{decision.domain}: timed out waiting for a permit, #{wait} s remaining: #{decision.reason}")
      @decision = decision
    end
  end

  # For a request whose block was left by `throw` or `break`, or whose thread was stopped: its outcome is unknown.
  INTERRUPTED = Error.new('interrupted').freeze
end
