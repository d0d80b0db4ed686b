# frozen_string_literal: true

require_relative 'world'
require 'comity/active_job'
require 'logger'
require 'socket'
require 'tmpdir'

ActiveJob::Base.logger = Logger.new(nil)

class ScrapeJob < ActiveJob::Base
  include Comity::ActiveJob
  paced_by(client: -> { ScrapeJob.client }) { |url| url }

  class << self
    attr_accessor :client, :ran, :log
  end

  def perform(url)
    self.class.ran << url
    response = permit.response(Net::HTTP.get_response(URI(url)))
    raise "HTTP #{response.code}" if response.code != '200'
  end

  private

  def deferred(seconds, reason) = self.class.log << [seconds, reason]
end

# Jobs that defer themselves.
class ActiveJobTest < WorldTest
  def setup
    ScrapeJob.queue_adapter = ActiveJob::QueueAdapters::TestAdapter.new
    ScrapeJob.client = client
    ScrapeJob.ran = []
    ScrapeJob.log = []
  end

  def enqueued = ScrapeJob.queue_adapter.enqueued_jobs

  def test_a_job_whose_site_is_free_runs
    site = world.site
    ScrapeJob.perform_now("#{site}/1")
    assert_equal ['/1'], world.paths(site)
    assert_empty enqueued
  end

  def test_a_job_that_comes_too_early_enqueues_itself_again_for_later
    client.close_until('closed.example', Time.now + 600)
    before = Time.now.to_f
    ScrapeJob.set(queue: 'scraping').perform_now('http://closed.example/')
    assert_empty ScrapeJob.ran
    (job,) = enqueued
    assert_equal ['http://closed.example/'], job['arguments']
    assert_operator job['scheduled_at'] || job[:at], :>, before + 300
    assert_match(/asked to wait/, ScrapeJob.log.first[1])
  end

  def test_a_rate_limited_job_runs_again_when_the_site_allows_it
    site = world.site(World::REFUSING)
    ScrapeJob.perform_now(site)
    assert_equal [site], ScrapeJob.ran
    assert_equal 1, enqueued.size
    assert_operator ScrapeJob.log.first[0], :>, 300
  end

  def test_an_error_of_the_job_is_raised_and_its_permit_is_returned
    world.end
    @world = World.new(World::NO_DELAY)
    ScrapeJob.client = client
    site = world.site('location / { return 404; }')
    assert_raises(RuntimeError) { ScrapeJob.perform_now(site) }
    assert client.peek(site).proceed?
    assert_empty enqueued
  end

  def test_a_job_for_a_paused_site_fails_and_says_why
    world.pause('paused.example')
    assert_raises(Comity::Refused) { ScrapeJob.perform_now('http://paused.example/') }
  end

  def test_sidekiq_defers_jobs_until_their_site_is_free
    site = world.site(LIMITED, 'limit_req_zone $server_port zone=pages:1m rate=30r/m;')
    Dir.mktmpdir('comity-sidekiq') do |folder|
      port = TCPServer.open('127.0.0.1', 0) { |probe| probe.addr[1] }
      redis = spawn('redis-server', '--port', port.to_s, '--bind', '127.0.0.1', '--save', '', '--dir', folder, out: IO::NULL)
      environment = { 'REDIS_URL' => "redis://127.0.0.1:#{port}", 'COMITY_SERVER' => world.server, 'SITE' => site }
      wait_until('redis is up') { (TCPSocket.new('127.0.0.1', port).close || true) rescue false }
      app = File.expand_path('sidekiq_app.rb', __dir__)
      assert system(environment, RbConfig.ruby, app)
      sidekiq = spawn(environment, 'sidekiq', '-r', app, '-c', '5', %i[out err] => "#{folder}/log")
      wait_until('every page is fetched') { world.paths(site).uniq.size == 6 }
    ensure
      [sidekiq, redis].compact.each { |program| Process.kill(:TERM, program) && Process.wait(program) }
    end
    refute_empty world.paths(site, 429), 'the site has limited somebody'
    assert_empty world.early(site, 0.2, 2)
  end

  LIMITED = <<~NGINX
    limit_req zone=pages burst=1 nodelay;
    limit_req_status 429;
    error_page 429 @later;
    location / { empty_gif; }
    location @later { internal; add_header Retry-After 2 always; return 429; }
  NGINX
end
