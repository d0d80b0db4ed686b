# frozen_string_literal: true

require 'json'
require 'minitest/autorun'
require 'open3'
$LOAD_PATH.unshift File.expand_path('../lib', __dir__)
require 'comity'

# Runs `clients/world` for a test: the service and the sites, judged by the sites.
class World
  NO_DELAY = "[default]\nmin_delay = \"0s\"\nlearning = \"off\"\nbackoff_base = \"10m\"\nbackoff_max = \"10m\"\n"
  # Faster than the limited site allows.
  QUICK = "[default]\nmin_delay = \"50ms\"\nlearning = \"off\"\n"
  REFUSING = 'location / { add_header Retry-After 600 always; return 429; }'

  attr_reader :server, :client

  def initialize(rules = nil)
    @input, @output, @program = Open3.popen2(File.expand_path('../../world', __dir__))
    @server = act('serve', **{ rules: rules }.compact)['url']
    @client = Comity::Client.new(server: @server)
  end

  def end
    @input.close
    @program.value
  end

  def act(what, **more)
    @input.puts(JSON.generate({ do: what, **more }))
    answer = JSON.parse(@output.gets)
    raise answer['error'] if answer['error']

    answer
  end

  def site(kind = 'open', http = '') = act('site', kind: kind, http: http)['url']
  def requests(site) = act('requests', site: site)['requests']
  def paths(site, status = 200) = requests(site).select { |one| one['status'] == status }.map { |one| one['path'] }
  def early(site, delay, hold = 0) = act('early', site: site, delay: delay, hold: hold)['early']
  def waiting(domain) = act('waiting', domain: domain)['waiting']

  def pause(domain)
    uri = URI("#{server}/v1/domains/#{domain}")
    Net::HTTP.new(uri.host, uri.port, nil).patch(uri.path, '{"paused": true}', 'Content-Type' => 'application/json')
  end
end

class WorldTest < Minitest::Test
  def world(rules = nil) = @world ||= World.new(rules)
  def client = world.client

  def teardown
    @world&.end
  end

  # Waits until a condition holds, however busy the machine is.
  def wait_until(what)
    ends = Comity.now + 120
    until yield
      flunk("not within 120 s: #{what}") if Comity.now > ends
      sleep 0.02
    end
  end
end
