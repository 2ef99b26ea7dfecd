#!lua flags=allow-oom
-- kill: a task and all below it: what is queued ends here, what runs is told to stop. Keeps rules 2, 4, 9.
-- KEYS task answer kills
-- ARGV prefix id caller fence_attempt fence_token detail hold_ms deadline_ms answer_ms most
--   caller: session of the asker, '' for the operator. most: nodes that one step takes; the rest follow by `kills`.
-- derived: index:<session> of the subtree, what finish() touches
-- returns {"killed", more, id, status before ..} in pre-order | {"over", status} | {"missing"} | {"not_running", status}
local prefix, id, caller = ARGV[1], ARGV[2], ARGV[3]
local again = redis.call('GET', KEYS[2])
if again then return cjson.decode(again) end
if caller ~= '' then
  local holds, owner_status = fence_holds(prefix, caller, ARGV[4], ARGV[5])
  if not holds then return {'not_running', owner_status} end
end
local r = redis.call('HMGET', KEYS[1], 'status', 'owner')
if not r[1] or not may_touch(prefix, id, caller) then return {'missing'} end
local resumed = redis.call('ZSCORE', KEYS[3], id)
if is_terminal(r[1]) and not resumed then return {'over', r[1]} end

local now = now_ms()
local hold, top_cause = 0, 'ancestor'
if caller == '' then top_cause = 'operator' end
if caller == r[2] then
  top_cause = 'owner'
  hold = now + num(ARGV[7])
end
local took, stopping = {}, {}
local stack, most = {id}, num(ARGV[10])
local more = 0
while #stack > 0 do
  if #took >= most * 2 then more = 1; break end
  local at = table.remove(stack)
  local key = task_key(prefix, at)
  local status = redis.call('HGET', key, 'status')
  local cause, detail, silent, held = 'ancestor', 'killed with ' .. id, true, 0
  if at == id then cause, detail, silent, held = top_cause, ARGV[6], false, hold end
  if status == 'queued' then
    finish(prefix, at, 'killed', cause, detail, now, held, silent)
    took[#took + 1] = at
    took[#took + 1] = status
  elseif status == 'running' then
    redis.call('HSET', key, 'status', 'stopping', 'stop_cause', cause, 'stop_detail', detail,
      'stop_hold', held, 'stop_silent', silent and '1' or '0', 'stop_until', now + num(ARGV[8]))
    redis.call('ZADD', prefix .. 'stops', now + num(ARGV[8]), at)
    took[#took + 1] = at
    took[#took + 1] = status
    stopping[#stopping + 1] = at
  elseif status == 'stopping' and at == id then
    took[#took + 1] = at
    took[#took + 1] = status
  end
  local below = redis.call('ZREVRANGE', prefix .. 'index:' .. at, 0, -1)
  for _, child in ipairs(below) do stack[#stack + 1] = child end
end
if more == 1 then redis.call('ZADD', KEYS[3], now, id) else redis.call('ZREM', KEYS[3], id) end
if #stopping > 0 then redis.call('PUBLISH', prefix .. 'control', cjson.encode(stopping)) end
local answer = {'killed', more}
for _, value in ipairs(took) do answer[#answer + 1] = value end
redis.call('SET', KEYS[2], cjson.encode(answer), 'PX', ARGV[9])
return answer
