# frozen_string_literal: true

require_relative 'world'

# The client against the real service.
class ClientTest < WorldTest
  def test_check_reserves_the_slot_and_record_reports_the_outcome
    decision = client.check('http://www.example.org/a')
    assert decision.proceed?
    assert_equal 'example.org', decision.domain
    refute client.check('example.org').proceed?
    recorded = client.record(permit: decision.permit, status: 429, retry_after: '600')
    assert_equal %w[rate_limited fresh], [recorded.outcome, recorded.standing]
    refute_nil recorded.held_until
    assert_equal 'repeated', client.record(permit: decision.permit, status: 200).standing
    assert_equal 'retry_after', client.peek('example.org').limit
    assert_operator client.acquire('example.org', max_wait: 0).wait, :>, 300
  end

  def test_batches_are_answered_in_order
    decisions = client.check_many(['a.example', 'http://b.example/', 'a.example'])
    assert_equal [true, true, false], decisions.map(&:proceed)
    reports = decisions.select(&:proceed).map { |one| { permit: one.permit, status: 200 } }
    assert_equal %w[a.example b.example], client.record_many(reports).map(&:domain)
    assert_equal [], client.record_many([])
  end

  def test_however_a_block_ends_its_permit_is_recorded
    {
      'broken.long.example' => [->(_) { raise Errno::ECONNREFUSED }, 'backoff'],
      'slow.long.example' => [->(_) { raise Net::ReadTimeout }, 'backoff'],
      'limited.long.example' => [->(permit) { permit.answered(429, 'Retry-After' => '600') }, 'retry_after'],
      'closed.long.example' => [->(permit) { permit.close_until(Time.now + 600) }, 'retry_after'],
      'quota.long.example' => [->(permit) { permit.outcome(:rate_limited) }, 'backoff'],
      'mine.long.example' => [->(_) { raise ArgumentError, 'a bug of my own' }, 'min_delay'],
      'stopped.long.example' => [->(_) { Thread.current.kill }, 'min_delay'],
      'fine.long.example' => [->(_) { 'a page' }, 'min_delay']
    }.each do |domain, (send, limit)|
      Thread.new { client.with_permit(domain, &send) rescue nil }.join
      assert_equal limit, client.peek(domain).limit, domain
    end
  end

  def test_a_permit_that_was_released_blocks_nobody
    world(World::NO_DELAY)
    decision = client.check('example.org')
    assert_equal 'lease', client.check('example.org').limit
    client.release(decision)
    assert client.check('example.org').proceed?
  end

  def test_the_lease_of_a_long_request_is_renewed_until_it_ends
    world(World::NO_DELAY)
    decision = client.with_permit('example.org', lease: 4) do |permit|
      sleep 6
      assert_equal 'lease', client.check('example.org').limit
      assert client.renew(permit.decision)
      permit.decision
    end
    refute client.renew(decision)
  end

  def test_a_permit_that_is_forgotten_blocks_its_site_no_longer_than_its_lease
    world(World::NO_DELAY)
    client.permit('example.org', lease: 0.5)
    assert client.acquire('example.org').proceed?
  end

  def test_a_timeout_and_a_pause_are_errors_that_say_why
    client.close_until('closed.example', Time.now + 600)
    error = assert_raises(Comity::TimedOut) { client.permit('closed.example', timeout: 0.3) }
    assert_equal 'retry_after', error.decision.limit
    assert_match(/remaining/, error.message)
    world.pause('paused.example')
    assert_raises(Comity::Refused) { client.permit('paused.example') }
  end

  def test_an_invalid_call_names_the_field
    error = assert_raises(Comity::Invalid) { client.check('example.org', intent: 'post') }
    assert_equal [422, 'intent'], [error.status, error.field]
    assert_match(/fetch/, error.allowed)
  end

  def test_a_service_that_is_away_is_a_clear_error
    error = assert_raises(Comity::Unavailable) { Comity::Client.new(server: '127.0.0.1:1').permit('example.org') }
    refute error.met?
    assert_match(%r{\Ahttp://127\.0\.0\.1:1: the decision service can't be reached: .*refused}, error.message)
  end

  def test_a_thread_that_is_stopped_leaves_the_line
    client.close_until('example.org', Time.now + 600)
    waiting = Thread.new { client.permit('example.org') }
    wait_until('in line') { world.waiting('example.org') == 1 }
    waiting.kill
    wait_until('out of line') { world.waiting('example.org').zero? }
  end

  def test_a_caller_in_line_survives_a_restart_of_the_service
    client.with_permit('example.org') { |permit| permit.answered(429, 'Retry-After' => '3') }
    waiting = Thread.new { client.permit('example.org').done }
    wait_until('in line') { world.waiting('example.org') == 1 }
    world.act('stop')
    world.act('start')
    assert_equal 'success', waiting.value.outcome
  end

  def test_the_token_is_sent_and_only_headers_about_waiting_are_reported
    seen = []
    listener = TCPServer.new('127.0.0.1', 0)
    server = Thread.new do
      2.times do
        connection = listener.accept
        head = connection.gets("\r\n\r\n")
        seen << [head[/^Authorization: (.*)\r$/i, 1], JSON.parse(connection.read(head[/^Content-Length: (\d+)/i, 1].to_i))]
        body = '{"proceed": true, "permit": "p1.x", "domain": "example.org"}'
        connection.write("HTTP/1.1 200 OK\r\nContent-Length: #{body.size}\r\nConnection: close\r\n\r\n#{body}")
        connection.close
      end
    end
    client = Comity::Client.new(server: "127.0.0.1:#{listener.addr[1]}", token: 'secret')
    client.with_permit('https://example.org/') do |permit|
      permit.answered(503, 'Set-Cookie' => 'a=b', 'Retry-After' => '7', 'X-RateLimit-Reset' => ['9'])
    end
    server.join
    assert_equal ['Bearer secret'] * 2, seen.map(&:first)
    assert_equal({ 'retry-after' => '7', 'x-ratelimit-reset' => '9' }, seen[1][1]['headers'])
  end

  def test_paths_fields_and_words_are_those_of_the_service
    api = JSON.parse(Net::HTTP.get(URI("#{world.server}/openapi.json")))
    schemas = api['components']['schemas']
    properties = ->(name) { schemas[name]['properties'].keys }
    source = File.read(File.expand_path('../lib/comity/client.rb', __dir__))
    paths = source.scan(%r{'(/v1/[^']*)'}).flatten
    assert_equal 7, paths.uniq.size
    paths.each { |path| assert api.dig('paths', path, 'post'), path }
    assert_equal schemas['Intent']['enum'], Comity::INTENTS
    assert_equal schemas['Outcome']['enum'], Comity::OUTCOMES
    assert_empty Comity::Decision.members.map(&:to_s) - properties['Decision']
    assert_empty Comity::Recorded.members.map(&:to_s) - properties['Recorded']
    assert_empty %w[url domain intent lease_ms max_wait_ms] - properties['Acquire']
    assert_empty %w[permit url domain intent status outcome headers retry_after latency_ms] - properties['Record']
    assert_empty %w[permit lease_ms] - properties['Renew']
    assert_empty %w[detail title field value allowed] - properties['Problem']
    assert_includes properties['Renewed'], 'renewed'
    assert_includes properties['Asks'], 'checks'
    assert_includes properties['Records'], 'records'
    assert_includes properties['Decisions'], 'results'
  end
end
