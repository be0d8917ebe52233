/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs of hpsctl about the daemon: ping, status, stats, slowlog, config, log-level, drain. One
 * thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/json.h"
#include "base/text.h"
#include "tools/hpsctl.h"

/* ---- ping and status ------------------------------------------------------------------------- */

/* Prints on stderr why the server is not ready. Prints nothing if the listener does not offer
 * that. */
static void print_reasons(struct hpsctl *ctl)
{
    Hps__V1__GetStatusRequest request = HPS__V1__GET_STATUS_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    struct hps_error ignored = {0};

    if (hps_client_call_message(ctl->client, "/hps.v1.Admin/GetStatus", &request.base,
                                &hps__v1__get_status_response__descriptor, ctl->timeout_us, &reply,
                                &ignored) != HPS_OK) {
        return;
    }
    const Hps__V1__GetStatusResponse *status = (const Hps__V1__GetStatusResponse *)reply;
    bool shown = hps_message_plain(reply) == HPS_OK;
    for (size_t i = 0; shown && i < status->n_not_ready_reasons; i++) {
        (void)fprintf(stderr, "hpsctl: not ready: %s\n", status->not_ready_reasons[i]);
    }
    hps_message_free(reply);
}

static int print_ping(struct hpsctl *ctl, const char *version, bool serving, uint64_t duration_us)
{
    struct hps_buf buf;

    if (!hpsctl_json(ctl)) {
        printf("hpsd%s%s at %s is %s (%.2f ms)\n", version[0] == '\0' ? "" : " ", version,
               ctl->connect.address, serving ? "serving" : "not ready",
               (double)duration_us / 1000.0);
        return TOOL_OK;
    }
    hps_buf_init(&buf, HPS_CLIENT_REPLY_BYTES_MAX);
    hps_buf_put(&buf, "{\"address\":");
    hps_json_text(&buf, ctl->connect.address, strlen(ctl->connect.address));
    hps_buf_put(&buf, ",\"version\":");
    hps_json_text(&buf, version, strlen(version));
    hps_buf_putf(&buf, ",\"serving\":%s,\"duration_us\":%" PRIu64 "}", serving ? "true" : "false",
                 duration_us);
    return hpsctl_print_buf(&buf);
}

int hpsctl_ping(struct hpsctl *ctl)
{
    Hps__V1__PingRequest request = HPS__V1__PING_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    struct hps_error err = {0};
    bool serving = false;
    int code = hpsctl_open(ctl);
    if (code != TOOL_OK) {
        return code;
    }
    uint64_t start_us = hps_clock_us();
    hps_status status = hps_client_health(ctl->client, "", ctl->timeout_us, &serving, &err);
    uint64_t duration_us = hps_clock_us() - start_us;

    if (status != HPS_OK) {
        return hpsctl_fail(ctl, &err);
    }
    status =
        hps_client_call_message(ctl->client, "/hps.v1.Admin/Ping", &request.base,
                                &hps__v1__ping_response__descriptor, ctl->timeout_us, &reply, &err);
    if (status != HPS_OK && status != HPS_UNIMPLEMENTED) { /* a listener without Admin */
        return hpsctl_fail(ctl, &err);
    }
    if (reply != NULL && !hpsctl_json(ctl) && hps_message_plain(reply) != HPS_OK) {
        hps_message_free(reply);
        return hpsctl_no_memory();
    }
    code = print_ping(ctl, reply == NULL ? "" : ((const Hps__V1__PingResponse *)reply)->version,
                      serving, duration_us);
    hps_message_free(reply);
    if (!serving) {
        print_reasons(ctl);
        return TOOL_NEGATIVE;
    }
    return code;
}

