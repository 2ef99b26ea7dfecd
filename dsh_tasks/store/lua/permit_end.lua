#!lua flags=allow-oom
-- permit_end: what came of a call with a permit. Keeps rules 2, 12.
-- KEYS route permits
-- ARGV token came pause_ms kept_ms
--   came: `accepted` by the provider, so that a cool-down whose probe it was is over, and the call goes on;
--   `cools`: the provider wants a pause of its route, from now on and for all workers; or `ended`.
--   kept_ms: how long a cool-down that is over is remembered while no call probes it.
-- returns {"ended"} | {"cools", for_ms}
local token, came = ARGV[1], ARGV[2]
local until_ms, probe, cooled_by = unpack(redis.call('HMGET', KEYS[1], 'until', 'probe', 'cooled_by'))
if came == 'accepted' then
  if probe == token then redis.call('DEL', KEYS[1]) end
  return {'ended'}
end
redis.call('ZREM', KEYS[2], token)
if probe == token then redis.call('HDEL', KEYS[1], 'probe') end
if came ~= 'cools' then return {'ended'} end
local now = now_ms()
if cooled_by == token then return {'cools', math.max(num(until_ms) - now, 0)} end
-- A shorter pause never ends a longer one.
local new = math.max(num(until_ms), now + num(ARGV[3]))
redis.call('HSET', KEYS[1], 'until', new, 'cooled_by', token)
redis.call('PEXPIRE', KEYS[1], new - now + num(ARGV[4]))
return {'cools', new - now}
