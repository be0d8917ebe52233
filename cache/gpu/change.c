/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue of changes of a gpu tier. Any thread queues insertions and updates under the lock; the
 * tier's thread stages them in the same order.
 */
#include <string.h>

#include "base/assert.h"
#include "base/container.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"
#include "cache/gpu/internal.h"

/* The largest change. The limits let a part of a large insertion fit, and keep updates small and
 * the lock short. */
enum { PIECE_KEYS = 4096, PIECE_BYTES = 1 << 20 };

static struct hps_gpu_tier *tier_of_wake(struct hps_task *task)
{
    return HPS_CONTAINER_OF(task, struct hps_gpu_tier, changes.wake);
}

/* The tier's thread is awake and will read the queue. */
static void on_wake(struct hps_task *task)
{
    struct gpu_changes *changes = &tier_of_wake(task)->changes;

    hps_lock_acquire(&changes->lock);
    changes->woken = false;
    hps_lock_release(&changes->lock);
}

void gpu_changes_init(struct hps_gpu_tier *tier)
{
    struct gpu_changes *changes = &tier->changes;

    changes->wake.run = on_wake;
    atomic_init(&changes->last, 0);
    hps_lock_init(&changes->lock, HPS_LOCK_GPU_CHANGES);
    hps_cond_init(&changes->capacity);
}

static void change_free(struct gpu_change *change)
{
    if (change != NULL && !change->empties) {
        hps_free(change->keys);
        hps_free(change->rows);
        hps_free(change);
    }
}

void gpu_changes_fini(struct hps_gpu_tier *tier)
{
    struct gpu_changes *changes = &tier->changes;

    HPS_ASSERT(changes->head == NULL && changes->staging == NULL);
    hps_cond_fini(&changes->capacity);
    hps_lock_fini(&changes->lock);
}

/* ---- queueing -------------------------------------------------------------------------------- */

static uint32_t piece_keys(const struct gpu_table *table)
{
    uint32_t n = PIECE_BYTES / table->row_bytes;

    return n > PIECE_KEYS ? PIECE_KEYS : n; /* at least 16, by HPS_EMBED_ROW_BYTES_MAX */
}

static size_t change_bytes(size_t row_bytes, uint32_t n)
{
    return sizeof(struct gpu_change) + n * (sizeof(hps_key) + row_bytes);
}

static struct gpu_change *change_new(struct hps_gpu_space *space, uint32_t table_id,
                                     enum hps_embed_op op, uint32_t n)
{
    size_t row_bytes = op == HPS_EMBED_ERASE ? 0 : space->tables[table_id].row_bytes;
    struct gpu_change *change = hps_calloc(1, sizeof(*change));

    if (change == NULL) {
        return NULL;
    }
    *change = (struct gpu_change){.space = space, .op = op, .table_id = table_id, .n = n};
    change->bytes = change_bytes(row_bytes, n);
    change->keys = hps_alloc(n * sizeof(hps_key));
    change->rows = row_bytes == 0 ? NULL : hps_alloc(n * row_bytes);
    if (change->keys == NULL || (row_bytes != 0 && change->rows == NULL)) {
        change_free(change);
        return NULL;
    }
    return change;
}

/* Takes `change`. Lock held. */
static void push(struct hps_gpu_tier *tier, struct gpu_change *change)
{
    struct gpu_changes *changes = &tier->changes;

    hps_lock_assert_held(&changes->lock);
    HPS_ASSERT(!changes->ended && change->next == NULL);
    change->number = atomic_load(&changes->last) + 1;
    atomic_store(&changes->last, change->number);
    changes->bytes += change->bytes;
    if (changes->head == NULL) {
        changes->head = change;
    } else {
        changes->tail->next = change;
    }
    changes->tail = change;
    if (!changes->woken) {
        changes->woken = true;
        hps_mailbox_post(tier->mailbox, &changes->wake);
    }
}

/* Remove rows that are not fresh. Lock held: later changes of a row queue behind this one. */
static uint32_t keep_fresh(struct gpu_change *change, const struct hps_insert_guard *guard)
{
    size_t row_bytes = change->space->tables[change->table_id].row_bytes;
    uint32_t n = 0;

    hps_lock_assert_held(&change->space->tier->changes.lock);
    for (uint32_t i = 0; i < change->n; i++) {
        if (!guard->fresh(guard->ctx, i)) {
            continue;
        }
        if (n < i) {
            change->keys[n] = change->keys[i];
            memcpy(change->rows + n * row_bytes, change->rows + i * row_bytes, row_bytes);
        }
        n++;
    }
    return n;
}

