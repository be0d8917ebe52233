/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue of keys and its jobs. Entries are in one array and are found by hash. A key has one
 * entry from the lookup that queued it to the end of the job that fetches it. Versions take turns.
 * Loops and workers add keys; jobs run on I/O threads.
 */
#include "cache/lookup/insertion.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/lock.h"
#include "base/log.h"
#include "cache/lookup/lookup.h"

enum {
    SLICE_KEYS = 256, /* per hold of the lock: loops wait for it */
    ROWS_ALIGN = 64,
    SCRATCH_BYTES_FIRST = 16 * 1024,
    SCRATCH_BYTES_MAX = 16 * 1024 * 1024,
    JOB_US_MAX = 10 * 1000 * 1000, /* then keys not yet fetched are dropped */
    NONE = 0                       /* entries are numbered from 1 */
};

/* The queue of one version. It exists while keys wait in it or a job fetches for it. */
struct lane {
    struct lane *next;
    struct hps_version *version; /* pinned */
    uint32_t head;               /* oldest key first; lock, like all below */
    uint32_t tail;
    uint32_t n_waiting;
    uint32_t n_jobs;
    atomic_bool leaving; /* read by jobs */
};

struct entry {
    hps_key key;
    struct lane *lane;
    uint32_t table;
    uint32_t next;  /* in its lane, or of the free entries */
    uint32_t chain; /* next entry with the same hash */
};

struct item {
    hps_key key;
    uint32_t table;
    uint32_t entry;
};

struct job {
    struct hps_task task; /* must be first */
    struct job *next;     /* of the idle jobs */
    struct hps_insertion *insertion;
    struct lane *lane;
    struct hps_arena *scratch;
    uint32_t n;
    struct item items[HPS_INSERTION_JOB_KEYS];
    hps_key keys[HPS_INSERTION_JOB_KEYS];
    uint32_t slots[HPS_INSERTION_JOB_KEYS];
};

struct hps_insertion {
    struct hps_insertion_options options;
    struct hps_backfill *backfill;
    atomic_bool stopping;
    struct hps_lock lock;
    struct entry *entries; /* [rows_max + 1]; lock, like all below */
    uint32_t *heads;       /* [hash_mask + 1] */
    uint32_t hash_mask;
    uint32_t n_touched; /* entries ever used */
    uint32_t free;
    uint32_t n_rows;    /* entries in use */
    uint32_t n_waiting; /* of n_rows, not taken by a job */
    uint64_t row_bytes; /* size of their rows */
    struct lane *lanes; /* in order of their turns */
    struct job *idle;
    uint32_t n_active; /* jobs posted or running */
    struct job *jobs[];
};

/* ---- life ------------------------------------------------------------------------------------ */

static void run_job(struct hps_task *task);

static void job_free(struct job *job)
{
    if (job != NULL) {
        hps_arena_free(job->scratch);
        hps_free(job);
    }
}

static hps_status make_jobs(struct hps_insertion *insertion)
{
    for (uint32_t i = 0; i < insertion->options.jobs_max; i++) {
        struct job *job = hps_calloc(1, sizeof(*job));
        insertion->jobs[i] = job;
        if (job == NULL) {
            return HPS_NO_MEMORY;
        }
        job->scratch = hps_arena_new(SCRATCH_BYTES_FIRST, SCRATCH_BYTES_MAX);
        if (job->scratch == NULL) {
            return HPS_NO_MEMORY;
        }
        job->insertion = insertion;
        job->task.run = run_job;
        job->next = insertion->idle;
        insertion->idle = job;
    }
    return HPS_OK;
}

hps_status hps_insertion_new(const struct hps_insertion_options *options,
                             struct hps_insertion **out_insertion)
{
    uint64_t n_heads = 16;

