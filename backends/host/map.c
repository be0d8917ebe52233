/* SPDX-License-Identifier: Apache-2.0
 *
 * The host tier: spaces of tables within one byte budget, loads that appear as one, scans. Readers
 * run on any thread and take no lock; writers take that of their table (table.h).
 */
#include "backends/host/map.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "backends/host/table.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/heap.h"
#include "base/key_sort.h"
#include "base/log.h"

enum {
    WISH_ROWS_MIN = 1024,
    EXCESS_SHARE = 8,      /* above its share by so much a table gives way */
    EPOCH_KEYS = 1024,     /* looked up in one epoch, between two looks at the deadline ... */
    EPOCH_BYTES = 1 << 20, /* ... or fewer, of wide rows: none comes free for writers meanwhile */
};

/* All tables of a space, replaced as one when a load is committed. */
struct table_set {
    uint32_t n_tables;
    struct hps_host_table *tables[];
};

struct host_space {
    struct hps_space base;
    char *model;
    int64_t version;
    uint32_t n_tables;
    struct hps_table *tables;  /* [n_tables] copies, names not used */
    pthread_rwlock_t set_lock; /* writers share it; held alone while `set` is replaced */
    _Atomic(struct table_set *) set;
    bool loading; /* these three under the store's lock */
    bool active;
    struct hps_store_load *load; /* what has rows that are not in `set` yet */
    struct host_space *next;
};

/* Locks, in this order: set_lock of a space, lock of a table, lock of the store. Whoever holds the
 * last one only tries the others. */
struct host_map {
    struct hps_store base;
    struct hps_store_ops ops; /* host_ops with the caps of this one */
    struct hps_host_shared shared;
    pthread_mutex_t lock; /* the list of spaces; held while `set` of one is replaced */
    struct host_space *spaces;
};

struct hps_store_load {
    struct host_space *space;
    struct table_set *set;
    atomic_bool gave_way; /* rows of it were let go for a version that is active */
    bool any;             /* a row was added: the two below hold the last one's place */
    uint32_t table;
    hps_key key;
};

/* ---- sets of tables ---- */

static void set_free(struct table_set *set)
{
    if (set != NULL) {
        for (uint32_t i = 0; i < set->n_tables; i++) {
            hps_host_table_free(set->tables[i]);
        }
        hps_free(set);
    }
}

/* Of so many rows, those that a table will have in the end. */
static uint64_t rows_kept(const struct hps_host_shared *shared, uint64_t n_rows)
{
    return shared->lossy && n_rows > shared->rows_max ? shared->rows_max : n_rows;
}

/* sized: with room in the indexes for the rows the tables expect. */
static hps_status set_new(struct host_map *store, struct host_space *space,
                          const struct hps_table *tables, uint32_t n_tables, bool sized,
                          struct table_set **out_set)
{
    struct table_set *set = hps_calloc(1, sizeof(*set) + n_tables * sizeof(set->tables[0]));
    if (set == NULL) {
        return HPS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n_tables; i++) {
        hps_status status = hps_host_table_new(&store->shared, tables[i].row_bytes,
                                               rows_kept(&store->shared, tables[i].n_rows), sized,
                                               &space->base.incomplete, &set->tables[i]);
        if (status != HPS_OK) {
            set_free(set);
            return status;
        }
        set->n_tables++;
    }
    *out_set = set;
    return HPS_OK;
}

static hps_status fail_budget(struct host_map *store, hps_status status, const char *what,
                              uint64_t bytes, struct hps_error *err)
{
    if (status != HPS_EXHAUSTED) {
        return hps_error_set(err, status, "host: no memory for %s", what);
    }
    return hps_error_set(
        err, status, "host: %s needs %" PRIu64 " bytes, %" PRIu64 " of %" PRIu64 " are available",
        what, bytes, hps_host_available(&store->shared.budget), store->shared.budget.bytes_max);
}

/* What the tables will take with the rows they expect. */
static uint64_t tables_bytes(const struct host_map *store, const struct hps_table *tables,
                             uint32_t n_tables)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_tables; i++) {
        uint64_t one = hps_host_table_bytes(&store->shared, tables[i].row_bytes,
                                            rows_kept(&store->shared, tables[i].n_rows));
        if (__builtin_add_overflow(bytes, one, &bytes)) {
            return UINT64_MAX;
        }
    }
    return bytes;
}

