/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue of copies, and the thread "backfill" that inserts them into their tier. I/O threads add
 * copies. Everything else runs on the thread, unless stated otherwise.
 */
#include "cache/lookup/backfill.h"

#include <pthread.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/worker.h"
#include "cache/lookup/lookup.h"

enum {
    ROWS_ALIGN = 64,
    SCAN_MAX = 256 /* copies searched for more rows of one table */
};

/* Rows of one table, in one allocation. */
struct copy {
    struct copy *next;
    struct hps_version *version; /* pinned, except in a joined copy */
    const struct hps_table *table;
    struct hps_space *space; /* the tier to insert into */
    uint32_t n;
    uint64_t since;
    size_t size;
    hps_key *keys;
    uint32_t *slots;
    uint8_t *rows;
};

struct hps_backfill {
    const struct hps_lookup_metrics *metrics;
    size_t bytes_max;
    struct hps_lock lock;
    struct hps_cond wake; /* wakes the thread */
    struct copy *first;   /* lock, like all below */
    struct copy **last;   /* link of the last copy */
    size_t bytes;
    uint64_t n_rows; /* waiting or being inserted */
    bool stopping;
    struct hps_worker worker;
};

/* ---- life ------------------------------------------------------------------------------------ */

struct hps_backfill *hps_backfill_new(size_t bytes_max, const struct hps_lookup_metrics *metrics)
{
    struct hps_backfill *backfill = hps_calloc(1, sizeof(*backfill));

    if (backfill != NULL) {
        backfill->metrics = metrics;
        backfill->bytes_max = bytes_max;
        backfill->last = &backfill->first;
        hps_lock_init(&backfill->lock, HPS_LOCK_BACKFILL);
        hps_cond_init(&backfill->wake);
    }
    return backfill;
}

void hps_backfill_free(struct hps_backfill *backfill)
{
    if (backfill != NULL) {
        HPS_ASSERT(!backfill->worker.running);
        HPS_ASSERT(backfill->first == NULL);
        hps_cond_fini(&backfill->wake);
        hps_lock_fini(&backfill->lock);
        hps_free(backfill);
    }
}

size_t hps_backfill_bytes(struct hps_backfill *backfill)
{
    hps_lock_acquire(&backfill->lock);
    size_t bytes = backfill->bytes;
    hps_lock_release(&backfill->lock);
    return bytes;
}

static void count_dropped(const struct hps_backfill *backfill, enum hps_drop_reason reason,
                          uint64_t n)
{
    if (backfill->metrics != NULL && n > 0) {
        hps_metric_add(backfill->metrics->insertion_dropped[reason], n);
    }
}

/* Lock held. */
static void add_rows(struct hps_backfill *backfill, uint64_t n_more, uint64_t n_less)
{
    HPS_ASSERT(n_less <= backfill->n_rows + n_more);
    backfill->n_rows += n_more - n_less;
    if (backfill->metrics != NULL) {
        hps_metric_set(backfill->metrics->insertion_shared_queue_rows, (double)backfill->n_rows);
    }
}

/* ---- copies ---------------------------------------------------------------------------------- */

static size_t align_rows(size_t bytes)
{
    return (bytes + ROWS_ALIGN - 1) & ~(size_t)(ROWS_ALIGN - 1);
}

/* Size of a copy; the rows are at its end. */
static size_t copy_bytes(const struct hps_table *table, uint32_t n)
{
    return align_rows(sizeof(struct copy) + n * (sizeof(hps_key) + sizeof(uint32_t))) +
           align_rows((size_t)n * table->row_bytes);
}

/* An empty copy with space for n rows. NULL: no memory. */
static struct copy *copy_new(struct hps_version *version, struct hps_space *space,
                             const struct hps_table *table, uint32_t n)
{
    size_t size = copy_bytes(table, n);
    struct copy *copy = hps_alloc_aligned(ROWS_ALIGN, size);

    if (copy != NULL) {
        *copy = (struct copy){
            .version = version, .space = space, .table = table, .since = UINT64_MAX, .size = size};
        copy->keys = (hps_key *)(void *)(copy + 1);
        copy->slots = (uint32_t *)(void *)(copy->keys + n);
        copy->rows = (uint8_t *)copy + size - align_rows((size_t)n * table->row_bytes);
    }
    return copy;
}

/* The copy keeps the older of two times: a key that is unchanged since then is also unchanged since
 * the later one. */
static void copy_add(struct copy *copy, const hps_key *keys, const uint32_t *slots,
                     const uint8_t *rows, uint32_t n, uint64_t since)
{
    size_t row_bytes = copy->table->row_bytes;

    for (uint32_t i = 0; i < n; i++) {
        memcpy(copy->rows + (copy->n + i) * row_bytes, rows + slots[i] * row_bytes, row_bytes);
        copy->keys[copy->n + i] = keys[i];
        copy->slots[copy->n + i] = copy->n + i;
    }
    copy->n += n;
    copy->since = since < copy->since ? since : copy->since;
}

