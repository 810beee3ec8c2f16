-- Add up rows of a ledger, one sum for each cell. Changes nothing.
--
-- KEYS    counters: hashes from name to number, those of a cell one after the other
-- ARGV    how many of them make up each cell
--
-- Returns for each cell a list of name and sum, in turns.

local answer, key = {}, 1
for cell = 1, #ARGV do
  local sums = {}
  for _ = 1, tonumber(ARGV[cell]) do
    local row = redis.call('HGETALL', KEYS[key])
    for n = 1, #row, 2 do
      sums[row[n]] = (sums[row[n]] or 0) + tonumber(row[n + 1])
    end
    key = key + 1
  end
  local listed = {}
  for name, sum in pairs(sums) do
    listed[#listed + 1] = name
    listed[#listed + 1] = string.format('%.0f', sum)
  end
  answer[cell] = listed
end
return answer
