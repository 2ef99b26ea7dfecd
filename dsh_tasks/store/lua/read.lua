-- read: a record and a page of its output; the owner's look at an end holds its notice back.
-- KEYS task output
-- ARGV prefix id caller offset length hold_ms
--   caller '' is the operator; length 0 reads no output; hold_ms 0 holds nothing back.
-- derived: holds:<owner>, the owners above
-- returns {"task", now, output page, field, value ..} | {"missing"}
local prefix, id, caller = ARGV[1], ARGV[2], ARGV[3]
local r = redis.call('HMGET', KEYS[1], 'status', 'owner', 'notice')
if not r[1] or not may_touch(prefix, id, caller) then return {'missing'} end
local now = now_ms()
if is_terminal(r[1]) and r[3] == 'pending' and caller == r[2] and num(ARGV[6]) > 0 then
  redis.call('HSET', prefix .. 'holds:' .. r[2], id, now + num(ARGV[6]))
end
local page = ''
if num(ARGV[5]) > 0 then
  page = redis.call('GETRANGE', KEYS[2], num(ARGV[4]), num(ARGV[4]) + num(ARGV[5]) - 1)
end
local answer = {'task', now, page}
for _, value in ipairs(redis.call('HGETALL', KEYS[1])) do answer[#answer + 1] = value end
return answer
