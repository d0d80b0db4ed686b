-- Load for W13: each permit that a check brings is recorded by the next request, whichever connection sends it.
-- Arguments: DOMAINS, then `walk` (each domain once, in order, then stop) or a seed (any domain, until the time is over).
-- Prints one line of JSON: what was answered.

local ffi = require("ffi")
ffi.cdef("int getpid(void); int kill(int process, int signal);")
local SIGINT = 2

local find, sub, format, random = string.find, string.sub, string.format, math.random
local domains, walking, head
local permits, held, asked = {}, 0, 0
local threads = {}

-- Read by `done`, which runs elsewhere: only globals of a thread can be.
proceeded, fresh, otherwise, example = 0, 0, 0, ""

function setup(thread)
    threads[#threads + 1] = thread
end

function init(arguments)
    domains, walking = tonumber(arguments[1]), arguments[2] == "walk"
    if not walking then math.randomseed(tonumber(arguments[2])) end
    head = format(" HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\nContent-Length: ", wrk.host, wrk.port)
end

local function post(path, body)
    return "POST " .. path .. head .. #body .. "\r\n\r\n" .. body
end

function request()
    if held > 0 then
        local permit = permits[held]
        held = held - 1
        return post("/v1/record", '{"permit":"' .. permit .. '","status":200}')
    end
    local nth = walking and asked % domains or random(0, domains - 1)
    asked = asked + 1
    return post("/v1/check", format('{"domain":"site-%06d.example"}', nth))
end

function response(status, _, body)
    local _, from = find(body, '"permit":"', 1, true)
    if status == 200 and from and sub(body, 1, 16) == '{"proceed":true,' then
        proceeded = proceeded + 1
        held = held + 1
        permits[held] = sub(body, from + 1, find(body, '"', from + 1, true) - 1)
    elseif status == 200 and find(body, '"standing":"fresh"', 1, true) then
        fresh = fresh + 1
        -- As Ctrl-C: wrk ends early and sums up.
        if walking and fresh == domains then ffi.C.kill(ffi.C.getpid(), SIGINT) end
    else
        otherwise, example = otherwise + 1, status .. " " .. body
    end
end

function done(summary, latency)
    local errors = summary.errors
    local thread = threads[1]
    print(format('{"requests":%d,"seconds":%.6f,"proceeded":%d,"fresh":%d,"otherwise":%d,"example":%q,"broken":%d,"p50_us":%d,"p99_us":%d}',
        summary.requests, summary.duration / 1e6, thread:get("proceeded"), thread:get("fresh"), thread:get("otherwise"),
        thread:get("example"), errors.connect + errors.read + errors.write + errors.timeout, latency:percentile(50),
        latency:percentile(99)))
end
