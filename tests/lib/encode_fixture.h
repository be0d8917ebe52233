/* SPDX-License-Identifier: Apache-2.0
 *
 * A completed lookup to be encoded, and replies parsed by protobuf-c. Used by one thread.
 */
#ifndef HPS_TESTS_LIB_ENCODE_FIXTURE_H
#define HPS_TESTS_LIB_ENCODE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "hps/v1/lookup.pb-c.h"
#include "server/lookup/encode.h"
#include "tests/lib/lookup_fixture.h"

enum { ENCODE_KEYS_MAX = 80000, ENCODE_PARTS = 3 };

struct encode_test {
    struct fixture fx;
    struct hps_arena *arena;
    struct hps_block_pool *pool;
    struct hps_block *rows;
    hps_key keys[ENCODE_PARTS][ENCODE_KEYS_MAX];
    uint32_t offsets[ENCODE_KEYS_MAX + 1];
    uint32_t n_bags;
    struct hps_lookup_part parts[ENCODE_PARTS];
    struct hps_lookup lookup;
    struct hps_error err;
};

/* The request of each part. */
struct encode_ask {
    uint32_t n_parts;
    uint32_t n_keys;
    uint32_t key_space; /* keys are below this */
    bool pooled;        /* bags of 0 to 4 keys */
    bool concat;
};

static inline int encode_setup(void **state)
{
    struct encode_test *t = hps_calloc(1, sizeof(*t));

    assert_non_null(t);
    fixture_open(&t->fx, 0);
    t->arena = hps_arena_new(4096, 1 << 26);
    t->pool = hps_block_pool_new(1 << 20);
    assert_non_null(t->arena);
    assert_non_null(t->pool);
    *state = t;
    return 0;
}

static inline int encode_teardown(void **state)
{
    struct encode_test *t = *state;

    hps_lookup_release(&t->lookup);
    hps_block_unref(t->rows);
    assert_int_equal(hps_block_pool_bytes(t->pool), 0); /* every reference was released */
    hps_block_pool_free(t->pool);
    hps_arena_free(t->arena);
    fixture_close(&t->fx);
    hps_free(t);
    return 0;
}

/* All parts get the same bags. */
static inline void encode_make_bags(struct encode_test *t, uint32_t n_keys)
{
    t->n_bags = 0;
    while (t->offsets[t->n_bags] < n_keys) {
        uint32_t end = t->offsets[t->n_bags] + (t->n_bags * 7 + 2) % 5;
        t->offsets[++t->n_bags] = end < n_keys ? end : n_keys;
    }
}

/* Which of the keys below 300 exist: even keys in the host map, other multiples of 3 on disk. */
static inline bool encode_knows(hps_key key)
{
    return key < 300 && (key % 2 == 0 || key % 3 == 0);
}

static inline void encode_fill(struct encode_test *t, uint32_t p, uint32_t key_space)
{
    for (hps_key key = 0; key < key_space && key < 300; key++) {
        if (encode_knows(key)) {
            fixture_put(&t->fx, key % 2 == 0 ? FIXTURE_HOST : FIXTURE_DISK, p, key);
        }
    }
}

static inline void encode_lookup(struct encode_test *t, const struct encode_ask *ask)
{
    bool done = false;

    encode_make_bags(t, ask->n_keys);
    for (uint32_t p = 0; p < ask->n_parts; p++) {
        encode_fill(t, p, ask->key_space);
        for (uint32_t i = 0; i < ask->n_keys; i++) {
            t->keys[p][i] = hps_mix64(i + p) % ask->key_space;
        }
        t->parts[p] = (struct hps_lookup_part){.table = &t->fx.tables[p],
                                               .keys = (const uint8_t *)t->keys[p],
                                               .n_keys = ask->n_keys,
                                               .pooling = HPS_POOLING_NONE};
        if (ask->pooled) {
            t->parts[p].pooling = HPS_POOLING_SUM;
            t->parts[p].offsets = t->offsets;
            t->parts[p].n_bags = t->n_bags;
        }
    }
    t->lookup.version = &t->fx.version;
    t->lookup.arena = t->arena;
    t->lookup.blocks = t->pool;
    t->lookup.parts = t->parts;
    t->lookup.n_parts = ask->n_parts;
    t->lookup.layout = ask->concat ? HPS_LAYOUT_CONCAT : HPS_LAYOUT_PER_TABLE;
    assert_int_equal(hps_lookup_plan(&t->lookup, &t->err), HPS_OK);
    t->rows = hps_block_new(t->pool, t->lookup.rows_bytes + 1);
    assert_non_null(t->rows);
    t->lookup.rows = t->rows->data;
    assert_int_equal(hps_lookup_run_memory(&t->lookup, &done, &t->err), HPS_OK);
    if (!done) {
        assert_int_equal(hps_lookup_run_rest(&t->lookup, &t->err), HPS_OK);
    }
}

/* Parse the message in the slices, and release the slices. */
static inline Hps__V1__LookupResponse *encode_parse(struct hps_encoded *encoded)
{
    uint8_t *bytes = hps_alloc(encoded->size);
    size_t size = 0;

    assert_non_null(bytes);
    for (unsigned i = 0; i < encoded->n_slices; i++) {
        assert_true(encoded->slices[i].size > 0);
        memcpy(bytes + size, encoded->slices[i].data, encoded->slices[i].size);
        size += encoded->slices[i].size;
    }
    assert_int_equal(size, encoded->size);
    Hps__V1__LookupResponse *response = hps__v1__lookup_response__unpack(NULL, size, bytes);
    assert_non_null(response);
    assert_int_equal(hps__v1__lookup_response__get_packed_size(response), size); /* canonical */
    hps_free(bytes);
    hps_encoded_release(encoded);
    return response;
}

#endif
