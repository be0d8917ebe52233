/* SPDX-License-Identifier: Apache-2.0
 *
 * A sub-table of a store (backends/store.h): what a store that survives the process can do besides.
 * Applying updates atomically, keeping records (few and small: the catalog, positions of updates),
 * listing the spaces on its disk, and how much room there is.
 */
#ifndef HPS_BACKENDS_STORE_DURABLE_H
#define HPS_BACKENDS_STORE_DURABLE_H

#include "backends/store.h"

/* One record of an atomic write. */
struct hps_record {
    const void *key; /* at most HPS_RECORD_KEY_BYTES_MAX */
    size_t key_size;
    const void *value; /* NULL: the record is deleted */
    size_t value_size;
};

enum { HPS_RECORD_KEY_BYTES_MAX = 1024 };

/* Of the id of a table that belongs to the one with the rest of the id: what updates know of its
 * rows. A durable store takes it as any other in get and apply, and nobody else sees it. */
#define HPS_TABLE_HIDDEN (UINT32_C(1) << 31)

/* Called for every record or space found; a status other than OK ends the scan and is returned. */
typedef hps_status (*hps_record_fn)(void *ctx, const void *key, size_t key_size, const void *value,
                                    size_t value_size);
typedef hps_status (*hps_space_fn)(void *ctx, const char *model, int64_t version);

struct hps_store_durable_ops {
    /* Apply all of the writes and records of the space, or none, also after a crash. Safe from a
     * killed process at once, from a power cut as soon as the store syncs.
     *
     * The records are the space's own (positions of updates, for one): they are no rows, which a
     * load or a scan sees, go with the space, and are read by space_record_scan; a later write of a
     * key replaces an earlier one.
     *
     * shape   writes[n_writes], 0 allowed; records[n_records]
     * error   EXHAUSTED: the free-space guard; nothing was written */
    hps_status (*apply)(struct hps_space *space, const struct hps_call *call,
                        const struct hps_write *writes, uint32_t n_writes,
                        const struct hps_record *records, uint32_t n_records,
                        struct hps_error *err);
    /* What apply recorded in this space, in order of the keys' bytes. */
    hps_status (*space_record_scan)(struct hps_space *space, hps_record_fn fn, void *ctx,
                                    struct hps_error *err);

    /* Write or delete a record of the store itself. It is on disk when OK is returned. */
    hps_status (*record_put)(struct hps_store *store, const void *key, size_t key_size,
                             const void *value, size_t value_size, struct hps_error *err);
    hps_status (*record_delete)(struct hps_store *store, const void *key, size_t key_size,
                                struct hps_error *err);
    /* The store's records whose key begins with `prefix` ("": all), in order of the keys' bytes.
     * Others are not read, so that damage to them does no harm. */
    hps_status (*record_scan)(struct hps_store *store, const char *prefix, hps_record_fn fn,
                              void *ctx, struct hps_error *err);

    /* Every space that exists on disk, opened or not. */
    hps_status (*space_list)(struct hps_store *store, hps_space_fn fn, void *ctx,
                             struct hps_error *err);
    /* Bytes free for loads and updates before the free-space guard; 0: none left. */
    uint64_t (*bytes_free)(struct hps_store *store);
    /* Why nothing can be written now, for people, static; NULL: it can. */
    const char *(*writes_refused)(struct hps_store *store);
    /* Keep the store as it is now in `<dir>/hpsd`, by hard links where `dir` is on the same file
     * system, else by copies; it opens like any other with `dir` as its path. What is in memory is
     * written out first. Writes and loads go on meanwhile. May block.
     * error   EXISTS: there is something; EXHAUSTED: the disk of the store or of `dir`;
     *         PRECONDITION: open read-only; UNIMPLEMENTED: nothing of it is on a disk; IO */
    hps_status (*checkpoint)(struct hps_store *store, const char *dir, struct hps_error *err);
};

#endif