    HPS_ASSERT(options->rows_max > 0 && options->rows_max < UINT32_MAX / 2);
    HPS_ASSERT(options->jobs_max > 0);
    struct hps_insertion *insertion =
        hps_calloc(1, sizeof(*insertion) + options->jobs_max * sizeof(insertion->jobs[0]));
    if (insertion == NULL) {
        return HPS_NO_MEMORY;
    }
    while (n_heads < options->rows_max) {
        n_heads *= 2;
    }
    insertion->options = *options;
    insertion->hash_mask = (uint32_t)(n_heads - 1);
    hps_lock_init(&insertion->lock, HPS_LOCK_INSERTION);
    /* Not zeroed, so that unused entries take no memory. */
    insertion->entries = hps_alloc(((size_t)options->rows_max + 1) * sizeof(*insertion->entries));
    insertion->heads = hps_calloc(n_heads, sizeof(*insertion->heads));
    insertion->backfill = hps_backfill_new(
        options->backfill_bytes_max == 0 ? HPS_BACKFILL_BYTES_MAX : options->backfill_bytes_max,
        options->metrics);
    if (insertion->entries == NULL || insertion->heads == NULL || insertion->backfill == NULL ||
        make_jobs(insertion) != HPS_OK) {
        hps_insertion_free(insertion);
        return HPS_NO_MEMORY;
    }
    *out_insertion = insertion;
    return HPS_OK;
}

void hps_insertion_free(struct hps_insertion *insertion)
{
    if (insertion == NULL) {
        return;
    }
    HPS_ASSERT(insertion->n_active == 0);
    HPS_ASSERT(insertion->lanes == NULL);
    for (uint32_t i = 0; i < insertion->options.jobs_max; i++) {
        job_free(insertion->jobs[i]);
    }
    hps_backfill_free(insertion->backfill);
    hps_lock_fini(&insertion->lock);
    hps_free(insertion->heads);
    hps_free(insertion->entries);
    hps_free(insertion);
}

uint32_t hps_insertion_rows(struct hps_insertion *insertion)
{
    hps_lock_acquire(&insertion->lock);
    uint32_t n = insertion->n_rows;
    hps_lock_release(&insertion->lock);
    return n;
}

size_t hps_insertion_backfill_bytes(struct hps_insertion *insertion)
{
    return hps_backfill_bytes(insertion->backfill);
}

void hps_insertion_backfill(struct hps_insertion *insertion, const struct hps_backfill_rows *rows)
{
    hps_backfill_add(insertion->backfill, rows);
}

/* ---- counting -------------------------------------------------------------------------------- */

static void count_dropped(const struct hps_insertion *insertion, enum hps_drop_reason reason,
                          uint32_t n)
{
    if (insertion->options.metrics != NULL && n > 0) {
        hps_metric_add(insertion->options.metrics->insertion_dropped[reason], n);
    }
}

/* Lock held; call it after each change of n_rows. */
static void show_rows(const struct hps_insertion *insertion)
{
    if (insertion->options.metrics != NULL) {
        hps_metric_set(insertion->options.metrics->insertion_queue_rows, insertion->n_rows);
    }
}

/* ---- entries, under the lock ----------------------------------------------------------------- */

/* Needs no lock. */
static uint32_t *head_of(const struct hps_insertion *insertion, const struct hps_version *version,
                         uint32_t table, hps_key key)
{
    uint64_t hash = hps_mix64(key ^ hps_hash_secret() ^ table * HPS_HASH_GOLDEN) ^
                    hps_mix64((uintptr_t)version);
    uint32_t *head = &insertion->heads[hash & insertion->hash_mask];

    __builtin_prefetch(head);
    return head;
}

static bool is_queued(const struct hps_insertion *insertion, uint32_t at, const struct lane *lane,
                      uint32_t table, hps_key key)
{
    const struct entry *entry = &insertion->entries[at];

    while (at != NONE && (entry->key != key || entry->table != table || entry->lane != lane)) {
        at = entry->chain;
        entry = &insertion->entries[at];
    }
    return at != NONE;
}

/* NONE: the queue is full. */
static uint32_t entry_take(struct hps_insertion *insertion)
{
    uint32_t at = insertion->free;

    if (at != NONE) {
        insertion->free = insertion->entries[at].next;
    } else if (insertion->n_touched < insertion->options.rows_max) {
        at = ++insertion->n_touched;
    }
    return at;
}

/* Free the entry of a key that no longer waits. link: its head */
static void entry_give(struct hps_insertion *insertion, uint32_t *link, uint32_t at)
{
    struct entry *entry = &insertion->entries[at];

    while (*link != at) {
        HPS_ASSERT(*link != NONE);
        link = &insertion->entries[*link].chain;
    }
    *link = entry->chain;
    entry->next = insertion->free;
    insertion->free = at;
    HPS_ASSERT(insertion->n_rows > insertion->n_waiting);
    insertion->n_rows--;
}

