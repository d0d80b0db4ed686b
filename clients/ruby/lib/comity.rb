# frozen_string_literal: true

# Client for the decision service of Comity: ask before you fetch, and report the outcome.
#
# `comity/types` has what is exchanged, `comity/errors` the errors, `comity/outcome` the outcome of a fetch,
# `comity/permit` the right to send one request, `comity/transport` HTTP to the service, `comity/client` all calls and the
# wait for a permit. `comity/faraday` and `comity/active_job` are loaded only by those who require them.
module Comity
end

require_relative 'comity/types'
require_relative 'comity/errors'
require_relative 'comity/outcome'
require_relative 'comity/permit'
require_relative 'comity/transport'
require_relative 'comity/client'
