-- Read the policies, but only when the reader does not know them already.
--
-- KEYS[1]  meta: hash with epoch, revision, schema
-- KEYS[2]  policies: hash from a digest of the name to the record's JSON
-- ARGV[1]  the epoch that the reader knows, "" for none
-- ARGV[2]  the revision that the reader knows
--
-- Returns {epoch, revision, schema} where both are what the reader knows, else {epoch, revision, schema, records}.
-- A server that holds nothing answers with the epoch "", the revision "0" and the schema "0".

local meta = redis.call('HMGET', KEYS[1], 'epoch', 'revision', 'schema')
local epoch, revision, schema = meta[1] or '', meta[2] or '0', meta[3] or '0'
if epoch == ARGV[1] and revision == ARGV[2] then
  return {epoch, revision, schema}
end
return {epoch, revision, schema, redis.call('HVALS', KEYS[2])}
