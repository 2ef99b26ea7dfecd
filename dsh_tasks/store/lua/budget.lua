-- budget: before a model call looks at what was spent and reserves tokens of the tree, after it corrects them. Keeps rules 2, 3, 12.
-- KEYS task tree
-- ARGV attempt token call tokens used budget cost cost_budget tree_cost_budget
--   call: number of the model call within the attempt, from 1. used: '' reserves `tokens`; else what the call really took.
--   budget: tokens of the whole tree, 0 for none. cost: what this attempt has cost so far, in 10^-9 US dollars.
--   cost_budget, tree_cost_budget: of the child and of the whole tree, in 10^-6 US dollars, 0 for none.
--   What a lost attempt has reserved stays spent.
-- returns {"ok", committed} | {"refused", limit, value} | {"fenced", status}
local r = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'token', 'reserved_call', 'reserved', 'told_cost', 'told_by',
  'cost_spent')
local mine = num(r[2]) == num(ARGV[1]) and r[3] == ARGV[2]
if not mine or (r[1] ~= 'running' and r[1] ~= 'stopping') then return {'fenced', r[1] or 'missing'} end
local t = redis.call('HMGET', KEYS[2], 'committed', 'cost_spent')
local committed, own_cost, tree_cost = num(t[1]), num(r[8]), num(t[2])
-- An attempt tells its whole cost each time, so a repeated call counts nothing twice.
local more = num(ARGV[7]) - (r[7] == ARGV[2] and num(r[6]) or 0)
if more > 0 then
  redis.call('HSET', KEYS[1], 'told_cost', ARGV[7], 'told_by', ARGV[2])
  own_cost = redis.call('HINCRBY', KEYS[1], 'cost_spent', more)
  tree_cost = redis.call('HINCRBY', KEYS[2], 'cost_spent', more)
end
local call = ARGV[2] .. ':' .. ARGV[3]
if ARGV[5] ~= '' then
  -- Only the open reservation can be corrected, and once.
  if r[4] ~= call or not r[5] then return {'ok', committed} end
  redis.call('HDEL', KEYS[1], 'reserved')
  return {'ok', redis.call('HINCRBY', KEYS[2], 'committed', num(ARGV[5]) - num(r[5]))}
end
if r[4] == call then return {'ok', committed} end
if r[1] ~= 'running' then return {'fenced', r[1]} end
local budget, own_cap, tree_cap = num(ARGV[6]), num(ARGV[8]) * 1000, num(ARGV[9]) * 1000
if own_cap > 0 and own_cost >= own_cap then return {'refused', 'cost_budget', own_cost} end
if tree_cap > 0 and tree_cost >= tree_cap then return {'refused', 'tree_cost_budget', tree_cost} end
if budget > 0 and committed + num(ARGV[4]) > budget then return {'refused', 'tree_token_budget', committed} end
redis.call('HSET', KEYS[1], 'reserved_call', call, 'reserved', ARGV[4])
return {'ok', redis.call('HINCRBY', KEYS[2], 'committed', num(ARGV[4]))}
