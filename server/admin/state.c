/* SPDX-License-Identifier: Apache-2.0
 *
 * Admin methods for the daemon itself: state, statistics, slow requests, configuration.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/breaker.h"
#include "backends/store_durable.h"
#include "backends/store_servers.h"
#include "base/assert.h"
#include "base/build_info.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/log.h"
#include "hps/v1/admin.pb-c.h"
#include "server/admin/op.h"
#include "server/catalog/store_servers.h"

void admin_ping(struct hps_unary *op)
{
    Hps__V1__PingResponse *reply = hps_unary_message(op, &hps__v1__ping_response__descriptor);
    if (reply != NULL) {
        reply->version = (char *)hps_build_version;
        op->reply = &reply->base;
    }
}

/* ---- status ---------------------------------------------------------------------------------- */

struct text_list {
    struct hps_unary *op;
    char **items;
    size_t n;
};

enum { TEXTS_MAX = 256 };

static void add_text(void *ctx, const char *text)
{
    HPS_ASSERT(text != NULL);
    struct text_list *list = ctx;
    if (list->items != NULL && list->n < TEXTS_MAX) {
        list->items[list->n++] = hps_unary_text(list->op, text);
    }
}

static struct text_list text_list(struct hps_unary *op)
{
    return (struct text_list){op, hps_unary_alloc(op, TEXTS_MAX, sizeof(char *)), 0};
}

static uint64_t resident_bytes(void)
{
    uint64_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file != NULL) {
        unsigned long total, resident;
        pages = fscanf(file, "%lu %lu", &total, &resident) == 2 ? resident : 0;
        fclose(file);
    }
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static Hps__V1__TierStatus *add_tier(struct hps_unary *op, Hps__V1__GetStatusResponse *reply)
{
    return hps_unary_add(op, &hps__v1__tier_status__descriptor, &reply->tiers, &reply->n_tiers);
}

static Hps__V1__TierStatus *add_store(struct hps_unary *op, Hps__V1__GetStatusResponse *reply,
                                      struct hps_store *store, bool up, bool authoritative,
                                      uint64_t rows, uint64_t used, uint64_t capacity)
{
    HPS_ASSERT(store != NULL);
    Hps__V1__TierStatus *tier = add_tier(op, reply);
    if (tier != NULL) {
        tier->tier = (char *)store->ops->name;
        tier->up = up;
        tier->authoritative = authoritative;
        tier->row_count = rows;
        tier->used_bytes = used;
        tier->capacity_bytes = capacity;
        const char *refused =
            store->ops->durable != NULL ? store->ops->durable->writes_refused(store) : NULL;
        if (refused != NULL) {
            tier->note = (char *)refused;
        }
    }
    return tier;
}

struct device_rows {
    const struct hps_gpu_tier *tier;
    uint64_t n_rows;
    unsigned n_without_capacity;        /* versions */
    unsigned n_tables_without_capacity; /* of other versions */
};

static void add_rows(void *ctx, const struct hps_version_view *view)
{
    struct device_rows *rows = ctx;
    rows->n_rows += hps_gpu_space_rows(view->gpu, rows->tier);
    rows->n_without_capacity += hps_gpu_space_without_capacity(view->gpu, rows->tier);
    rows->n_tables_without_capacity += hps_gpu_space_tables_without_capacity(view->gpu, rows->tier);
}

