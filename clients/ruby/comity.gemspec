# frozen_string_literal: true

Gem::Specification.new do |spec|
  spec.name = 'comity'
  spec.version = '0.1.0'
  spec.summary = 'Client for Comity: ask before you fetch, report the outcome, share one pace per site'
  spec.authors = ['The authors of Comity']
  spec.licenses = ['MIT', 'Apache-2.0']
  spec.required_ruby_version = '>= 3.1'
  spec.files = Dir['lib/**/*.rb', 'README.md']
  spec.metadata = { 'rubygems_mfa_required' => 'true' }
end
