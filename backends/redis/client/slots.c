/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots of Redis Cluster, as in the "Redis cluster specification", section "Key distribution model"
 * and following. Thread-safe.
 */
#include "backends/redis/client/slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/redis/client/client.h"

/* CRC16-CCITT (XMODEM): polynomial 0x1021, from 0, four bits at a time. */
static uint16_t crc16(const uint8_t *data, size_t size)
{
    static const uint16_t nibbles[16] = {0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50A5,
                                         0x60C6, 0x70E7, 0x8108, 0x9129, 0xA14A, 0xB16B,
                                         0xC18C, 0xD1AD, 0xE1CE, 0xF1EF};
    unsigned crc = 0;
    for (size_t i = 0; i < size; i++) {
        crc = (crc << 4 & 0xFFFF) ^ nibbles[(crc >> 12 ^ data[i] >> 4) & 15];
        crc = (crc << 4 & 0xFFFF) ^ nibbles[(crc >> 12 ^ data[i]) & 15];
    }
    return (uint16_t)crc;
}

uint16_t hps_redis_slot(const void *key, size_t size)
{
    const uint8_t *bytes = key;
    const uint8_t *open = size > 0 ? memchr(bytes, '{', size) : NULL;
    if (open) {
        const uint8_t *tag = open + 1;
        size_t rest = size - (size_t)(tag - bytes);
        const uint8_t *close = rest > 0 ? memchr(tag, '}', rest) : NULL;
        if (close && close > tag) {
            bytes = tag;
            size = (size_t)(close - tag);
        }
    }
    return crc16(bytes, size) % HPS_REDIS_SLOTS;
}

/* "" and "?" mean the host of `asked`. */
static bool address_of(const char *host, size_t size, uint64_t port, const struct hps_addr *asked,
                       struct hps_addr *out_addr)
{
    struct hps_addr addr = {0};
    if (port == 0 || port > UINT16_MAX || size >= sizeof(addr.host)) {
        return false;
    }
    addr.port = (uint16_t)port;
    if (size == 0 || (size == 1 && host[0] == '?')) {
        if (asked->is_unix) {
            return false;
        }
        memcpy(addr.host, asked->host, sizeof(addr.host));
    } else {
        memcpy(addr.host, host, size);
        addr.host[size] = '\0';
    }
    *out_addr = addr;
    return true;
}

/* One node: [host, port, id, …]. */
static bool read_node(const struct hps_redis_values *values, uint32_t i,
                      const struct hps_addr *asked, struct hps_addr *out_addr)
{
    const struct hps_redis_value *node = &values->items[i];
    uint64_t port = 0;
    if (node->type != HPS_REDIS_ARRAY || node->size < 2 || i + 2 >= values->n) {
        return false;
    }
    const struct hps_redis_value *host = &values->items[i + 1];
    if ((host->type != HPS_REDIS_TEXT && host->type != HPS_REDIS_NIL) ||
        !hps_redis_values_u64(values, i + 2, &port)) {
        return false;
    }
    return address_of(hps_redis_values_text(values, i + 1), host->size, port, asked, out_addr);
}

/* One range: [first, last, master, replica…]. Without `fn`, only check it. */
static bool read_range(const struct hps_redis_values *values, uint32_t i,
                       const struct hps_addr *asked, hps_redis_slots_fn fn, void *ctx)
{
    const struct hps_redis_value *range = &values->items[i];
    uint64_t first = 0;
    uint64_t last = 0;
    if (range->type != HPS_REDIS_ARRAY || range->size < 3 || i + 3 >= values->n ||
        !hps_redis_values_u64(values, i + 1, &first) ||
        !hps_redis_values_u64(values, i + 2, &last) || first > last || last >= HPS_REDIS_SLOTS) {
        return false;
    }
    uint32_t node = i + 3;
    for (uint32_t k = 2; k < range->size && node < values->n; k++) {
        struct hps_addr addr;
        bool ok = read_node(values, node, asked, &addr);
        if (!ok && k == 2) {
            return false;
        }
        if (ok && fn) { /* replicas without an address are skipped */
            fn(ctx, (uint16_t)first, (uint16_t)last, k == 2, &addr);
        }
        node = hps_redis_values_next(values, node);
    }
    return true;
}

hps_status hps_redis_slots_read(const struct hps_redis_values *values, const struct hps_addr *asked,
                                hps_redis_slots_fn fn, void *ctx, struct hps_error *err)
{
    if (values->n == 0 || values->items[0].type != HPS_REDIS_ARRAY) {
        return hps_error_set(err, HPS_IO, "CLUSTER SLOTS: no array");
    }
    for (unsigned telling = 0; telling < 2; telling++) {
        uint32_t i = 1;
        for (uint32_t k = 0; k < values->items[0].size; k++) {
            if (i >= values->n || !read_range(values, i, asked, telling ? fn : NULL, ctx)) {
                return hps_error_set(err, HPS_IO, "CLUSTER SLOTS: entry %u is not a range of slots",
                                     (unsigned)k);
            }
            i = hps_redis_values_next(values, i);
        }
    }
    return HPS_OK;
}

bool hps_redis_redirect_read(const char *error, const struct hps_addr *asked,
                             struct hps_redis_redirect *out_redirect)
{
    struct hps_redis_redirect redirect = {.ask = strncmp(error, "ASK ", 4) == 0};
    if (!redirect.ask && strncmp(error, "MOVED ", 6) != 0) {
        return false;
    }
    const char *text = error + (redirect.ask ? 4 : 6);
    char *end;
    unsigned long slot = strtoul(text, &end, 10);
    const char *colon = strrchr(text, ':');
    if (end == text || *end != ' ' || slot >= HPS_REDIS_SLOTS || !colon || colon < end + 1) {
        return false;
    }
    const char *host = end + 1;
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (end == colon + 1 || *end != '\0') {
        return false;
    }
    redirect.slot = (uint16_t)slot;
    if (!address_of(host, (size_t)(colon - host), port, asked, &redirect.addr)) {
        return false;
    }
    *out_redirect = redirect;
    return true;
}
