/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the most requested keys of one table. Lookups note the keys that they found, and a sample
 * of them is counted in a table of fixed size. The hottest keys are written into records. Another
 * process, or another version of the model, can then load their rows into memory before they are
 * requested.
 *
 * Counting is best effort and never waits. A count estimates the number of requests; older requests
 * count less. Thread-safe.
 */
#ifndef HPS_CACHE_LOOKUP_HOT_H
#define HPS_CACHE_LOOKUP_HOT_H

#include "base/status.h"
#include "base/types.h"

enum {
    HPS_HOT_KEY_BYTES = 12,       /* per key, in memory and in a record */
    HPS_HOT_KEYS_MIN = 64,        /* lower bound of n_keys_max */
    HPS_HOT_SAMPLE_SHIFT_MIN = 1, /* counts 1 key of 2 at first, */
    HPS_HOT_SAMPLE_SHIFT_MAX = 6, /* and 1 of 64 under load */
    HPS_HOT_RECORD_KEYS_MAX = 32768
};

struct hps_hot;

struct hps_hot_key {
    hps_key key;
    uint32_t count; /* estimated requests */
};

/* n_keys_max: how many keys are counted. NULL: no memory. */
struct hps_hot *hps_hot_new(uint32_t n_keys_max);
void hps_hot_free(struct hps_hot *hot); /* may be NULL */
uint32_t hps_hot_keys_max(const struct hps_hot *hot);
/* Raise the number of counted keys; counts stay. NO_MEMORY: nothing changes. Thread-safe. */
hps_status hps_hot_grow(struct hps_hot *hot, uint32_t n_keys_max) HPS_MUST_CHECK;

/* Note the unique keys of one lookup. Thread-safe; never waits. */
void hps_hot_note(struct hps_hot *hot, const hps_key *keys, uint32_t n);
/* Add `count` requests to a key, as given by a record. Thread-safe. */
void hps_hot_add(struct hps_hot *hot, hps_key key, uint32_t count);
/* Halve every count if enough keys were noted since the last call. So idle times do not erase the
 * counts. Thread-safe. */
void hps_hot_age(struct hps_hot *hot);
/* Number of keys noted so far, sampled or not. */
uint64_t hps_hot_seen(const struct hps_hot *hot);
/* All counted keys, by descending count. out_keys: free it with hps_free (NULL: none). NO_MEMORY.
 * Thread-safe. */
hps_status hps_hot_top(struct hps_hot *hot, struct hps_hot_key **out_keys, uint32_t *out_n)
    HPS_MUST_CHECK;

/* ---- records --------------------------------------------------------------------------------- */

/* One record: some keys of one table. Little-endian:
 *
 *     "HPSH"  u32 format (1)  u32 CRC-32C of all bytes after it
 *     u32 n   u32 size of the table's name, then the name   n x (u64 key, u32 count)
 */
struct hps_hot_record {
    const char *table; /* not terminated; points into the record, like `keys` */
    uint32_t table_size;
    uint32_t n;
    const uint8_t *keys;
};

size_t hps_hot_record_size(uint32_t table_size, uint32_t n);
/* out_data[hps_hot_record_size]; n at most HPS_HOT_RECORD_KEYS_MAX. */
void hps_hot_record_write(const char *table, uint32_t table_size, const struct hps_hot_key *keys,
                          uint32_t n, uint8_t *out_data);
/* DATA_LOSS: the record is damaged; NEWER_FORMAT */
hps_status hps_hot_record_read(const void *data, size_t size, struct hps_hot_record *out_record,
                               struct hps_error *err) HPS_MUST_CHECK;
struct hps_hot_key hps_hot_record_key(const struct hps_hot_record *record, uint32_t i);

#endif