static int print_tiers(const Hps__V1__GetStatusResponse *status)
{
    static const char *const columns[] = {"TIER",      "UP",    "AUTHORITATIVE", ">USED",
                                          ">CAPACITY", ">ROWS", "NOTE",          NULL};
    struct hpsctl_table table;
    char text[HPSCTL_TEXT_BYTES];

    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < status->n_tiers; i++) {
        const Hps__V1__TierStatus *tier = status->tiers[i];
        hpsctl_table_cell(&table, "%s", tier->tier);
        hpsctl_table_cell(&table, "%s", tier->up ? "yes" : "NO");
        hpsctl_table_cell(&table, "%s", tier->authoritative ? "yes" : "no");
        hpsctl_table_cell(&table, "%s", hpsctl_bytes_text(tier->used_bytes, text));
        hpsctl_table_cell(&table, "%s",
                          tier->capacity_bytes == 0
                              ? (tier->up ? "unbounded" : "-")
                              : hpsctl_bytes_text(tier->capacity_bytes, text));
        hpsctl_rows_cell(&table, tier->row_count, tier->row_count_estimated);
        hpsctl_table_cell(&table, "%s", tier->note);
    }
    return hpsctl_table_print(&table);
}

static void print_server(struct hpsctl_table *table, const char *tier,
                         const Hps__V1__TierServer *server)
{
    char text[HPSCTL_TEXT_BYTES];
    uint64_t n_failed = server->error_count + server->timeout_count + server->broken_count;

    hpsctl_table_cell(table, "%s", tier);
    hpsctl_table_cell(table, "%s", server->address);
    hpsctl_table_cell(table, "%s", server->role);
    hpsctl_table_cell(table, "%s", server->up ? "yes" : "NO");
    hpsctl_table_cell(table, "%" PRIu32, server->slot_count);
    hpsctl_table_cell(table, "%.2f ms", (double)server->latency_us / 1000.0);
    hpsctl_table_cell(table, "%" PRIu64, server->key_count);
    hpsctl_table_cell(table, "%s",
                      hpsctl_share_text(server->found_key_count,
                                        server->key_count - server->found_key_count, text));
    hpsctl_table_cell(table, "%" PRIu64, n_failed);
    hpsctl_table_cell(table, "%" PRIu64, server->refused_count);
    hpsctl_table_cell(table, "%s", server->error);
}

/* Prints the servers of tiers that consist of servers. */
static int print_servers(const Hps__V1__GetStatusResponse *status)
{
    static const char *const columns[] = {"TIER",      "SERVER",   "ROLE",         "UP",
                                          ">SLOTS",    ">LATENCY", ">KEYS",        ">HITS",
                                          ">FAILURES", ">REFUSED", "LAST FAILURE", NULL};
    struct hpsctl_table table;
    bool any = false;

    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < status->n_tiers; i++) {
        for (size_t k = 0; k < status->tiers[i]->n_servers; k++) {
            print_server(&table, status->tiers[i]->tier, status->tiers[i]->servers[k]);
            any = true;
        }
    }
    if (any) {
        printf("\n");
    }
    return any ? hpsctl_table_print(&table) : TOOL_OK;
}

static int print_status(struct hpsctl *ctl, const void *reply)
{
    const Hps__V1__GetStatusResponse *status = reply;
    char text[HPSCTL_TEXT_BYTES];

    (void)ctl;
    printf("hpsd         %s (%s), pid %" PRIu32 ", up %s\n", status->version, status->revision,
           status->pid, hpsctl_duration_text(status->uptime_s, text));
    printf("ready        %s%s\n", status->ready ? "yes" : "NO",
           status->draining ? ", draining" : "");
    for (size_t i = 0; i < status->n_not_ready_reasons; i++) {
        printf("             %s\n", status->not_ready_reasons[i]);
    }
    for (size_t i = 0; i < status->n_grpc_addresses; i++) {
        printf("grpc         %s\n", status->grpc_addresses[i]);
    }
    for (size_t i = 0; i < status->n_kserve_addresses; i++) {
        printf("kserve       %s\n", status->kserve_addresses[i]);
    }
    printf("http         %s\n", status->http_address);
    printf("admin        %s\n", status->admin_address);
    printf("memory       %s resident\n", hpsctl_bytes_text(status->resident_bytes, text));
    printf("now          %" PRIu32 " connections, %" PRIu32 " requests, %s of replies\n",
           status->connections, status->requests_in_flight,
           hpsctl_bytes_text(status->reply_bytes_in_flight, text));
    for (size_t i = 0; i < status->n_config_drift; i++) {
        printf("drift        %s\n", status->config_drift[i]);
    }
    for (size_t i = 0; i < status->n_notes; i++) {
        printf("note         %s\n", status->notes[i]);
    }
    printf("\n");
    int code = print_tiers(status);
    return code == TOOL_OK ? print_servers(status) : code;
}

