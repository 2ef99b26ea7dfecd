#!lua flags=allow-oom
-- settle: one attempt ends its task: last rows, output, terminal status, notice, released limits, usage. Keeps rules 2 to 5.
-- KEYS task log output tree
-- ARGV prefix id attempt token status cause detail output output_bytes partial structured used .. first_index then row ..
--   used: a number for each of USED (lib). structured: JSON, '' for none. From `stopping` every settlement ends `killed` with the cause of the kill.
-- derived: what finish() touches; kills, the owners above
-- returns {"settled", status, now} | {"fenced", status}
local prefix, id = ARGV[1], ARGV[2]
local r = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'token', 'log_next', 'stop_cause', 'stop_detail',
  'settled_by', 'ended', 'stop_hold', 'stop_silent')
local status = r[1] or 'missing'
-- The same settlement again: the reply was lost, not the write.
if is_terminal(status) and r[7] == ARGV[4] then return {'settled', status, num(r[8])} end
local mine = num(r[2]) == num(ARGV[3]) and r[3] == ARGV[4]
if not mine or (status ~= 'running' and status ~= 'stopping') then return {'fenced', status} end
local now = now_ms()
local final, cause, detail = ARGV[5], ARGV[6], ARGV[7]
local partial = ARGV[10]
local hold, silent = 0, r[10] == '1'
local top = status == 'running' and dying_with(prefix, id)
if status == 'stopping' then
  if final == 'completed' and num(ARGV[9]) > 0 then partial = '1' end
  final, cause, detail, hold = 'killed', r[5] or 'owner', r[6] or '', num(r[9])
elseif top then
  if final == 'completed' and num(ARGV[9]) > 0 then partial = '1' end
  cause, detail = take_along(prefix, id, top, status)
  final, silent = 'killed', true
end
local first, expected = num(ARGV[12 + #USED]), num(r[4])
-- Rows that do not continue the log would leave a hole: the ending counts, they do not.
if first == expected then
  local before = 12 + #USED
  for i = before + 1, #ARGV do
    redis.call('XADD', KEYS[2], (first + i - before) .. '-0', 'r', ARGV[i])
  end
  redis.call('HSET', KEYS[1], 'log_next', first + #ARGV - before)
end
if num(ARGV[9]) > 0 then redis.call('SET', KEYS[3], ARGV[8]) end
redis.call('HSET', KEYS[1], 'output_bytes', ARGV[9], 'partial', partial, 'settled_by', ARGV[4])
if ARGV[11] ~= '' and final == 'completed' then redis.call('HSET', KEYS[1], 'structured', ARGV[11]) end
for i, name in ipairs(USED) do
  if num(ARGV[11 + i]) ~= 0 then
    redis.call('HINCRBY', KEYS[1], name, ARGV[11 + i])
    redis.call('HINCRBY', KEYS[4], name, ARGV[11 + i])
  end
end
-- What the budget was not told of yet: the last answer that broke off, or all of it where there is no budget.
local spent = redis.call('HMGET', KEYS[1], 'cost_spent', 'cost_nanousd')
local untold = num(spent[2]) - num(spent[1])
if untold > 0 then redis.call('HINCRBY', KEYS[4], 'cost_spent', untold) end
redis.call('HDEL', KEYS[1], 'token')
finish(prefix, id, final, cause, detail, now, hold, silent)
return {'settled', final, now}
