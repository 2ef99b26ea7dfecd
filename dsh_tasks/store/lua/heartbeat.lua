-- heartbeat: an attempt says that it lives; late ones count until a reaper has acted. Keeps rule 3.
-- KEYS task leases
-- ARGV id attempt token lease_ms activity
-- returns {"ok", lease_until} | {"stop", lease_until} | {"fenced", status}
local r = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'token')
local status = r[1] or 'missing'
local mine = num(r[2]) == num(ARGV[2]) and r[3] == ARGV[3]
if not mine or (status ~= 'running' and status ~= 'stopping') then return {'fenced', status} end
local lease_until = now_ms() + num(ARGV[4])
redis.call('HSET', KEYS[1], 'lease_until', lease_until, 'activity', ARGV[5])
redis.call('ZADD', KEYS[2], lease_until, ARGV[1])
if status == 'stopping' then return {'stop', lease_until} end
return {'ok', lease_until}
