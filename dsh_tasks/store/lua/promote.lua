-- promote: a wait in the foreground becomes a background task, and whoever waits is told. Asked again it changes nothing. Keeps rules 2, 3, 4.
-- KEYS task
-- ARGV prefix id caller fence_attempt fence_token after_ms
--   caller: the owner, or '' for the operator. after_ms: the time that the call had; '' where somebody asked for it.
-- derived: task:<caller>, kills and the owners above
-- returns {"promoted", status} | {"background", status} (it was never waited for) | {"over", status} | {"missing"}
--       | {"not_running", status}
local prefix, id, caller = ARGV[1], ARGV[2], ARGV[3]
if caller ~= '' then
  local holds, owner_status = fence_holds(prefix, caller, ARGV[4], ARGV[5])
  if not holds then return {'not_running', owner_status} end
end
local r = redis.call('HMGET', KEYS[1], 'status', 'owner', 'mode', 'promoted')
if not r[1] or (caller ~= '' and caller ~= r[2]) then return {'missing'} end
if r[4] then return {'promoted', r[1]} end
if r[3] ~= 'foreground' then return {'background', r[1]} end
-- What is being killed ends where it was waited for.
if is_terminal(r[1]) or r[1] == 'stopping' then return {'over', r[1]} end
if dying_with(prefix, id) then return {'over', 'stopping'} end
redis.call('HSET', KEYS[1], 'mode', 'background', 'promoted', now_ms())
if ARGV[6] ~= '' then redis.call('HSET', KEYS[1], 'promoted_after', ARGV[6]) end
redis.call('HDEL', KEYS[1], 'wait_hold')
redis.call('PUBLISH', prefix .. 'ended:' .. id, 'promoted')
return {'promoted', r[1]}
