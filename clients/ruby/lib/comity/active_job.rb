# frozen_string_literal: true

require 'active_job'
require_relative '../comity'

module Comity
  # A job that asks before it runs. If its site isn't free yet, it enqueues itself again with `set(wait:)`, and occupies no
  # worker until then. Works with every backend of Active Job that can wait, such as Sidekiq.
  #
  #     class ScrapeItemJob < ApplicationJob
  #       include Comity::ActiveJob
  #       paced_by { |item_id| Item.find(item_id).url }
  #
  #       def perform(item_id)
  #         permit.response(Faraday.get(Item.find(item_id).url))
  #       end
  #     end
  module ActiveJob
    extend ActiveSupport::Concern

    # How long a job waits at most while the site is busy with another request: how long that takes, nobody knows.
    BUSY = 1.0

    included do
      class_attribute :comity_target, instance_accessor: false
      class_attribute :comity_options, instance_accessor: false, default: {}
      around_perform :comity_perform
    end

    class_methods do
      # The block returns the URL or the site of a job, from its arguments. `client` is the client to ask with, `intent`
      # what the request is for, `lease` how long a job that crashes blocks the site.
      def paced_by(client: nil, **options, &target)
        self.comity_target = target
        self.comity_options = { client: client, **options }
      end
    end

    # The permit of this run: report the response to it.
    attr_reader :permit

    private

    # Called when the job was deferred. Override it to clear what marks the job as running.
    def deferred(_seconds, _reason); end

    def comity_perform
      client, asked = comity_client
      decision = client.check(self.class.comity_target.call(*arguments), **asked)
      raise Refused, decision if decision.refused?

      unless decision.proceed?
        busy = %w[lease in_flight].include?(decision.limit)
        return comity_defer(busy ? [decision.wait, BUSY].min : decision.wait, decision.reason)
      end

      @permit = Permit.new(client, decision).keep_alive
      finished = false
      begin
        yield
        finished = true
      rescue StandardError => e
        raise unless @permit.done(e)&.outcome == 'rate_limited'

        finished = true
      ensure
        @permit.done(finished ? nil : INTERRUPTED)
      end
      recorded = @permit.done
      # A rate limited response is no failure: the job runs again when the site allows it.
      comity_defer(recorded.wait, 'rate limited (429)') if recorded&.outcome == 'rate_limited'
    end

    def comity_defer(seconds, reason)
      settings = { wait: [seconds, 0.001].max, queue: queue_name, priority: priority }.compact
      self.class.set(**settings).perform_later(*arguments)
      logger&.info { "#{self.class.name} deferred by #{format('%.1f', seconds)} s: #{reason}" }
      deferred(seconds, reason)
    end

    def comity_client
      options = self.class.comity_options.dup
      client = options.delete(:client)
      client = client.call if client.respond_to?(:call)
      [client || (Comity::ActiveJob.client ||= Client.new), options]
    end

    class << self
      # The client of jobs that name none.
      attr_accessor :client
    end
  end
end
