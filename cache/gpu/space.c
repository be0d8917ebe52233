/* SPDX-License-Identifier: Apache-2.0
 *
 * The caches of a version's tables on a device. Active versions get memory first, and the tables of
 * a version in their order. A cache that does not fit is left out, and later ones are still made.
 * Functions for all threads run their work on the tier's thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "cache/gpu/internal.h"

/* ---- on the tier's thread -------------------------------------------------------------------- */

/* Add the counts of the table's earlier ranges. */
static void add_past(const struct gpu_table *table, struct hps_embed_range_usage *usage)
{
    usage->n_inserted += table->past.n_inserted;
    usage->n_evicted += table->past.n_evicted;
    usage->n_erased += table->past.n_erased;
    usage->n_refused += table->past.n_refused;
    usage->n_stale += table->past.n_stale;
}

static void give_up_table(struct gpu_table *table)
{
    struct hps_embed_range_usage usage;

    if (table->range != NULL) {
        hps_embed_range_usage(table->range, &usage);
        add_past(table, &usage);
        table->past = usage;
        hps_embed_range_free(table->range);
    }
    table->range = NULL;
    atomic_store(&table->there, false);
}

static bool wants_cache(const struct gpu_table *table)
{
    return table->share.n_rows_cached > 0;
}

static uint64_t cache_bytes(const struct gpu_table *table)
{
    return hps_embed_range_bytes(table->row_bytes, table->share.n_rows, table->share.n_rows_cached);
}

/* Record which caches exist. */
static void note_caches(struct hps_gpu_space *space)
{
    uint32_t n_there = 0, n_missing = 0;

    for (uint32_t i = 0; i < space->n_tables; i++) {
        const struct gpu_table *table = &space->tables[i];
        n_there += table->range != NULL;
        n_missing += table->range == NULL && wants_cache(table);
    }
    atomic_store(&space->n_missing, n_missing);
    atomic_store(&space->present, n_there > 0 || n_missing == 0);
}

static bool is_complete(const struct hps_gpu_space *space)
{
    return atomic_load(&space->n_missing) == 0;
}

static void give_up(struct hps_gpu_space *space)
{
    for (uint32_t i = 0; i < space->n_tables; i++) {
        give_up_table(&space->tables[i]);
    }
    note_caches(space);
}

/* The lock of gpu_published is held. */
static void publish_space(struct hps_gpu_space *space)
{
    hps_lock_assert_held(&space->tier->published.lock);
    for (uint32_t i = 0; i < space->n_tables; i++) {
        struct gpu_table *table = &space->tables[i];
        table->usage = (struct hps_embed_range_usage){0};
        if (table->range != NULL) {
            hps_embed_range_usage(table->range, &table->usage);
        }
        add_past(table, &table->usage);
    }
}

void gpu_spaces_publish(struct hps_gpu_tier *tier)
{
    for (struct hps_gpu_space *space = tier->spaces; space != NULL; space = space->next) {
        publish_space(space);
    }
}

static hps_status get_cache(struct hps_gpu_tier *tier, struct gpu_table *table)
{
    const struct hps_embed_range_config config = {.row_bytes = table->row_bytes,
                                                  .n_rows = table->share.n_rows,
                                                  .bytes_max = cache_bytes(table)};
    HPS_ASSERT(table->range == NULL && gpu_tier_is_mine(tier));
    hps_status status = hps_embed_range_new(tier->cache, &config, &table->range, NULL);

    if (status == HPS_OK) {
        atomic_fetch_add(&table->n_made, 1);
        atomic_store(&table->there, true);
    }
    return status;
}

/* Make the missing caches of the space, in the order of its tables, up to the first that does not
 * fit. all_that_fit: also later ones. Returns the status of the first that was not made. EXHAUSTED:
 * no free memory; AGAIN: there will be */
static hps_status get_caches(struct hps_gpu_space *space, bool all_that_fit)
{
    hps_status status = HPS_OK;

    for (uint32_t i = 0; i < space->n_tables && (status == HPS_OK || all_that_fit); i++) {
        struct gpu_table *table = &space->tables[i];
        hps_status its = HPS_OK;
        if (wants_cache(table) && table->range == NULL) {
            its = get_cache(space->tier, table);
        }
        status = status == HPS_OK ? its : status;
    }
    note_caches(space);
    if (status == HPS_OK) {
        atomic_store(&space->coming, false);
    }
    space->warned = space->warned && status != HPS_OK;
    space->recreated = space->recreated && status != HPS_OK;
    return status;
}

