/* SPDX-License-Identifier: Apache-2.0
 *
 * hpsctl top: rates between two readings of the server's counters. One thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "net/loop.h"
#include "proto/json.h"
#include "tools/hpsctl.h"

static struct {
    uint64_t interval_us;
    uint64_t count;
} top_flags = {1000 * 1000, 0};

const struct hps_arg hpsctl_top_args[] = {
    {"interval", 0, HPS_ARG_US, "SECONDS", &top_flags.interval_us,
     "time between two readings (default 1)"},
    {"count", 0, HPS_ARG_U64, "N", &top_flags.count, "exit after N readings (default: never)"},
    HPS_ARGS_END,
};

struct reading {
    uint64_t at_us;
    Hps__V1__GetStatusResponse *status;
    Hps__V1__GetStatsResponse *stats;
};

static void reading_free(struct reading *reading)
{
    if (reading->status != NULL) {
        hps_message_free(&reading->status->base);
    }
    if (reading->stats != NULL) {
        hps_message_free(&reading->stats->base);
    }
    *reading = (struct reading){0};
}

static int reading_take(struct hpsctl *ctl, struct reading *reading)
{
    HPS_ASSERT(reading->status == NULL && reading->stats == NULL);
    Hps__V1__GetStatusRequest status = HPS__V1__GET_STATUS_REQUEST__INIT;
    Hps__V1__GetStatsRequest stats = HPS__V1__GET_STATS_REQUEST__INIT;

    reading->at_us = hps_clock_us();
    int code = hpsctl_call(ctl, "GetStatus", &status.base,
                           &hps__v1__get_status_response__descriptor, &reading->status);
    if (code == TOOL_OK) {
        code = hpsctl_call(ctl, "GetStats", &stats.base, &hps__v1__get_stats_response__descriptor,
                           &reading->stats);
    }
    return code;
}

static const Hps__V1__TableStats *same_table(const struct reading *reading,
                                             const Hps__V1__TableStats *as)
{
    for (size_t i = 0; reading->stats != NULL && i < reading->stats->n_tables; i++) {
        const Hps__V1__TableStats *table = reading->stats->tables[i];
        if (strcmp(table->model, as->model) == 0 && strcmp(table->table, as->table) == 0) {
            return table;
        }
    }
    return NULL;
}

static double rate(uint64_t now, uint64_t before, double seconds)
{
    return seconds > 0 ? (double)hpsctl_since(now, before) / seconds : 0;
}

static int show_tables(const struct reading *now, const struct reading *before, double seconds)
{
    static const char *const columns[] = {"MODEL",      "TABLE",     ">KEYS/S", ">DEFAULTED/S",
                                          ">UNKNOWN/S", "TIER HITS", NULL};
    struct hpsctl_table table;
    char text[200];

    hpsctl_table_init(&table, columns);
    for (size_t i = 0; i < now->stats->n_tables; i++) {
        const Hps__V1__TableStats *stats = now->stats->tables[i];
        const Hps__V1__TableStats *then = same_table(before, stats);
        hpsctl_hits_text(stats, then, text, sizeof(text));
        hpsctl_table_cell(&table, "%s", stats->model);
        hpsctl_table_cell(&table, "%s", stats->table);
        hpsctl_table_cell(&table, "%.0f",
                          rate(stats->key_count, then == NULL ? 0 : then->key_count, seconds));
        hpsctl_table_cell(&table, "%.0f",
                          rate(stats->defaulted_key_count,
                               then == NULL ? 0 : then->defaulted_key_count, seconds));
        hpsctl_table_cell(
            &table, "%.0f",
            rate(stats->unknown_key_count, then == NULL ? 0 : then->unknown_key_count, seconds));
        hpsctl_table_cell(&table, "%s", text);
    }
    return hpsctl_table_print(&table);
}

static int show(struct hpsctl *ctl, const struct reading *now, const struct reading *before,
                bool terminal)
{
    HPS_ASSERT(now->at_us >= before->at_us);
    const Hps__V1__GetStatusResponse *status = now->status;
    double seconds = (double)(now->at_us - before->at_us) / 1e6;
    char up[HPSCTL_TEXT_BYTES], resident[HPSCTL_TEXT_BYTES], replies[HPSCTL_TEXT_BYTES];

    if (terminal) {
        printf("\033[H\033[2J");
    }
    printf("%s  up %s  %s  %" PRIu32 " connections  %" PRIu32
           " requests  %s resident  %s replies\n\n",
           ctl->connect.address, hpsctl_duration_text(status->uptime_s, up),
           status->draining ? "draining"
           : status->ready  ? "ready"
                            : "NOT READY",
           status->connections, status->requests_in_flight,
           hpsctl_bytes_text(status->resident_bytes, resident),
           hpsctl_bytes_text(status->reply_bytes_in_flight, replies));
    int code = show_tables(now, before, seconds);
    if (!terminal) {
        printf("\n");
    }
    return fflush(stdout) == 0 ? code : TOOL_REFUSED;
}

static int show_json(const struct reading *now)
{
    struct hps_buf buf;

    hps_buf_init(&buf, HPS_CLIENT_REPLY_BYTES_MAX);
    hps_buf_put(&buf, "{\"status\":");
    hps_message_json(&now->status->base, &buf);
    hps_buf_put(&buf, ",\"stats\":");
    hps_message_json(&now->stats->base, &buf);
    hps_buf_put(&buf, "}");
    return hpsctl_print_buf(&buf);
}

static void wait_until(struct hpsctl *ctl, uint64_t until_us)
{
    uint64_t now_us;

    while ((now_us = hps_clock_us()) < until_us) {
        hps_loop_turn(hps_client_loop(ctl->client), until_us - now_us);
    }
}

int hpsctl_top(struct hpsctl *ctl)
{
    bool terminal = isatty(STDOUT_FILENO) == 1;
    struct reading before = {0}, now = {0};
    int code = reading_take(ctl, &before);

    for (uint64_t i = 0; code == TOOL_OK && (top_flags.count == 0 || i < top_flags.count); i++) {
        wait_until(ctl, before.at_us + top_flags.interval_us);
        code = reading_take(ctl, &now);
        if (code != TOOL_OK) {
            break;
        }
        code = hpsctl_json(ctl) ? show_json(&now) : show(ctl, &now, &before, terminal);
        reading_free(&before);
        before = now;
        now = (struct reading){0};
    }
    reading_free(&now);
    reading_free(&before);
    return code;
}
