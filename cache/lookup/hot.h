/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the hot (most requested) keys of one embedding table. Lookups note the keys that they
 * found, and a sample of the noted keys is counted. The counts take a fixed amount of memory, so
 * only some keys have one. The caller writes the hot keys and their counts into records. From a
 * record, another process or another version of the model can load the rows before they are
 * requested.
 *
 * A count is an estimate of the number of requests; older requests count less.
 * Thread-safe, except hps_hot_free.
 */
#ifndef HPS_CACHE_LOOKUP_HOT_H
#define HPS_CACHE_LOOKUP_HOT_H

#include "base/status.h"
#include "base/types.h"

enum {
    HPS_HOT_KEY_BYTES = 12,         /* size of a key and its count, in memory and in a record */
    HPS_HOT_KEYS_MIN = 64,          /* lower bound of n_keys_max; a smaller value is raised to it */
    HPS_HOT_SAMPLE_SHIFT_MIN = 1,   /* largest sample: 1 of 2^1 noted keys is counted */
    HPS_HOT_SAMPLE_SHIFT_MAX = 6,   /* smallest sample, under load: 1 of 2^6 */
    HPS_HOT_RECORD_KEYS_MAX = 32768 /* most keys of one record */
};

struct hps_hot;

struct hps_hot_key {
    hps_key key;
    uint32_t count; /* estimated requests */
};

/* n_keys_max: how many keys can have a count, rounded up. Returns NULL if there is no memory. */
struct hps_hot *hps_hot_new(uint32_t n_keys_max);
void hps_hot_free(struct hps_hot *hot); /* may be NULL */
/* How many keys can have a count. */
uint32_t hps_hot_keys_max(const struct hps_hot *hot);
/* Raise the number of keys that can have a count to n_keys_max, rounded up. Keeps nearly all
 * existing counts. No effect if the number is that large already. NO_MEMORY: nothing changes. */
hps_status hps_hot_grow(struct hps_hot *hot, uint32_t n_keys_max) HPS_MUST_CHECK;

/* Note keys that a lookup found. Never waits for a lock. */
void hps_hot_note(struct hps_hot *hot, const hps_key *keys, uint32_t n);
/* Add `count` requests, from a record, to the count of a key. A key without a count replaces the
 * key with the smallest count in its bucket of 8 keys, if that count is smaller than `count`.
 * Otherwise the key is dropped. */
void hps_hot_add(struct hps_hot *hot, hps_key key, uint32_t count);
/* Halve all counts, so that older requests count less. Call it at regular intervals. So that idle
 * times do not erase counts, a call halves them only if at least 8 * hps_hot_keys_max keys were
 * noted since the last halving. Each call also adapts the size of the sample to the load. */
void hps_hot_age(struct hps_hot *hot);
/* Number of keys noted so far, counted or not. */
uint64_t hps_hot_seen(const struct hps_hot *hot);
/* List all keys that have a count, by descending count. *out_keys: [*out_n], the caller frees it
 * with hps_free. NO_MEMORY */
hps_status hps_hot_top(struct hps_hot *hot, struct hps_hot_key **out_keys, uint32_t *out_n)
    HPS_MUST_CHECK;

/* ---- records --------------------------------------------------------------------------------- */

/* One record: some keys of one table, with their counts. All numbers are little-endian:
 *
 *     "HPSH"  u32 format (1)  u32 CRC-32C of all bytes after it
 *     u32 n   u32 size of the table's name, then the name   n x (u64 key, u32 count)
 */
struct hps_hot_record {
    const char *table; /* name, not terminated; points into the record */
    uint32_t table_size;
    uint32_t n;          /* number of keys */
    const uint8_t *keys; /* points into the record; read it with hps_hot_record_key */
};

/* Size in bytes of a record of n keys, if the table's name has table_size bytes. */
size_t hps_hot_record_size(uint32_t table_size, uint32_t n);
/* Write a record of keys[n] to out_data: [hps_hot_record_size(table_size, n)]. n is at most
 * HPS_HOT_RECORD_KEYS_MAX. */
void hps_hot_record_write(const char *table, uint32_t table_size, const struct hps_hot_key *keys,
                          uint32_t n, uint8_t *out_data);
/* Parse a record of `size` bytes. *out_record points into `data`. DATA_LOSS: the record is damaged;
 * NEWER_FORMAT: a newer hpsd wrote it. */
hps_status hps_hot_record_read(const void *data, size_t size, struct hps_hot_record *out_record,
                               struct hps_error *err) HPS_MUST_CHECK;
/* The key with index i, less than record->n. */
struct hps_hot_key hps_hot_record_key(const struct hps_hot_record *record, uint32_t i);

#endif
