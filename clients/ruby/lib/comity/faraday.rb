# frozen_string_literal: true

require 'faraday'
require_relative '../comity'

module Comity
  # Waits its turn before each request, and records the outcome:
  #
  #     Faraday.new do |connection|
  #       connection.use Comity::Faraday
  #       connection.adapter Faraday.default_adapter
  #     end
  #
  # Add it last, right before the adapter, so that retries and redirects come here one by one.
  class Faraday < ::Faraday::Middleware
    # `timeout` is how long to wait for a permit; by default as long as it takes.
    def initialize(app, client: nil, intent: 'fetch', timeout: nil)
      super(app)
      @client = client || Client.new
      @intent = intent
      @timeout = timeout
    end

    def call(env)
      url = env[:url].dup
      url.user = url.fragment = nil
      permit = @client.permit(url, intent: @intent, timeout: @timeout).keep_alive
      begin
        # With a parallel adapter, the response completes later.
        @app.call(env).on_complete { |done| complete(permit, done) }
      rescue Exception => e # rubocop:disable Lint/RescueException
        permit.done(e)
        raise
      ensure
        permit.done(INTERRUPTED) unless env[:parallel_manager] || env[:status]
      end
    end

    private

    def complete(permit, env)
      permit.answered(env[:status], env[:response_headers] || {}) if env[:status]
      permit.done
    end
  end
end

::Faraday::Middleware.register_middleware(comity: Comity::Faraday) if ::Faraday::Middleware.respond_to?(:register_middleware)
::Faraday::Request.register_middleware(comity: Comity::Faraday)
