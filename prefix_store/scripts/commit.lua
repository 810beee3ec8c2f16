-- Commit a change that was decided on one revision, or do nothing where another one stands by now.
--
-- KEYS[1]  meta: hash with epoch, revision, schema; never expires
-- KEYS[2]  policies: hash from a digest of the name to the record's JSON; never expires
-- KEYS[3]  audit: list of the lines' JSON, oldest first; never expires
-- ARGV[1]  the epoch that the change was decided on, "" for an empty server
-- ARGV[2]  the revision that it was decided on
-- ARGV[3]  the epoch to store; it differs from ARGV[1] on an empty server only
-- ARGV[4]  the revision to store, above ARGV[2]
-- ARGV[5]  the schema to store
-- ARGV[6]  the channel that tells the other gateways
-- ARGV[7]  the audit line's JSON
-- ARGV[8…] field and record's JSON, in turns
--
-- Returns 1 when committed, 0 when another revision stands.

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'revision')
if (meta[1] or '') ~= ARGV[1] or (meta[2] or '0') ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[3], 'revision', ARGV[4], 'schema', ARGV[5])
for i = 8, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
redis.call('RPUSH', KEYS[3], ARGV[7])
redis.call('PUBLISH', ARGV[6], ARGV[4])
return 1