/* Unpin the versions of copies and free the copies. Returns how many rows they had. */
static uint64_t end_copies(struct copy *first)
{
    uint64_t n = 0;

    for (struct copy *copy = first, *next; copy != NULL; copy = next) {
        next = copy->next;
        n += copy->n;
        hps_version_unpin(copy->version);
        hps_free_aligned(copy);
    }
    return n;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Take the first copy, and further copies of its table, up to the limits of one call. Lock held. */
static struct copy *take_group(struct hps_backfill *backfill)
{
    struct copy *group = backfill->first;
    HPS_ASSERT(group != NULL);
    struct copy **end = &group->next;
    uint32_t n_rows = group->n;
    size_t size = group->size;

    backfill->first = group->next;
    *end = NULL;
    backfill->last = backfill->first == NULL ? &backfill->first : backfill->last;
    struct copy **link = &backfill->first;
    for (uint32_t i = 0; i < SCAN_MAX && *link != NULL; i++) {
        struct copy *copy = *link;
        if (copy->version != group->version || copy->table != group->table ||
            copy->space != group->space || n_rows + copy->n > HPS_BACKFILL_CALL_ROWS ||
            size + copy->size > HPS_BACKFILL_CALL_BYTES) {
            link = &copy->next;
            continue;
        }
        *link = copy->next;
        backfill->last = *link == NULL ? link : backfill->last;
        copy->next = NULL;
        *end = copy;
        end = &copy->next;
        n_rows += copy->n;
        size += copy->size;
    }
    return group;
}

static void put(const struct hps_backfill *backfill, const struct copy *copy)
{
    const struct hps_version *version = copy->version;
    struct hps_space *space = copy->space;
    const struct hps_call call = {0};
    const struct hps_stamp_guard unchanged = {.stamps = version->stamps,
                                              .keys = copy->keys,
                                              .table_id = copy->table->id,
                                              .since = copy->since};
    const struct hps_insert_guard guard = {.fresh = hps_stamp_guard_fresh, .ctx = &unchanged};
    struct hps_insert_report report = {0};
    hps_status status = space->store->ops->insert(
        space, &call, copy->table, copy->keys, copy->slots, copy->rows, copy->n, &guard, &report);

    if (backfill->metrics != NULL && report.n_inserted > 0) {
        hps_metric_add(backfill->metrics->insertion_rows_async[space->store->ops->tier],
                       report.n_inserted);
    }
    count_dropped(backfill, HPS_DROP_NO_SPACE, report.n_no_capacity);
    count_dropped(backfill, HPS_DROP_STALE, report.n_stale);
    count_dropped(backfill, HPS_DROP_FAILED,
                  status == HPS_OK
                      ? report.n_failed
                      : copy->n - report.n_inserted - report.n_no_capacity - report.n_stale);
}

/* Join all rows of the group in one copy. NULL: no memory. */
static struct copy *join_copies(const struct copy *group)
{
    uint32_t n = 0;

    for (const struct copy *each = group; each != NULL; each = each->next) {
        n += each->n;
    }
    struct copy *joined = copy_new(group->version, group->space, group->table, n);
    for (const struct copy *each = group; each != NULL && joined != NULL; each = each->next) {
        copy_add(joined, each->keys, each->slots, each->rows, each->n, each->since);
    }
    return joined;
}

static void put_group(const struct hps_backfill *backfill, const struct copy *group)
{
    struct copy *joined = group->next == NULL ? NULL : join_copies(group);

    if (joined != NULL) {
        put(backfill, joined);
        hps_free_aligned(joined);
        return;
    }
    for (const struct copy *each = group; each != NULL; each = each->next) {
        put(backfill, each);
    }
}

static void *run(void *ctx)
{
    struct hps_backfill *backfill = ctx;

    hps_lock_acquire(&backfill->lock);
    while (!backfill->stopping) {
        if (backfill->first == NULL) {
            hps_cond_wait(&backfill->wake, &backfill->lock);
            continue;
        }
        struct copy *group = take_group(backfill);
        size_t bytes = 0;
        hps_lock_release(&backfill->lock);
        put_group(backfill, group);
        for (const struct copy *copy = group; copy != NULL; copy = copy->next) {
            bytes += copy->size;
        }
        uint64_t n_rows = end_copies(group);
        hps_lock_acquire(&backfill->lock);
        backfill->bytes -= bytes;
        add_rows(backfill, 0, n_rows);
    }
    hps_lock_release(&backfill->lock);
    return NULL;
}

/* ---- adding ---------------------------------------------------------------------------------- */

/* Reserve bytes, and start the thread if it does not run. False: there is no capacity or no thread,
 * and out_reason says how to count the rows. */
static bool reserve(struct hps_backfill *backfill, size_t bytes, enum hps_drop_reason *out_reason)
{
    hps_lock_acquire(&backfill->lock);
    HPS_ASSERT(backfill->bytes <= backfill->bytes_max);
    bool taken = !backfill->stopping && bytes <= backfill->bytes_max - backfill->bytes &&
                 hps_worker_start(&backfill->worker, "backfill", 0, run, backfill) == HPS_OK;
    backfill->bytes += taken ? bytes : 0;
    *out_reason = backfill->stopping ? HPS_DROP_STOPPED : HPS_DROP_QUEUE_FULL;
    hps_lock_release(&backfill->lock);
    return taken;
}

/* False: the queue is stopping. */
static bool append(struct hps_backfill *backfill, struct copy *copy)
{
    hps_lock_acquire(&backfill->lock);
    bool taken = !backfill->stopping;
    if (taken) {
        *backfill->last = copy;
        backfill->last = &copy->next;
        add_rows(backfill, copy->n, 0);
        hps_cond_signal(&backfill->wake);
    } else {
        backfill->bytes -= copy->size;
    }
    hps_lock_release(&backfill->lock);
    return taken;
}

static void give_back(struct hps_backfill *backfill, size_t bytes)
{
    hps_lock_acquire(&backfill->lock);
    HPS_ASSERT(bytes <= backfill->bytes);
    backfill->bytes -= bytes;
    hps_lock_release(&backfill->lock);
}

static void add_some(struct hps_backfill *backfill, const struct hps_backfill_rows *rows,
                     uint32_t begin, uint32_t n)
{
    HPS_ASSERT(n > 0);
    HPS_ASSERT((rows->space->store->ops->caps & HPS_STORE_INSERTS) != 0);
    size_t bytes = copy_bytes(rows->table, n);
    enum hps_drop_reason reason = HPS_DROP_QUEUE_FULL;

    if (!reserve(backfill, bytes, &reason)) {
        count_dropped(backfill, reason, n);
        return;
    }
    struct copy *copy = copy_new(rows->version, rows->space, rows->table, n);
    if (copy == NULL) {
        give_back(backfill, bytes);
        count_dropped(backfill, HPS_DROP_QUEUE_FULL, n);
        return;
    }
    copy_add(copy, rows->keys + begin, rows->slots + begin, rows->rows, n, rows->since);
    hps_version_pin(rows->version);
    if (!append(backfill, copy)) {
        count_dropped(backfill, HPS_DROP_STOPPED, end_copies(copy));
    }
}

void hps_backfill_add(struct hps_backfill *backfill, const struct hps_backfill_rows *rows)
{
    uint32_t n_max = HPS_BACKFILL_CALL_BYTES / 2 / rows->table->row_bytes;

    n_max = n_max > HPS_BACKFILL_CALL_ROWS ? HPS_BACKFILL_CALL_ROWS : n_max == 0 ? 1 : n_max;
    for (uint32_t begin = 0; begin < rows->n; begin += n_max) {
        uint32_t n_left = rows->n - begin;
        add_some(backfill, rows, begin, n_left < n_max ? n_left : n_max);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Take out the waiting copies of a version; NULL: of all versions. Lock held. */
static struct copy *take_out(struct hps_backfill *backfill, const struct hps_version *version)
{
    struct copy *taken = NULL;
    struct copy **link = &backfill->first;

    while (*link != NULL) {
        struct copy *copy = *link;
        if (version != NULL && copy->version != version) {
            link = &copy->next;
            continue;
        }
        *link = copy->next;
        backfill->bytes -= copy->size;
        add_rows(backfill, 0, copy->n);
        copy->next = taken;
        taken = copy;
    }
    backfill->last = link;
    return taken;
}

void hps_backfill_forget(struct hps_backfill *backfill, const struct hps_version *version)
{
    hps_lock_acquire(&backfill->lock);
    struct copy *taken = take_out(backfill, version);
    hps_lock_release(&backfill->lock);
    count_dropped(backfill, HPS_DROP_STOPPED, end_copies(taken));
}

void hps_backfill_stop(struct hps_backfill *backfill)
{
    hps_lock_acquire(&backfill->lock);
    backfill->stopping = true;
    struct copy *taken = take_out(backfill, NULL);
    hps_lock_release(&backfill->lock);
    count_dropped(backfill, HPS_DROP_STOPPED, end_copies(taken));
    hps_worker_stop(&backfill->worker, &backfill->lock, &backfill->wake, &backfill->stopping);
}
