-- look: the statuses of several tasks of one caller; the owner's look at an end holds its notice back.
-- KEYS task ..
-- ARGV prefix caller hold_ms id ..
--   caller '' is the operator; hold_ms 0 holds nothing back. One id that is not the caller's: nothing is told.
-- derived: holds:<owner>, the owners above
-- returns {"looked", now, status ..} in the order of the ids | {"missing", id}
local prefix, caller, hold = ARGV[1], ARGV[2], num(ARGV[3])
local now = now_ms()
local answer, ended = {'looked', now}, {}
for i = 4, #ARGV do
  local r = redis.call('HMGET', KEYS[i - 3], 'status', 'owner', 'notice')
  if not r[1] or not may_touch(prefix, ARGV[i], caller) then return {'missing', ARGV[i]} end
  answer[#answer + 1] = r[1]
  if hold > 0 and is_terminal(r[1]) and r[3] == 'pending' and caller == r[2] then ended[#ended + 1] = ARGV[i] end
end
for _, id in ipairs(ended) do redis.call('HSET', prefix .. 'holds:' .. caller, id, now + hold) end
return answer