static uint32_t row_bytes_of(const struct hps_insertion *insertion, uint32_t at)
{
    const struct entry *entry = &insertion->entries[at];

    return entry->lane->version->tables[entry->table].row_bytes;
}

static void lane_push(struct hps_insertion *insertion, struct lane *lane, uint32_t at)
{
    insertion->entries[at].next = NONE;
    if (lane->head == NONE) {
        lane->head = at;
    } else {
        insertion->entries[lane->tail].next = at;
    }
    lane->tail = at;
    lane->n_waiting++;
    insertion->n_waiting++;
    insertion->row_bytes += row_bytes_of(insertion, at);
}

static uint32_t lane_pop(struct hps_insertion *insertion, struct lane *lane)
{
    uint32_t at = lane->head;

    HPS_ASSERT(lane->n_waiting > 0);
    HPS_ASSERT(at != NONE);
    lane->head = insertion->entries[at].next;
    lane->n_waiting--;
    insertion->n_waiting--;
    insertion->row_bytes -= row_bytes_of(insertion, at);
    return at;
}

/* ---- lanes, under the lock ------------------------------------------------------------------- */

static struct lane *find_lane(const struct hps_insertion *insertion,
                              const struct hps_version *version)
{
    struct lane *lane = insertion->lanes;

    while (lane != NULL && lane->version != version) {
        lane = lane->next;
    }
    return lane;
}

static void append_lane(struct hps_insertion *insertion, struct lane *lane)
{
    struct lane **at = &insertion->lanes;

    while (*at != NULL) {
        at = &(*at)->next;
    }
    lane->next = NULL;
    *at = lane;
}

static void remove_lane(struct hps_insertion *insertion, struct lane *lane)
{
    struct lane **at = &insertion->lanes;

    while (*at != lane) {
        at = &(*at)->next;
    }
    *at = lane->next;
}

/* The queue of the version, created if necessary. NULL: no memory. */
static struct lane *get_lane(struct hps_insertion *insertion, struct hps_version *version)
{
    struct lane *lane = find_lane(insertion, version);

    if (lane == NULL) {
        lane = hps_calloc(1, sizeof(*lane));
        if (lane != NULL) {
            hps_version_pin(version);
            lane->version = version;
            append_lane(insertion, lane);
        }
    }
    return lane;
}

/* Drop a slice of the waiting keys. Returns their number. */
static uint32_t drop_some(struct hps_insertion *insertion, struct lane *lane)
{
    uint32_t n = 0;

    for (; lane->n_waiting > 0 && n < SLICE_KEYS; n++) {
        uint32_t at = lane_pop(insertion, lane);
        const struct entry *entry = &insertion->entries[at];
        entry_give(insertion, head_of(insertion, lane->version, entry->table, entry->key), at);
    }
    show_rows(insertion);
    return n;
}

/* Free the lane if no key waits and no job runs. This releases the pin, after which the version may
 * be freed. */
static void end_lane(struct hps_insertion *insertion, struct lane *lane)
{
    if (lane->n_waiting == 0 && lane->n_jobs == 0) {
        remove_lane(insertion, lane);
        hps_version_unpin(lane->version);
        hps_free(lane);
    }
}

/* ---- adding ---------------------------------------------------------------------------------- */

/* Returns a job to be posted if more keys wait than the active jobs will take next. Lock held. */
static struct job *wake_job(struct hps_insertion *insertion)
{
    struct job *job = insertion->idle;
    uint64_t n_soon = (uint64_t)insertion->n_active * HPS_INSERTION_JOB_KEYS;
    uint64_t bytes_soon = (uint64_t)insertion->n_active * HPS_INSERTION_JOB_BYTES;
    bool more = insertion->n_waiting > n_soon || insertion->row_bytes > bytes_soon;

    if (job == NULL || !more || atomic_load(&insertion->stopping)) {
        return NULL;
    }
    insertion->idle = job->next;
    insertion->n_active++;
    return job;
}

/* Lock held. */
static void rest_job(struct hps_insertion *insertion, struct job *job)
{
    HPS_ASSERT(insertion->n_active > 0);
    job->next = insertion->idle;
    insertion->idle = job;
    insertion->n_active--;
}

