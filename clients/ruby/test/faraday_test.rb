# frozen_string_literal: true

require_relative 'world'
require 'comity/faraday'

# The middleware, judged by the site.
class FaradayTest < WorldTest
  def faraday(**options, &more)
    Faraday.new do |connection|
      more&.call(connection)
      connection.use Comity::Faraday, client: client, **options
      connection.adapter :net_http
    end
  end

  def test_fifty_threads_share_one_pace_and_none_is_early
    site = world.site
    connection = faraday
    statuses = Array.new(50) { |page| Thread.new { connection.get("#{site}/#{page}").status } }.map(&:value)
    assert_equal [200], statuses.uniq
    assert_equal 50, world.paths(site).uniq.size
    assert_empty world.early(site, 0.2)
  end

  def test_a_rate_limited_response_holds_every_caller
    world(World::QUICK)
    site = world.site('limited')
    connection = faraday
    threads = Array.new(15) do |page|
      Thread.new { nil while connection.get("#{site}/#{page}").status == 429 }
    end
    threads.each(&:join)
    refute_empty world.paths(site, 429), 'the site has limited somebody'
    assert_equal 15, world.paths(site).uniq.size
    assert_empty world.early(site, 0.05, 2)
  end

  def test_a_retry_has_its_own_permit
    world("[default]\nmin_delay = \"200ms\"\nlearning = \"off\"\nbackoff_base = \"300ms\"\n")
    dead = world.site('location / { return 444; }')
    connection = faraday { |it| it.request :retry, max: 1, exceptions: [Faraday::ConnectionFailed] }
    assert_raises(Faraday::ConnectionFailed) { connection.get(dead) }
    assert_operator world.requests(dead).size, :>=, 2
    assert_equal 'backoff', client.peek(dead).limit
  end

  def test_a_429_is_recorded_although_faraday_raises
    site = world.site(World::REFUSING)
    connection = faraday { |it| it.response :raise_error }
    assert_raises(Faraday::ClientError) { connection.get(site) }
    assert_equal 'retry_after', client.peek(site).limit
  end

  def test_a_timeout_is_recorded
    world(World::NO_DELAY)
    silent = TCPServer.new('127.0.0.1', 0)
    url = "http://127.0.0.1:#{silent.addr[1]}/"
    assert_raises(Faraday::TimeoutError) { faraday.get(url) { |request| request.options.timeout = 0.2 } }
    assert_equal 'backoff', client.peek(url).limit
  end

  def test_a_request_whose_thread_is_stopped_returns_its_permit
    world(World::NO_DELAY)
    silent = TCPServer.new('127.0.0.1', 0)
    url = "http://127.0.0.1:#{silent.addr[1]}/"
    thread = Thread.new { faraday.get(url) }
    connection = silent.accept
    refute client.peek(url).proceed?
    thread.kill.join
    assert client.peek(url).proceed?
    connection.close
  end

  def test_without_a_permit_nothing_is_sent
    away = Comity::Client.new(server: '127.0.0.1:1')
    sent = false
    connection = Faraday.new do |it|
      it.request :comity, client: away
      it.adapter(:test) { |stubs| stubs.get('/') { sent = true } }
    end
    assert_raises(Comity::Unavailable) { connection.get('http://example.org/') }
    refute sent
  end
end
