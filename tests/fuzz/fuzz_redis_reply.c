/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as Redis replies, parsed as values, or as rows if the second byte says so. They are
 * parsed in parts, and the first byte selects their size. The result must be the same for any size.
 * The replies are also parsed as slot map and as redirection.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "backends/redis/client/client.h"
#include "backends/redis/client/slots.h"
#include "base/assert.h"
#include "base/hash.h"

enum { ROWS = 3, ROW_BYTES = 4, VALUES_MAX = 64, TEXT_MAX = 1024, READER_MAX = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void tell(void *ctx, uint16_t first, uint16_t last, bool master, const struct hps_addr *addr)
{
    HPS_ASSERT(first <= last && last < HPS_REDIS_SLOTS && addr->port > 0);
    *(uint64_t *)ctx += master;
}

/* Adds one reply to the digest, and parses it as slot map and redirection. */
static uint64_t fold(uint64_t digest, const struct hps_redis_reply *reply, const uint8_t *rows)
{
    const struct hps_redis_values *values = reply->values;
    struct hps_addr asked = {.port = 7000, .host = "::1"};
    struct hps_redis_redirect redirect;
    uint64_t n_masters = 0;

    digest = hps_hash_bytes(reply->error, strlen(reply->error), digest + (uint64_t)reply->status);
    for (uint32_t i = 0; i < values->n; i++) {
        const char *text = hps_redis_values_text(values, i);
        int64_t number = 0;
        uint64_t positive = 0;
        (void)hps_redis_values_i64(values, i, &number);
        (void)hps_redis_values_u64(values, i, &positive);
        HPS_ASSERT(hps_redis_values_next(values, i) > i);
        HPS_ASSERT(strlen(text) <= values->items[i].size ||
                   values->items[i].type == HPS_REDIS_INT ||
                   values->items[i].type == HPS_REDIS_NIL);
        digest = hps_hash_bytes(text, strlen(text), digest + values->items[i].type) +
                 (uint64_t)number + positive;
    }
    if (reply->rows) {
        HPS_ASSERT(reply->rows->n_found + reply->rows->n_misfit <= ROWS);
        digest = hps_hash_bytes(reply->rows->found, ROWS, digest);
        digest = hps_hash_bytes(rows, sizeof(uint8_t[ROWS * ROW_BYTES]), digest);
    }
    if (hps_redis_slots_read(values, &asked, tell, &n_masters, NULL) == HPS_OK) {
        digest += n_masters;
    }
    digest += hps_redis_redirect_read(reply->error, &asked, &redirect) ? redirect.slot : 0;
    return digest;
}

static uint64_t decode(const uint8_t *data, size_t size, size_t chunk, bool as_rows,
                       uint32_t n_lead)
{
    struct hps_redis_reader *reader = hps_redis_reader_new(READER_MAX);
    struct hps_redis_values values;
    uint8_t bytes[ROWS * ROW_BYTES] = {0};
    uint8_t found[ROWS] = {0};
    struct hps_redis_rows rows = {
        .n_lead = n_lead, .n = ROWS, .row_bytes = ROW_BYTES, .rows = bytes, .found = found};
    struct hps_redis_reply reply = {.values = &values, .rows = as_rows ? &rows : NULL};
    uint64_t digest = 0;
    size_t at = 0;
    hps_status status = HPS_OK;

    HPS_ASSERT(reader);
    hps_redis_values_init(&values, VALUES_MAX, TEXT_MAX);
    while ((status == HPS_OK || status == HPS_AGAIN) && at < size) {
        size_t n = chunk < size - at ? chunk : size - at;
        status = hps_redis_reader_feed(reader, data + at, n);
        at += n;
        while (status == HPS_OK) {
            status = hps_redis_reader_next(reader, &reply, NULL);
            digest = status == HPS_OK ? fold(digest, &reply, bytes) : digest;
        }
    }
    hps_redis_values_fini(&values);
    hps_redis_reader_free(reader);
    return digest ^ (uint64_t)(unsigned)(-status) << 32;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > READER_MAX / 2) {
        return 0;
    }
    size_t chunk = (size_t)data[0] + 1;
    bool as_rows = data[1] & 1;
    uint32_t n_lead = data[1] >> 1 & 1;
    uint64_t whole = decode(data + 2, size - 2, size, as_rows, n_lead);
    HPS_ASSERT(decode(data + 2, size - 2, chunk, as_rows, n_lead) == whole);
    HPS_ASSERT(decode(data + 2, size - 2, 1, as_rows, n_lead) == whole);
    return 0;
}