/* Whether an insertion fits, counting staged changes too. Lock held. */
static bool has_capacity(const struct hps_gpu_tier *tier, size_t bytes)
{
    const struct gpu_changes *changes = &tier->changes;

    hps_lock_assert_held(&changes->lock);
    return changes->bytes + changes->staged_bytes + bytes <= tier->options.queue_bytes_max;
}

/* Takes `change`: it is queued or freed. */
static void push_insertion(struct hps_gpu_tier *tier, struct gpu_change *change,
                           const struct hps_insert_guard *guard, struct hps_insert_report *report)
{
    struct gpu_changes *changes = &tier->changes;
    uint32_t n = change->n;
    bool take;

    hps_lock_acquire(&changes->lock);
    take = !changes->ended && has_capacity(tier, change->bytes);
    if (take && guard != NULL) {
        change->n = keep_fresh(change, guard);
        report->n_stale = n - change->n;
    }
    report->n_inserted = take ? change->n : 0;
    report->n_no_capacity = take ? 0 : n;
    take = take && change->n > 0;
    if (take) {
        push(tier, change);
    }
    hps_lock_release(&changes->lock);
    if (!take) {
        change_free(change);
    }
}

/* Checked before rows are copied, to save a useless copy; the queue may fill up before they are
 * pushed. waits: wait until the piece fits or nothing is in flight. A piece larger than the queue
 * then does not fit. */
static bool await_capacity(struct hps_gpu_tier *tier, size_t bytes, bool waits)
{
    struct gpu_changes *changes = &tier->changes;

    hps_lock_acquire(&changes->lock);
    while (waits && !changes->ended && !has_capacity(tier, bytes) &&
           changes->bytes + changes->staged_bytes > 0) {
        hps_cond_wait(&changes->capacity, &changes->lock);
    }
    bool capacity = !changes->ended && has_capacity(tier, bytes);
    hps_lock_release(&changes->lock);
    return capacity;
}

/* Queue an insertion as one change. */
static void insert_piece(struct hps_gpu_space *space, const struct hps_gpu_insertion *piece,
                         struct hps_insert_report *report)
{
    const size_t row_bytes = space->tables[piece->table_id].row_bytes;
    struct gpu_change *change = NULL;

    *report = (struct hps_insert_report){.n_no_capacity = piece->n};
    if (await_capacity(space->tier, change_bytes(row_bytes, piece->n), piece->waits)) {
        change = change_new(space, piece->table_id,
                            piece->wanted ? HPS_EMBED_INSERT_WANTED : HPS_EMBED_INSERT, piece->n);
    }
    if (change == NULL) {
        return;
    }
    memcpy(change->keys, piece->keys, piece->n * sizeof(*piece->keys));
    for (uint32_t i = 0; i < piece->n; i++) {
        memcpy(change->rows + i * row_bytes, piece->rows + piece->slots[i] * row_bytes, row_bytes);
    }
    push_insertion(space->tier, change, piece->guard, report);
}

/* The guard of a whole insertion, for the piece that begins with key `begin`. */
struct piece_guard {
    const struct hps_insert_guard *whole;
    uint32_t begin;
};

static bool piece_fresh(const void *ctx, uint32_t i)
{
    const struct piece_guard *guard = ctx;

    return guard->whole->fresh(guard->whole->ctx, guard->begin + i);
}

static void insert_on(struct hps_gpu_space *space, const struct hps_gpu_insertion *insertion,
                      struct hps_insert_report *out_report)
{
    uint32_t n_max = piece_keys(&space->tables[insertion->table_id]);
    for (uint32_t begin = 0; begin < insertion->n; begin += n_max) {
        const struct piece_guard guard = {.whole = insertion->guard, .begin = begin};
        const struct hps_insert_guard guard_of_piece = {.fresh = piece_fresh, .ctx = &guard};
        struct hps_gpu_insertion piece = *insertion;
        struct hps_insert_report report;
        piece.keys += begin;
        piece.slots += begin;
        piece.n = insertion->n - begin < n_max ? insertion->n - begin : n_max;
        piece.guard = insertion->guard == NULL ? NULL : &guard_of_piece;
        insert_piece(space, &piece, &report);
        out_report->n_inserted += report.n_inserted;
        out_report->n_stale += report.n_stale;
        out_report->n_no_capacity += report.n_no_capacity;
    }
}

