-- lib: what several scripts share; it stands before each of them and changes nothing by itself.
-- A record is `task:<id>`; a session that is a child has the id of its task.

local function now_ms()
  -- Redis' clock: hosts that differ by seconds would take each other's leases.
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

local function is_terminal(status)
  return status == 'completed' or status == 'failed' or status == 'killed'
end

local function num(value)
  -- "10" < "9" is true as strings: every number goes through here.
  return tonumber(value or '0') or 0
end

-- What a record and its tree count, in the order in which `settle` is given it.
local USED = {'input_tokens', 'output_tokens', 'model_calls', 'cache_read_tokens', 'cache_write_tokens',
  'reasoning_tokens', 'cost_nanousd', 'priced_calls'}

local function task_key(prefix, id)
  return prefix .. 'task:' .. id
end

-- Whether `caller` is the owner of the task or an ancestor of its owner. '' is the operator.
local function may_touch(prefix, id, caller)
  if caller == '' then return true end
  local at = id
  for _ = 1, 128 do
    local owner = redis.call('HGET', task_key(prefix, at), 'owner')
    if not owner then return false end
    if owner == caller then return true end
    at = owner
  end
  return false
end

-- Whether attempt and token of a child that acts are those of its running record. No token: no child.
-- Who shows a token is a child, and has a record: once that is pruned, or lost with a failover, it may not act.
local function fence_holds(prefix, session, attempt, token)
  local r = redis.call('HMGET', task_key(prefix, session), 'status', 'attempt', 'token')
  if not r[1] then return token == '', token == '' and '' or 'missing' end
  if r[1] == 'running' and num(r[2]) == num(attempt) and r[3] == token and token ~= '' then
    return true, r[1]
  end
  return false, r[1]
end

-- A counter for operators; it expires, so that it is no key that stays.
local function tally(prefix, name)
  redis.call('HINCRBY', prefix .. 'stats', name, 1)
  redis.call('EXPIRE', prefix .. 'stats', 2592000)
end

-- The top of a kill that goes on in steps and has this task below it (or is it); nil where there is none.
local function dying_with(prefix, id)
  local kills = prefix .. 'kills'
  if redis.call('EXISTS', kills) == 0 then return nil end
  local at = id
  for _ = 1, 1024 do
    if redis.call('ZSCORE', kills, at) then return at end
    at = redis.call('HGET', task_key(prefix, at), 'owner')
    if not at then return nil end
  end
  return nil
end

-- What a kill in steps has not reached yet, and what it is to list when it does.
local function take_along(prefix, id, top, status)
  redis.call('HSET', task_key(prefix, id), 'taken_by', top, 'taken_from', status)
  return 'ancestor', 'killed with ' .. top
end

-- Tell a running attempt to stop; its settlement ends `killed` with this cause.
local function ask_to_stop(prefix, id, cause, detail, hold, silent, until_ms)
  redis.call('HSET', task_key(prefix, id), 'status', 'stopping', 'stop_cause', cause, 'stop_detail', detail,
    'stop_hold', hold, 'stop_silent', silent and '1' or '0', 'stop_until', until_ms)
  redis.call('ZADD', prefix .. 'stops', until_ms, id)
  redis.call('ZREM', prefix .. 'deadlines', id)
end

