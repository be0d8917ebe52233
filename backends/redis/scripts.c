/* SPDX-License-Identifier: Apache-2.0
 *
 * The scripts and their hashes: see scripts.h. KEYS[1] is the shard that a script changes. Its
 * fields are rows by 12 bytes of table and key, 'p', the positions up to which the log is applied,
 * and 'g', a digest of them. KEYS[2] is the use of the rows, where the eviction policy needs it.
 */
#include "backends/redis/scripts.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backends/redis/client/codec.h"
#include "base/assert.h"

// clang-format off
/* Apply a part of the log to a shard.
 *
 * args   spans of 32 bytes (partition, where the version began there or -1 if unknown, first, next;
 *        the last three i64 BE); the digest that the caller knows; for each span the numbers of
 *        rows and deletes, the rows (field, value) and the deletes (field)
 * reply  {0: it had all, 1: applied, 2: missing or behind a span, nothing was done; digest;
 *        positions, or 0 if the digest is the known one; rows of the shard}
 *
 * A shard at or beyond the end of a span skips the span. A shard before the start of any span
 * refuses the call. */
#define APPLY_TEXT \
    "local p, g = unpack(redis.call('HMGET', KEYS[1], 'p', 'g'))\n" \
    "if not p then return {2, '', '', 0} end\n" \
    "local spans, num = ARGV[1], struct.unpack\n" \
    "local index = #spans > 256 and {} or nil\n" \
    "for i = 1, index and #p or 0, 16 do index[p:sub(i, i + 7)] = i end\n" \
    "local function find(id)\n" \
    "  if index then return index[id] end\n" \
    "  local n = 0\n" \
    "  repeat n = p:find(id, n + 1, true) until not n or n % 16 == 1\n" \
    "  return n\n" \
    "end\n" \
    "local todo, moved = {}, {}\n" \
    "for i = 1, #spans, 32 do\n" \
    "  local id, offset = spans:sub(i, i + 7), spans:sub(i + 8, i + 15)\n" \
    "  local first, next = spans:sub(i + 16, i + 23), spans:sub(i + 24, i + 31)\n" \
    "  local n = find(id)\n" \
    "  if n then offset = p:sub(n + 8, n + 15) end\n" \
    "  local at = num('>i8', offset)\n" \
    "  if at < 0 or at < num('>i8', first) then return {2, g, p, 0} end\n" \
    "  local later = at < num('>i8', next)\n" \
    "  todo[#todo + 1] = later\n" \
    "  if later or not n then moved[id] = later and next or offset end\n" \
    "end\n" \
    "if spans == '' then todo[1] = true end\n" \
    "local a, done = 3, spans == ''\n" \
    "for t = 1, #todo do\n" \
    "  local puts, dels = tonumber(ARGV[a]), tonumber(ARGV[a + 1])\n" \
    "  a = a + 2\n" \
    "  if todo[t] then\n" \
    "    done = true\n" \
    "    for i = a, a + 2 * puts - 1, 1000 do\n" \
    "      redis.call('HSET', KEYS[1], unpack(ARGV, i, math.min(i + 999, a + 2 * puts - 1)))\n" \
    "    end\n" \
    "    for i = a + 2 * puts, a + 2 * puts + dels - 1, 1000 do\n" \
    "      local last = math.min(i + 999, a + 2 * puts + dels - 1)\n" \
    "      redis.call('HDEL', KEYS[1], unpack(ARGV, i, last))\n" \
    "      if KEYS[2] then redis.call('HDEL', KEYS[2], unpack(ARGV, i, last)) end\n" \
    "    end\n" \
    "  end\n" \
    "  a = a + 2 * puts + dels\n" \
    "end\n" \
    "local known = g == ARGV[2]\n" \
    "if next(moved) then\n" \
    "  local parts = {}\n" \
    "  for i = 1, index and #p or 0, 16 do\n" \
    "    local id = p:sub(i, i + 7)\n" \
    "    parts[#parts + 1] = id .. (moved[id] or p:sub(i + 8, i + 15))\n" \
    "  end\n" \
    "  if index then p = table.concat(parts) end\n" \
    "  for i = 1, #spans, 32 do\n" \
    "    local id = spans:sub(i, i + 7)\n" \
    "    local n = find(id) or #p + 1\n" \
    "    if moved[id] and (not index or n > #p) then\n" \
    "      p = p:sub(1, n - 1) .. id .. moved[id] .. p:sub(n + 16)\n" \
    "    end\n" \
    "  end\n" \
    "  g = redis.sha1hex(p):sub(1, 20)\n" \
    "  redis.call('HSET', KEYS[1], 'p', p, 'g', g)\n" \
    "end\n" \
    "return {done and 1 or 0, g, known and 0 or p, redis.call('HLEN', KEYS[1]) - 2}\n"

