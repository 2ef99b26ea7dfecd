-- hints: look at records, and put back what the hints about them lack: a lost one costs time, never a task. Keeps rule 1.
-- KEYS due leases stops endings deadlines
-- ARGV prefix then task id ..
-- derived: task:<id>; index, live of their owners
-- returns how many hints were missing
local prefix, now, lacking = ARGV[1], now_ms(), 0
local function want(key, score, id)
  lacking = lacking + redis.call('ZADD', key, 'NX', score, id)
end
for i = 2, #ARGV do
  local id = ARGV[i]
  local r = redis.call('HMGET', task_key(prefix, id), 'status', 'owner', 'created', 'not_before', 'lease_until',
    'stop_until', 'ended', 'deadline')
  local status, owner = r[1], r[2]
  if status and owner then
    want(prefix .. 'index:' .. owner, num(r[3]), id)
    if is_terminal(status) then
      want(KEYS[4], num(r[7]), id)
      lacking = lacking + redis.call('SREM', prefix .. 'live:' .. owner, id)
    else
      lacking = lacking + redis.call('SADD', prefix .. 'live:' .. owner, id)
      if status == 'queued' then want(KEYS[1], math.max(num(r[4]), now), id) end
      if status == 'running' or status == 'stopping' then want(KEYS[2], num(r[5]), id) end
      if status == 'stopping' then want(KEYS[3], num(r[6]), id) end
      if status ~= 'stopping' and num(r[8]) > 0 then want(KEYS[5], num(r[8]), id) end
    end
  end
end
return lacking
