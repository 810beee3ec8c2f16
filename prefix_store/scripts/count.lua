-- Add to the counters of one space and let the whole space live on from now, by this server's clock.
--
-- KEYS[1]  counters: hash from name to number; expires
-- ARGV[1]  milliseconds until the space is forgotten, unless something is added before
-- ARGV[2…] name and increment, in turns
--
-- Returns how many counters were added to.

for i = 2, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return (#ARGV - 1) / 2