static void add_device(struct hps_unary *op, Hps__V1__GetStatusResponse *reply, unsigned i)
{
    HPS_ASSERT(i < hps_devices_count(admin_parts(op)->devices));
    struct hps_device_view view;
    Hps__V1__TierStatus *tier = add_tier(op, reply);
    char note[192];
    if (tier == NULL) {
        return;
    }
    hps_devices_view(admin_parts(op)->devices, i, &view);
    struct device_rows rows = {.tier = view.tier};
    if (view.tier != NULL) {
        hps_catalog_each(admin_parts(op)->catalog, add_rows, &rows);
    }
    int n = snprintf(note, sizeof(note), "device %s: %s%s", view.node, view.name,
                     view.tier != NULL && !view.up ? ", lost" : "");
    if (rows.n_without_capacity > 0 && view.up) {
        n += snprintf(note + n, sizeof(note) - (size_t)n, ", no device memory for %u version%s",
                      rows.n_without_capacity, rows.n_without_capacity == 1 ? "" : "s");
    }
    if (rows.n_tables_without_capacity > 0 && view.up && n > 0 && (size_t)n < sizeof(note)) {
        snprintf(note + n, sizeof(note) - (size_t)n, ", no device memory for %u table%s",
                 rows.n_tables_without_capacity, rows.n_tables_without_capacity == 1 ? "" : "s");
    }
    tier->tier = (char *)hps_tier_name(HPS_TIER_GPU);
    tier->up = view.up;
    tier->row_count = rows.n_rows;
    tier->used_bytes = view.used_bytes;
    tier->capacity_bytes = view.capacity_bytes;
    tier->note = hps_unary_text(op, note);
}

static void add_server(struct hps_unary *op, Hps__V1__TierStatus *tier,
                       const struct hps_store_server *from)
{
    Hps__V1__TierServer *to =
        hps_unary_add(op, &hps__v1__tier_server__descriptor, &tier->servers, &tier->n_servers);
    if (to != NULL) {
        to->address = hps_unary_text(op, from->address);
        to->role = (char *)from->role;
        to->up = from->up;
        to->slot_count = from->n_slots;
        to->connections = from->n_connections;
        to->latency_us = from->latency_us;
        to->command_count = from->n_commands;
        to->key_count = from->n_keys;
        to->found_key_count = from->n_keys_found;
        to->error_count = from->n_errors;
        to->timeout_count = from->n_timeouts;
        to->broken_count = from->n_broken;
        to->refused_count = from->n_refused;
        to->error = hps_unary_text(op, from->error);
    }
}

static void add_servers(struct hps_unary *op, struct hps_store *store, Hps__V1__TierStatus *tier)
{
    struct hps_store_server *servers = hps_unary_alloc(op, HPS_STORE_SERVERS_MAX, sizeof(*servers));
    uint32_t n =
        servers != NULL ? store->ops->servers->list(store, servers, HPS_STORE_SERVERS_MAX) : 0;
    for (uint32_t i = 0; i < n; i++) {
        add_server(op, tier, &servers[i]);
    }
}

static void add_shared(struct hps_unary *op, Hps__V1__GetStatusResponse *reply,
                       const struct hps_load_env *env, const struct hps_catalog_totals *totals)
{
    struct hps_store *store = hps_stores_shared(&env->stores);
    struct hps_store_shared_stats stats = {0};
    if (store->ops->servers != NULL) {
        store->ops->servers->stats(store, &stats);
    }
    Hps__V1__TierStatus *tier =
        add_store(op, reply, store, stats.n_slots_up > 0, hps_stores_lowest(&env->stores) == store,
                  totals->shared_rows, totals->shared_bytes, 0);
    if (tier == NULL || store->ops->servers == NULL) {
        return;
    }
    char note[480];
    int n = snprintf(note, sizeof(note), "%s", stats.kind);
    if (stats.n_slots_up < stats.n_slots) {
        snprintf(note + n, sizeof(note) - (size_t)n, ", %" PRIu32 " of %" PRIu32 " slots up",
                 stats.n_slots_up, stats.n_slots);
    }
    if (stats.error[0] != '\0') {
        size_t used = strlen(note);
        snprintf(note + used, sizeof(note) - used, "; %s", stats.error);
    }
    tier->note = hps_unary_text(op, note);
    add_servers(op, store, tier);
}

