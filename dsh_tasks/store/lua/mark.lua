-- mark: the message of a queued task was published; it is due again only if it stays queued.
-- KEYS due
-- ARGV id after_ms
-- returns 1 | 0 (claimed or ended meanwhile)
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], now_ms() + num(ARGV[2]), ARGV[1])
return 1
