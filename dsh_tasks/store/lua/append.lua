-- append: rows go to the child's log, contiguous, by the running attempt only. Keeps rules 3, 6.
-- KEYS task log
-- ARGV prefix id kill_deadline_ms attempt token first_index ended_steps activity then row ..
--   first_index: place of the first row among the child's own rows, from 0; entry id = place + 1.
-- derived: stops, kills, the owners above
-- returns {"ok", next_index} | {"fenced", status} | {"gap", expected}
local r = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'token', 'log_next')
local mine = num(r[2]) == num(ARGV[4]) and r[3] == ARGV[5]
if not mine or r[1] ~= 'running' then return {'fenced', r[1] or 'missing'} end
local first, expected, count = num(ARGV[6]), num(r[4]), #ARGV - 8
-- The same rows again: the reply was lost, not the write.
if first + count <= expected and count > 0 then return {'ok', expected} end
if first ~= expected then return {'gap', expected} end
local top = dying_with(ARGV[1], ARGV[2])
if top then
  local cause, detail = take_along(ARGV[1], ARGV[2], top, 'running')
  ask_to_stop(ARGV[1], ARGV[2], cause, detail, 0, true, now_ms() + num(ARGV[3]))
  return {'fenced', 'stopping'}
end
for i = 9, #ARGV do
  redis.call('XADD', KEYS[2], (first + i - 8) .. '-0', 'r', ARGV[i])
end
redis.call('HSET', KEYS[1], 'log_next', first + count, 'last_activity', now_ms(), 'activity', ARGV[8])
if num(ARGV[7]) > 0 then redis.call('HSET', KEYS[1], 'losses', 0) end
return {'ok', first + count}