/* Queue a change that erases all rows of the table. Allocates nothing. */
static void push_emptying(struct hps_gpu_space *space, uint32_t table_id)
{
    struct gpu_changes *changes = &space->tier->changes;
    struct gpu_table *table = &space->tables[table_id];

    hps_lock_acquire(&changes->lock);
    if (!changes->ended && !table->is_emptying) {
        table->is_emptying = true;
        table->emptying = (struct gpu_change){
            .space = space, .op = HPS_EMBED_ERASE, .table_id = table_id, .empties = true};
        push(space->tier, &table->emptying);
    }
    atomic_store(&space->spoiled_until, atomic_load(&changes->last));
    hps_lock_release(&changes->lock);
}

void hps_gpu_insert(struct hps_gpu_space *space, const struct hps_gpu_insertion *insertion,
                    struct hps_insert_report *out_report)
{
    *out_report = (struct hps_insert_report){0};
    for (; space != NULL; space = space->sibling) {
        if ((insertion->missed == NULL || insertion->missed == space) &&
            gpu_space_caches(space, insertion->table_id)) {
            insert_on(space, insertion, out_report);
        }
    }
}

static hps_status update_piece(struct hps_gpu_space *space, uint32_t table_id, const hps_key *keys,
                               const uint8_t *rows, uint32_t n)
{
    struct hps_gpu_tier *tier = space->tier;
    struct gpu_changes *changes = &tier->changes;
    struct gpu_change *change =
        change_new(space, table_id, rows == NULL ? HPS_EMBED_ERASE : HPS_EMBED_UPDATE, n);

    if (change == NULL) {
        return HPS_NO_MEMORY;
    }
    memcpy(change->keys, keys, n * sizeof(*keys));
    if (rows != NULL) {
        memcpy(change->rows, rows, (size_t)n * space->tables[table_id].row_bytes);
    }
    hps_lock_acquire(&changes->lock);
    while (!changes->ended && changes->bytes >= 2 * tier->options.queue_bytes_max) {
        hps_cond_wait(&changes->capacity, &changes->lock);
    }
    bool take = !changes->ended;
    if (take) {
        push(tier, change);
    }
    hps_lock_release(&changes->lock);
    if (!take) {
        change_free(change);
    }
    return HPS_OK;
}

static void update_on(struct hps_gpu_space *space, uint32_t table_id, const hps_key *keys,
                      const uint8_t *rows, uint32_t n)
{
    const struct gpu_table *table = &space->tables[table_id];
    uint32_t n_max = piece_keys(table);
    hps_status status = HPS_OK;

    if (table->share.n_rows_cached == 0 || atomic_load(&space->tier->lost)) {
        return;
    }
    for (uint32_t begin = 0; begin < n && status == HPS_OK; begin += n_max) {
        status = update_piece(space, table_id, keys + begin,
                              rows == NULL ? NULL : rows + (size_t)begin * table->row_bytes,
                              n - begin < n_max ? n - begin : n_max);
    }
    if (status != HPS_OK) {
        HPS_LOG(WARN, "gpu",
                "embedding cache emptied: no host memory for an update of its table; rows are "
                "cached again as lookups need them",
                HPS_STR("version", space->label), HPS_U64("table", table_id));
        push_emptying(space, table_id);
    }
}

void hps_gpu_update(struct hps_gpu_space *space, uint32_t table_id, const hps_key *keys,
                    const uint8_t *rows, uint32_t n)
{
    for (; space != NULL; space = space->sibling) {
        update_on(space, table_id, keys, rows, n);
    }
}

/* ---- staging --------------------------------------------------------------------------------- */

/* Move all queued changes to the thread's list. */
static void take_queued(struct hps_gpu_tier *tier)
{
    struct gpu_changes *changes = &tier->changes;

    HPS_ASSERT(gpu_tier_is_mine(tier));
    hps_lock_acquire(&changes->lock);
    if (changes->head != NULL) {
        if (changes->staging == NULL) {
            changes->staging = changes->head;
        } else {
            changes->staging_tail->next = changes->head;
        }
        changes->staging_tail = changes->tail;
        changes->n_taken = changes->tail->number;
        changes->head = NULL;
    }
    hps_lock_release(&changes->lock);
}

/* Takes `change`, which is in no list. Once this returns, one that empties may be queued again. */
static void finish(struct hps_gpu_tier *tier, struct gpu_change *change)
{
    struct gpu_changes *changes = &tier->changes;
    bool empties = change->empties;

    hps_lock_acquire(&changes->lock);
    HPS_ASSERT(changes->bytes >= change->bytes);
    changes->bytes -= change->bytes;
    changes->staged_bytes = hps_embed_staged_bytes(tier->cache);
    if (empties) {
        change->space->tables[change->table_id].is_emptying = false;
    }
    hps_cond_broadcast(&changes->capacity);
    hps_lock_release(&changes->lock);
    if (!empties) {
        change_free(change);
    }
}

