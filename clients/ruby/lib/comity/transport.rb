# frozen_string_literal: true

require 'json'
require 'net/http'
require 'uri'

module Comity
  # HTTP to the service: one connection per call, so that threads and forked processes never share one.
  class Transport
    attr_reader :server

    def initialize(server, token, timeout)
      @server = URI(server.include?('://') ? server : "http://#{server}")
      @token = token
      @timeout = timeout
    end

    # Returns the answer to a call. The idempotency key makes it safe to repeat.
    def post(path, body, key: nil, max_wait: 0)
      read(send_once(path, body, key, max_wait))
    rescue Unavailable => e
      # The connection broke. Retry once.
      raise unless e.met? && e.cause

      read(send_once(path, body, key, max_wait))
    end

    private

    def send_once(path, body, key, max_wait)
      met = false
      # The proxy of the environment is for the sites.
      http = Net::HTTP.new(@server.hostname, @server.port, nil)
      http.use_ssl = @server.scheme == 'https'
      http.max_retries = 0
      http.open_timeout = @timeout
      http.read_timeout = @timeout + max_wait
      http.start do
        met = true
        http.post(@server.path.chomp('/') + path, JSON.generate(body), headers(key))
      end
    rescue SystemCallError, IOError, SocketError, Timeout::Error, OpenSSL::SSL::SSLError, Net::HTTPBadResponse => e
      address = "#{@server.scheme}://#{@server.host}:#{@server.port}"
      raise Unavailable.new("#{address}: the decision service can't be reached: #{e.message}", met: met)
    end

    def headers(key)
      headers = { 'Content-Type' => 'application/json', 'Accept' => 'application/json' }
      headers['Authorization'] = "Bearer #{@token}" if @token
      headers['Idempotency-Key'] = key if key
      headers
    end

    def read(reply)
      status = reply.code.to_i
      answer = parse(reply.body)
      return answer if status.between?(200, 299) && answer
      raise Invalid.new(status, 'detail' => NOT_COMITY) if status.between?(200, 299)

      problem = answer || {}
      # 409: our own call with the same key is still in progress. 408: the request got lost. Both are temporary.
      raise Invalid.new(status, problem) unless status >= 500 || [408, 409].include?(status)

      message = problem['detail'] || problem['title'] || "the service answered HTTP #{status}"
      raise Unavailable.new(message, met: true, retry_after: reply['Retry-After']&.to_f)
    end

    def parse(text)
      answer = JSON.parse(text.to_s)
      answer if answer.is_a?(Hash)
    rescue JSON::ParserError
      nil
    end

    NOT_COMITY = 'unexpected response from the server at this address: is it Comity?'
    private_constant :NOT_COMITY
  end
end