/* Insert rows that the shard lacks. args: the digest at which they are correct; rows (field,
 * value). reply: {rows inserted, or -1 if the digest differs; rows of the shard} */
#define INSERT_TEXT \
    "local g = redis.call('HGET', KEYS[1], 'g') or ''\n" \
    "if g ~= ARGV[1] then return {-1, 0} end\n" \
    "local n = 0\n" \
    "for i = 2, #ARGV, 2 do n = n + redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end\n" \
    "return {n, redis.call('HLEN', KEYS[1]) - 2}\n"

/* Empty a shard. args: the digest that it must have, "" if it must be missing; positions. It gets
 * the later of both positions in each partition. reply: {1: emptied, 0: the digest differs; digest;
 * positions} */
#define RESET_TEXT \
    "local p, g = unpack(redis.call('HMGET', KEYS[1], 'p', 'g'))\n" \
    "if (g or '') ~= ARGV[1] then return {0, g or '', p or ''} end\n" \
    "local num = struct.unpack\n" \
    "local at, ids, offsets = {}, {}, {}\n" \
    "for _, from in ipairs({p or '', ARGV[2]}) do\n" \
    "  for i = 1, #from, 16 do\n" \
    "    local id, o = from:sub(i, i + 7), from:sub(i + 8, i + 15)\n" \
    "    local n = at[id] or #ids + 1\n" \
    "    if n > #ids or num('>i8', offsets[n]) < num('>i8', o) then offsets[n] = o end\n" \
    "    at[id], ids[n] = n, id\n" \
    "  end\n" \
    "end\n" \
    "for i = 1, #ids do ids[i] = ids[i] .. offsets[i] end\n" \
    "p = table.concat(ids)\n" \
    "g = redis.sha1hex(p):sub(1, 20)\n" \
    "redis.call('UNLINK', unpack(KEYS))\n" \
    "redis.call('HSET', KEYS[1], 'p', p, 'g', g)\n" \
    "return {1, g, p}\n"

/* Make the loaded rows in KEYS[2] the shard. args: their positions; the number of fields that may
 * be replaced; the number of rows. reply: 1: done, 0: the shard has more fields, -1: KEYS[2] has
 * another number of rows */
#define COMMIT_TEXT \
    "if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[2]) then return 0 end\n" \
    "if redis.call('HLEN', KEYS[2]) ~= tonumber(ARGV[3]) then return -1 end\n" \
    "redis.call('UNLINK', KEYS[1])\n" \
    "redis.call('HSET', KEYS[2], 'p', ARGV[1], 'g', redis.sha1hex(ARGV[1]):sub(1, 20))\n" \
    "redis.call('RENAME', KEYS[2], KEYS[1])\n" \
    "return 1\n"

/* Evict rows. args: rows that may stay; most rows to evict; "random", "used" or "oldest". reply:
 * {rows evicted; rows still in excess} */
