-- budget: reserves tokens of the tree before a model call, corrects them after it. Keeps rules 2, 3, 12.
-- KEYS task tree
-- ARGV attempt token call tokens used budget
--   call: number of the model call within the attempt, from 1. used: '' reserves `tokens`; else what the call really took.
--   budget: of the whole tree, 0 for none.
--   What a lost attempt has reserved stays spent.
-- returns {"ok", committed} | {"refused", committed} | {"fenced", status}
local r = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'token', 'reserved_call', 'reserved')
local mine = num(r[2]) == num(ARGV[1]) and r[3] == ARGV[2]
if not mine or (r[1] ~= 'running' and r[1] ~= 'stopping') then return {'fenced', r[1] or 'missing'} end
local committed = num(redis.call('HGET', KEYS[2], 'committed'))
local call = ARGV[2] .. ':' .. ARGV[3]
if ARGV[5] ~= '' then
  -- Only the open reservation can be corrected, and once.
  if r[4] ~= call or not r[5] then return {'ok', committed} end
  redis.call('HDEL', KEYS[1], 'reserved')
  return {'ok', redis.call('HINCRBY', KEYS[2], 'committed', num(ARGV[5]) - num(r[5]))}
end
if r[4] == call then return {'ok', committed} end
if r[1] ~= 'running' then return {'fenced', r[1]} end
local budget = num(ARGV[6])
if budget > 0 and committed + num(ARGV[4]) > budget then return {'refused', committed} end
redis.call('HSET', KEYS[1], 'reserved_call', call, 'reserved', ARGV[4])
return {'ok', redis.call('HINCRBY', KEYS[2], 'committed', num(ARGV[4]))}