static uint64_t tables_rows(const struct hps_table *tables, uint32_t n_tables)
{
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < n_tables; i++) {
        n_rows += tables[i].n_rows;
    }
    return n_rows;
}

/* ---- the store ---- */

static struct host_map *host_of(struct hps_space *space)
{
    return (struct host_map *)space->store;
}

static struct hps_host_table *table_of(struct hps_space *base, const struct hps_table *table)
{
    struct host_space *space = (struct host_space *)base;
    struct table_set *set = atomic_load_explicit(&space->set, memory_order_acquire);
    HPS_ASSERT(table->id < set->n_tables);
    struct hps_host_table *host = set->tables[table->id];
    HPS_ASSERT(host->rows.row_bytes == table->row_bytes);
    return host;
}

/* The table for a writer, locked: no other writer, and no load is committed meanwhile. */
static struct hps_host_table *table_lock(struct hps_space *base, const struct hps_table *table)
{
    pthread_rwlock_rdlock(&((struct host_space *)base)->set_lock);
    struct hps_host_table *host = table_of(base, table);
    pthread_mutex_lock(&host->lock);
    return host;
}

static void table_unlock(struct hps_space *base, struct hps_host_table *host)
{
    pthread_mutex_unlock(&host->lock);
    pthread_rwlock_unlock(&((struct host_space *)base)->set_lock);
}

static void host_close(struct hps_store *base)
{
    struct host_map *store = (struct host_map *)base;
    HPS_ASSERT(store->spaces == NULL);
    HPS_ASSERT(atomic_load(&store->shared.budget.used_bytes) == 0);
    pthread_mutex_destroy(&store->lock);
    hps_epoch_free(store->shared.epoch);
    hps_free(store);
}

static hps_status check_tables(const struct hps_space_id *id, struct hps_error *err)
{
    for (uint32_t i = 0; i < id->n_tables; i++) {
        HPS_ASSERT(id->tables[i].id == i);
        if (id->tables[i].row_bytes == 0 || id->tables[i].row_bytes > UINT32_MAX / 2) {
            return hps_error_set(err, HPS_INVALID, "host: table %s has rows of %" PRIu32 " bytes",
                                 id->tables[i].name, id->tables[i].row_bytes);
        }
    }
    return HPS_OK;
}

/* ---- shares of the budget ---- */

/* What a table would take, at least a little: more rows may come than were foretold. */
static uint64_t table_wish(const struct host_map *store, const struct hps_table *table)
{
    uint64_t n_rows = table->n_rows > WISH_ROWS_MIN ? table->n_rows : WISH_ROWS_MIN;
    return hps_host_table_bytes(&store->shared, table->row_bytes, n_rows);
}

/* Bytes that no table of an active version may pass, so that all get what they want or as much as
 * any other: small tables are whole then, the large ones have the rest. UINT64_MAX: all fit. */
static uint64_t shares_level(const struct host_map *store)
{
    double level = 0;
    for (;;) { /* each round but the last two finds tables that the level has passed */
        double below = 0, n_above = 0;
        for (struct host_space *space = store->spaces; space != NULL; space = space->next) {
            for (uint32_t i = 0; space->active && i < space->n_tables; i++) {
                double wish = (double)table_wish(store, &space->tables[i]);
                below += wish <= level ? wish : 0;
                n_above += wish <= level ? 0 : 1;
            }
        }
        if (n_above == 0) {
            return UINT64_MAX;
        }
        double next = ((double)store->shared.budget.bytes_max - below) / n_above;
        if (next <= level) {
            return (uint64_t)level;
        }
        level = next;
    }
}

/* When the active tables do not all fit, each has a share: else the first to be asked for would
 * keep the others out. With the store's lock held. */