#define EVICT_TEXT \
    "local over = redis.call('HLEN', KEYS[1]) - 2 - tonumber(ARGV[1])\n" \
    "local most = math.min(over, tonumber(ARGV[2]))\n" \
    "if most <= 0 then return {0, 0} end\n" \
    "local picked = redis.call('HRANDFIELD', KEYS[1], KEYS[2] and most * 4 or most + 2)\n" \
    "local fields = {}\n" \
    "for _, f in ipairs(picked) do\n" \
    "  if #f == 12 then fields[#fields + 1] = f end\n" \
    "end\n" \
    "if KEYS[2] then\n" \
    "  local uses = redis.call('HMGET', KEYS[2], unpack(fields))\n" \
    "  local by = {}\n" \
    "  for i, f in ipairs(fields) do by[f] = tonumber(uses[i] or 0) end\n" \
    "  table.sort(fields, function(a, b) return by[a] < by[b] end)\n" \
    "  if ARGV[3] == 'used' then\n" \
    "    local kept = {}\n" \
    "    for i = most + 1, #fields do\n" \
    "      local half = math.floor(by[fields[i]] / 2)\n" \
    "      if half > 0 then\n" \
    "        kept[#kept + 1] = fields[i]\n" \
    "        kept[#kept + 1] = half\n" \
    "      end\n" \
    "    end\n" \
    "    if #kept > 0 then redis.call('HSET', KEYS[2], unpack(kept)) end\n" \
    "  end\n" \
    "end\n" \
    "for i = #fields, most + 1, -1 do fields[i] = nil end\n" \
    "if #fields == 0 then return {0, over} end\n" \
    "local n = redis.call('HDEL', KEYS[1], unpack(fields))\n" \
    "if KEYS[2] then redis.call('HDEL', KEYS[2], unpack(fields)) end\n" \
    "return {n, over - n}\n"

/* Note the use of rows. args: "used" or "oldest"; fields. reply: 0 */
#define TOUCH_TEXT \
    "local time = redis.call('TIME')\n" \
    "for i = 2, #ARGV do\n" \
    "  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then\n" \
    "    if ARGV[1] == 'used' then\n" \
    "      redis.call('HINCRBY', KEYS[2], ARGV[i], 1)\n" \
    "    else\n" \
    "      redis.call('HSET', KEYS[2], ARGV[i], time[1] * 1000 + math.floor(time[2] / 1000))\n" \
    "    end\n" \
    "  end\n" \
    "end\n" \
    "return 0\n"

/* Change a lease. KEYS[1]: the leases. args: daemon; ms; "take", "leave", or "drop", which reserves
 * the deletion of the rows for this time if no other daemon has a lease. reply: the number of
 * daemons with a lease; for "take" -1 while another daemon deletes the rows */
#define LEASE_TEXT \
    "local time = redis.call('TIME')\n" \
    "local now, ttl = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])\n" \
    "local me, mark, take = ARGV[1], '-' .. ARGV[1], ARGV[3] == 'take'\n" \
    "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)\n" \
    "redis.call('ZREM', KEYS[1], mark)\n" \
    "if not take then redis.call('ZREM', KEYS[1], me) end\n" \
    "local n, drops = 0, 0\n" \
    "for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do\n" \
    "  if name:sub(1, 1) == '-' then drops = drops + 1\n" \
    "  elseif name ~= me then n = n + 1 end\n" \
    "end\n" \
    "if take and drops > 0 then return -1 end\n" \
    "if take or (ARGV[3] == 'drop' and n == 0) then\n" \
    "  redis.call('ZADD', KEYS[1], now + ttl, take and me or mark)\n" \
    "  redis.call('PEXPIRE', KEYS[1], 2 * ttl)\n" \
    "end\n" \
    "return take and n + 1 or n\n"
// clang-format on

static const char *const texts[HPS_REDIS_SCRIPTS] = {
    [HPS_REDIS_APPLY] = APPLY_TEXT,   [HPS_REDIS_SHRINK] = "#!lua flags=allow-oom\n" APPLY_TEXT,
    [HPS_REDIS_INSERT] = INSERT_TEXT, [HPS_REDIS_RESET] = RESET_TEXT,
    [HPS_REDIS_COMMIT] = COMMIT_TEXT, [HPS_REDIS_EVICT] = EVICT_TEXT,
    [HPS_REDIS_TOUCH] = TOUCH_TEXT,   [HPS_REDIS_LEASE] = LEASE_TEXT,
};

/* ---- SHA-1 (FIPS 180-4), because that is how Redis names a script ---------------------------- */

static uint32_t rotated(uint32_t x, unsigned n)
{
    return (x << n) | (x >> (32 - n));
}

