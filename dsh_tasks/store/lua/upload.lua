-- upload: manifests, pages or chunks by digest; each expires while nothing refers to it, and never after.
-- KEYS blob ..
-- ARGV expiry_ms then the data of each
-- returns how many were stored; what is referred to already stays as it is
local stored = 0
for i, key in ipairs(KEYS) do
  if num(redis.call('HGET', key, 'refs')) == 0 then
    redis.call('HSET', key, 'd', ARGV[i + 1], 'refs', 0)
    redis.call('PEXPIRE', key, ARGV[1])
    stored = stored + 1
  end
end
return stored