static void add_tiers(struct hps_unary *op, Hps__V1__GetStatusResponse *reply)
{
    const struct hps_admin_parts *parts = op->parts;
    struct hps_catalog_totals totals;
    const struct hps_load_env *env = hps_catalog_env(parts->catalog);
    struct hps_store *host = hps_stores_host(&env->stores);
    struct hps_store *durable = hps_stores_durable(&env->stores);
    hps_catalog_totals_get(parts->catalog, &totals);
    unsigned n_devices = hps_devices_count(parts->devices);
    for (unsigned i = 0; i < n_devices; i++) {
        add_device(op, reply, i);
    }
    if (host != NULL) {
        Hps__V1__TierStatus *tier =
            add_store(op, reply, host, true, hps_stores_lowest(&env->stores) == host,
                      totals.host_rows, totals.host_bytes, env->host_bytes_max);
        if (tier != NULL && totals.host_rows_dropped > 0) {
            char note[128];
            snprintf(note, sizeof(note), "%" PRIu64 " rows dropped by overflow_margin",
                     totals.host_rows_dropped);
            tier->dropped_row_count = totals.host_rows_dropped;
            tier->note = hps_unary_text(op, note);
        }
    }
    if (hps_stores_shared(&env->stores) != NULL) {
        add_shared(op, reply, env, &totals);
    }
    if (durable != NULL) {
        bool up = env->durable_breaker == NULL || hps_breaker_up(env->durable_breaker);
        Hps__V1__TierStatus *tier = add_store(op, reply, durable, up, true, totals.persistent_rows,
                                              totals.persistent_bytes, 0);
        if (tier != NULL) {
            tier->row_count_estimated = totals.persistent_estimated;
        }
    }
}

void admin_get_status(struct hps_unary *op)
{
    const struct hps_admin_parts *parts = op->parts;
    struct hps_admin_status state;
    struct text_list reasons = text_list(op);
    struct text_list drift = text_list(op);
    struct text_list notes = text_list(op);
    struct text_list addresses = text_list(op);
    struct text_list kserve = text_list(op);
    Hps__V1__GetStatusResponse *reply =
        hps_unary_message(op, &hps__v1__get_status_response__descriptor);
    if (reply == NULL) {
        return;
    }
    parts->status(parts->ctx, &state);
    reply->version = (char *)hps_build_version;
    reply->revision = (char *)hps_build_revision;
    reply->uptime_s = (hps_clock_us() - state.started_us) / 1000000;
    reply->ready = hps_readiness_get(parts->readiness, add_text, &reasons);
    reply->draining = state.draining;
    hps_catalog_drift(parts->catalog, add_text, &drift);
    hps_catalog_notes(parts->catalog, add_text, &notes);
    for (unsigned i = 0; i < state.n_grpc_addresses; i++) {
        add_text(&addresses, state.grpc_addresses[i]);
    }
    for (unsigned i = 0; i < state.n_kserve_addresses; i++) {
        add_text(&kserve, state.kserve_addresses[i]);
    }
    reply->not_ready_reasons = reasons.items;
    reply->n_not_ready_reasons = reasons.n;
    reply->config_drift = drift.items;
    reply->n_config_drift = drift.n;
    reply->notes = notes.items;
    reply->n_notes = notes.n;
    reply->grpc_addresses = addresses.items;
    reply->n_grpc_addresses = addresses.n;
    reply->kserve_addresses = kserve.items;
    reply->n_kserve_addresses = kserve.n;
    reply->http_address = (char *)state.http_address;
    reply->admin_address = (char *)state.admin_address;
    reply->resident_bytes = resident_bytes();
    reply->connections = (uint32_t)state.connections;
    reply->requests_in_flight = (uint32_t)hps_metric_value(parts->metrics->requests_in_flight);
    reply->reply_bytes_in_flight =
        (uint64_t)hps_metric_value(parts->metrics->reply_bytes_in_flight);
    reply->pid = (uint32_t)getpid();
    add_tiers(op, reply);
    op->reply = &reply->base;
}

/* ---- statistics ------------------------------------------------------------------------------ */