static bool has_caches(const struct hps_gpu_space *space)
{
    uint32_t i = 0;

    while (i < space->n_tables && space->tables[i].range == NULL) {
        i++;
    }
    return i < space->n_tables;
}

/* Their memory becomes free when the work that uses it has ended. */
static bool push_out_inactive(struct hps_gpu_tier *tier)
{
    bool any = false;

    for (struct hps_gpu_space *space = tier->spaces; space != NULL; space = space->next) {
        if (!space->active && has_caches(space)) {
            give_up(space);
            any = true;
        }
    }
    return any;
}

/* Release all caches of a space if an update had to empty one, once all changes that may carry old
 * rows are staged. Returns whether some space still waits for that. */
static bool clear_away(struct hps_gpu_tier *tier)
{
    bool again = false;

    for (struct hps_gpu_space *space = tier->spaces; space != NULL; space = space->next) {
        if (space->spoiled && gpu_changes_done(tier, false) >= atomic_load(&space->spoiled_until)) {
            give_up(space);
            space->spoiled = false;
            atomic_store(&space->coming, space->active);
        }
        again |= space->spoiled;
    }
    return again;
}

/* List the names of tables that have no cache because it does not fit, cut to the size of `names`.
 * Returns the memory that they need. */
static uint64_t list_missing(const struct hps_gpu_space *space, char *names, size_t size)
{
    uint64_t needed = 0;
    size_t n = 0;

    names[0] = '\0';
    for (uint32_t i = 0; i < space->n_tables; i++) {
        const struct gpu_table *table = &space->tables[i];
        if (!wants_cache(table) || table->range != NULL) {
            continue;
        }
        needed += cache_bytes(table);
        if (n < size) {
            int wrote = snprintf(names + n, size - n, "%s%s", n > 0 ? "," : "",
                                 table->name != NULL ? table->name : "?");
            n += wrote > 0 ? (size_t)wrote : 0;
        }
    }
    return needed;
}

/* Log that caches of a version do not fit. */
static void warn_no_capacity(const struct hps_gpu_space *space)
{
    struct hps_embed_cache_usage usage;
    char names[GPU_NAMES_BYTES];
    uint64_t needed = list_missing(space, names, sizeof(names));
    const char *text =
        atomic_load(&space->present)
            ? (space->active ? "embedding caches incomplete: the device lacks memory for these "
                               "tables; raise server.gpu_memory_bytes or lower gpucacheper"
                             : "embedding caches incomplete: other versions use the device memory; "
                               "hpsd makes the caches when the version is active")
        : space->active ? "embedding caches absent: the device lacks memory for every table; raise "
                          "server.gpu_memory_bytes or lower gpucacheper"
                        : "embedding caches absent: other versions use the device memory; hpsd "
                          "makes the caches when the version is active";

    hps_embed_cache_usage(space->tier->cache, &usage);
    HPS_LOG(WARN, "gpu", text, HPS_STR("version", space->label),
            HPS_I64("device", space->tier->options.index), HPS_STR("tables", names),
            HPS_U64("needed_bytes", needed), HPS_U64("free_bytes", usage.free_bytes),
            HPS_U64("free_piece_bytes_max", usage.free_piece_bytes_max),
            HPS_U64("cache_bytes", usage.arena_bytes));
}

/* Remake all caches of the space if the free memory suffices for the missing ones, but is
 * fragmented. Only once, until the space has had all its caches. */
static bool recreate(struct hps_gpu_space *space)
{
    struct hps_embed_cache_usage usage;
    char names[GPU_NAMES_BYTES];

    hps_embed_cache_usage(space->tier->cache, &usage);
    if (space->recreated || list_missing(space, names, sizeof(names)) > usage.free_bytes) {
        return false;
    }
    space->recreated = true;
    give_up(space);
    return true;
}

/* No more memory will become free: make the caches that fit, and log once which ones are missing.
 * Returns whether any was made. out_again: memory will become free after all */
