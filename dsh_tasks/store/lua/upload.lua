-- upload: a manifest or chunk by digest; it expires while no record refers to it, and never after.
-- KEYS blob
-- ARGV data expiry_ms
-- returns 1 (stored) | 0 (a record refers to it already)
if num(redis.call('HGET', KEYS[1], 'refs')) > 0 then return 0 end
redis.call('HSET', KEYS[1], 'd', ARGV[1], 'refs', 0)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
