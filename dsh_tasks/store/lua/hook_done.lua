#!lua flags=allow-oom
-- hook_done: what came of one try to tell an endpoint of an ending. Keeps rules 2, 12.
-- KEYS task hook hooks hookstats
-- ARGV id token endpoint outcome why first_pause_ms spread_percent not_before_ms
--   outcome: delivered, failed, or gone (HTTP 410: this endpoint is told nothing any more). not_before_ms: its wish.
-- returns {"done"} | {"stale"}: another try has begun, or the record is gone
local id, token, outcome = ARGV[1], ARGV[2], ARGV[4]
local r = redis.call('HMGET', KEYS[1], 'hook_token', 'hook_last', 'hook_tries')
-- The same answer again: the reply was lost, not the write.
if r[2] == token then return {'done'} end
if r[1] ~= token then return {'stale'} end
local now = now_ms()
redis.call('HDEL', KEYS[1], 'hook_token')
redis.call('HSET', KEYS[1], 'hook_last', token)
if outcome == 'delivered' then
  redis.call('ZREM', KEYS[3], id)
  redis.call('HINCRBY', KEYS[4], 'delivered', 1)
  redis.call('HSET', KEYS[4], 'delivered_at', now)
  return {'done'}
end
redis.call('HINCRBY', KEYS[4], 'failed', 1)
redis.call('HSET', KEYS[4], 'failed_at', now, 'failed_why', ARGV[5])
if outcome == 'gone' then
  redis.call('HSET', KEYS[4], 'gone', ARGV[3], 'gone_at', now)
  if redis.call('GET', KEYS[2]) == ARGV[3] then redis.call('DEL', KEYS[2]) end
end
redis.call('ZADD', KEYS[3], now + math.max(hook_pause(ARGV[6], r[3], ARGV[7]), num(ARGV[8])), id)
return {'done'}