static bool settle_for_less(struct hps_gpu_tier *tier, bool *out_again)
{
    bool any = false;

    for (struct hps_gpu_space *space = tier->spaces; space != NULL; space = space->next) {
        if (!space->active || space->spoiled || is_complete(space)) {
            continue;
        }
        if (recreate(space)) {
            *out_again = true;
            continue;
        }
        uint32_t n_missing = atomic_load(&space->n_missing);
        hps_status status = get_caches(space, true);
        any |= atomic_load(&space->n_missing) < n_missing;
        atomic_store(&space->coming, false);
        if (status != HPS_OK && !space->warned) {
            space->warned = true;
            warn_no_capacity(space);
        }
    }
    return any;
}

bool gpu_spaces_settle(struct hps_gpu_tier *tier)
{
    bool any = false;
    bool missing = false;

    HPS_ASSERT(gpu_tier_is_mine(tier));
    if (!tier->wanted || tier->packed) { /* the packed batch names caches that would be freed */
        return false;
    }
    bool again = clear_away(tier);
    for (struct hps_gpu_space *space = tier->spaces; space != NULL; space = space->next) {
        if (space->active && !space->spoiled && !is_complete(space)) {
            hps_status status = get_caches(space, false);
            any |= status == HPS_OK;
            again |= status == HPS_AGAIN;
            missing |= status != HPS_OK && status != HPS_AGAIN;
        }
    }
    again |= missing && push_out_inactive(tier);
    if (missing && !again) {
        any |= settle_for_less(tier, &again);
    }
    tier->wanted = again;
    if (!again) {
        gpu_tier_settled(tier);
    }
    return any;
}

struct space_call {
    struct hps_gpu_space *space;
    bool active;
};

static void do_open(void *ctx)
{
    struct hps_gpu_space *space = ((struct space_call *)ctx)->space;
    struct hps_gpu_tier *tier = space->tier;

    HPS_ASSERT(gpu_tier_is_mine(tier) && space->next == NULL);
    space->next = tier->spaces;
    tier->spaces = space;
    note_caches(space);
    if (!atomic_load(&tier->lost) && get_caches(space, true) != HPS_OK) {
        warn_no_capacity(
            space); /* the missing ones are made when the space is active and they fit */
    }
}

static void do_active(void *ctx)
{
    const struct space_call *call = ctx;
    struct hps_gpu_tier *tier = call->space->tier;

    call->space->active = call->active;
    atomic_store(&call->space->coming, call->active && !is_complete(call->space));
    tier->wanted = !atomic_load(&tier->lost);
    gpu_tier_settled(tier);
}

static void do_close(void *ctx)
{
    struct hps_gpu_space *space = ((struct space_call *)ctx)->space;
    struct hps_gpu_tier *tier = space->tier;
    struct hps_gpu_space **link = &tier->spaces;

    HPS_ASSERT(gpu_tier_is_mine(tier));
    while (*link != space) {
        HPS_ASSERT(*link != NULL);
        link = &(*link)->next;
    }
    *link = space->next;
    gpu_changes_drop(tier, space);
    give_up(space);
    tier->wanted = !atomic_load(&tier->lost);
}

/* ---- any thread ------------------------------------------------------------------------------ */

static hps_status open_on(struct hps_gpu_tier *tier, const struct hps_gpu_space_options *options,
                          struct hps_gpu_space **out_space, struct hps_error *err)
{
    uint32_t n_tables = options->n_tables;
    struct hps_gpu_space *space;

    if (atomic_load(&tier->lost)) {
        return hps_error_set(err, HPS_UNAVAILABLE, "device %d is lost", tier->options.index);
    }
    space = hps_calloc(1, sizeof(*space) + n_tables * sizeof(space->tables[0]));
    if (space == NULL) {
        return hps_error_set(err, HPS_NO_MEMORY, "no memory for %u tables", n_tables);
    }
    space->tier = tier;
    space->n_tables = n_tables;
    snprintf(space->label, sizeof(space->label), "%s/%" PRId64, options->model, options->number);
    for (uint32_t i = 0; i < n_tables; i++) {
        const struct hps_table *table = &options->tables[i];
        HPS_ASSERT(table->id == i);
        space->tables[i] = (struct gpu_table){.name = hps_strdup(table->name),
                                              .row_bytes = table->row_bytes,
                                              .dim = table->dim,
                                              .dtype = table->dtype,
                                              .share = options->shares[i]};
        if (table->row_bytes > HPS_EMBED_ROW_BYTES_MAX) {
            space->tables[i].share.n_rows_cached = 0;
        }
    }
    struct space_call call = {.space = space};
    gpu_tier_call(tier, do_open, &call);
    *out_space = space;
    return HPS_OK;
}

