-- take: the notices that an owner has not acknowledged and that nothing holds back, oldest first.
-- KEYS inbox holds speaker
-- ARGV token lease_ms most
--   token '' only looks. With a token the caller speaks for the session: it takes or renews the owner lease.
-- returns {"notices", now, entry, field count, field, value .., ..} | {"taken", for_ms}
local token = ARGV[1]
local now = now_ms()
if token ~= '' then
  local speaker = redis.call('GET', KEYS[3])
  if speaker and speaker ~= token then return {'taken', redis.call('PTTL', KEYS[3])} end
  redis.call('SET', KEYS[3], token, 'PX', ARGV[2])
end
local answer = {'notices', now}
local count, after = 0, '-'
while count < num(ARGV[3]) do
  local page = redis.call('XRANGE', KEYS[1], after, '+', 'COUNT', 200)
  if #page == 0 then break end
  for _, entry in ipairs(page) do
    local task = ''
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'task' then task = entry[2][i + 1] end
    end
    if num(redis.call('HGET', KEYS[2], task)) <= now and count < num(ARGV[3]) then
      count = count + 1
      answer[#answer + 1] = entry[1]
      answer[#answer + 1] = #entry[2]
      for _, value in ipairs(entry[2]) do answer[#answer + 1] = value end
    end
  end
  after = '(' .. page[#page][1]
end
return answer