static void post_job(struct hps_insertion *insertion, struct job *job)
{
    if (job != NULL && hps_pool_post_low(insertion->options.io, &job->task) != HPS_OK) {
        hps_lock_acquire(&insertion->lock); /* the pool is stopping, and so is this */
        rest_job(insertion, job);
        hps_lock_release(&insertion->lock);
    }
}

/* heads: of the keys. Returns how many keys did not fit. Lock held. */
static uint32_t add_keys(struct hps_insertion *insertion, struct lane *lane, uint32_t table,
                         const hps_key *keys, uint32_t *const *heads, uint32_t n)
{
    uint32_t n_dropped = 0;

    for (uint32_t i = 0; i < n; i++) {
        __builtin_prefetch(&insertion->entries[*heads[i]]);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *head = heads[i];
        if (is_queued(insertion, *head, lane, table, keys[i])) {
            continue;
        }
        uint32_t at = entry_take(insertion);
        if (at == NONE) {
            n_dropped++;
            continue;
        }
        insertion->entries[at] =
            (struct entry){.key = keys[i], .lane = lane, .table = table, .chain = *head};
        *head = at;
        insertion->n_rows++;
        lane_push(insertion, lane, at);
    }
    show_rows(insertion);
    return n_dropped;
}

static void add_some(struct hps_insertion *insertion, struct hps_version *version,
                     const struct hps_table *table, const hps_key *keys, uint32_t n)
{
    enum hps_drop_reason reason = HPS_DROP_QUEUE_FULL;
    uint32_t n_dropped = n;
    uint32_t *heads[SLICE_KEYS];
    struct job *job = NULL;

    for (uint32_t i = 0; i < n; i++) {
        heads[i] = head_of(insertion, version, table->id, keys[i]);
    }
    hps_lock_acquire(&insertion->lock);
    bool stopping = atomic_load(&insertion->stopping);
    struct lane *lane = stopping ? NULL : get_lane(insertion, version);
    if (stopping || (lane != NULL && atomic_load(&lane->leaving))) {
        reason = HPS_DROP_STOPPED;
    } else if (lane != NULL) {
        n_dropped = add_keys(insertion, lane, table->id, keys, heads, n);
        job = wake_job(insertion);
        end_lane(insertion, lane); /* if no key fitted */
    }
    hps_lock_release(&insertion->lock);
    count_dropped(insertion, reason, n_dropped);
    post_job(insertion, job);
}

void hps_insertion_add(struct hps_insertion *insertion, struct hps_version *version,
                       const struct hps_table *table, const hps_key *keys, uint32_t n)
{
    HPS_ASSERT(table->id < version->n_tables);
    for (uint32_t i = 0; i < n; i += SLICE_KEYS) {
        add_some(insertion, version, table, keys + i, n - i < SLICE_KEYS ? n - i : SLICE_KEYS);
    }
}

/* ---- a job ----------------------------------------------------------------------------------- */

/* The next lane that has keys; it moves to the end of the list. NULL: no key waits. Lock held. */
static struct lane *take_turn(struct hps_insertion *insertion)
{
    struct lane *lane = insertion->lanes;

    while (lane != NULL && lane->n_waiting == 0) {
        lane = lane->next;
    }
    if (lane != NULL) {
        lane->n_jobs++;
        remove_lane(insertion, lane);
        append_lane(insertion, lane);
    }
    return lane;
}

/* Move a slice of keys from the lane to the job. False: the lane is empty or the job is full. Lock
 * held. */
static bool take_some(struct hps_insertion *insertion, struct job *job, uint64_t *bytes)
{
    struct lane *lane = job->lane;

    for (uint32_t i = 0; i < SLICE_KEYS; i++) {
        if (lane->n_waiting == 0 || job->n == HPS_INSERTION_JOB_KEYS ||
            *bytes >= HPS_INSERTION_JOB_BYTES) {
            return false;
        }
        uint32_t at = lane_pop(insertion, lane);
        const struct entry *entry = &insertion->entries[at];
        *bytes += row_bytes_of(insertion, at);
        job->items[job->n++] = (struct item){.key = entry->key, .table = entry->table, .entry = at};
    }
    return true;
}

