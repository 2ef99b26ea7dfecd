#!lua flags=allow-oom
-- reap: a lease that expired is taken from its attempt; a kill that nobody confirmed settles. Keeps rules 2 to 4, 12.
-- KEYS task leases stops due
-- ARGV prefix id grace_ms losses max_lost first_pause_ms
--   lease and token are read again here: a heartbeat that came first wins.
-- derived: what finish() touches
-- returns {"requeued", not_before} | {"failed", lost} | {"killed"} | {"alive"} | {"over"}
local prefix, id = ARGV[1], ARGV[2]
local now = now_ms()
local r = redis.call('HMGET', KEYS[1], 'status', 'lease_until', 'stop_until', 'losses', 'lost', 'stop_cause',
  'stop_detail', 'stop_hold', 'stop_silent', 'stalls')
local status = r[1]
if status ~= 'running' and status ~= 'stopping' then
  redis.call('ZREM', KEYS[2], id)
  redis.call('ZREM', KEYS[3], id)
  return {'over'}
end
local expired = num(r[2]) + num(ARGV[3]) < now
if status == 'stopping' then
  if not expired and num(r[3]) > now then return {'alive'} end
  redis.call('HDEL', KEYS[1], 'token')
  local detail = 'worker did not confirm'
  if (r[7] or '') ~= '' then detail = r[7] .. '; ' .. detail end
  finish(prefix, id, 'killed', r[6] or 'owner', detail, now, num(r[8]), r[9] == '1')
  return {'killed'}
end
if not expired then return {'alive'} end
local losses, lost = num(r[4]) + 1, num(r[5]) + 1
redis.call('HSET', KEYS[1], 'losses', losses, 'lost', lost)
redis.call('HDEL', KEYS[1], 'token', 'lease_until')
if losses >= num(ARGV[4]) or lost >= num(ARGV[5]) then
  finish(prefix, id, 'failed', 'worker-lost',
    'the worker was lost ' .. lost .. ' times, ' .. losses .. ' since the last finished step' ..
    (num(r[10]) > 0 and ', ' .. num(r[10]) .. ' of them by a stall' or ''), now, 0, false)
  return {'failed', lost}
end
-- By all losses: a child that finishes a step and then kills its worker must slow down too (P2).
local pause = math.min(num(ARGV[6]) * 2 ^ (lost - 1), 300000)
redis.call('HSET', KEYS[1], 'status', 'queued', 'not_before', now + pause, 'activity', '')
redis.call('ZREM', KEYS[2], id)
redis.call('ZADD', KEYS[4], now + pause, id)
return {'requeued', now + pause}
