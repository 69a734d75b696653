"""The Lua scripts of the directory: each is one step of Redis, and refuses what the epochs forbid.

All keys have one hash tag, so all are on one node of a Redis Cluster, and a script may make the names of further keys.
Values of records are opaque here; the epoch of a session and the node that has it are fields of their own.
"""

from typing import Final

PREFIX: Final = "{acp}:"
"""Begins all keys. The braces make it the hash tag of Redis Cluster."""

CHANNEL: Final = f"{PREFIX}changes"
"""The channel of changes."""

_COMMON: Final = """
local prefix = '{acp}:'
local function tell(kind, name, node)
  redis.call('PUBLISH', prefix .. 'changes', cjson.encode({kind, name, node}))
end
local function micros()
  local now = redis.call('TIME')
  return now[1] * 1000000 + now[2]
end
local function whole(number)
  return string.format('%.0f', number)
end
local function held(key)
  local found = redis.call('HMGET', prefix .. 'session:' .. key, 'epoch', 'node')
  return tonumber(found[1]) or 0, found[2] or ''
end
local function hold(key, epoch, node, before, record, retention)
  if before ~= '' and before ~= node then
    redis.call('ZREM', prefix .. 'sessions:' .. before, key)
  end
  redis.call('HSET', prefix .. 'session:' .. key, 'epoch', whole(epoch), 'node', node, 'record', record)
  redis.call('PEXPIRE', prefix .. 'session:' .. key, retention)
  redis.call('ZADD', prefix .. 'sessions:' .. node, micros(), key)
  redis.call('PEXPIRE', prefix .. 'sessions:' .. node, retention)
  redis.call('PEXPIRE', prefix .. 'journal:' .. key, retention)
  redis.call('PEXPIRE', prefix .. 'mirror:' .. key, retention)
end
"""

ANNOUNCE: Final = (
    _COMMON
    + """
-- name, boot, record, ttl in ms
local key = prefix .. 'node:' .. ARGV[1]
local boot = redis.call('HGET', key, 'boot')
if boot and boot ~= ARGV[2] then
  return 0
end
redis.call('HSET', key, 'boot', ARGV[2], 'record', ARGV[3])
redis.call('PEXPIRE', key, ARGV[4])
redis.call('HSET', prefix .. 'known', ARGV[1], ARGV[3])
redis.call('ZADD', prefix .. 'seen', micros(), ARGV[1])
if not boot then
  tell('node', ARGV[1], ARGV[1])
end
return 1
"""
)

WITHDRAW: Final = (
    _COMMON
    + """
-- name, boot
local key = prefix .. 'node:' .. ARGV[1]
if redis.call('HGET', key, 'boot') == ARGV[2] then
  redis.call('DEL', key)
  tell('node', ARGV[1], ARGV[1])
end
return 1
"""
)

NODES: Final = (
    _COMMON
    + """
-- 1 for those that are there, 0 for the others; retention in ms
local old = redis.call('ZRANGEBYSCORE', prefix .. 'seen', 0, micros() - ARGV[2] * 1000)
for _, name in ipairs(old) do
  if redis.call('EXISTS', prefix .. 'node:' .. name) == 0 then
    redis.call('ZREM', prefix .. 'seen', name)
    redis.call('HDEL', prefix .. 'known', name)
  end
end
local found = {}
local known = redis.call('HGETALL', prefix .. 'known')
for index = 1, #known, 2 do
  if redis.call('EXISTS', prefix .. 'node:' .. known[index]) == tonumber(ARGV[1]) then
    found[#found + 1] = known[index]
    found[#found + 1] = known[index + 1]
  end
end
return found
"""
)

ERA: Final = (
    _COMMON
    + """
-- proposal
redis.call('SETNX', prefix .. 'era', ARGV[1])
return redis.call('GET', prefix .. 'era')
"""
)

CLAIM: Final = (
    _COMMON
    + """
-- key, node, record, retention in ms, adopt, known epoch
local key, node = ARGV[1], ARGV[2]
local epoch, before = held(key)
if before ~= '' and before ~= node and ARGV[5] == '0' then
  return {0, whole(epoch), before}
end
if ARGV[6] ~= '0' and epoch > tonumber(ARGV[6]) then
  return {0, whole(epoch), before}
end
epoch = math.max(epoch + 1, micros())
hold(key, epoch, node, before, ARGV[3], ARGV[4])
if before ~= '' and before ~= node then
  tell('adopt', key, node)
end
return {1, whole(epoch), node}
"""
)

WRITE: Final = (
    _COMMON
    + """
-- key, node, record, retention in ms, epoch
local key, node, own = ARGV[1], ARGV[2], tonumber(ARGV[5])
local epoch, before = held(key)
local taken = before ~= '' and before ~= node
if taken and epoch >= own then
  return {0, whole(epoch), before}
end
own = math.max(own, epoch)
hold(key, own, node, before, ARGV[3], ARGV[4])
if taken then
  tell('adopt', key, node)
end
return {1, whole(own), node}
"""
)