hps_status hps_gpu_space_open(struct hps_gpu_tier *tier,
                              const struct hps_gpu_space_options *options,
                              struct hps_gpu_space **out_space, struct hps_error *err)
{
    return open_on(tier, options, out_space, err);
}

hps_status hps_gpu_space_add(struct hps_gpu_space *space, struct hps_gpu_tier *tier,
                             const struct hps_gpu_space_options *options, struct hps_error *err)
{
    while (space->sibling != NULL) {
        space = space->sibling;
    }
    return open_on(tier, options, &space->sibling, err);
}

bool hps_gpu_space_lost(const struct hps_gpu_space *space)
{
    while (space != NULL && atomic_load(&space->tier->lost)) {
        space = space->sibling;
    }
    return space == NULL;
}

void hps_gpu_space_active(struct hps_gpu_space *space, bool active)
{
    for (; space != NULL; space = space->sibling) {
        struct space_call call = {.space = space, .active = active};
        gpu_tier_call(space->tier, do_active, &call);
    }
}

void hps_gpu_space_close(struct hps_gpu_space *space)
{
    while (space != NULL) {
        struct hps_gpu_space *sibling = space->sibling;
        struct space_call call = {.space = space};
        gpu_tier_call(space->tier, do_close, &call);
        for (uint32_t i = 0; i < space->n_tables; i++) {
            hps_free(space->tables[i].name);
        }
        hps_free(space);
        space = sibling;
    }
}

static void add_usage(struct hps_embed_range_usage *to, const struct hps_embed_range_usage *usage)
{
    to->bytes += usage->bytes;
    to->n_slots = to->n_slots > usage->n_slots ? to->n_slots : usage->n_slots;
    to->n_rows += usage->n_rows;
    to->n_inserted += usage->n_inserted;
    to->n_evicted += usage->n_evicted;
    to->n_erased += usage->n_erased;
    to->n_refused += usage->n_refused;
    to->n_stale += usage->n_stale;
    to->resident_share =
        to->resident_share > usage->resident_share ? to->resident_share : usage->resident_share;
}

/* Add the usage of n tables, from `first` on, on one device. */
static void add_usages_of(struct hps_gpu_space *space, uint32_t first, uint32_t n,
                          struct hps_embed_range_usage *usages)
{
    struct gpu_published *published = &space->tier->published;

    bool lost = atomic_load(&space->tier->lost);

    hps_lock_acquire(&published->lock);
    for (uint32_t i = 0; i < n; i++) {
        struct hps_embed_range_usage usage = space->tables[first + i].usage;
        if (lost) {
            usage.bytes = usage.n_slots = usage.n_rows = 0;
            usage.resident_share = 0;
        }
        add_usage(&usages[i], &usage);
    }
    hps_lock_release(&published->lock);
}

static void add_usages(struct hps_gpu_space *space, uint32_t first, uint32_t n,
                       struct hps_embed_range_usage *usages)
{
    HPS_ASSERT(n <= space->n_tables && first <= space->n_tables - n);
    memset(usages, 0, n * sizeof(*usages));
    for (; space != NULL; space = space->sibling) {
        add_usages_of(space, first, n, usages);
    }
}

void hps_gpu_space_usage(struct hps_gpu_space *space, uint32_t table_id,
                         struct hps_embed_range_usage *out_usage)
{
    add_usages(space, table_id, 1, out_usage);
}

void hps_gpu_space_usages(struct hps_gpu_space *space, struct hps_embed_range_usage *out_usages)
{
    add_usages(space, 0, space->n_tables, out_usages);
}

uint64_t hps_gpu_space_rows(struct hps_gpu_space *space, const struct hps_gpu_tier *tier)
{
    struct hps_embed_range_usage usage = {0};

    for (; space != NULL; space = space->sibling) {
        for (uint32_t i = 0; i < space->n_tables && space->tier == tier; i++) {
            add_usages_of(space, i, 1, &usage);
        }
    }
    return usage.n_rows;
}