static void sha1_block(uint32_t state[5], const uint8_t *block)
{
    uint32_t w[80];
    uint32_t a = state[0];
    uint32_t b = state[1];
    uint32_t c = state[2];
    uint32_t d = state[3];
    uint32_t e = state[4];
    for (unsigned i = 0; i < 80; i++) {
        if (i < 16) {
            memcpy(&w[i], block + (size_t)i * 4, 4);
            w[i] = __builtin_bswap32(w[i]);
        } else {
            w[i] = rotated(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
        }
        uint32_t f = i < 20   ? ((b & c) | (~b & d)) + 0x5A827999U
                     : i < 40 ? (b ^ c ^ d) + 0x6ED9EBA1U
                     : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8F1BBCDCU
                              : (b ^ c ^ d) + 0xCA62C1D6U;
        uint32_t next = rotated(a, 5) + f + e + w[i];
        e = d;
        d = c;
        c = rotated(b, 30);
        b = a;
        a = next;
    }
    const uint32_t added[5] = {a, b, c, d, e};
    for (unsigned i = 0; i < 5; i++) {
        state[i] += added[i];
    }
}

static void sha1_hex(const char *text, char out_hex[HPS_REDIS_SHA_BYTES + 1])
{
    uint32_t state[5] = {0x67452301U, 0xEFCDAB89U, 0x98BADCFEU, 0x10325476U, 0xC3D2E1F0U};
    size_t size = strlen(text);
    size_t left = size;
    for (; left >= 64; left -= 64, text += 64) {
        sha1_block(state, (const uint8_t *)text);
    }
    uint8_t tail[128] = {0};
    size_t tail_size = left < 56 ? 64 : 128;
    uint64_t bits = __builtin_bswap64((uint64_t)size * 8);
    memcpy(tail, text, left);
    tail[left] = 0x80;
    memcpy(tail + tail_size - 8, &bits, sizeof(bits));
    for (size_t at = 0; at < tail_size; at += 64) {
        sha1_block(state, tail + at);
    }
    for (unsigned i = 0; i < 5; i++) {
        (void)snprintf(out_hex + (size_t)i * 8, 9, "%08x", state[i]);
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

static char hashes[HPS_REDIS_SCRIPTS][HPS_REDIS_SHA_BYTES + 1];
static pthread_once_t hashed = PTHREAD_ONCE_INIT;

static void hash_all(void)
{
    for (unsigned i = 0; i < HPS_REDIS_SCRIPTS; i++) {
        sha1_hex(texts[i], hashes[i]);
    }
}

const char *hps_redis_script_text(enum hps_redis_script script)
{
    HPS_ASSERT(script < HPS_REDIS_SCRIPTS);
    return texts[script];
}

const char *hps_redis_script_sha(enum hps_redis_script script)
{
    HPS_ASSERT(script < HPS_REDIS_SCRIPTS);
    int failed = pthread_once(&hashed, hash_all);
    HPS_ASSERT(failed == 0);
    return hashes[script];
}

hps_status hps_redis_script_begin(struct hps_buf *buf, enum hps_redis_script script,
                                  const struct hps_redis_name *keys, uint32_t n_keys,
                                  uint32_t n_args)
{
    hps_status status = hps_redis_put_begin(buf, 3 + n_keys + n_args);
    status = status == HPS_OK ? hps_redis_put_text(buf, "EVALSHA") : status;
    status = status == HPS_OK
                 ? hps_redis_put_arg(buf, hps_redis_script_sha(script), HPS_REDIS_SHA_BYTES)
                 : status;
    status = status == HPS_OK ? hps_redis_put_u64(buf, n_keys) : status;
    for (uint32_t i = 0; i < n_keys && status == HPS_OK; i++) {
        status = hps_redis_put_arg(buf, keys[i].text, keys[i].size);
    }
    return status;
}

hps_status hps_redis_script_load(struct hps_buf *buf, enum hps_redis_script script)
{
    const char *const args[3] = {"SCRIPT", "LOAD", hps_redis_script_text(script)};
    return hps_redis_put_command(buf, 3, args);
}