REMOVE: Final = (
    _COMMON
    + """
-- key, node, epoch
local key = ARGV[1]
local epoch, before = held(key)
if before == ARGV[2] and epoch == tonumber(ARGV[3]) then
  redis.call('DEL', prefix .. 'session:' .. key, prefix .. 'journal:' .. key, prefix .. 'mirror:' .. key)
  redis.call('ZREM', prefix .. 'sessions:' .. before, key)
end
return 1
"""
)

SESSIONS: Final = (
    _COMMON
    + """
-- node, most
local found = {}
local index = prefix .. 'sessions:' .. ARGV[1]
for _, key in ipairs(redis.call('ZREVRANGE', index, 0, ARGV[2] - 1)) do
  local entry = redis.call('HMGET', prefix .. 'session:' .. key, 'epoch', 'node', 'record')
  if entry[2] == ARGV[1] then
    found[#found + 1] = {key, entry[1], entry[2], entry[3]}
  else
    redis.call('ZREM', index, key)
  end
end
return found
"""
)

SESSION: Final = (
    _COMMON
    + """
-- key
local entry = redis.call('HMGET', prefix .. 'session:' .. ARGV[1], 'epoch', 'node', 'record')
if not entry[3] then
  return {}
end
return {ARGV[1], entry[1], entry[2], entry[3]}
"""
)

APPEND: Final = (
    _COMMON
    + """
-- key, node, epoch, journal, first, continues, limit in bytes, retention in ms, messages
local key, journal, first = ARGV[1], ARGV[4], tonumber(ARGV[5])
local epoch, before = held(key)
if before ~= ARGV[2] or epoch ~= tonumber(ARGV[3]) then
  return {0, whole(epoch), before}
end
local list, mirror = prefix .. 'journal:' .. key, prefix .. 'mirror:' .. key
local known = redis.call('HMGET', mirror, 'journal', 'first', 'next', 'size')
local start, next, size = tonumber(known[2]), tonumber(known[3]), tonumber(known[4])
-- Either of the two keys may have been evicted.
if known[1] ~= journal or first > next or redis.call('LLEN', list) ~= next - start then
  if ARGV[6] == '1' then
    return {0, whole(epoch), before}
  end
  redis.call('DEL', list, mirror)
  start, next, size = first, first, 0
end
for index = 9 + next - first, #ARGV do
  redis.call('RPUSH', list, ARGV[index])
  next, size = next + 1, size + #ARGV[index]
end
while size > tonumber(ARGV[7]) do
  size, start = size - #redis.call('LPOP', list), start + 1
end
redis.call('HSET', mirror, 'journal', journal, 'first', whole(start), 'next', whole(next), 'size', whole(size),
  'as_of', whole(math.floor(micros() / 1000)))
redis.call('PEXPIRE', list, ARGV[8])
redis.call('PEXPIRE', mirror, ARGV[8])
return {1, whole(epoch), before}
"""
)

JOURNAL: Final = (
    _COMMON
    + """
-- key
local mirror = redis.call('HMGET', prefix .. 'mirror:' .. ARGV[1], 'journal', 'first', 'as_of')
if not mirror[1] then
  return {}
end
return {mirror[1], mirror[2], mirror[3], redis.call('LRANGE', prefix .. 'journal:' .. ARGV[1], 0, -1)}
"""
)

MIRRORED: Final = (
    _COMMON
    + """
-- key
return redis.call('EXISTS', prefix .. 'mirror:' .. ARGV[1])
"""
)

_CHANGED: Final = """
local function changed()
  local last = tonumber(redis.call('GET', prefix .. 'tokens-number') or 0)
  redis.call('SET', prefix .. 'tokens-number', whole(math.max(last + 1, micros())))
  tell('tokens', '', ARGV[1])
end
"""

TOKENS: Final = (
    _COMMON
    + """
return {redis.call('GET', prefix .. 'tokens-number') or '0', redis.call('HGETALL', prefix .. 'tokens'),
  redis.call('ZRANGE', prefix .. 'revoked', 0, -1)}
"""
)

PUT_TOKEN: Final = (
    _COMMON
    + _CHANGED
    + """
-- node, id, entry, its revocation
if redis.call('ZSCORE', prefix .. 'revoked', ARGV[4]) then
  return 0
end
redis.call('HSET', prefix .. 'tokens', ARGV[2], ARGV[3])
changed()
return 1
"""
)

REVOKE_TOKEN: Final = (
    _COMMON
    + _CHANGED
    + """
-- node, id, its revocation, most
redis.call('HDEL', prefix .. 'tokens', ARGV[2])
if redis.call('ZADD', prefix .. 'revoked', 'NX', micros(), ARGV[3]) == 0 then
  return 0
end
redis.call('ZREMRANGEBYRANK', prefix .. 'revoked', 0, -1 - ARGV[4])
changed()
return 1
"""
)