bool gpu_space_caches(const struct hps_gpu_space *space, uint32_t table_id)
{
    HPS_ASSERT(table_id < space->n_tables);
    return atomic_load(&space->tables[table_id].there) && !atomic_load(&space->tier->lost);
}

bool hps_gpu_space_caches(const struct hps_gpu_space *space, uint32_t table_id)
{
    while (space != NULL && !gpu_space_caches(space, table_id)) {
        space = space->sibling;
    }
    return space != NULL;
}

bool hps_gpu_space_present(const struct hps_gpu_space *space)
{
    while (space != NULL && (!atomic_load(&space->present) || atomic_load(&space->tier->lost))) {
        space = space->sibling;
    }
    return space != NULL;
}

bool hps_gpu_space_coming(const struct hps_gpu_space *space)
{
    while (space != NULL && (!atomic_load(&space->coming) || atomic_load(&space->tier->lost))) {
        space = space->sibling;
    }
    return space != NULL;
}

void hps_gpu_space_await(struct hps_gpu_space *space, uint64_t us)
{
    uint64_t until_us = hps_clock_us() + us;

    for (; space != NULL; space = space->sibling) {
        struct gpu_published *published = &space->tier->published;
        hps_lock_acquire(&published->lock);
        while (atomic_load(&space->coming) && !atomic_load(&space->tier->lost) &&
               hps_cond_wait_until(&published->settled, &published->lock, until_us)) {
        }
        hps_lock_release(&published->lock);
    }
}

bool hps_gpu_space_without_capacity(const struct hps_gpu_space *space,
                                    const struct hps_gpu_tier *tier)
{
    while (space != NULL && space->tier != tier) {
        space = space->sibling;
    }
    return space != NULL && !atomic_load(&space->present) && !atomic_load(&space->coming) &&
           !atomic_load(&tier->lost);
}

uint32_t hps_gpu_space_tables_without_capacity(const struct hps_gpu_space *space,
                                               const struct hps_gpu_tier *tier)
{
    uint32_t most = 0;

    for (; space != NULL; space = space->sibling) {
        uint32_t n = atomic_load(&space->n_missing);
        if ((tier == NULL || space->tier == tier) && atomic_load(&space->present) &&
            !atomic_load(&space->coming) && !atomic_load(&space->tier->lost) && n > most) {
            most = n;
        }
    }
    return most;
}

bool hps_gpu_space_unfilled(const struct hps_gpu_space *space, uint32_t table_id)
{
    bool any = false;

    for (; space != NULL; space = space->sibling) {
        const struct gpu_table *table = &space->tables[table_id];
        any |= table->share.n_rows_cached >= table->share.n_rows &&
               gpu_space_caches(space, table_id) &&
               atomic_load(&table->filled) != atomic_load(&table->n_made);
    }
    return any;
}

void hps_gpu_space_fill_begin(struct hps_gpu_space *space, uint32_t table_id)
{
    for (; space != NULL; space = space->sibling) {
        struct gpu_table *table = &space->tables[table_id];
        atomic_store(&table->filling, atomic_load(&table->n_made));
    }
}

void hps_gpu_space_fill_end(struct hps_gpu_space *space, uint32_t table_id)
{
    for (; space != NULL; space = space->sibling) {
        struct gpu_table *table = &space->tables[table_id];
        atomic_store(&table->filled, atomic_load(&table->filling));
    }
}

uint64_t hps_gpu_space_rows_max(const struct hps_gpu_space *space, uint32_t table_id)
{
    return space->tables[table_id].share.n_rows_cached;
}

uint64_t hps_gpu_share_bytes(const struct hps_table *tables, const struct hps_gpu_share *shares,
                             uint32_t n_tables)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < n_tables; i++) {
        if (shares[i].n_rows_cached > 0 && tables[i].row_bytes <= HPS_EMBED_ROW_BYTES_MAX) {
            bytes += hps_embed_range_bytes(tables[i].row_bytes, shares[i].n_rows,
                                           shares[i].n_rows_cached);
        }
    }
    return bytes;
}
