"""The Lua scripts of the directory: each is one step of Redis.

All keys have one hash tag, so all are on one node of a Redis Cluster, and a script may make the names of further keys.
Values of records are opaque here.
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
"""

ANNOUNCE: Final = (
    _COMMON
    + """
-- name, boot, record, ttl in ms, a digest of what others read the record for
local key, changed = prefix .. 'node:' .. ARGV[1], prefix .. 'changed'
local known = redis.call('HMGET', key, 'boot', 'lasting')
if known[1] and known[1] ~= ARGV[2] then
  return 0
end
redis.call('HSET', key, 'boot', ARGV[2], 'lasting', ARGV[5], 'record', ARGV[3])
redis.call('PEXPIRE', key, ARGV[4])
if known[2] ~= ARGV[5] or not redis.call('ZSCORE', changed, ARGV[1]) then
  local version = math.max((tonumber(redis.call('GET', prefix .. 'version')) or 0) + 1, micros())
  redis.call('SET', prefix .. 'version', whole(version))
  redis.call('ZADD', changed, whole(version), ARGV[1])
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
end
return 1
"""
)

NODES: Final = (
    _COMMON
    + """
-- version of the last read
local version, since = tonumber(redis.call('GET', prefix .. 'version')) or 0, tonumber(ARGV[1])
local found = {whole(version)}
if since == version then
  return found
end
if since > version then
  since = 0
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'changed', '(' .. whole(since), '+inf')) do
  local record = redis.call('HGET', prefix .. 'node:' .. name, 'record')
  if record then
    found[#found + 1] = name
    found[#found + 1] = record
  else
    redis.call('ZREM', prefix .. 'changed', name)
  end
end
return found
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

TOKENS_NUMBER: Final = (
    _COMMON
    + """
return redis.call('GET', prefix .. 'tokens-number') or '0'
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

CONFIRM_TOKENS: Final = (
    _COMMON
    + """
-- node, number
redis.call('HSET', prefix .. 'confirmed', ARGV[1], ARGV[2])
return 1
"""
)

CONFIRMATIONS: Final = (
    _COMMON
    + """
-- no arguments
return redis.call('HGETALL', prefix .. 'confirmed')
"""
)