-- The terminal step: status, notice, released limits. The caller has made every check.
-- hold_until > 0 holds the notice back: the owner asked for this end itself. So does a call that waits for it.
local function finish(prefix, id, status, cause, detail, now, hold_until, silent)
  local key = task_key(prefix, id)
  local r = redis.call('HMGET', key, 'owner', 'root', 'label', 'wait_hold')
  local owner, root = r[1], r[2]
  redis.call('HSET', key, 'status', status, 'cause', cause, 'detail', detail, 'ended', now,
    'activity', '', 'last_activity', now)
  redis.call('HDEL', key, 'lease_until', 'stop_until', 'not_before')
  redis.call('SREM', prefix .. 'live:' .. owner, id)
  redis.call('HINCRBY', prefix .. 'tree:' .. root, 'live', -1)
  redis.call('ZREM', prefix .. 'leases', id)
  redis.call('ZREM', prefix .. 'stops', id)
  redis.call('ZREM', prefix .. 'due', id)
  redis.call('ZREM', prefix .. 'deadlines', id)
  redis.call('ZADD', prefix .. 'endings', now, id)
  redis.call('PUBLISH', prefix .. 'ended:' .. id, status)
  if silent then return end
  local inbox = prefix .. 'inbox:' .. owner
  local entry = redis.call('XADD', inbox, '*', 'kind', 'ended', 'id', 'notice-' .. id, 'task', id,
    'status', status, 'cause', cause, 'label', r[3], 'at', now)
  redis.call('HSET', key, 'notice', 'pending', 'notice_entry', entry)
  if r[4] and hold_until == 0 then hold_until = now + num(r[4]) end
  if hold_until > 0 then
    redis.call('HSET', prefix .. 'holds:' .. owner, id, hold_until)
  end
  redis.call('PUBLISH', prefix .. 'inbox:' .. owner, id)
  -- A worker says that this installation wants endings sent to an endpoint; clients need not know of it.
  if redis.call('EXISTS', prefix .. 'hook') == 1 then
    redis.call('ZADD', prefix .. 'hooks', now, id)
    -- Where no worker sends any more, the outbox goes.
    redis.call('PEXPIRE', prefix .. 'hooks', 604800000)
  end
end

-- The pause after so many tries to send an ending: five times the one before, up to two hours, spread.
local function hook_pause(first, tries, spread)
  return math.floor(math.min(num(first) * 5 ^ (num(tries) - 1), 7200000) * num(spread) / 100)
end

-- A seed is a tree of blobs: `seed:<digest>` lists parts, a part is {digest, rows, bytes} (a chunk) or
-- {digest, rows, bytes, turns} (a page, which lists parts). `refs` of a blob: how often it is listed by
-- blobs that are themselves held, or named by records. Held blobs never expire; others do after an hour.

-- Digests that must be uploaded before a record can hold the seed at `key`; '' is the seed itself.
local function seed_missing(prefix, key)
  local seed = redis.call('HMGET', key, 'refs', 'd')
  if not seed[2] then return {''} end
  -- Held: so is all below it.
  if num(seed[1]) > 0 then return {} end
  local missing, seen, work = {}, {}, cjson.decode(seed[2]).parts
  local at = 1
  while at <= #work do
    local part = work[at]
    at = at + 1
    if not seen[part[1]] then
      seen[part[1]] = true
      local blob = prefix .. 'chunk:' .. part[1]
      if not part[4] then
        if redis.call('EXISTS', blob) == 0 then missing[#missing + 1] = part[1] end
      else
        local page = redis.call('HMGET', blob, 'refs', 'd')
        if not page[2] then
          missing[#missing + 1] = part[1]
        elseif num(page[1]) == 0 then
          for _, below in ipairs(cjson.decode(page[2]).parts) do work[#work + 1] = below end
        end
      end
    end
  end
  return missing
end

-- Count one more (by 1) or one less (by -1) record on the seed at `key`. What comes to be held loses its
-- expiry, what nothing holds any more gets it back, and both go on to what it lists.
local function seed_count(prefix, key, by, expiry_ms)
  local work, at = {{key, true}}, 1
  while at <= #work do
    local blob, lists = work[at][1], work[at][2]
    at = at + 1
    -- A blob that is gone (somebody deleted it) is not made anew by counting.
    if redis.call('EXISTS', blob) == 1 then
      local refs = redis.call('HINCRBY', blob, 'refs', by)
      local turned = (by > 0 and refs == 1) or (by < 0 and refs == 0)
      if refs < 0 then redis.call('HSET', blob, 'refs', 0) end
      if turned then
        if by > 0 then redis.call('PERSIST', blob) else redis.call('PEXPIRE', blob, expiry_ms) end
        if lists then
          for _, part in ipairs(cjson.decode(redis.call('HGET', blob, 'd')).parts) do
            work[#work + 1] = {prefix .. 'chunk:' .. part[1], part[4] ~= nil}
          end
        end
      end
    end
  end
end
