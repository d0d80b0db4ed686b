# frozen_string_literal: true

module Comity
  # What a request is for. Rules can set separate limits for each.
  INTENTS = %w[fetch search api].freeze

  # The outcomes of a request.
  OUTCOMES = %w[
    success answered rate_limited blocked unavailable server_error timeout network_error abandoned
  ].freeze

  # Reads the members that are known; those of a newer service are ignored.
  module Reads
    def read(answer)
      new(**members.to_h { |name| [name, answer[name.to_s]] })
    end
  end

  # Whether a request may be sent now, or else how long to wait and why.
  Decision = Struct.new(
    :proceed, :wait_ms, :reason, :domain, :refused, :waited_ms, :permit, :lease_ms, :limit, :origin, keyword_init: true
  ) do
    extend Reads
    alias_method :proceed?, :proceed
    alias_method :refused?, :refused

    # Seconds to wait before asking again.
    def wait = wait_ms / 1000.0
  end

  # What recording an outcome changed.
  Recorded = Struct.new(
    :domain, :outcome, :standing, :wait_ms, :held_until, :adaptive_delay_seconds, keyword_init: true
  ) do
    extend Reads

    # Seconds until the next request may be sent.
    def wait = wait_ms / 1000.0
  end
end
