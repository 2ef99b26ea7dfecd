-- heartbeat: an attempt says that it lives and how far it is; late ones count until a reaper has acted. Keeps rule 3.
-- KEYS task leases
-- ARGV id attempt token lease_ms activity activity_ms idle_ms streamed answers stalled_ms
--   activity_ms: for how long it does this; idle_ms: since its last progress; stalled_ms: 0 where it is no stall.
-- returns {"ok", lease_until} | {"stop", lease_until} | {"fenced", status}
local r = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'token', 'last_activity')
local status = r[1] or 'missing'
local mine = num(r[2]) == num(ARGV[2]) and r[3] == ARGV[3]
if not mine or (status ~= 'running' and status ~= 'stopping') then return {'fenced', status} end
local now = now_ms()
local lease_until = now + num(ARGV[4])
local stalled = num(ARGV[10])
redis.call('HSET', KEYS[1], 'lease_until', lease_until, 'activity', ARGV[5], 'activity_since', now - num(ARGV[6]),
  'last_activity', math.max(num(r[4]), now - num(ARGV[7])), 'streamed', ARGV[8], 'answers', ARGV[9],
  'stalled_since', stalled > 0 and now - stalled or 0)
redis.call('ZADD', KEYS[2], lease_until, ARGV[1])
if status == 'stopping' then return {'stop', lease_until} end
return {'ok', lease_until}
