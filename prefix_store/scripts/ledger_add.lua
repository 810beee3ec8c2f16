-- Add rows of a ledger: counters of one place to each of the stretches of time around a minute, and the place to the list
-- of each.
--
-- KEYS[2n-1] places of a stretch: set; expires
-- KEYS[2n]   counters of one place in it: hash from name to number; expires
-- ARGV       for each row: in how many stretches it lies, the place, how many counters; for each stretch milliseconds
--            until its keys are forgotten; then name and increment in turns
--
-- Returns how many stretches were added to.

local at, key = 1, 1
while at <= #ARGV do
  local stretches, place, counters = tonumber(ARGV[at]), ARGV[at + 1], tonumber(ARGV[at + 2])
  local first = at + 3 + stretches
  for n = 0, stretches - 1 do
    redis.call('SADD', KEYS[key], place)
    redis.call('PEXPIRE', KEYS[key], ARGV[at + 3 + n])
    for c = first, first + 2 * counters - 2, 2 do
      redis.call('HINCRBY', KEYS[key + 1], ARGV[c], ARGV[c + 1])
    end
    redis.call('PEXPIRE', KEYS[key + 1], ARGV[at + 3 + n])
    key = key + 2
  end
  at = first + 2 * counters
end
return (key - 1) / 2