void gpu_changes_note(struct hps_gpu_tier *tier)
{
    struct gpu_changes *changes = &tier->changes;
    HPS_ASSERT(gpu_tier_is_mine(tier));
    uint64_t staged_bytes = hps_embed_staged_bytes(tier->cache);

    if (staged_bytes != changes->staged_bytes) { /* only this thread writes it */
        hps_lock_acquire(&changes->lock);
        changes->staged_bytes = staged_bytes;
        hps_cond_broadcast(&changes->capacity);
        hps_lock_release(&changes->lock);
    }
}

/* Whether a change must wait until the cache of its table is cleared. Changes of other tables may
 * overtake it: order matters within a table only. */
static bool must_wait(const struct gpu_change *change)
{
    const struct hps_embed_range *range = change->space->tables[change->table_id].range;

    return !change->empties && range != NULL && !hps_embed_range_ready(range);
}

uint64_t gpu_changes_done(const struct hps_gpu_tier *tier, bool but_waiting)
{
    const struct gpu_change *change = tier->changes.staging;

    while (but_waiting && change != NULL && must_wait(change)) {
        change = change->next;
    }
    return change == NULL ? tier->changes.n_taken : change->number - 1;
}

/* Retire the cache of the table: lookups in it miss, and changes are ignored. A packed batch may
 * name the cache, so it is freed later. */
static void empty(struct hps_gpu_tier *tier, struct gpu_table *table, struct gpu_change *change)
{
    if (table->range != NULL) {
        hps_embed_range_retire(table->range);
        change->space->spoiled = true;
        tier->wanted = true;
    }
}

/* Stage the rest of a change. AGAIN: only a part fitted, or none. */
static hps_status stage(struct hps_gpu_tier *tier, struct gpu_change *change)
{
    struct gpu_table *table = &change->space->tables[change->table_id];
    uint32_t begin = change->n_staged;
    uint32_t n_taken = 0;

    if (change->empties) {
        empty(tier, table, change);
        return HPS_OK;
    }
    if (table->range == NULL) {
        return HPS_OK; /* no cache to change */
    }
    hps_status status = hps_embed_stage(
        tier->cache, table->range, change->op, change->keys + begin,
        change->rows == NULL ? NULL : change->rows + (size_t)begin * table->row_bytes,
        change->n - begin, NULL, &n_taken);
    if (status == HPS_OK) {
        change->n_staged += n_taken;
        HPS_ASSERT(change->n_staged <= change->n);
        status = change->n_staged < change->n ? HPS_AGAIN : HPS_OK;
    }
    return status;
}

bool gpu_changes_stage(struct hps_gpu_tier *tier)
{
    struct gpu_changes *changes = &tier->changes;
    struct gpu_change **link = &changes->staging, *last = NULL;
    hps_status status = HPS_OK;
    bool any = false;

    take_queued(tier);
    while (*link != NULL && status == HPS_OK) {
        struct gpu_change *change = *link;
        uint32_t before = change->n_staged;
        if (must_wait(change)) {
            last = change;
            link = &change->next;
            continue;
        }
        status = stage(tier, change);
        any |= status == HPS_OK || change->n_staged > before;
        if (status == HPS_OK) {
            *link = change->next;
            finish(tier, change);
        }
    }
    if (*link == NULL) {
        changes->staging_tail = last;
    }
    if (status != HPS_OK && status != HPS_AGAIN) {
        gpu_tier_lose(tier, "staging of changes failed");
    }
    return any;
}

void gpu_changes_drop(struct hps_gpu_tier *tier, const struct hps_gpu_space *space)
{
    struct gpu_changes *changes = &tier->changes;
    struct gpu_change **link = &changes->staging;

    take_queued(tier);
    while (*link != NULL) {
        struct gpu_change *change = *link;
        if (space != NULL && change->space != space) {
            changes->staging_tail = change;
            link = &change->next;
            continue;
        }
        *link = change->next;
        finish(tier, change);
    }
}

void gpu_changes_end(struct hps_gpu_tier *tier)
{
    struct gpu_changes *changes = &tier->changes;

    hps_lock_acquire(&changes->lock);
    changes->ended = true;
    hps_cond_broadcast(&changes->capacity);
    hps_lock_release(&changes->lock);
    gpu_changes_drop(tier, NULL);
}
