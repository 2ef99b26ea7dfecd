-- speak: one process takes, keeps or gives up the owner lease of a session.
-- KEYS speaker
-- ARGV token lease_ms (0 gives it up)
-- returns {"speaks"} | {"silent"} | {"taken", for_ms}
local speaker = redis.call('GET', KEYS[1])
if num(ARGV[2]) == 0 then
  if speaker == ARGV[1] then redis.call('DEL', KEYS[1]) end
  return {'silent'}
end
if speaker and speaker ~= ARGV[1] then return {'taken', redis.call('PTTL', KEYS[1])} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {'speaks'}
