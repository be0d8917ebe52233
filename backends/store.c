/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of a store's tables of calls, and default implementations of calls.
 */
#include "backends/store.h"

#include "backends/store_bulk.h"
#include "backends/store_durable.h"
#include "backends/store_limits.h"
#include "backends/store_log.h"
#include "backends/store_pool.h"
#include "backends/store_servers.h"
#include "base/assert.h"
#include "base/log.h"

enum { PIECE_BYTES = 16 << 20 }; /* of rows, written at once */

static void check_core(const struct hps_store_ops *ops)
{
    HPS_ASSERT(ops->name != NULL);
    HPS_ASSERT((unsigned)ops->tier < HPS_TIER_COUNT);
    HPS_ASSERT(ops->close != NULL);
    HPS_ASSERT(ops->space_open != NULL);
    HPS_ASSERT(ops->space_close != NULL);
    HPS_ASSERT(ops->space_drop != NULL);
    HPS_ASSERT(ops->space_usage != NULL);
    HPS_ASSERT(ops->get != NULL);
    HPS_ASSERT(ops->get_many != NULL);
    HPS_ASSERT(ops->insert != NULL);
    HPS_ASSERT(ops->put != NULL);
    HPS_ASSERT(ops->erase != NULL);
    HPS_ASSERT(ops->scan != NULL);
}

static void check_bulk(const struct hps_store_bulk_ops *bulk)
{
    HPS_ASSERT(bulk->begin != NULL);
    HPS_ASSERT(bulk->add != NULL);
    HPS_ASSERT(bulk->commit != NULL);
    HPS_ASSERT(bulk->abort != NULL);
}

static void check_durable(const struct hps_store_durable_ops *durable)
{
    HPS_ASSERT(durable->apply != NULL);
    HPS_ASSERT(durable->space_record_scan != NULL);
    HPS_ASSERT(durable->record_put != NULL);
    HPS_ASSERT(durable->record_delete != NULL);
    HPS_ASSERT(durable->record_scan != NULL);
    HPS_ASSERT(durable->space_list != NULL);
    HPS_ASSERT(durable->bytes_free != NULL);
    HPS_ASSERT(durable->writes_refused != NULL);
    HPS_ASSERT(durable->checkpoint != NULL);
}

static void check_limits(const struct hps_store_limits_ops *limits)
{
    HPS_ASSERT(limits->evictions_take != NULL);
    HPS_ASSERT(limits->reserve != NULL);
    HPS_ASSERT(limits->refilled != NULL);
    HPS_ASSERT(limits->dense_rows != NULL);
    HPS_ASSERT(limits->space_active != NULL);
}

static void check_log(const struct hps_store_log_ops *log)
{
    HPS_ASSERT(log->positions_set != NULL);
    HPS_ASSERT(log->positions_get != NULL);
    HPS_ASSERT(log->leave != NULL);
    HPS_ASSERT(log->apply != NULL);
    HPS_ASSERT(log->behind != NULL);
    HPS_ASSERT(log->reset != NULL);
}

static void check_pool(const struct hps_store_pool_ops *pool)
{
    HPS_ASSERT(pool->bags != NULL);
}

static void check_servers(const struct hps_store_servers_ops *servers)
{
    HPS_ASSERT(servers->list != NULL);
    HPS_ASSERT(servers->stats != NULL);
    HPS_ASSERT(servers->renew_tls != NULL);
}

/* Without these checks a store could claim a capability without the calls for it, or calls that
 * are never made. */
static void check_caps(const struct hps_store_ops *ops)
{
    HPS_ASSERT(((ops->caps & HPS_STORE_DURABLE) != 0) == (ops->durable != NULL));
    HPS_ASSERT(((ops->caps & HPS_STORE_SHARED) != 0) == (ops->log != NULL));
    HPS_ASSERT(((ops->caps & HPS_STORE_INSERTS) != 0) == (ops->insert != hps_store_insert_none));
    HPS_ASSERT(((ops->caps & HPS_STORE_SCANS) != 0) == (ops->scan != hps_store_scan_none));
    HPS_ASSERT(((ops->caps & HPS_STORE_JOINS) != 0) == (ops->get_many != hps_store_get_each));
}

