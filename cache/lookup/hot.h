/* SPDX-License-Identifier: Apache-2.0
 *
 * Which keys of one table are asked for most. Look-ups note what they found, and a share of that is
 * counted in a table of fixed size; the hottest keys are written into records, so that another
 * process, or another version of the model, can put their rows into memory before they are missed.
 *
 * Counting is best effort: it never waits, and a count is an estimate of how often a key was asked
 * for, with what is long ago worth less. Any thread.
 */
#ifndef HPS_CACHE_LOOKUP_HOT_H
#define HPS_CACHE_LOOKUP_HOT_H

#include "base/status.h"
#include "base/types.h"

enum {
    HPS_HOT_KEY_BYTES = 12,       /* memory and record, of one key */
    HPS_HOT_KEYS_MIN = 64,        /* that are counted, whatever less is asked for */
    HPS_HOT_SAMPLE_SHIFT_MIN = 1, /* 1 in 2 while little has been seen, */
    HPS_HOT_SAMPLE_SHIFT_MAX = 6, /* and 1 in 64 under load */
    HPS_HOT_RECORD_KEYS_MAX = 32768
};

struct hps_hot;

struct hps_hot_key {
    hps_key key;
    uint32_t count; /* of look-ups, estimated */
};

/* Room for n_keys_max keys. NULL: no memory. */
struct hps_hot *hps_hot_new(uint32_t n_keys_max);
void hps_hot_free(struct hps_hot *hot); /* NULL is legal */
uint32_t hps_hot_keys_max(const struct hps_hot *hot);
/* Make room for more; what is counted stays. NO_MEMORY: as it was. Any thread. */
hps_status hps_hot_grow(struct hps_hot *hot, uint32_t n_keys_max) HPS_MUST_CHECK;

/* Keys of one look-up, unique. Any thread; never waits. */
void hps_hot_note(struct hps_hot *hot, const hps_key *keys, uint32_t n);
/* Count a key as asked for `count` times: what a record says. Any thread. */
void hps_hot_add(struct hps_hot *hot, hps_key key, uint32_t count);
/* Halve every count, if enough has been noted since the last time: a quiet night forgets nothing.
 * Any thread. */
void hps_hot_age(struct hps_hot *hot);
/* Keys noted so far, sampled or not. */
uint64_t hps_hot_seen(const struct hps_hot *hot);
/* All that is counted, the most asked for first. out_keys: the caller's, hps_free (NULL: none).
 * NO_MEMORY. Any thread. */
hps_status hps_hot_top(struct hps_hot *hot, struct hps_hot_key **out_keys, uint32_t *out_n)
    HPS_MUST_CHECK;

/* ---- records --------------------------------------------------------------------------------- */

/* One record: some keys of one table. Little-endian:
 *
 *     "HPSH"  u32 format (1)  u32 CRC-32C of all that follows
 *     u32 n   u32 bytes of the table's name, which follows   n x (u64 key, u32 count)
 */
struct hps_hot_record {
    const char *table; /* not terminated; in the record, as `keys` */
    uint32_t table_size;
    uint32_t n;
    const uint8_t *keys;
};

size_t hps_hot_record_size(uint32_t table_size, uint32_t n);
/* out_data[hps_hot_record_size]; n at most HPS_HOT_RECORD_KEYS_MAX. */
void hps_hot_record_write(const char *table, uint32_t table_size, const struct hps_hot_key *keys,
                          uint32_t n, uint8_t *out_data);
/* DATA_LOSS: damaged; NEWER_FORMAT. The text says what is wrong. */
hps_status hps_hot_record_read(const void *data, size_t size, struct hps_hot_record *out_record,
                               struct hps_error *err) HPS_MUST_CHECK;
struct hps_hot_key hps_hot_record_key(const struct hps_hot_record *record, uint32_t i);

#endif