/* Take the keys of one job from the version whose turn it is. */
static void job_take(struct hps_insertion *insertion, struct job *job)
{
    uint64_t bytes = 0;

    job->n = 0;
    hps_lock_acquire(&insertion->lock);
    job->lane = take_turn(insertion);
    bool more = job->lane != NULL && take_some(insertion, job, &bytes);
    hps_lock_release(&insertion->lock);
    while (more) {
        hps_lock_acquire(&insertion->lock);
        more = take_some(insertion, job, &bytes);
        hps_lock_release(&insertion->lock);
    }
}

/* The keys have been fetched or given up: they may be queued again. */
static void job_give(struct hps_insertion *insertion, const struct job *job)
{
    uint32_t *heads[SLICE_KEYS];
    uint32_t n;

    for (uint32_t begin = 0; begin < job->n; begin += n) {
        const struct item *items = job->items + begin;
        n = job->n - begin < SLICE_KEYS ? job->n - begin : SLICE_KEYS;
        for (uint32_t i = 0; i < n; i++) {
            heads[i] = head_of(insertion, job->lane->version, items[i].table, items[i].key);
        }
        hps_lock_acquire(&insertion->lock);
        for (uint32_t i = 0; i < n; i++) {
            entry_give(insertion, heads[i], items[i].entry);
        }
        show_rows(insertion);
        hps_lock_release(&insertion->lock);
    }
}

static int by_table(const void *left, const void *right)
{
    uint32_t a = ((const struct item *)left)->table;
    uint32_t b = ((const struct item *)right)->table;

    return a < b ? -1 : a > b ? 1 : 0;
}

static bool job_cut_off(const void *ctx)
{
    const struct job *job = ctx;

    return atomic_load(&job->insertion->stopping) || atomic_load(&job->lane->leaving);
}

/* Set up the walk of one table, with its rows at `rows`. Returns the size of the rows. */
static uint64_t walk_begin(struct job *job, struct hps_walk *walk, uint32_t begin, uint32_t n,
                           uint8_t *rows)
{
    struct hps_version *version = job->lane->version;
    const struct hps_table *table = &version->tables[job->items[begin].table];
    struct hps_batch batch = {
        .keys = job->keys + begin, .slots = job->slots + begin, .rows = rows, .n = n};

    for (uint32_t i = 0; i < n; i++) {
        job->keys[begin + i] = job->items[begin + i].key;
        job->slots[begin + i] = i;
    }
    hps_walk_init(walk, version, table, &batch);
    return ((uint64_t)n * table->row_bytes + ROWS_ALIGN - 1) & ~(uint64_t)(ROWS_ALIGN - 1);
}

/* Returns the end of the items that have the same table as item `begin`. */
static uint32_t table_end(const struct job *job, uint32_t begin)
{
    uint32_t end = begin;

    while (end < job->n && job->items[end].table == job->items[begin].table) {
        end++;
    }
    return end;
}

/* Allocate the walks of a job, and memory for their rows after them. NULL: no memory. */
static struct hps_walk *make_walks(struct job *job, uint32_t *out_n)
{
    uint64_t row_bytes = 0;
    uint32_t n = 0;

    qsort(job->items, job->n, sizeof(job->items[0]), by_table);
    for (uint32_t begin = 0, end; begin < job->n; begin = end) {
        end = table_end(job, begin);
        row_bytes += (uint64_t)(end - begin) *
                         job->lane->version->tables[job->items[begin].table].row_bytes +
                     ROWS_ALIGN;
        n++;
    }
    size_t walk_bytes = (n * sizeof(struct hps_walk) + ROWS_ALIGN - 1) & ~(size_t)(ROWS_ALIGN - 1);
    uint8_t *memory = hps_alloc_aligned(ROWS_ALIGN, walk_bytes + row_bytes);
    if (memory == NULL) {
        return NULL;
    }
    struct hps_walk *walks = (struct hps_walk *)(void *)memory;
    uint8_t *rows = memory + walk_bytes;
    uint32_t i = 0;
    for (uint32_t begin = 0, end; begin < job->n; begin = end, i++) {
        end = table_end(job, begin);
        rows += walk_begin(job, &walks[i], begin, end - begin, rows);
        walks[i].next = i + 1 < n ? &walks[i + 1] : NULL;
    }
    *out_n = n;
    return walks;
}

