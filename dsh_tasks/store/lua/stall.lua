#!lua flags=allow-oom
-- stall: an attempt that made no progress gives its task back, and that is a loss; where it was one too many nothing changes, and it settles. Keeps rules 2, 3, 12.
-- KEYS task leases due
-- ARGV prefix id attempt token losses max_lost first_pause_ms
-- derived: kills, the owners above
-- returns {"requeued", not_before} | {"spent", lost, losses} | {"fenced", status}
local r = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'token', 'losses', 'lost', 'not_before', 'handed_by')
local status = r[1] or 'missing'
-- Asked again: the reply was lost.
if status == 'queued' and r[7] == ARGV[4] then return {'requeued', num(r[6])} end
local mine = num(r[2]) == num(ARGV[3]) and r[3] == ARGV[4]
if not mine or status ~= 'running' then return {'fenced', status} end
-- Its settlement is taken along by that kill.
if dying_with(ARGV[1], ARGV[2]) then return {'fenced', 'stopping'} end
local losses, lost = num(r[4]) + 1, num(r[5]) + 1
if losses >= num(ARGV[5]) or lost >= num(ARGV[6]) then return {'spent', lost, losses} end
local now = now_ms()
local pause = math.min(num(ARGV[7]) * 2 ^ (lost - 1), 300000)
redis.call('HSET', KEYS[1], 'status', 'queued', 'losses', losses, 'lost', lost, 'not_before', now + pause,
  'activity', '', 'handed_by', ARGV[4])
redis.call('HINCRBY', KEYS[1], 'stalls', 1)
redis.call('HDEL', KEYS[1], 'token', 'lease_until')
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('ZADD', KEYS[3], now + pause, ARGV[2])
return {'requeued', now + pause}
