# frozen_string_literal: true

# An application for Sidekiq. As a script it enqueues six pages.
$LOAD_PATH.unshift File.expand_path('../lib', __dir__)
require 'sidekiq'
require 'comity/active_job'

Redis.silence_deprecations = true if Redis.respond_to?(:silence_deprecations=)
ActiveJob::Base.queue_adapter = :sidekiq
ActiveJob::Base.logger = nil
Sidekiq.options[:poll_interval_average] = 0.2

class PageJob < ActiveJob::Base
  include Comity::ActiveJob
  paced_by { |url| url }

  def perform(url)
    permit.response(Net::HTTP.get_response(URI(url)))
  end
end

6.times { |page| PageJob.perform_later("#{ENV['SITE']}/#{page}") } if $PROGRAM_NAME == __FILE__