static void shares_update(struct host_map *store)
{
    if (!store->shared.evicts || store->shared.lossy) {
        return; /* nobody gives way */
    }
    uint64_t level = shares_level(store);
    for (struct host_space *space = store->spaces; space != NULL; space = space->next) {
        struct table_set *set = atomic_load_explicit(&space->set, memory_order_acquire);
        bool limited = space->active && level != UINT64_MAX;
        for (uint32_t i = 0; i < set->n_tables; i++) {
            uint64_t wish = table_wish(store, &space->tables[i]);
            uint64_t roomy = wish + wish / EXCESS_SHARE; /* more rows may come */
            uint64_t share = roomy < level ? roomy : level;
            atomic_store_explicit(&set->tables[i]->account.bytes_max, limited ? share : UINT64_MAX,
                                  memory_order_relaxed);
            atomic_store(&set->tables[i]->active, space->active);
        }
    }
}

/* Bytes by which a table is more in the way than it should be. */
static uint64_t table_excess(const struct host_space *space, struct hps_host_table *host)
{
    uint64_t used = atomic_load_explicit(&host->account.used_bytes, memory_order_relaxed);
    uint64_t max = atomic_load_explicit(&host->account.bytes_max, memory_order_relaxed);
    if (!space->active) {
        return used;
    }
    return used > max && used - max > max / EXCESS_SHARE ? used - max : 0;
}

/* Empty it unless somebody is writing to it. True: its memory is free. */
static bool table_empty(const struct host_space *space, struct hps_host_table *host)
{
    if (pthread_mutex_trylock(&host->lock) != 0) {
        return false;
    }
    if (!host->clearing) {
        uint64_t bytes = atomic_load_explicit(&host->account.used_bytes, memory_order_relaxed);
        HPS_LOG(INFO, "host", "a table gives way to others that need its memory",
                HPS_STR("model", space->model), HPS_I64("version", space->version),
                HPS_U64("bytes", bytes));
        hps_host_table_clear(host);
    }
    bool ended = hps_host_table_clear_end(host);
    pthread_mutex_unlock(&host->lock);
    return ended;
}

/* The table that is the most in the way. */
struct worst {
    struct host_space *space;
    struct hps_host_table *host;
    unsigned rank; /* of what should go first; 0: none was found */
    uint64_t excess_bytes;
};

/* What has been let go already goes first, then versions that are not active, then tables that have
 * had far more than their share since before others were there. */
static void worst_of(struct worst *worst, struct host_space *space, const struct table_set *set,
                     const struct hps_host_table *for_table)
{
    enum { OVER_SHARE = 1, NOT_ACTIVE, LET_GO };
    for (uint32_t i = 0; i < set->n_tables; i++) {
        struct hps_host_table *host = set->tables[i];
        uint64_t excess_bytes = table_excess(space, host);
        unsigned rank = space->active ? OVER_SHARE : NOT_ACTIVE;
        if (atomic_load(&host->clearing)) {
            rank = LET_GO;
        } else if (excess_bytes == 0) {
            rank = 0;
        }
        bool worse =
            rank > worst->rank || (rank == worst->rank && excess_bytes > worst->excess_bytes);
        if (worse && host != for_table) {
            *worst = (struct worst){space, host, rank, excess_bytes};
        }
    }
}

/* A load that gives way goes on nowhere: it fails. */
static enum hps_host_way host_give_way(struct hps_host_shared *shared,
                                       const struct hps_host_table *table)
{
    struct host_map *store =
        (struct host_map *)((char *)shared - offsetof(struct host_map, shared));
    struct worst worst = {0};
    pthread_mutex_lock(&store->lock);
    for (struct host_space *space = store->spaces; space != NULL; space = space->next) {
        struct hps_store_load *load = space->load;
        if (load != NULL) {
            worst_of(&worst, space, load->set, table);
        } else if (!space->loading) {
            worst_of(&worst, space, atomic_load_explicit(&space->set, memory_order_acquire), table);
        }
    }
    enum hps_host_way way = HPS_HOST_WAY_NONE;
    if (worst.host != NULL) {
        if (worst.space->load != NULL) {
            atomic_store(&worst.space->load->gave_way, true);
        }
        bool given = table_empty(worst.space, worst.host);
        bool soon = !worst.space->active || atomic_load(&worst.host->clearing);
        way = given ? HPS_HOST_WAY_GIVEN : soon ? HPS_HOST_WAY_SOON : HPS_HOST_WAY_NONE;
    }
    pthread_mutex_unlock(&store->lock);
    return way;
}

