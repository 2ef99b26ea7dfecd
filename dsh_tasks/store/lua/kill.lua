#!lua flags=allow-oom
-- kill: a task and all below it: what is queued ends here, what runs is told to stop. Keeps rules 2, 4, 9.
-- KEYS task answer kills frontier
-- ARGV prefix id caller fence_attempt fence_token detail hold_ms deadline_ms answer_ms most cause only
--   caller: session of the asker, '' for the operator. most: nodes that one step looks at; the rest waits in the frontier,
--   and `kills` marks the top meanwhile. cause: `deadline` where the task's own time is over, else ''.
--   only: `foreground` where a task that is not waited for any more is to stay, else ''.
-- derived: index:<session> of the subtree, what finish() touches
-- returns {"killed", more, id, status before ..} in pre-order | {"over", status} | {"kept", status} | {"missing"} | {"not_running", status}
local prefix, id, caller = ARGV[1], ARGV[2], ARGV[3]
local again = redis.call('GET', KEYS[2])
if again then return cjson.decode(again) end
if caller ~= '' then
  local holds, owner_status = fence_holds(prefix, caller, ARGV[4], ARGV[5])
  if not holds then return {'not_running', owner_status} end
end
local r = redis.call('HMGET', KEYS[1], 'status', 'owner', 'deadline', 'mode')
if not r[1] then
  -- Hints about a record that is gone must not come again for ever.
  redis.call('ZREM', prefix .. 'deadlines', id)
  redis.call('ZREM', KEYS[3], id)
  redis.call('DEL', KEYS[4])
  return {'missing'}
end
if not may_touch(prefix, id, caller) then return {'missing'} end
local resumed = redis.call('ZSCORE', KEYS[3], id)
if is_terminal(r[1]) and not resumed then return {'over', r[1]} end
if ARGV[12] == 'foreground' and r[4] ~= 'foreground' and not resumed then return {'kept', r[1]} end
local now = now_ms()
if ARGV[11] == 'deadline' and (r[1] == 'stopping' or num(r[3]) == 0 or num(r[3]) > now) and not resumed then
  return {'over', r[1]}
end
redis.call('ZREM', prefix .. 'deadlines', id)

local hold, top_cause, top_end = 0, 'ancestor', 'killed'
if caller == '' then top_cause = 'operator' end
if caller == r[2] then
  top_cause = 'owner'
  hold = now + num(ARGV[7])
end
if ARGV[11] == 'deadline' then
  top_cause = 'deadline'
  -- What never ran has failed; what runs is stopped, and so is killed.
  if r[1] == 'queued' then top_end = 'failed' end
end

local stack, took, stopping, seen = {}, {}, {}, 0
local function note(at, status)
  took[#took + 1] = at
  took[#took + 1] = status
end
if resumed then
  local waiting = redis.call('LPOP', KEYS[4], num(ARGV[10])) or {}
  for i = #waiting, 1, -1 do stack[#stack + 1] = waiting[i] end
else
  stack[1] = id
end
while #stack > 0 and seen < num(ARGV[10]) do
  local at = table.remove(stack)
  seen = seen + 1
  local key = task_key(prefix, at)
  local record = redis.call('HMGET', key, 'status', 'taken_by', 'taken_from')
  local status = record[1]
  local cause, detail, silent, held, ending = 'ancestor', 'killed with ' .. id, true, 0, 'killed'
  if at == id then cause, detail, silent, held, ending = top_cause, ARGV[6], false, hold, top_end end
  if record[2] == id then
    -- It met the mark before this kill met it.
    note(at, record[3])
    redis.call('HDEL', key, 'taken_by', 'taken_from')
    if status == 'stopping' then stopping[#stopping + 1] = at end
  elseif status == 'queued' then
    finish(prefix, at, ending, cause, detail, now, held, silent)
    note(at, status)
  elseif status == 'running' then
    ask_to_stop(prefix, at, cause, detail, held, silent, now + num(ARGV[8]))
    note(at, status)
    stopping[#stopping + 1] = at
  elseif status == 'stopping' and at == id then
    note(at, status)
  end
  for _, child in ipairs(redis.call('ZREVRANGE', prefix .. 'index:' .. at, 0, -1)) do stack[#stack + 1] = child end
end
-- The next of the walk stands at the head of the list.
for _, at in ipairs(stack) do redis.call('LPUSH', KEYS[4], at) end
local more = redis.call('EXISTS', KEYS[4])
if more == 1 then redis.call('ZADD', KEYS[3], now, id) else redis.call('ZREM', KEYS[3], id) end
if #stopping > 0 then redis.call('PUBLISH', prefix .. 'control', cjson.encode(stopping)) end
local answer = {'killed', more}
for _, value in ipairs(took) do answer[#answer + 1] = value end
redis.call('SET', KEYS[2], cjson.encode(answer), 'PX', ARGV[9])
return answer
