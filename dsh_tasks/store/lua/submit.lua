-- submit: accept one child: record `queued`, indexes, limits, references to its seed. Keeps rules 2, 3, 7, 8, 12.
-- KEYS task index live calls due seed owner_task
-- ARGV prefix id owner fence_attempt fence_token header_depth depth_cap live_cap call_key call has_seed publish_by_ms then field, value ..
--   has_seed: 1, or '' for an empty seed. call: JSON of what a repeated call must equal.
-- derived: chunk:<digest> (pages and chunks below the seed), tree:<root>
-- returns {"accepted", id, depth, now} | {"repeat", id, call, depth} | {"limit", name, value, cap}
--       | {"not_running", status} | {"missing", digest ..} ("" stands for the manifest; at most 5,000)
local prefix, id, owner = ARGV[1], ARGV[2], ARGV[3]
local header_depth, depth_cap, live_cap = num(ARGV[6]), num(ARGV[7]), num(ARGV[8])
local call_key, call = ARGV[9], ARGV[10]
local now = now_ms()

local known = id
if call_key ~= '' then
  known = redis.call('HGET', KEYS[4], call_key) or id
end
local seen = redis.call('HMGET', task_key(prefix, known), 'call', 'depth')
if seen[1] then return {'repeat', known, seen[1], num(seen[2])} end

local holds, owner_status = fence_holds(prefix, owner, ARGV[4], ARGV[5])
if not holds then return {'not_running', owner_status} end
local depth, root, parent = header_depth + 1, owner, ''
if owner_status ~= '' then
  local r = redis.call('HMGET', KEYS[7], 'depth', 'root')
  local above = num(r[1])
  -- A damaged depth allows nothing below it: never less than what was recorded.
  if above ~= above or above < 1 or above > 1000 or above ~= math.floor(above) then above = depth_cap end
  depth, root, parent = above + 1, r[2], owner
end
if depth > depth_cap then return {'limit', 'depth', depth - 1, depth_cap} end
local live = redis.call('SCARD', KEYS[3])
if live >= live_cap then return {'limit', 'live_per_owner', live, live_cap} end

if ARGV[11] ~= '' then
  local missing = seed_missing(prefix, KEYS[6])
  if #missing > 0 then return {'missing', unpack(missing, 1, math.min(#missing, 5000))} end
  seed_count(prefix, KEYS[6], 1, 0)
end

for i = 13, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'id', id, 'owner', owner, 'root', root, 'parent', parent, 'depth', depth,
  'status', 'queued', 'attempt', 0, 'losses', 0, 'lost', 0, 'log_next', 0, 'created', now,
  'last_activity', now, 'call_key', call_key, 'call', call, 'published', 0)
redis.call('ZADD', KEYS[2], now, id)
redis.call('SADD', KEYS[3], id)
if call_key ~= '' then redis.call('HSET', KEYS[4], call_key, id) end
redis.call('HINCRBY', prefix .. 'tree:' .. root, 'live', 1)
redis.call('HINCRBY', prefix .. 'tree:' .. root, 'total', 1)
-- Due soon: a publisher that dies before it marks the message leaves the rest to the reaper.
redis.call('ZADD', KEYS[5], now + num(ARGV[12]), id)
return {'accepted', id, depth, now}