static void host_space_active(struct hps_space *base, bool active)
{
    struct host_map *store = host_of(base);
    pthread_mutex_lock(&store->lock);
    ((struct host_space *)base)->active = active;
    shares_update(store);
    pthread_mutex_unlock(&store->lock);
}

static hps_status space_link(struct host_map *store, struct host_space *space,
                             struct hps_error *err)
{
    hps_status status = HPS_OK;
    pthread_mutex_lock(&store->lock);
    for (struct host_space *s = store->spaces; s != NULL; s = s->next) {
        if (s->version == space->version && strcmp(s->model, space->model) == 0) {
            status = hps_error_set(err, HPS_EXISTS, "host: %s version %" PRId64 " is open already",
                                   space->model, space->version);
            break;
        }
    }
    if (status == HPS_OK) {
        space->next = store->spaces;
        store->spaces = space;
        shares_update(store);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

static hps_status host_space_open(struct hps_store *base, const struct hps_space_id *id,
                                  struct hps_space **out_space, struct hps_error *err)
{
    struct host_map *store = (struct host_map *)base;
    hps_status status = check_tables(id, err);
    if (status != HPS_OK) {
        return status;
    }
    struct host_space *space = hps_calloc(1, sizeof(*space));
    char *model = hps_strdup(id->model);
    struct hps_table *tables = hps_alloc(id->n_tables * sizeof(*tables));
    struct table_set *set = NULL;
    status = space != NULL && model != NULL && tables != NULL ? HPS_OK : HPS_NO_MEMORY;
    if (status == HPS_OK) {
        status = set_new(store, space, id->tables, id->n_tables, false, &set);
    }
    if (status != HPS_OK) {
        hps_ignore(hps_error_set(err, status, "host: no memory for a new space"));
        goto fail;
    }
    space->base.store = base;
    space->model = model;
    space->version = id->version;
    memcpy(tables, id->tables, id->n_tables * sizeof(*tables));
    space->tables = tables;
    pthread_rwlock_init(&space->set_lock, NULL);
    space->n_tables = id->n_tables;
    atomic_init(&space->set, set);
    status = space_link(store, space, err);
    if (status != HPS_OK) {
        pthread_rwlock_destroy(&space->set_lock);
        goto fail;
    }
    *out_space = &space->base;
    return HPS_OK;
fail:
    set_free(set);
    hps_free(tables);
    hps_free(model);
    hps_free(space);
    return status;
}

static void host_space_close(struct hps_space *base)
{
    struct host_space *space = (struct host_space *)base;
    struct host_map *store = host_of(base);
    HPS_ASSERT(!space->loading);
    pthread_mutex_lock(&store->lock);
    struct host_space **link = &store->spaces;
    while (*link != space) {
        link = &(*link)->next;
    }
    *link = space->next;
    shares_update(store);
    pthread_mutex_unlock(&store->lock);
    set_free(atomic_load_explicit(&space->set, memory_order_acquire));
    pthread_rwlock_destroy(&space->set_lock);
    hps_free(space->tables);
    hps_free(space->model);
    hps_free(space);
}

static hps_status host_space_drop(struct hps_space *space, struct hps_error *err)
{
    (void)err;
    host_space_close(space);
    return HPS_OK;
}

static void host_space_usage(struct hps_space *base, struct hps_store_usage *out_usage)
{
    struct host_space *space = (struct host_space *)base;
    struct hps_host_shared *shared = &host_of(base)->shared;
    struct hps_store_usage usage = {.capacity_bytes = shared->budget.bytes_max};
    struct hps_epoch_slot *slot = hps_epoch_enter(shared->epoch);
    struct table_set *set = atomic_load_explicit(&space->set, memory_order_acquire);
    for (uint32_t i = 0; i < set->n_tables; i++) {
        struct hps_host_account *account = &set->tables[i]->account;
        usage.n_rows += hps_host_table_rows(set->tables[i]);
        usage.n_rows_dropped +=
            atomic_load_explicit(&set->tables[i]->n_dropped, memory_order_relaxed);
        usage.used_bytes += atomic_load_explicit(&account->used_bytes, memory_order_relaxed);
        usage.huge_bytes += atomic_load_explicit(&account->huge_bytes, memory_order_relaxed);
    }
    hps_epoch_leave(shared->epoch, slot);
    *out_usage = usage;
}

static uint64_t host_evictions_take(struct hps_space *base, const struct hps_table *table)
{
    struct host_space *space = (struct host_space *)base;
    struct hps_epoch *epoch = host_of(base)->shared.epoch;
    struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
    struct table_set *set = atomic_load_explicit(&space->set, memory_order_acquire);
    uint64_t n =
        atomic_exchange_explicit(&set->tables[table->id]->n_evicted, 0, memory_order_relaxed);
    hps_epoch_leave(epoch, slot);
    return n;
}

static hps_status host_reserve(struct hps_space *base, struct hps_error *err)
{
    struct host_space *space = (struct host_space *)base;
    hps_status status = HPS_OK;
    pthread_rwlock_rdlock(&space->set_lock);
    for (uint32_t i = 0; status == HPS_OK && i < space->n_tables; i++) {
        uint64_t n_rows = space->tables[i].n_rows;
        status = hps_host_table_reserve(table_of(base, &space->tables[i]), n_rows);
        if (status != HPS_OK) {
            status = fail_budget(host_of(base), status, "the index of a table",
                                 hps_host_index_bytes(n_rows), err);
        }
    }
    pthread_rwlock_unlock(&space->set_lock);
    return status;
}

static uint32_t keys_per_epoch(uint32_t row_bytes)
{
    uint32_t n = EPOCH_BYTES / row_bytes;
    n = n < EPOCH_KEYS ? n : EPOCH_KEYS;
    return n > HPS_HOST_BLOCK_KEYS ? n : HPS_HOST_BLOCK_KEYS;
}

static hps_status host_get(struct hps_space *space, const struct hps_call *call,
                           const struct hps_table *table, struct hps_batch *batch)
{
    struct hps_epoch *epoch = host_of(space)->shared.epoch;
    uint32_t hi = batch->n;
    uint32_t n_epoch = keys_per_epoch(table->row_bytes);
    bool stream = hps_host_streams(table->row_bytes, batch);
    while (hi > 0) {
        if (call->deadline_us != 0 && hps_clock_us() >= call->deadline_us) {
            return HPS_DEADLINE;
        }
        uint32_t lo = hi > n_epoch ? hi - n_epoch : 0;
        struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
        hps_host_table_get(table_of(space, table), batch, lo, hi, stream);
        hps_epoch_leave(epoch, slot);
        hi = lo;
    }
    return HPS_OK;
}

static hps_status host_put(struct hps_space *space, const struct hps_call *call,
                           const struct hps_table *table, const hps_key *keys, const uint8_t *rows,
                           uint32_t n)
{
    (void)call; /* no I/O */
    struct hps_host_table *host = table_lock(space, table);
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n; i++) {
        hps_status one = hps_host_table_put(host, keys[i], rows + (size_t)i * table->row_bytes);
        status = one != HPS_OK ? one : status;
    }
    table_unlock(space, host);
    return status;
}

/* A row that an update has overtaken stays out: the updater changes stamps before it takes the
 * table's lock, and `guard` reads them under it. */
static hps_status host_insert(struct hps_space *space, const struct hps_call *call,
                              const struct hps_table *table, const hps_key *keys,
                              const uint32_t *slots, const uint8_t *rows, uint32_t n,
                              const struct hps_insert_guard *guard,
                              struct hps_insert_report *out_report)
{
    (void)call; /* no I/O */
    struct hps_host_table *host = table_lock(space, table);
    struct hps_insert_report report = {0};
    for (uint32_t i = 0; i < n; i++) {
        if (guard != NULL && !guard->fresh(guard->ctx, i)) {
            report.n_stale++;
        } else if (!hps_host_table_has(host, keys[i])) {
            const uint8_t *row = rows + (size_t)slots[i] * table->row_bytes;
            bool in = hps_host_table_insert(host, keys[i], row, &report.n_evicted) == HPS_OK;
            report.n_inserted += in ? 1 : 0;
            report.n_no_room += in ? 0 : 1;
        }
    }
    table_unlock(space, host);
    *out_report = report;
    return HPS_OK;
}

static hps_status host_erase(struct hps_space *space, const struct hps_call *call,
                             const struct hps_table *table, const hps_key *keys, uint32_t n)
{
    (void)call;
    struct hps_host_table *host = table_lock(space, table);
    for (uint32_t i = 0; i < n; i++) {
        hps_host_table_erase(host, keys[i]);
    }
    table_unlock(space, host);
    return HPS_OK;
}

/* ---- loads ---- */

static hps_status load_claim(struct host_space *space, struct hps_error *err)
{
    struct host_map *store = host_of(&space->base);
    struct hps_store_usage usage;
    hps_status status = HPS_OK;
    pthread_mutex_lock(&store->lock);
    host_space_usage(&space->base, &usage);
    if (space->loading || usage.n_rows != 0) {
        status = hps_error_set(err, HPS_PRECONDITION, "host: %s version %" PRId64 " %s",
                               space->model, space->version,
                               space->loading ? "is being loaded already" : "is not empty");
    } else {
        space->loading = true;
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* load: NULL if it came to none */
static void load_set(struct host_space *space, bool loading, struct hps_store_load *load)
{
    struct host_map *store = host_of(&space->base);
    pthread_mutex_lock(&store->lock);
    space->loading = loading;
    space->load = load;
    pthread_mutex_unlock(&store->lock);
}

/* What no budget helps against. */
static hps_status check_rows(struct host_space *space, struct hps_error *err)
{
    const struct hps_host_shared *shared = &host_of(&space->base)->shared;
    for (uint32_t i = 0; i < space->n_tables; i++) {
        if (rows_kept(shared, space->tables[i].n_rows) > HPS_HOST_TABLE_ROWS_MAX) {
            return hps_error_set(err, HPS_EXHAUSTED,
                                 "host: table %" PRIu32 " has %" PRIu64 " rows, at most %" PRIu32
                                 " are possible",
                                 i, space->tables[i].n_rows, HPS_HOST_TABLE_ROWS_MAX);
        }
    }
    return HPS_OK;
}

static hps_status host_load_begin(struct hps_space *base, uint64_t rows_expected,
                                  uint64_t bytes_expected, struct hps_store_load **out_load,
                                  struct hps_error *err)
{
    struct host_space *space = (struct host_space *)base;
    struct host_map *store = host_of(base);
    bool sized = tables_rows(space->tables, space->n_tables) == rows_expected;
    uint64_t needed = bytes_expected;
    if (sized || store->shared.lossy) {
        needed = tables_bytes(store, space->tables, space->n_tables);
    } else if (__builtin_add_overflow(needed, hps_host_index_bytes(rows_expected), &needed)) {
        needed = UINT64_MAX;
    }
    hps_status status = check_rows(space, err);
    if (status == HPS_OK) {
        status = load_claim(space, err);
    }
    if (status != HPS_OK) {
        return status;
    }
    struct hps_store_load *load = hps_calloc(1, sizeof(*load));
    if (load == NULL) {
        status = HPS_NO_MEMORY;
    } else if (needed > hps_host_available(&store->shared.budget)) {
        status = HPS_EXHAUSTED;
    } else {
        status = set_new(store, space, space->tables, space->n_tables, sized, &load->set);
    }
    if (status != HPS_OK) {
        load_set(space, false, NULL);
        hps_free(load);
        return fail_budget(store, status, "the load", needed, err);
    }
    load->space = space;
    load_set(space, true, load);
    *out_load = load;
    return HPS_OK;
}

static hps_status fail_gave_way(const struct hps_store_load *load, struct hps_error *err)
{
    return hps_error_set(err, HPS_EXHAUSTED,
                         "host: the load of %s version %" PRId64
                         " gave way to an active version that needs its memory",
                         load->space->model, load->space->version);
}

/* With the table's lock held. */
static hps_status load_row(struct hps_store_load *load, const struct hps_table *table, hps_key key,
                           const uint8_t *row, struct hps_error *err)
{
    if (load->any && (table->id < load->table || (table->id == load->table && key <= load->key))) {
        return hps_error_set(err, HPS_INVALID,
                             "host: table %s: key %" PRIu64 " is not above the one before it",
                             table->name, key);
    }
    hps_status status = hps_host_table_put(load->set->tables[table->id], key, row);
    if (status != HPS_OK) {
        return fail_budget(host_of(&load->space->base), status, "the next row of the load",
                           table->row_bytes, err);
    }
    load->any = true;
    load->table = table->id;
    load->key = key;
    return HPS_OK;
}

static hps_status host_load_add(struct hps_store_load *load, const struct hps_table *table,
                                const hps_key *keys, const uint8_t *rows, uint32_t n,
                                struct hps_error *err)
{
    HPS_ASSERT(table->id < load->set->n_tables);
    struct hps_host_table *host = load->set->tables[table->id];
    HPS_ASSERT(host->rows.row_bytes == table->row_bytes);
    pthread_mutex_lock(&host->lock); /* nobody else writes to it, but it may be let go */
    hps_status status = atomic_load(&load->gave_way) ? fail_gave_way(load, err) : HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i++) {
        status = load_row(load, table, keys[i], rows + (size_t)i * table->row_bytes, err);
    }
    pthread_mutex_unlock(&host->lock);
    return status;
}

static hps_status host_load_commit(struct hps_store_load *load, struct hps_error *err)
{
    struct host_space *space = load->space;
    struct hps_epoch *epoch = host_of(&space->base)->shared.epoch;
    struct host_map *store = host_of(&space->base);
    struct table_set *old = NULL;
    pthread_rwlock_wrlock(&space->set_lock);
    pthread_mutex_lock(&store->lock);
    bool gave_way = atomic_load(&load->gave_way);
    if (!gave_way) {
        atomic_store(&space->base.incomplete, false); /* before anybody can lose a row of it */
        old = atomic_exchange_explicit(&space->set, load->set, memory_order_acq_rel);
        space->load = NULL;
        shares_update(store);
    }
    pthread_mutex_unlock(&store->lock);
    pthread_rwlock_unlock(&space->set_lock);
    if (gave_way) {
        return fail_gave_way(load, err);
    }
    uint64_t stamp = hps_epoch_retire(epoch);
    while (!hps_epoch_passed(epoch, stamp)) {
        sched_yield();
    }
    set_free(old);
    load_set(space, false, NULL);
    hps_free(load);
    return HPS_OK;
}

static void host_load_abort(struct hps_store_load *load)
{
    load_set(load->space, true, NULL);
    set_free(load->set);
    load_set(load->space, false, NULL);
    hps_free(load);
}

/* ---- scan ---- */

struct key_list {
    hps_key *keys;
    uint64_t n;
};

static void key_collect(void *ctx, hps_key key)
{
    struct key_list *list = ctx;
    list->keys[list->n++] = key;
}

/* The keys of a table in order. owner: *out_keys is the caller's (hps_free). */
static hps_status table_keys(struct hps_space *space, const struct hps_table *table,
                             hps_key **out_keys, uint64_t *out_n)
{
    struct hps_host_table *host = table_lock(space, table);
    struct key_list list = {.keys = hps_alloc((size_t)host->index.n_keys * sizeof(hps_key))};
    if (list.keys != NULL) {
        hps_host_index_each(&host->index, key_collect, &list);
    }
    table_unlock(space, host);
    if (list.keys == NULL) {
        return HPS_NO_MEMORY;
    }
    hps_key_sort(list.keys, NULL, (size_t)list.n);
    *out_keys = list.keys;
    *out_n = list.n;
    return HPS_OK;
}

/* Copy the rows of keys[n] that are still there; returns how many, keys closed up in order. */
static uint32_t table_copy(struct hps_space *space, const struct hps_table *table, hps_key *keys,
                           uint8_t *rows, uint32_t n)
{
    struct hps_epoch *epoch = host_of(space)->shared.epoch;
    uint32_t n_found = 0;
    struct hps_epoch_slot *slot = hps_epoch_enter(epoch);
    const struct hps_host_table *host = table_of(space, table);
    for (uint32_t i = 0; i < n; i++) {
        struct hps_host_place place = hps_host_index_find(&host->index, keys[i]);
        if (place.bucket != NULL) {
            memcpy(rows + (size_t)n_found * table->row_bytes,
                   hps_host_row_at(&host->rows, hps_host_row_of(place)), table->row_bytes);
            keys[n_found++] = keys[i];
        }
    }
    hps_epoch_leave(epoch, slot);
    return n_found;
}

static hps_status host_scan(struct hps_space *space, const struct hps_table *table,
                            hps_status (*fn)(void *ctx, const hps_key *keys, const uint8_t *rows,
                                             uint32_t n),
                            void *ctx, struct hps_error *err)
{
    hps_key *keys = NULL;
    uint64_t n = 0;
    uint32_t n_epoch = keys_per_epoch(table->row_bytes);
    uint8_t *rows = hps_alloc((size_t)n_epoch * table->row_bytes);
    hps_status status = rows != NULL ? HPS_OK : HPS_NO_MEMORY;
    if (status == HPS_OK) {
        status = table_keys(space, table, &keys, &n);
    }
    if (status != HPS_OK) {
        hps_free(rows);
        return hps_error_set(err, status, "host: no memory to scan table %s", table->name);
    }
    for (uint64_t i = 0; i < n && status == HPS_OK; i += n_epoch) {
        uint32_t n_batch = n - i < n_epoch ? (uint32_t)(n - i) : n_epoch;
        n_batch = table_copy(space, table, keys + i, rows, n_batch);
        if (n_batch > 0) {
            status = fn(ctx, keys + i, rows, n_batch);
        }
    }
    hps_free(keys);
    hps_free(rows);
    return status;
}

static const struct hps_store_ops host_ops = {
    .name = "host",
    .tier = HPS_TIER_HOST,
    .caps = 0,
    .close = host_close,
    .space_open = host_space_open,
    .space_close = host_space_close,
    .space_drop = host_space_drop,
    .space_usage = host_space_usage,
    .evictions_take = host_evictions_take,
    .space_active = host_space_active,
    .reserve = host_reserve,
    .get = host_get,
    .insert = host_insert,
    .put = host_put,
    .erase = host_erase,
    .load_begin = host_load_begin,
    .load_add = host_load_add,
    .load_commit = host_load_commit,
    .load_abort = host_load_abort,
    .scan = host_scan,
};

static void shared_init(struct hps_host_shared *shared, const struct hps_host_map_options *options,
                        struct hps_epoch *epoch)
{
    const char *why = NULL;
    double target = (double)options->rows_max * options->target_ratio;
    shared->budget.bytes_max = options->bytes_max;
    shared->budget.huge = hps_host_huge_pages(&why);
    shared->epoch = epoch;
    shared->seed = hps_hash_secret();
    shared->kernel = hps_host_kernel();
    shared->evicts = options->evicts || options->lossy;
    shared->lossy = options->lossy;
    shared->rows_max = options->rows_max != 0 ? options->rows_max : UINT64_MAX;
    shared->rows_target = options->rows_max != 0 ? (uint64_t)target : UINT64_MAX;
    shared->give_way = options->evicts ? host_give_way : NULL;
    if (!shared->budget.huge) {
        HPS_LOG(WARN, "host", "no huge pages: look-ups take up to 4 times as long",
                HPS_STR("why", why));
    }
}

hps_status hps_host_map_open_with(const struct hps_host_map_options *options,
                                  struct hps_store **out_store, struct hps_error *err)
{
    struct host_map *store = hps_calloc(1, sizeof(*store));
    struct hps_epoch *epoch = hps_epoch_new();
    if (store == NULL || epoch == NULL) {
        hps_epoch_free(epoch);
        hps_free(store);
        return hps_error_set(err, HPS_NO_MEMORY, "host: no memory for the store");
    }
    store->ops = host_ops;
    store->ops.caps = options->evicts ? 0 : HPS_STORE_KEEPS;
    store->base.ops = &store->ops;
    shared_init(&store->shared, options, epoch);
    pthread_mutex_init(&store->lock, NULL);
    *out_store = &store->base;
    return HPS_OK;
}

hps_status hps_host_map_open(uint64_t bytes_max, struct hps_store **out_store,
                             struct hps_error *err)
{
    const struct hps_host_map_options options = {.bytes_max = bytes_max};
    return hps_host_map_open_with(&options, out_store, err);
}

struct hps_epoch *hps_host_map_epoch(struct hps_store *store)
{
    return ((struct host_map *)store)->shared.epoch;
}
