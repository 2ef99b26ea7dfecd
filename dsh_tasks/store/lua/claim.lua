-- claim: one worker takes a queued task as its next attempt. Keeps rules 2, 3; asked again by the same token it repeats.
-- KEYS task leases due
-- ARGV id token lease_ms worker prefix
-- derived: stats, what finish() touches where a kill in steps has this task below it
-- returns {"claimed", attempt, lease_until, now, field, value ..} | {"taken", attempt, worker} | {"over", status, worker}
--       | {"paused", until} | {"missing"}
local id, token, lease, prefix = ARGV[1], ARGV[2], num(ARGV[3]), ARGV[5]
local now = now_ms()
local r = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'token', 'not_before', 'started', 'worker')
local status, attempt = r[1], num(r[2])
if not status then
  -- A message without a record: dropped, and counted.
  tally(prefix, 'messages_without_record')
  return {'missing'}
end
if is_terminal(status) then return {'over', status, r[6] or ''} end
local repeated = status == 'running' and r[3] == token
if status ~= 'queued' and not repeated then
  tally(prefix, 'messages_too_many')
  return {'taken', attempt, r[6] or ''}
end
local top = status == 'queued' and dying_with(prefix, id)
if top then
  local cause, detail = take_along(prefix, id, top, status)
  finish(prefix, id, 'killed', cause, detail, now, 0, true)
  return {'over', 'killed', ''}
end
if not repeated and num(r[4]) > now then return {'paused', num(r[4])} end
if not repeated then
  attempt = attempt + 1
  redis.call('HSET', KEYS[1], 'status', 'running', 'attempt', attempt, 'token', token,
    'worker', ARGV[4], 'started', r[5] or now, 'attempt_started', now, 'activity', 'starting', 'last_activity', now,
    'activity_since', now, 'streamed', 0, 'stalled_since', 0)
  redis.call('HDEL', KEYS[1], 'not_before')
  redis.call('ZREM', KEYS[3], id)
end
redis.call('HSET', KEYS[1], 'lease_until', now + lease)
redis.call('ZADD', KEYS[2], now + lease, id)
local answer = {'claimed', attempt, now + lease, now}
for _, value in ipairs(redis.call('HGETALL', KEYS[1])) do answer[#answer + 1] = value end
return answer
