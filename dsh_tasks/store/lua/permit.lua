-- permit: a model call asks for a permit of its route. Keeps rules 2, 12.
-- KEYS route permits
-- ARGV token ceiling lease_ms
--   ceiling: calls of the route at once over all workers, 0 for none. A permit is a lease: who is killed frees it so.
--   Once a cool-down is over, one call goes ahead as its probe; the others wait until that one was accepted.
--   Without a ceiling only a probe leaves a trace.
-- returns {"granted", is_probe} | {"cools", for_ms} | {"probed", for_ms} | {"full", calls}
local token, ceiling = ARGV[1], num(ARGV[2])
local now = now_ms()
local until_ms, probe = unpack(redis.call('HMGET', KEYS[1], 'until', 'probe'))
-- The same call again: the reply was lost, not the permit.
if redis.call('ZSCORE', KEYS[2], token) then return {'granted', probe == token and 1 or 0} end
if until_ms then
  if num(until_ms) > now then return {'cools', num(until_ms) - now} end
  local probe_until = probe and num(redis.call('ZSCORE', KEYS[2], probe)) or 0
  if probe_until > now then return {'probed', probe_until - now} end
end
if ceiling > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  local calls = redis.call('ZCARD', KEYS[2])
  if calls >= ceiling then return {'full', calls} end
end
if until_ms then redis.call('HSET', KEYS[1], 'probe', token) end
if until_ms or ceiling > 0 then
  redis.call('ZADD', KEYS[2], now + num(ARGV[3]), token)
  redis.call('PEXPIRE', KEYS[2], 2 * num(ARGV[3]))
end
return {'granted', until_ms and 1 or 0}
