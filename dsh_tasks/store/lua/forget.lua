#!lua flags=allow-oom
-- forget: remove the record of a task that has ended, and all that hangs on it; its seed is counted down. Keeps rules 2, 5.
-- KEYS task
-- ARGV prefix id ended_before_ms notice_before_ms expiry_ms
--   ended_before_ms: what ended later is kept. notice_before_ms: a pending notice keeps what ended later than this.
--   expiry_ms: life of chunks that nothing refers to any more.
-- derived: endings, stats, kills, killing:<id>; log, output, index, live, calls, inbox, holds, speaker of <id>; index, calls, inbox, holds of its owner;
--   tree:<root>; seed:<digest> and what it lists
-- returns {"forgotten"} | {"missing"} | {"kept", status | "young" | "below" | "notice"}
local prefix, id = ARGV[1], ARGV[2]
local r = redis.call('HMGET', KEYS[1], 'status', 'ended', 'owner', 'root', 'call_key', 'notice', 'notice_entry', 'seed',
  unpack(USED))
if not r[1] then return {'missing'} end
if not is_terminal(r[1]) then return {'kept', r[1]} end
if num(r[2]) > num(ARGV[3]) then return {'kept', 'young'} end
if redis.call('ZCARD', prefix .. 'index:' .. id) > 0 then return {'kept', 'below'} end
local owner = r[3]
if r[6] == 'pending' and num(r[2]) > num(ARGV[4]) then
  -- An owner that is a task and has ended will never acknowledge.
  local owner_status = redis.call('HGET', task_key(prefix, owner), 'status')
  if not owner_status or not is_terminal(owner_status) then return {'kept', 'notice'} end
end

if r[6] == 'pending' then
  redis.call('XDEL', prefix .. 'inbox:' .. owner, r[7])
  tally(prefix, 'notices_expired')
end
tally(prefix, 'records_forgotten')
redis.call('HDEL', prefix .. 'holds:' .. owner, id)
redis.call('ZREM', prefix .. 'index:' .. owner, id)
if r[5] and r[5] ~= '' then redis.call('HDEL', prefix .. 'calls:' .. owner, r[5]) end
if redis.call('XLEN', prefix .. 'inbox:' .. owner) == 0 then redis.call('DEL', prefix .. 'inbox:' .. owner) end
local tree = prefix .. 'tree:' .. r[4]
-- What it used stays counted in its tree: pruned_* is the part of the sums that no record has any more.
for i, name in ipairs(USED) do
  if num(r[8 + i]) > 0 then redis.call('HINCRBY', tree, 'pruned_' .. name, num(r[8 + i])) end
end
if redis.call('HINCRBY', tree, 'total', -1) <= 0 then redis.call('DEL', tree) end
if r[8] and r[8] ~= '' then seed_count(prefix, prefix .. 'seed:' .. r[8], -1, ARGV[5]) end
for _, kind in ipairs({'log:', 'output:', 'live:', 'calls:', 'inbox:', 'holds:', 'speaker:'}) do
  redis.call('DEL', prefix .. kind .. id)
end
redis.call('ZREM', prefix .. 'endings', id)
-- Nothing is below it any more: a kill in steps that nobody has finished has nothing left to do.
redis.call('ZREM', prefix .. 'kills', id)
redis.call('DEL', prefix .. 'killing:' .. id)
redis.call('DEL', KEYS[1])
return {'forgotten'}
