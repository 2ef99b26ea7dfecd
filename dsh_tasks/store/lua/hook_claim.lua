#!lua flags=allow-oom
-- hook_claim: a worker takes endings that its endpoint is to hear of now, and moves them on. Keeps rule 12.
-- KEYS hook hooks hookstats
-- ARGV prefix endpoint token most busy_ms first_pause_ms spread_percent give_up_ms keep_ms
--   It says too that this installation wants endings sent (`hook`, for keep_ms). busy_ms: until the try is over.
--   What is taken comes again by itself after that and the try's pause: a worker may die, a reply be lost.
-- derived: task:<id>, holds:<owner>
-- returns {"claimed", id, label, status, cause, owner, ended, tries, ..} | {"gone", since}: the endpoint wants no more
local prefix, endpoint, token = ARGV[1], ARGV[2], ARGV[3]
local gone = redis.call('HMGET', KEYS[3], 'gone', 'gone_at')
if gone[1] == endpoint then return {'gone', num(gone[2])} end
local now, keep = now_ms(), num(ARGV[9])
redis.call('SET', KEYS[1], endpoint, 'PX', keep)
local answer, count = {'claimed'}, 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 200)) do
  if count == num(ARGV[4]) then break end
  local key = task_key(prefix, id)
  local r = redis.call('HMGET', key, 'notice', 'owner', 'hook_first', 'ended', 'label', 'status', 'cause')
  local held = r[2] and num(redis.call('HGET', prefix .. 'holds:' .. r[2], id)) or 0
  if r[1] and r[1] ~= 'pending' then
    -- The owner knows already.
    redis.call('ZREM', KEYS[2], id)
    redis.call('HINCRBY', KEYS[3], 'known', 1)
  elseif not r[1] or (r[3] and now - num(r[3]) > num(ARGV[8])) or now - num(r[4]) > keep then
    redis.call('ZREM', KEYS[2], id)
    redis.call('HINCRBY', KEYS[3], 'dropped', 1)
  elseif held > now then
    -- The owner has just looked: it acknowledges, or is told after that.
    redis.call('ZADD', KEYS[2], held, id)
  else
    count = count + 1
    local tries = redis.call('HINCRBY', key, 'hook_tries', 1)
    redis.call('HSET', key, 'hook_token', token, 'hook_first', r[3] or now)
    redis.call('ZADD', KEYS[2], now + num(ARGV[5]) + hook_pause(ARGV[6], tries, ARGV[7]), id)
    for _, value in ipairs({id, r[5], r[6], r[7], r[2], r[4], tries}) do answer[#answer + 1] = value end
  end
end
return answer
