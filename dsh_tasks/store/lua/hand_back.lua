#!lua flags=allow-oom
-- hand_back: a worker that leaves gives its attempt back; no loss, no pause. Keeps rules 2, 3, 4.
-- KEYS task leases due
-- ARGV prefix id attempt token publish_by_ms
-- derived: what finish() touches
-- returns {"queued", attempt} | {"killed"} | {"fenced", status}
local prefix, id = ARGV[1], ARGV[2]
local now = now_ms()
local r = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'token', 'stop_cause', 'stop_detail', 'stop_hold',
  'handed_by', 'stop_silent')
local status = r[1] or 'missing'
if status == 'queued' and r[7] == ARGV[4] then return {'queued', num(r[2])} end
local mine = num(r[2]) == num(ARGV[3]) and r[3] == ARGV[4]
if not mine or (status ~= 'running' and status ~= 'stopping') then return {'fenced', status} end
redis.call('HDEL', KEYS[1], 'token', 'lease_until')
if status == 'stopping' then
  finish(prefix, id, 'killed', r[4] or 'owner', r[5] or '', now, num(r[6]), r[8] == '1')
  return {'killed'}
end
local top = dying_with(prefix, id)
if top then
  local cause, detail = take_along(prefix, id, top, status)
  finish(prefix, id, 'killed', cause, detail, now, 0, true)
  return {'killed'}
end
redis.call('HSET', KEYS[1], 'status', 'queued', 'activity', '', 'handed_by', ARGV[4])
redis.call('ZREM', KEYS[2], id)
redis.call('ZADD', KEYS[3], now + num(ARGV[5]), id)
return {'queued', num(r[2])}
