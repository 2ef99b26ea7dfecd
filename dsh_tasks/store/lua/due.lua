-- due: takes queued tasks whose message is missing or overdue, and moves them on, so that a backlog does not multiply.
-- KEYS due
-- ARGV prefix most first_ms
-- derived: task:<id>
-- returns {id, attempt, label, provider, depth, owner, ..} six by six
local prefix, first = ARGV[1], num(ARGV[3])
local now = now_ms()
local answer = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, num(ARGV[2]))) do
  local key = task_key(prefix, id)
  local r = redis.call('HMGET', key, 'status', 'attempt', 'label', 'provider', 'depth', 'owner')
  if r[1] ~= 'queued' then
    redis.call('ZREM', KEYS[1], id)
  else
    local times = redis.call('HINCRBY', key, 'published', 1)
    redis.call('ZADD', KEYS[1], now + math.min(first * 2 ^ (times - 1), 600000), id)
    for i = 2, 6 do
      if i == 2 then answer[#answer + 1] = id end
      answer[#answer + 1] = r[i]
    end
  end
end
return answer
