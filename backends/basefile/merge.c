/* SPDX-License-Identifier: Apache-2.0
 *
 * Merges: the rows that have changed and the rows of a base become a new base. basefile.h lists the
 * steps and the state after a crash at each step. Thread base-merge, one table at a time.
 */
#include <string.h>

#include "backends/basefile/internal.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"

enum {
    PPM = 1000000,
    MERGE_PPM = 100000,
    RETRY_US = 60000000,
    REST_SHARE = 10,     /* a merge takes at most this part of the time of a table */
    CLEAR_KEYS = 1024,   /* deleted from the inner store at once */
    BYTES_MIN = 1 << 20, /* changed rows of a table, unless options.merge_ppm is set */
};

struct merge {
    struct hps_basefile_space *space;
    struct hps_basefile *old;
    struct hps_basefile *new;
    struct hps_basefile_writer *writer;
    bool complete; /* all rows of the range are in the new base */
    struct hps_error *err;
};

bool hps_basefile_merge_due(const struct hps_basefile *base)
{
    const struct hps_basefile_options *options = &base->store->options;
    uint64_t ppm = options->merge_ppm != 0 ? options->merge_ppm : MERGE_PPM;
    uint64_t n = atomic_load_explicit(&base->n_changed, memory_order_relaxed);
    bool whole = atomic_load(&base->n_damaged) == 0; /* else a merge would fail */
    bool many = options->merge_ppm != 0 || n * base->table->row_bytes >= BYTES_MIN;
    return n > 0 && many && whole && !options->read_only && n * PPM >= base->record.n * ppm;
}

/* ---- the new base ---------------------------------------------------------------------------- */

/* Rows of the table in ascending order of keys. The rows after the range are not read. */
static hps_status take_rows(void *ctx, const hps_key *keys, const uint8_t *rows, uint32_t n)
{
    struct merge *merge = ctx;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        if (hps_basefile_covers(merge->old, keys[i])) {
            status = hps_basefile_writer_add(merge->writer, keys[i],
                                             rows + (size_t)i * merge->old->table->row_bytes,
                                             merge->err);
        } else if (keys[i] > merge->old->record.first) {
            merge->complete = true;
            status = HPS_CANCELLED;
        }
    }
    return status;
}

static hps_status base_write(struct merge *merge)
{
    struct hps_basefile_store *store = merge->old->store;
    const struct hps_basefile_record *record = &merge->old->record;
    if (store->inner->ops->durable->bytes_free(store->inner) < hps_basefile_bytes(merge->old)) {
        return hps_error_set(merge->err, HPS_EXHAUSTED, "base file %s: no space for a new one",
                             merge->old->name);
    }
    hps_status status = hps_basefile_writer_new(store, merge->old->table, record->first, record->n,
                                                &merge->space->cancel, &merge->writer, merge->err);
    if (status == HPS_OK) {
        status =
            hps_basefile_scan(&merge->space->base, merge->old->table, take_rows, merge, merge->err);
    }
    status = merge->complete ? HPS_OK : status;
    if (status == HPS_OK) {
        status = hps_basefile_writer_finish(merge->writer, record->n, &merge->new, merge->err);
    }
    hps_basefile_writer_free(merge->writer);
    return status;
}

/* ---- the switch ------------------------------------------------------------------------------ */

/* Write the record that names the new base. */
static hps_status base_name(struct merge *merge)
{
    struct hps_basefile_space *space = merge->space;
    struct hps_basefile_store *store = merge->old->store;
    struct hps_basefile_record *record = &space->records[merge->old->table->id];
    struct hps_error error;
    hps_lock_acquire(&store->names);
    *record = merge->new->record;
    hps_status status = hps_basefile_records_write(space, merge->err);
    if (status != HPS_OK) {
        /* The record may be on disk. Unless it can be undone, the file must stay. */
        *record = merge->old->record;
        if (hps_basefile_records_write(space, &error) == HPS_OK) {
            hps_basefile_base_remove(store, merge->new->record.number);
        } else {
            HPS_LOG(WARN, "rocksdb", "base file left behind until the next start",
                    HPS_STR("file", merge->new->name), HPS_STR("error", error.text));
        }
    }
    hps_lock_release(&store->names);
    return status;
}