int hpsctl_status(struct hpsctl *ctl)
{
    Hps__V1__GetStatusRequest request = HPS__V1__GET_STATUS_REQUEST__INIT;

    return hpsctl_call_print(ctl, "GetStatus", &request.base,
                             &hps__v1__get_status_response__descriptor, print_status);
}

/* ---- stats ----------------------------------------------------------------------------------- */

static int print_stats(struct hpsctl *ctl, const void *reply)
{
    static const char *const columns[] = {"MODEL",    "TABLE",     ">KEYS",
                                          ">UNIQUE",  ">FOUND",    ">DEFAULTED",
                                          ">UNKNOWN", "TIER HITS", NULL};
    const Hps__V1__GetStatsResponse *stats = reply;
    struct hpsctl_table table;
    char text[200];

    (void)ctl;
    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < stats->n_tables; i++) {
        const Hps__V1__TableStats *of = stats->tables[i];
        hpsctl_hits_text(of, NULL, text, sizeof(text));
        hpsctl_table_cell(&table, "%s", of->model);
        hpsctl_table_cell(&table, "%s", of->table);
        hpsctl_table_cell(&table, "%" PRIu64, of->key_count);
        hpsctl_table_cell(&table, "%" PRIu64, of->unique_key_count);
        hpsctl_table_cell(&table, "%" PRIu64, of->found_key_count);
        hpsctl_table_cell(&table, "%" PRIu64, of->defaulted_key_count);
        hpsctl_table_cell(&table, "%" PRIu64, of->unknown_key_count);
        hpsctl_table_cell(&table, "%s", text);
    }
    return hpsctl_table_print(&table);
}

int hpsctl_stats(struct hpsctl *ctl)
{
    Hps__V1__GetStatsRequest request = HPS__V1__GET_STATS_REQUEST__INIT;

    request.model = ctl->n_words > 0 ? ctl->words[0] : request.model;
    return hpsctl_call_print(ctl, "GetStats", &request.base,
                             &hps__v1__get_stats_response__descriptor, print_stats);
}

/* ---- slowlog --------------------------------------------------------------------------------- */

static const char *code_text(uint32_t code)
{
    return hps_status_text(hps_status_of_grpc(code > 16 ? 2 : (int)code));
}

static int print_slowlog(struct hpsctl *ctl, const void *reply)
{
    static const char *const columns[] = {
        "TIME",   "MODEL",   ">VER",  ">KEYS",  ">TOTAL US", ">RECEIVE", ">DECODE", ">ADMISSION",
        ">QUEUE", ">GPU",    ">HOST", ">REDIS", ">ROCKSDB",  ">WAIT",    ">UNIT",   ">WORK",
        ">LOOP",  ">ENCODE", ">SEND", "CODE",   "PEER",      "REQUEST",  "TRACE",   NULL};
    const Hps__V1__GetSlowLogResponse *log = reply;
    struct hpsctl_table table;
    char text[HPSCTL_TEXT_BYTES];

    (void)ctl;
    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < log->n_requests; i++) {
        const Hps__V1__SlowRequest *slow = log->requests[i];
        const uint64_t numbers[] = {
            slow->key_count,    slow->duration_us, slow->receive_us, slow->decode_us,
            slow->admission_us, slow->queue_us,    slow->gpu_us,     slow->host_us,
            slow->redis_us,     slow->rocksdb_us,  slow->wait_us,    slow->unit_us,
            slow->work_us,      slow->loop_us,     slow->encode_us,  slow->send_us};
        hpsctl_table_cell(&table, "%s", hpsctl_time_text(slow->unix_ms, text));
        hpsctl_table_cell(&table, "%s", slow->model);
        hpsctl_table_cell(&table, "%" PRId64, slow->version);
        for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
            hpsctl_table_cell(&table, "%" PRIu64, numbers[n]);
        }
        hpsctl_table_cell(&table, "%s", code_text(slow->code));
        hpsctl_table_cell(&table, "%s", slow->peer);
        hpsctl_table_cell(&table, "%s", slow->request_id);
        hpsctl_table_cell(&table, "%s", slow->trace_id);
    }
    return hpsctl_table_print(&table);
}

