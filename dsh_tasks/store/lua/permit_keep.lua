-- permit_keep: a worker keeps the permits of its calls that still go on. Keeps rules 2, 12.
-- KEYS permits
-- ARGV lease_ms then token ..
--   A permit that lapsed and was cleared away is not made again: another call may have its place.
-- returns {"kept", permits}
local until_ms = now_ms() + num(ARGV[1])
local kept = 0
for i = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], until_ms, ARGV[i])
    kept = kept + 1
  end
end
if kept > 0 then redis.call('PEXPIRE', KEYS[1], 2 * num(ARGV[1])) end
return {'kept', kept}