/* Replace the base. Caller must hold `writes`. */
static void base_replace(const struct merge *merge)
{
    struct hps_basefile *new = merge->new;
    hps_free((void *)new->changed);
    new->changed = merge->old->recent;
    merge->old->recent = NULL;
    for (uint64_t i = 0; i < hps_basefile_words(new->record.n); i++) {
        new->n_changed += (uint64_t)__builtin_popcountll(new->changed[i]);
    }
    atomic_store(&merge->space->bases[new->table->id], new);
    atomic_fetch_add(&merge->space->epoch, 1);
}

hps_status hps_basefile_merge_begin(struct hps_basefile_space *space, uint32_t table,
                                    struct hps_basefile **out_old, struct hps_error *err)
{
    struct merge merge = {.space = space, .old = atomic_load(&space->bases[table]), .err = err};
    uint64_t begun_us = hps_clock_us();
    HPS_ASSERT(merge.old != NULL && merge.old->recent == NULL);
    _Atomic(uint64_t) *recent =
        hps_calloc(hps_basefile_words(merge.old->record.n), sizeof(*recent));
    if (recent == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "rocksdb: no memory for a merge");
    }
    hps_lock_acquire(&space->writes);
    merge.old->recent = recent;
    hps_lock_release(&space->writes);
    hps_status status = base_write(&merge);
    if (status == HPS_OK) {
        status = base_name(&merge);
    }
    hps_lock_acquire(&space->writes);
    if (status == HPS_OK) {
        base_replace(&merge);
    } else {
        merge.old->recent = NULL;
        hps_free((void *)recent);
        hps_basefile_base_close(merge.new);
    }
    hps_lock_release(&space->writes);
    if (status == HPS_OK) {
        *out_old = merge.old;
        HPS_LOG(INFO, "rocksdb", "base file merged", HPS_STR("file", merge.new->name),
                HPS_U64("rows", atomic_load(&merge.old->n_changed)),
                HPS_U64("us", hps_clock_us() - begun_us));
    }
    return status;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Delete rows and marks of up to CLEAR_KEYS merged keys from the inner store. */
static hps_status clear_some(struct hps_basefile_space *space, const struct hps_basefile *new,
                             const hps_key *keys, uint32_t n)
{
    hps_key merged[CLEAR_KEYS];
    uint32_t n_merged = 0;
    struct hps_error error;
    hps_status status = HPS_OK;
    hps_lock_acquire(&space->writes);
    for (uint32_t i = 0; i < n; i++) {
        if (!hps_basefile_bit(new->changed, keys[i] - new->record.first)) {
            merged[n_merged++] = keys[i];
        }
    }
    const struct hps_write writes[2] = {
        {.table = new->table, .keys = merged, .n = n_merged},
        {.table = &space->marks[new->table->id], .keys = merged, .n = n_merged}};
    if (n_merged > 0) {
        status = space->inner->store->ops->durable->apply(space->inner, &hps_basefile_no_limit,
                                                          writes, 2, NULL, 0, &error);
    }
    hps_lock_release(&space->writes);
    if (status != HPS_OK) {
        HPS_LOG(WARN, "rocksdb", "merged rows stay in RocksDB until the next merge",
                HPS_STR("file", new->name), HPS_STR("error", error.text));
    }
    return status;
}

/* The rows in `word` and all later words count as changed again. Their rows and marks are in the
 * inner store, so the next merge deletes them. */
static void change_again(struct hps_basefile_space *space, struct hps_basefile *new,
                         const struct hps_basefile *old, uint64_t word)
{
    hps_lock_acquire(&space->writes);
    for (; word < hps_basefile_words(old->record.n); word++) {
        for (uint64_t bits = old->changed[word]; bits != 0; bits &= bits - 1) {
            hps_basefile_change(new,
                                old->record.first + word * 64 + (uint64_t)__builtin_ctzll(bits));
        }
    }
    hps_lock_release(&space->writes);
}

static void clear_merged(struct hps_basefile_space *space, const struct hps_basefile *old)
{
    struct hps_basefile *new = atomic_load(&space->bases[old->table->id]);
    uint64_t words = hps_basefile_words(old->record.n);
    uint64_t begun = 0; /* first word that is not cleared */
    hps_key keys[CLEAR_KEYS];
    uint32_t n = 0;
    for (uint64_t word = 0; word < words && !atomic_load(&space->cancel); word++) {
        for (uint64_t bits = old->changed[word]; bits != 0; bits &= bits - 1) {
            keys[n++] = old->record.first + word * 64 + (uint64_t)__builtin_ctzll(bits);
        }
        if (n > CLEAR_KEYS - 64 || word == words - 1) {
            if (clear_some(space, new, keys, n) != HPS_OK) {
                change_again(space, new, old, begun);
                return;
            }
            begun = word + 1;
            n = 0;
        }
    }
}

