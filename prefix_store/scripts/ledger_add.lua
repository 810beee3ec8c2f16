-- Add rows of a ledger: counters of one place in one stretch of time, and the place to the list of that stretch.
--
-- KEYS[2n-1] places of a stretch: set; expires
-- KEYS[2n]   counters of one place in it: hash from name to number; expires
-- ARGV       for each row: the place, milliseconds until both are forgotten, how many counters, then name and increment
--            in turns
--
-- Returns how many rows were added to.

local at = 1
for n = 1, #KEYS, 2 do
  local place, ttl, counters = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  at = at + 3
  redis.call('SADD', KEYS[n], place)
  redis.call('PEXPIRE', KEYS[n], ttl)
  for _ = 1, counters do
    redis.call('HINCRBY', KEYS[n + 1], ARGV[at], ARGV[at + 1])
    at = at + 2
  end
  redis.call('PEXPIRE', KEYS[n + 1], ttl)
end
return #KEYS / 2