static void count_walks(struct job *job, const struct hps_walk *walks, hps_status status)
{
    const struct hps_insertion *insertion = job->insertion;
    uint32_t n_missing = 0;

    for (const struct hps_walk *walk = walks; walk != NULL; walk = walk->next) {
        n_missing += walk->batch.n;
    }
    count_dropped(insertion, status == HPS_CANCELLED ? HPS_DROP_STOPPED : HPS_DROP_NOT_FETCHED,
                  n_missing);
    if (insertion->options.metrics != NULL) {
        hps_lookup_count_insertion(insertion->options.metrics, walks);
    }
}

static void note_capacity(const struct hps_walk *walks, struct hps_version *version)
{
    for (const struct hps_walk *walk = walks; walk != NULL; walk = walk->next) {
        hps_walk_note_capacity(walk, version, HPS_WALK_BEHIND);
    }
}

static void job_fetch(struct job *job)
{
    struct hps_walk_call call = {.scratch = job->scratch,
                                 .deadline_us = hps_clock_us() + JOB_US_MAX,
                                 .cancelled = job_cut_off,
                                 .cancelled_ctx = job,
                                 .insertion = job->insertion,
                                 .purpose = HPS_WALK_BEHIND};
    struct hps_version *version = job->lane->version;
    struct hps_error err = {0};
    uint32_t n = 0;
    struct hps_walk *walks = make_walks(job, &n);

    if (walks == NULL) {
        count_dropped(job->insertion, HPS_DROP_NOT_FETCHED, job->n);
        return;
    }
    hps_status status = hps_walk_rest(walks, &call, &err);
    if (status != HPS_OK && status != HPS_CANCELLED) {
        HPS_LOG(WARN, "insertion",
                "insertion failed: rows not fetched are dropped; the next lookup fetches them",
                HPS_STR("model", version->model), HPS_I64("version", version->number),
                HPS_STR("error", err.text));
    }
    count_walks(job, walks, status);
    note_capacity(walks, version);
    hps_free_aligned(walks);
}

/* On an I/O thread. Runs one job, so that waiting lookups come next. */
static void run_job(struct hps_task *task)
{
    struct job *job = (struct job *)task;
    struct hps_insertion *insertion = job->insertion;

    job_take(insertion, job);
    if (job->n > 0) {
        job_fetch(job);
        job_give(insertion, job);
    }
    hps_lock_acquire(&insertion->lock);
    if (job->lane != NULL) {
        job->lane->n_jobs--;
        end_lane(insertion, job->lane);
    }
    rest_job(insertion, job);
    job = wake_job(insertion);
    hps_lock_release(&insertion->lock);
    post_job(insertion, job);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Drop a slice of the keys that wait for the version; NULL: for any version. Returns whether there
 * may be more. */
static bool drop_slice(struct hps_insertion *insertion, const struct hps_version *version)
{
    uint32_t n_dropped = 0;
    bool more = false;

    hps_lock_acquire(&insertion->lock);
    struct lane *lane = version != NULL ? find_lane(insertion, version) : insertion->lanes;
    while (version == NULL && lane != NULL && lane->n_waiting == 0) {
        lane = lane->next;
    }
    if (lane != NULL) {
        atomic_store(&lane->leaving, true);
        n_dropped = drop_some(insertion, lane);
        more = version == NULL || lane->n_waiting > 0;
        end_lane(insertion, lane);
    }
    hps_lock_release(&insertion->lock);
    count_dropped(insertion, HPS_DROP_STOPPED, n_dropped);
    return more;
}

void hps_insertion_forget(struct hps_insertion *insertion, const struct hps_version *version)
{
    while (insertion != NULL && drop_slice(insertion, version)) {
    }
    if (insertion != NULL) {
        hps_backfill_forget(insertion->backfill, version);
    }
}

void hps_insertion_stop(struct hps_insertion *insertion)
{
    if (insertion == NULL) {
        return;
    }
    hps_lock_acquire(&insertion->lock); /* afterwards no key is added */
    atomic_store(&insertion->stopping, true);
    hps_lock_release(&insertion->lock);
    while (drop_slice(insertion, NULL)) {
    }
    hps_backfill_stop(insertion->backfill);
}