static int print_ok(struct hpsctl *ctl, const void *reply)
{
    (void)reply;
    printf("%s %s: done\n", ctl->verb->command.name, ctl->words[0]);
    return TOOL_OK;
}

int hpsctl_slowlog(struct hpsctl *ctl)
{
    HPS_ASSERT(ctl->n_words == 1);
    Hps__V1__GetSlowLogRequest get = HPS__V1__GET_SLOW_LOG_REQUEST__INIT;
    Hps__V1__ResetSlowLogRequest reset = HPS__V1__RESET_SLOW_LOG_REQUEST__INIT;

    if (ctl->choice == 1) {
        return hpsctl_call_print(ctl, "ResetSlowLog", &reset.base,
                                 &hps__v1__reset_slow_log_response__descriptor, print_ok);
    }
    return hpsctl_call_print(ctl, "GetSlowLog", &get.base,
                             &hps__v1__get_slow_log_response__descriptor, print_slowlog);
}

/* ---- config, log-level, drain ---------------------------------------------------------------- */

/* Prints JSON with its own line breaks. Escapes occur only within its strings. */
static int print_document(const char *json)
{
    size_t capacity = HPS_TEXT_GROWTH * strlen(json) + 1;
    char *line = hps_alloc(capacity);

    if (line == NULL) {
        return hpsctl_no_memory();
    }
    do {
        size_t size = strcspn(json, "\n");
        (void)hps_text_plain(json, size, line, capacity);
        printf("%s\n", line);
        json += size + (json[size] == '\n');
    } while (*json != '\0');
    hps_free(line);
    return TOOL_OK;
}

int hpsctl_config(struct hpsctl *ctl)
{
    HPS_ASSERT(ctl->n_words == 1);
    Hps__V1__GetConfigRequest request = HPS__V1__GET_CONFIG_REQUEST__INIT;
    Hps__V1__GetConfigResponse *reply = NULL;

    int code = hpsctl_call_raw(ctl, "GetConfig", &request.base,
                               &hps__v1__get_config_response__descriptor, &reply);
    if (code != TOOL_OK) {
        return code;
    }
    code = print_document(reply->json);
    hps_message_free(&reply->base);
    return code;
}

static int print_log_level(struct hpsctl *ctl, const void *reply)
{
    printf("log level %s (was %s)\n", ctl->words[0],
           ((const Hps__V1__SetLogLevelResponse *)reply)->previous_level);
    return TOOL_OK;
}

int hpsctl_log_level(struct hpsctl *ctl)
{
    HPS_ASSERT(ctl->n_words == 1);
    Hps__V1__SetLogLevelRequest request = HPS__V1__SET_LOG_LEVEL_REQUEST__INIT;

    request.level = ctl->words[0];
    return hpsctl_call_print(ctl, "SetLogLevel", &request.base,
                             &hps__v1__set_log_level_response__descriptor, print_log_level);
}

static int print_drain(struct hpsctl *ctl, const void *reply)
{
    (void)reply;
    printf("hpsd at %s is draining: it finishes its calls and exits\n", ctl->connect.address);
    return TOOL_OK;
}

int hpsctl_drain(struct hpsctl *ctl)
{
    Hps__V1__DrainRequest request = HPS__V1__DRAIN_REQUEST__INIT;

    return hpsctl_call_print(ctl, "Drain", &request.base, &hps__v1__drain_response__descriptor,
                             print_drain);
}