struct stats_list {
    struct hps_unary *op;
    const char *model; /* "": all models */
    Hps__V1__GetStatsResponse *reply;
};

static uint64_t count_of(const struct hps_metric *metric)
{
    return metric != NULL ? (uint64_t)hps_metric_value(metric) : 0;
}

static void add_table(struct hps_unary *op, Hps__V1__GetStatsResponse *reply,
                      const struct hps_version *version, uint32_t i)
{
    HPS_ASSERT(i < version->n_tables && version->metrics != NULL);
    const struct hps_table_metrics *series = &version->metrics[i];
    Hps__V1__TableStats *stats =
        hps_unary_add(op, &hps__v1__table_stats__descriptor, &reply->tables, &reply->n_tables);
    if (stats == NULL) {
        return;
    }
    stats->model = hps_unary_text(op, version->model);
    stats->table = hps_unary_text(op, version->tables[i].name);
    stats->found_key_count = count_of(series->keys_found);
    stats->defaulted_key_count = count_of(series->keys_defaulted);
    stats->unknown_key_count = count_of(series->keys_unknown);
    stats->unique_key_count = count_of(series->unique_keys);
    stats->key_count =
        stats->found_key_count + stats->defaulted_key_count + stats->unknown_key_count;
    for (uint32_t kind = 0; kind < HPS_TIER_COUNT; kind++) { /* from the top tier down */
        Hps__V1__TierStats *tier = series->tier_hit[kind] != NULL
                                       ? hps_unary_add(op, &hps__v1__tier_stats__descriptor,
                                                       &stats->tiers, &stats->n_tiers)
                                       : NULL;
        if (tier != NULL) {
            tier->tier = (char *)hps_tier_name((enum hps_tier_kind)kind);
            tier->hit_key_count = count_of(series->tier_hit[kind]);
            tier->miss_key_count = count_of(series->tier_miss[kind]);
        }
    }
}

/* Series belong to the model, so only the active version adds them. */
static void add_stats(void *ctx, const struct hps_version_view *view)
{
    struct stats_list *list = ctx;
    if (strcmp(view->state, "active") != 0 ||
        (list->model[0] != '\0' && strcmp(list->model, view->model) != 0) ||
        !hps_unary_sees(list->op, view->model)) {
        return;
    }
    for (uint32_t i = 0; i < view->version->n_tables; i++) {
        add_table(list->op, list->reply, view->version, i);
    }
}

void admin_get_stats(struct hps_unary *op)
{
    const Hps__V1__GetStatsRequest *request = (const Hps__V1__GetStatsRequest *)op->request;
    Hps__V1__GetStatsResponse *reply =
        hps_unary_message(op, &hps__v1__get_stats_response__descriptor);
    if (reply == NULL) {
        return;
    }
    struct stats_list list = {op, request->model, reply};
    hps_catalog_each(admin_parts(op)->catalog, add_stats, &list);
    if (reply->n_tables == 0 && request->model[0] != '\0') {
        hps_ignore(hps_error_set(&op->error, HPS_NOT_FOUND, "model \"%s\" has no active version",
                                 request->model));
        return;
    }
    op->reply = &reply->base;
}

/* ---- slow requests --------------------------------------------------------------------------- */

