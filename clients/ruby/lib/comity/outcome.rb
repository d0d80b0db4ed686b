# frozen_string_literal: true

require 'net/http'
require 'openssl'
require 'socket'
require 'timeout'

module Comity
  # The outcome of a fetch, derived from a response or from the class of an exception, never from the text of a message.
  module Outcome
    TIMEOUTS = [Timeout::Error, Errno::ETIMEDOUT].freeze
    TIMEOUT_NAMES = %w[Faraday::TimeoutError HTTP::TimeoutError].freeze
    NETWORK_ERRORS = [
      SocketError, EOFError, OpenSSL::SSL::SSLError, Net::HTTPBadResponse, Net::ProtocolError, Errno::ECONNREFUSED,
      Errno::ECONNRESET, Errno::ECONNABORTED, Errno::EPIPE, Errno::EHOSTUNREACH, Errno::ENETUNREACH
    ].freeze
    NETWORK_ERROR_NAMES = %w[Faraday::ConnectionFailed Faraday::SSLError HTTP::ConnectionError].freeze
    WAITING = /\A(date\z|retry-after\z|ratelimit|x-rate)/

    module_function

    # What to record for a response.
    def of_status(status, headers = {})
      # No server can send another status, so it was made up by whoever called.
      return { outcome: 'server_error' } unless status.between?(100, 999)

      kept = rate_limit_headers(headers)
      kept.empty? ? { status: status } : { status: status, headers: kept }
    end

    # What to record if the fetch ended with this exception and nothing was reported. A bug in the caller's own code and
    # a thread that was stopped are abandoned: nothing is learned from them.
    def of_error(error)
      return { outcome: 'abandoned' } if error.is_a?(Error)

      # Faraday raises errors for 4xx and 5xx, with the response.
      response = error.respond_to?(:response) ? error.response : nil
      if response.is_a?(Hash) && response[:status]
        return of_status(response[:status], response[:headers] || response[:response_headers] || {})
      end
      return { outcome: 'timeout' } if kind?(error, TIMEOUTS, TIMEOUT_NAMES)
      return { outcome: 'network_error' } if kind?(error, NETWORK_ERRORS, NETWORK_ERROR_NAMES)

      { outcome: 'abandoned' }
    end

    # The headers about rate limits and waiting. Cookies and all others never leave the process.
    def rate_limit_headers(headers)
      headers.each_with_object({}) do |(name, value), kept|
        name = name.to_s.downcase
        kept[name] = Array(value).join(', ') if name.match?(WAITING)
      end
    end

    def kind?(error, classes, names)
      classes.any? { |one| error.is_a?(one) } || error.class.ancestors.any? { |one| names.include?(one.name) }
    end
  end
end
