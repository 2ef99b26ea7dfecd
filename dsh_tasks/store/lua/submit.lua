-- submit: accept children, each with its own verdict; none while bytes of a seed are missing. Keeps rules 2, 3, 7, 8, 12.
-- KEYS due
-- ARGV prefix publish_by_ms then for each child:
--   id owner fence_attempt fence_token header_depth depth_cap owner_live owner_total tree_live tree_total tree_budget tree_cost_budget
--   call_key call seed deadline_ms pairs then field, value ..
--   owner_live .. tree_cost_budget: the limits; of both budgets 0 is none, that of costs in 10^-6 US dollars. call: JSON of what a repeated call must equal. seed: digest, '' for none.
--   deadline_ms: longest life, 0 for none. pairs: how many fields follow.
-- derived: task, index, live, calls of <owner>; seed:<digest>, chunk:<digest> (pages and chunks below it), tree:<root>, kills
-- returns {"missing", digest ..} ("" stands for a manifest; at most 5,000), else {"verdicts", verdict ..}, a verdict being
--       {"accepted", id, depth, now} | {"repeat", id, call, depth} | {"limit", name, value, cap} | {"not_running", status}
local prefix = ARGV[1]
local now = now_ms()

local children = {}
local at = 3
while at <= #ARGV do
  local fields = num(ARGV[at + 16])
  children[#children + 1] = {
    id = ARGV[at], owner = ARGV[at + 1], attempt = ARGV[at + 2], token = ARGV[at + 3],
    header_depth = num(ARGV[at + 4]), depth_cap = num(ARGV[at + 5]), owner_live = num(ARGV[at + 6]),
    owner_total = num(ARGV[at + 7]), tree_live = num(ARGV[at + 8]), tree_total = num(ARGV[at + 9]),
    tree_budget = num(ARGV[at + 10]), cost_budget = num(ARGV[at + 11]) * 1000, call_key = ARGV[at + 12],
    call = ARGV[at + 13], seed = ARGV[at + 14], deadline = num(ARGV[at + 15]), first = at + 17,
    last = at + 16 + 2 * fields,
  }
  at = at + 17 + 2 * fields
end

-- What stands against a child as things are now; else nothing, and where in its tree it will stand.
local function refusal(child)
  local known = child.id
  if child.call_key ~= '' then
    known = redis.call('HGET', prefix .. 'calls:' .. child.owner, child.call_key) or child.id
  end
  local seen = redis.call('HMGET', task_key(prefix, known), 'call', 'depth')
  if seen[1] then return {'repeat', known, seen[1], num(seen[2])} end

  local holds, owner_status = fence_holds(prefix, child.owner, child.attempt, child.token)
  if not holds then return {'not_running', owner_status} end
  local depth, root, parent = child.header_depth + 1, child.owner, ''
  if owner_status ~= '' then
    if dying_with(prefix, child.owner) then return {'not_running', 'stopping'} end
    local r = redis.call('HMGET', task_key(prefix, child.owner), 'depth', 'root')
    local above = num(r[1])
    -- A damaged depth allows nothing below it: never less than what was recorded.
    if above ~= above or above < 1 or above > 1000 or above ~= math.floor(above) then above = child.depth_cap end
    depth, root, parent = above + 1, r[2], child.owner
  end
  if depth > child.depth_cap then return {'limit', 'depth', depth - 1, child.depth_cap} end
  local tree = redis.call('HMGET', prefix .. 'tree:' .. root, 'live', 'total', 'committed', 'cost_spent')
  for _, limit in ipairs({
    {'live_per_owner', redis.call('SCARD', prefix .. 'live:' .. child.owner), child.owner_live},
    {'total_per_owner', redis.call('ZCARD', prefix .. 'index:' .. child.owner), child.owner_total},
    {'live_per_tree', num(tree[1]), child.tree_live},
    {'total_per_tree', num(tree[2]), child.tree_total},
    {'tree_token_budget', num(tree[3]), child.tree_budget > 0 and child.tree_budget or math.huge},
    {'tree_cost_budget', num(tree[4]), child.cost_budget > 0 and child.cost_budget or math.huge},
  }) do
    if limit[2] >= limit[3] then return {'limit', limit[1], limit[2], limit[3]} end
  end
  return nil, depth, root, parent
end

local function accept(child, depth, root, parent)
  local key = task_key(prefix, child.id)
  local index = prefix .. 'index:' .. child.owner
  -- Equal scores stand in order of their ids: a fraction of a ms keeps the order of acceptance.
  local score = math.max(now, num(redis.call('ZREVRANGE', index, 0, 0, 'WITHSCORES')[2]) + 0.001)
  if child.seed ~= '' then seed_count(prefix, prefix .. 'seed:' .. child.seed, 1, 0) end
  for i = child.first, child.last, 2 do redis.call('HSET', key, ARGV[i], ARGV[i + 1]) end
  redis.call('HSET', key, 'id', child.id, 'owner', child.owner, 'root', root, 'parent', parent, 'depth', depth,
    'status', 'queued', 'attempt', 0, 'losses', 0, 'lost', 0, 'log_next', 0, 'created', math.floor(score),
    'last_activity', now, 'call_key', child.call_key, 'call', child.call, 'published', 0, 'seed', child.seed)
  if child.deadline > 0 then
    redis.call('HSET', key, 'deadline', now + child.deadline)
    redis.call('ZADD', prefix .. 'deadlines', now + child.deadline, child.id)
  end
  redis.call('ZADD', index, score, child.id)
  redis.call('SADD', prefix .. 'live:' .. child.owner, child.id)
  if child.call_key ~= '' then redis.call('HSET', prefix .. 'calls:' .. child.owner, child.call_key, child.id) end
  redis.call('HINCRBY', prefix .. 'tree:' .. root, 'live', 1)
  redis.call('HINCRBY', prefix .. 'tree:' .. root, 'total', 1)
  -- Due soon: a publisher that dies before it marks the message leaves the rest to the reaper.
  redis.call('ZADD', KEYS[1], now + num(ARGV[2]), child.id)
  return {'accepted', child.id, depth, now}
end

local missing, asked = {}, {['']=true}
for _, child in ipairs(children) do
  if not asked[child.seed] and not refusal(child) then
    asked[child.seed] = true
    for _, digest in ipairs(seed_missing(prefix, prefix .. 'seed:' .. child.seed)) do
      -- A batch may have several manifests: each is named by its own digest then.
      missing[#missing + 1] = digest == '' and child.seed or digest
    end
  end
end
if #missing > 0 then return {'missing', unpack(missing, 1, math.min(#missing, 5000))} end

local answer = {'verdicts'}
for _, child in ipairs(children) do
  local verdict, depth, root, parent = refusal(child)
  answer[#answer + 1] = verdict or accept(child, depth, root, parent)
end
return answer