void hps_basefile_merge_end(struct hps_basefile_space *space, struct hps_basefile *old)
{
    if (old != NULL) {
        clear_merged(space, old);
        hps_basefile_base_remove(old->store, old->record.number);
        hps_basefile_base_close(old);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Find the next merge. A merge that can end comes first, then the due table with the earliest
 * `merge_after_us`. Returns the time of the merge; UINT64_MAX: none. Caller must hold the store's
 * lock. */
static uint64_t find_due(const struct hps_basefile_store *store,
                         struct hps_basefile_space **out_space, uint32_t *out_table)
{
    uint64_t earliest_us = UINT64_MAX;
    for (struct hps_basefile_space *space = store->spaces; space != NULL; space = space->next) {
        bool waits = space->old != NULL && atomic_load(&space->n_calls[(space->epoch - 1) % 2]) > 0;
        if (waits || atomic_load(&space->cancel)) {
            continue;
        }
        if (space->old != NULL) {
            *out_space = space;
            *out_table = space->old->table->id;
            return 0;
        }
        for (uint32_t i = 0; i < space->n_tables; i++) {
            const struct hps_basefile *base = atomic_load(&space->bases[i]);
            if (base != NULL && hps_basefile_merge_due(base) &&
                base->merge_after_us < earliest_us) {
                earliest_us = base->merge_after_us;
                *out_space = space;
                *out_table = i;
            }
        }
    }
    return earliest_us;
}

/* Begin or end the merge of a table, then let it rest. If updates always change the same tenth of
 * the rows, merges still take a small part of the time. */
static void merge_one(struct hps_basefile_space *space, uint32_t table)
{
    struct hps_basefile_store *store = hps_basefile_of(&space->base);
    struct hps_basefile *old = space->old;
    struct hps_error error;
    hps_status status = HPS_OK;
    uint64_t begun_us = hps_clock_us();
    space->old = NULL;
    if (old != NULL) {
        hps_basefile_merge_end(space, old);
    } else {
        status = hps_basefile_merge_begin(space, table, &space->old, &error);
    }
    uint64_t spent_us = hps_clock_us() - begun_us;
    if (status != HPS_OK && status != HPS_CANCELLED) {
        HPS_LOG(WARN, "rocksdb", "merge failed: changed rows stay in RocksDB; retried",
                HPS_STR("version", space->name), HPS_STR("table", space->tables[table].name),
                HPS_STR("error", error.text));
    }
    hps_lock_acquire(&store->lock);
    struct hps_basefile *base = atomic_load(&space->bases[table]);
    uint64_t from_us = base->merge_after_us > begun_us ? base->merge_after_us : begun_us;
    base->merge_after_us = from_us + (status == HPS_OK ? REST_SHARE * spent_us : RETRY_US);
    hps_lock_release(&store->lock);
}

void *hps_basefile_merger_run(void *arg)
{
    struct hps_basefile_store *store = arg;
    hps_thread_background();
    hps_lock_acquire(&store->lock);
    while (!store->closing) {
        struct hps_basefile_space *space = NULL;
        uint32_t table = 0;
        uint64_t due_us = find_due(store, &space, &table);
        if (due_us == UINT64_MAX) {
            hps_cond_wait(&store->wake, &store->lock);
        } else if (due_us > hps_clock_us()) {
            (void)hps_cond_wait_until(&store->wake, &store->lock, due_us);
        } else {
            store->merging = space;
            hps_lock_release(&store->lock);
            merge_one(space, table);
            hps_lock_acquire(&store->lock);
            store->merging = NULL;
            hps_cond_broadcast(&store->wake); /* then the space may be freed */
        }
    }
    hps_lock_release(&store->lock);
    return NULL;
}

void hps_basefile_merger_wake(struct hps_basefile_store *store)
{
    hps_lock_acquire(&store->lock);
    hps_cond_broadcast(&store->wake);
    hps_lock_release(&store->lock);
}
