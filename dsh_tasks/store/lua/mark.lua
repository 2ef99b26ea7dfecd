-- mark: the message of a queued task was published; it is due again only if it stays queued.
-- KEYS due
-- ARGV prefix id after_ms missed
--   missed 1: it was not published after all, and does not count.
-- derived: task:<id>
-- returns 1 | 0 (claimed or ended meanwhile)
if not redis.call('ZSCORE', KEYS[1], ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now_ms() + num(ARGV[3]), ARGV[2])
if ARGV[4] == '1' then redis.call('HINCRBY', task_key(ARGV[1], ARGV[2]), 'published', -1) end
return 1