void hps_store_check(const struct hps_store_ops *ops)
{
    check_core(ops);
    if (ops->bulk != NULL) {
        check_bulk(ops->bulk);
    }
    if (ops->durable != NULL) {
        check_durable(ops->durable);
    }
    if (ops->limits != NULL) {
        check_limits(ops->limits);
    }
    if (ops->log != NULL) {
        check_log(ops->log);
    }
    if (ops->pool != NULL) {
        check_pool(ops->pool);
    }
    if (ops->servers != NULL) {
        check_servers(ops->servers);
    }
    check_caps(ops);
}

hps_status hps_store_get_each(struct hps_space *space, const struct hps_call *call,
                              struct hps_part_batch *parts, uint32_t n_parts)
{
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n_parts && status == HPS_OK; i++) {
        status = space->store->ops->get(space, call, parts[i].table, &parts[i].batch);
    }
    return status;
}

hps_status hps_store_get_one(struct hps_space *space, const struct hps_call *call,
                             const struct hps_table *table, struct hps_batch *batch)
{
    struct hps_part_batch part = {.table = table, .batch = *batch};
    hps_status status = space->store->ops->get_many(space, call, &part, 1);
    batch->n = part.batch.n; /* the arrays are the caller's */
    return status;
}

hps_status hps_store_insert_none(struct hps_space *space, const struct hps_call *call,
                                 const struct hps_table *table, const hps_key *keys,
                                 const uint32_t *slots, const uint8_t *rows, uint32_t n,
                                 const struct hps_insert_guard *guard,
                                 struct hps_insert_report *out_report)
{
    (void)space, (void)call, (void)table, (void)keys, (void)slots, (void)rows, (void)guard;
    *out_report = (struct hps_insert_report){.n_no_capacity = n};
    return HPS_OK;
}

/* rows NULL: delete the keys. */
static hps_status apply_pieces(struct hps_space *space, const struct hps_call *call,
                               const struct hps_table *table, const hps_key *keys,
                               const uint8_t *rows, uint32_t n)
{
    const struct hps_store_ops *ops = space->store->ops;
    uint32_t n_most = PIECE_BYTES / (table->row_bytes + HPS_DISK_ENTRY_BYTES) + 1;
    struct hps_error error;
    hps_status status = HPS_OK;
    for (uint32_t i = 0; i < n && status == HPS_OK; i += n_most) {
        const uint8_t *from = rows != NULL ? rows + (size_t)i * table->row_bytes : NULL;
        const struct hps_write write = {table, keys + i, from, n - i < n_most ? n - i : n_most};
        status = ops->durable->apply(space, call, &write, 1, NULL, 0, &error);
    }
    if (status != HPS_OK && status != HPS_DEADLINE && status != HPS_PRECONDITION) {
        HPS_LOG(WARN, ops->name, "write refused", HPS_STR("error", error.text));
    }
    return status;
}

hps_status hps_store_put_applied(struct hps_space *space, const struct hps_call *call,
                                 const struct hps_table *table, const hps_key *keys,
                                 const uint8_t *rows, uint32_t n)
{
    return apply_pieces(space, call, table, keys, rows, n);
}

hps_status hps_store_erase_applied(struct hps_space *space, const struct hps_call *call,
                                   const struct hps_table *table, const hps_key *keys, uint32_t n)
{
    return apply_pieces(space, call, table, keys, NULL, n);
}

hps_status hps_store_scan_none(struct hps_space *space, const struct hps_table *table,
                               hps_rows_fn fn, void *ctx, struct hps_error *err)
{
    (void)fn, (void)ctx;
    return hps_error_set(err, HPS_UNIMPLEMENTED, "table '%s': tier %s cannot list its rows",
                         table->name, space->store->ops->name);
}
