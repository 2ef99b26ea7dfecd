#!lua flags=allow-oom
-- ack: the owner has these endings in its log: their notices go. Asked again it changes nothing. Keeps rules 2, 3.
-- KEYS inbox holds speaker
-- ARGV prefix session token lease_ms fence_attempt fence_token then task id ..
--   token '' is a caller without an owner lease; it may acknowledge only while nobody holds one.
-- derived: task:<id>
-- returns {"acked", count} | {"taken", for_ms} | {"not_running", status}
local prefix, session, token = ARGV[1], ARGV[2], ARGV[3]
local speaker = redis.call('GET', KEYS[3])
if speaker and speaker ~= token then return {'taken', redis.call('PTTL', KEYS[3])} end
local holds, owner_status = fence_holds(prefix, session, ARGV[5], ARGV[6])
if not holds and not is_terminal(owner_status) then return {'not_running', owner_status} end
if token ~= '' then redis.call('SET', KEYS[3], token, 'PX', ARGV[4]) end
local count = 0
for i = 7, #ARGV do
  local key = task_key(prefix, ARGV[i])
  local r = redis.call('HMGET', key, 'owner', 'notice', 'notice_entry')
  if r[1] == session and r[2] == 'pending' then
    redis.call('XDEL', KEYS[1], r[3])
    redis.call('HDEL', KEYS[2], ARGV[i])
    redis.call('HSET', key, 'notice', 'acked')
    count = count + 1
  end
end
return {'acked', count}