static void slow_request(struct hps_unary *op, const struct hps_slow_request *from,
                         Hps__V1__SlowRequest *to)
{
    to->unix_ms = (int64_t)from->unix_ms;
    to->request_id = hps_unary_text(op, from->request_id);
    to->trace_id = hps_unary_text(op, from->trace_id);
    to->peer = hps_unary_text(op, from->peer);
    to->model = hps_unary_text(op, from->model);
    to->version = from->version;
    to->key_count = from->n_keys;
    to->duration_us = from->duration_us;
    to->receive_us = from->stage_us[HPS_STAGE_RECEIVE];
    to->decode_us = from->stage_us[HPS_STAGE_DECODE];
    to->admission_us = from->stage_us[HPS_STAGE_ADMISSION];
    to->queue_us = from->stage_us[HPS_STAGE_QUEUE];
    to->gpu_us = from->stage_us[HPS_STAGE_GPU];
    to->host_us = from->stage_us[HPS_STAGE_HOST];
    to->redis_us = from->stage_us[HPS_STAGE_REDIS];
    to->rocksdb_us = from->stage_us[HPS_STAGE_ROCKSDB];
    to->wait_us = from->stage_us[HPS_STAGE_WAIT];
    to->unit_us = from->stage_us[HPS_STAGE_UNIT];
    to->work_us = from->stage_us[HPS_STAGE_WORK];
    to->loop_us = from->stage_us[HPS_STAGE_LOOP];
    to->encode_us = from->stage_us[HPS_STAGE_ENCODE];
    to->send_us = from->stage_us[HPS_STAGE_SEND];
    to->code = (uint32_t)from->grpc_code;
}

void admin_get_slow_log(struct hps_unary *op)
{
    struct hps_slow_request *entries = hps_unary_alloc(op, HPS_SLOWLOG_SIZE, sizeof(*entries));
    Hps__V1__GetSlowLogResponse *reply =
        hps_unary_message(op, &hps__v1__get_slow_log_response__descriptor);
    if (entries == NULL || reply == NULL) {
        return;
    }
    unsigned n = hps_slowlog_snapshot(admin_parts(op)->slowlog, entries, HPS_SLOWLOG_SIZE);
    for (unsigned i = 0; i < n; i++) {
        Hps__V1__SlowRequest *to = hps_unary_sees(op, entries[i].model)
                                       ? hps_unary_add(op, &hps__v1__slow_request__descriptor,
                                                       &reply->requests, &reply->n_requests)
                                       : NULL;
        if (to != NULL) {
            slow_request(op, &entries[i], to);
        }
    }
    op->reply = &reply->base;
}

void admin_reset_slow_log(struct hps_unary *op)
{
    static const Hps__V1__ResetSlowLogResponse reply = HPS__V1__RESET_SLOW_LOG_RESPONSE__INIT;
    hps_slowlog_reset(admin_parts(op)->slowlog);
    op->reply = &reply.base;
}

/* ---- configuration --------------------------------------------------------------------------- */

void admin_get_config(struct hps_unary *op)
{
    Hps__V1__GetConfigResponse *reply =
        hps_unary_message(op, &hps__v1__get_config_response__descriptor);
    struct hps_buf text;
    hps_buf_init(&text, 16 << 20);
    if (reply != NULL && admin_parts(op)->print_config(admin_parts(op)->ctx, &text) == HPS_OK &&
        hps_buf_append(&text, "", 1) == HPS_OK) {
        reply->json = hps_unary_text(op, (const char *)text.data);
        op->reply = &reply->base;
    } else {
        hps_ignore(hps_error_set(&op->error, HPS_NO_MEMORY, "no memory for the configuration"));
    }
    hps_buf_fini(&text);
}

void admin_set_log_level(struct hps_unary *op)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    const Hps__V1__SetLogLevelRequest *request = (const Hps__V1__SetLogLevelRequest *)op->request;
    enum hps_log_level level;
    if (!hps_log_level_parse(request->level, &level)) {
        hps_ignore(hps_error_set(&op->error, HPS_INVALID,
                                 "level: got \"%.32s\", expected debug, info, warn or error",
                                 request->level));
        return;
    }
    Hps__V1__SetLogLevelResponse *reply =
        hps_unary_message(op, &hps__v1__set_log_level_response__descriptor);
    if (reply != NULL) {
        reply->previous_level = (char *)names[hps_log_level_get()];
        hps_log_level_set(level);
        op->reply = &reply->base;
    }
}

void admin_drain(struct hps_unary *op)
{
    static const Hps__V1__DrainResponse reply = HPS__V1__DRAIN_RESPONSE__INIT;
    admin_parts(op)->drain(admin_parts(op)->ctx);
    op->reply = &reply.base;
}
