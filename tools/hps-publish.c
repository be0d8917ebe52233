/* SPDX-License-Identifier: Apache-2.0
 *
 * hps-publish: publishes rows and deletes to Kafka, in any form that hpsd accepts. This file keeps
 * the pace and prints. hps-publish_options.c reads the command line; hps-publish_input.c and
 * hps-publish_lines.c read the rows. One thread; librdkafka has its own.
 */
#include "tools/hps-publish.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/rows/modeldir.h"
#include "client/message.h"
#include "client/producer.h"
#include "client/update_writer.h"
#include "tools/tool.h"

enum {
    PROGRESS_US = 200 * 1000,
    FLUSH_US = 200 * 1000, /* with a rate: longest time that rows wait for more rows */
    PACES_PER_S = 50,
    OUTPUT_BYTES_MAX = 64 << 20,
};

static struct publish_options flags; /* of the command line */

struct publish {
    struct hps_producer *producer; /* NULL: dry run */
    struct publish_servers *servers;
    struct hps_update_writer *writer;
    bool broker_failed; /* an error came from a broker or a server */
    bool refused;       /* a server to wait for would not accept it */
    uint64_t begin_us;
    uint64_t pace_us;  /* with a rate: when the next row is due */
    uint64_t flush_us; /* when rows were last flushed */
    uint64_t n_expected;
    struct tool_progress progress;
};

/* ---- pace and progress ----------------------------------------------------------------------- */

static uint64_t n_done(const struct publish *publish)
{
    const struct hps_update_written *written = hps_update_writer_written(publish->writer);

    return written->n_rows + written->n_deletes;
}

static void show_progress(struct publish *publish, bool last)
{
    if (!tool_progress_due(&publish->progress, last ? 0 : PROGRESS_US)) {
        return;
    }
    const struct hps_update_written *written = hps_update_writer_written(publish->writer);
    double seconds = (double)(hps_clock_us() - publish->begin_us + 1) / 1e6;
    char share[32] = "";
    if (publish->n_expected > 0) {
        (void)snprintf(share, sizeof(share), "%3.0f %%  ",
                       100.0 * (double)written->n_rows / (double)publish->n_expected);
    }
    tool_progress_draw(&publish->progress,
                       "%s%" PRIu64 " rows  %" PRIu64 " deletes  %.0f/s  %.1f MB/s", share,
                       written->n_rows, written->n_deletes, (double)n_done(publish) / seconds,
                       (double)written->bytes / seconds / 1e6);
}

static hps_status check_stop(struct publish *publish, struct hps_error *err)
{
    show_progress(publish, false);
    return tool_interrupted() ? hps_error_set(err, HPS_CANCELLED, "interrupted") : HPS_OK;
}

static hps_status let_go(struct publish *publish, struct hps_error *err)
{
    publish->flush_us = hps_clock_us();
    return hps_update_writer_flush(publish->writer, err);
}

/* Waits until rows may be sent; returns how many of n. */
static hps_status keep_pace(struct publish *publish, size_t n, size_t *out_n, struct hps_error *err)
{
    HPS_ASSERT(n > 0);
    uint64_t share = flags.rate / PACES_PER_S;

    *out_n = n;
    if (flags.rate == 0 || publish->producer == NULL) {
        return check_stop(publish, err);
    }
    *out_n = n < share ? n : share == 0 ? 1 : (size_t)share;
    for (;;) {
        hps_status status = check_stop(publish, err);
        uint64_t now_us = hps_clock_us();
        if (status != HPS_OK) {
            return status;
        }
        if (publish->pace_us + 1000000 < now_us) {
            publish->pace_us = now_us; /* capacity unused for a second is lost */
        }
        if (publish->pace_us <= now_us) {
            publish->pace_us += *out_n * 1000000 / flags.rate;
            return HPS_OK;
        }
        if (!flags.units && now_us - publish->flush_us > FLUSH_US) {
            status = let_go(publish, err);
        }
        if (status == HPS_OK) {
            uint64_t wait_us = publish->pace_us - now_us;
            status =
                hps_producer_poll(publish->producer, wait_us < FLUSH_US ? wait_us : FLUSH_US, err);
            publish->broker_failed = publish->broker_failed || status != HPS_OK;
        }
        if (status != HPS_OK) {
            return status;
        }
    }
}

static struct hps_update_writer_options writer_options(void)
{
    return (struct hps_update_writer_options){
        .model = flags.model,
        .form = flags.form,
        .key_bytes = flags.key_bytes,
        .batch_bytes = (size_t)flags.batch_bytes,
        .version = flags.for_version,
        .row_version_given = flags.row_version_given,
        .row_version = flags.row_version,
        .units = flags.units,
        .row_dtype = flags.row_dtype,
        .nan_allowed = flags.allow_nan,
    };
}

hps_status publish_table(struct publish *publish, const char *table, uint32_t dim,
                         enum hps_dtype dtype, struct hps_error *err)
{
    const struct hps_update_writer_options options = writer_options();
    struct publish_rows_form form = {.table = table, .dim = dim};
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    uint32_t ignored;

    hps_status status =
        dim == 0 ? HPS_OK : hps_update_writer_sends(&options, dtype, &form.dtype, err);
    if (status != HPS_OK) {
        return hps_error_prefix(err, status, "table %s", table);
    }
    if (publish->servers == NULL || publish_servers_take(publish->servers, &form) ||
        !hps_model_name_valid(table)) { /* the writer reports the name */
        return HPS_OK;
    }
    hps_update_topic_format(flags.model, flags.form == HPS_UPDATE_PACKED ? NULL : table, topic);
    status = hps_producer_topic(publish->producer, topic, &ignored, &ignored, err);
    publish->broker_failed = publish->broker_failed || status != HPS_OK;
    if (status == HPS_OK) {
        status = publish_servers_check(publish->servers, &form, topic, err);
        publish->refused = status == HPS_INVALID;
        publish->broker_failed = status != HPS_OK && status != HPS_INVALID;
    }
    return status;
}

hps_status publish_rows(struct publish *publish, const char *table, uint32_t dim,
                        enum hps_dtype dtype, const hps_key *keys, const void *rows, size_t n,
                        struct hps_error *err)
{
    HPS_ASSERT(dim > 0);
    size_t row_bytes = (size_t)hps_dtype_row_bytes(dtype, dim);
    const uint8_t *row = rows;

    hps_status table_status = publish_table(publish, table, dim, dtype, err);
    if (table_status != HPS_OK) {
        return table_status;
    }
    while (n > 0) {
        size_t now;
        hps_status status = keep_pace(publish, n, &now, err);
        if (status == HPS_OK) {
            status =
                hps_update_writer_rows(publish->writer, table, dim, dtype, keys, row, now, err);
        }
        if (status != HPS_OK) {
            return status;
        }
        keys += now;
        row += now * row_bytes;
        n -= now;
    }
    return HPS_OK;
}

hps_status publish_deletes(struct publish *publish, const char *table, const hps_key *keys,
                           size_t n, struct hps_error *err)
{
    hps_status table_status = publish_table(publish, table, 0, 0, err);
    if (table_status != HPS_OK) {
        return table_status;
    }
    while (n > 0) {
        size_t now;
        hps_status status = keep_pace(publish, n, &now, err);
        if (status == HPS_OK) {
            status = hps_update_writer_deletes(publish->writer, table, keys, now, err);
        }
        if (status != HPS_OK) {
            return status;
        }
        keys += now;
        n -= now;
    }
    return HPS_OK;
}

hps_status publish_flush(struct publish *publish, struct hps_error *err)
{
    return let_go(publish, err);
}

hps_status publish_idle(struct publish *publish, struct hps_error *err)
{
    hps_status status = check_stop(publish, err);

    if (status == HPS_OK && !flags.units) {
        status = let_go(publish, err);
    }
    if (status == HPS_OK && publish->producer != NULL) {
        status = hps_producer_poll(publish->producer, 0, err);
        publish->broker_failed = publish->broker_failed || status != HPS_OK;
    }
    return status;
}

void publish_expect(struct publish *publish, uint64_t n_rows)
{
    HPS_ASSERT(hps_update_writer_written(publish->writer)->n_rows == 0);
    publish->n_expected += n_rows;
}

/* ---- the sink -------------------------------------------------------------------------------- */

static hps_status sink_topic(void *ctx, const char *name, uint32_t *out_topic,
                             uint32_t *out_n_partitions, struct hps_error *err)
{
    struct publish *publish = ctx;

    if (publish->producer == NULL) {
        *out_topic = 0;
        *out_n_partitions = 1;
        return HPS_OK;
    }
    hps_status status =
        hps_producer_topic(publish->producer, name, out_topic, out_n_partitions, err);
    publish->broker_failed = publish->broker_failed || status != HPS_OK;
    return status;
}

static hps_status sink_send(void *ctx, const struct hps_producer_record *record,
                            struct hps_error *err)
{
    struct publish *publish = ctx;

    if (publish->producer == NULL) {
        return HPS_OK;
    }
    hps_status status = hps_producer_send(publish->producer, record, err);
    publish->broker_failed = publish->broker_failed || status != HPS_OK;
    return status;
}

/* ---- input and summary ----------------------------------------------------------------------- */

static hps_status read_all(struct publish *publish, struct hps_error *err)
{
    const struct publish_input input = {.table = flags.table,
                                        .nan_allowed = flags.allow_nan,
                                        .row_dtype = flags.row_dtype,
                                        .units = flags.units};
    hps_status status = HPS_OK;

    if (flags.from != NULL) {
        status = publish_from(publish, &input, flags.from, err);
    } else if (flags.diff[0] != NULL) {
        status = publish_diff(publish, &input, flags.diff[0], flags.diff[1], err);
    } else if (flags.lines) {
        status = publish_lines(publish, &input, STDIN_FILENO, err);
    }
    if (status == HPS_OK && flags.deletes != NULL) {
        status = publish_deletes_file(publish, &input, flags.deletes, err);
    }
    return status;
}

static void json_position(void *ctx, const char *topic, uint32_t partition, int64_t offset)
{
    struct hps_buf *buf = ctx;
    bool first = buf->size > 0 && buf->data[buf->size - 1] == '[';

    hps_buf_putf(buf, "%s{\"topic\":\"%s\",\"partition\":%u,\"offset\":%" PRId64 "}",
                 first ? "" : ",", topic, partition, offset);
}

/* Without memory prints nothing. */
static void print_json(const struct publish *publish, double seconds)
{
    const struct hps_update_written *written = hps_update_writer_written(publish->writer);
    struct hps_buf buf;

    hps_buf_init(&buf, OUTPUT_BYTES_MAX);
    hps_buf_putf(&buf,
                 "{\"model\":\"%s\",\"rows\":%" PRIu64 ",\"deletes\":%" PRIu64
                 ",\"records\":%" PRIu64 ",\"bytes\":%" PRIu64
                 ",\"seconds\":%.3f,\"dry_run\":%s,\"positions\":[",
                 flags.model, written->n_rows, written->n_deletes, written->n_records,
                 written->bytes, seconds, publish->producer == NULL ? "true" : "false");
    if (publish->producer != NULL) {
        hps_producer_positions(publish->producer, json_position, &buf);
    }
    if (buf.status == HPS_OK) {
        printf("%.*s]}\n", (int)buf.size, (const char *)buf.data);
    }
    hps_buf_fini(&buf);
}

static void print_summary(const struct publish *publish)
{
    HPS_ASSERT(publish->writer != NULL);
    const struct hps_update_written *written = hps_update_writer_written(publish->writer);
    double seconds = (double)(hps_clock_us() - publish->begin_us) / 1e6;

    if (flags.json) {
        print_json(publish, seconds);
        return;
    }
    printf("%s %" PRIu64 " rows and %" PRIu64 " deletes of model %s in %" PRIu64
           " %s records: %.3f MB, %.2f s\n",
           publish->producer == NULL ? "would publish" : "published", written->n_rows,
           written->n_deletes, flags.model, written->n_records, flags.form_word,
           (double)written->bytes / 1e6, seconds);
}

static int exit_of(const struct publish *publish, hps_status status)
{
    HPS_ASSERT(status != HPS_OK);
    if (status == HPS_CANCELLED) {
        return TOOL_INTERRUPTED;
    }
    if (publish->refused) {
        return TOOL_REFUSED;
    }
    if (publish->broker_failed) { /* PRECONDITION from a server: it will not become visible */
        return status == HPS_PRECONDITION ? TOOL_NEGATIVE : tool_exit_of(status);
    }
    /* The input is the cause. */
    return status == HPS_NO_MEMORY || status == HPS_IO || status == HPS_EXHAUSTED ? TOOL_REFUSED
                                                                                  : TOOL_USAGE;
}

/* Sends the rows before an error of the input too, but no part of a unit, as the summary says. */
static hps_status finish(struct publish *publish, hps_status status, struct hps_error *err)
{
    struct hps_error late = {0};

    if (publish->broker_failed) {
        return status;
    }
    if (status != HPS_OK && !flags.units && let_go(publish, &late) != HPS_OK) {
        *err = late;
        return late.status;
    }
    if (publish->producer != NULL && hps_producer_flush(publish->producer, &late) != HPS_OK) {
        publish->broker_failed = true;
        *err = late;
        return late.status;
    }
    return status;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* The sent records. */
struct gathered {
    struct hps_buf ranges; /* struct publish_range */
    bool no_memory;
};

static void gather_range(void *ctx, const char *topic, uint32_t partition, int64_t first,
                         int64_t last)
{
    HPS_ASSERT(first <= last);
    struct gathered *all = ctx;
    const struct publish_range range = {topic, partition, first, last};

    all->no_memory =
        all->no_memory || hps_buf_append(&all->ranges, &range, sizeof(range)) != HPS_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct publish_range *one = a, *other = b;
    int topics = strcmp(one->topic, other->topic);

    return topics != 0 ? topics
           : one->partition != other->partition
               ? (one->partition > other->partition ? 1 : -1)
               : (one->first > other->first) - (one->first < other->first);
}

static hps_status gather(const struct publish *publish, struct gathered *all, struct hps_error *err)
{
    HPS_ASSERT(publish->producer != NULL);
    struct hps_producer_counts counts;

    hps_producer_counts_get(publish->producer, &counts);
    if (counts.n_unplaced > 0) {
        return hps_error_set(
            err, HPS_PRECONDITION,
            "published, but the wait was skipped: the broker returned no offset for %" PRIu64
            " records; use hpsctl wait-for now",
            counts.n_unplaced);
    }
    hps_producer_ranges(publish->producer, gather_range, all);
    if (all->ranges.size > 0) {
        qsort(all->ranges.data, all->ranges.size / sizeof(struct publish_range),
              sizeof(struct publish_range), by_offset);
    }
    return all->no_memory ? hps_error_set(err, HPS_NO_MEMORY, "out of memory") : HPS_OK;
}

static hps_status open_servers(struct publish *publish, struct hps_error *err)
{
    HPS_ASSERT(publish->servers == NULL && flags.servers.n > 0);
    const struct publish_target target = {.model = flags.model,
                                          .version = flags.for_version,
                                          .key_bytes =
                                              flags.form == HPS_UPDATE_HCTR ? flags.key_bytes : 0};

    if (!flags.wait || flags.dry_run) {
        return HPS_OK;
    }
    hps_status status = publish_servers_open(&flags.connect, flags.servers.items, flags.servers.n,
                                             &target, &publish->servers, err);
    publish->broker_failed = status != HPS_OK && status != HPS_INVALID;
    if (status == HPS_OK) {
        status = publish_servers_begin(publish->servers, err);
        publish->refused = status == HPS_INVALID;
        publish->broker_failed = status != HPS_OK && status != HPS_INVALID;
    }
    return status;
}

static hps_status wait_visible(struct publish *publish, struct hps_error *err)
{
    HPS_ASSERT(publish->servers == NULL || publish->producer != NULL);
    struct gathered all = {0};

    if (publish->servers == NULL) {
        return HPS_OK;
    }
    hps_buf_init(&all.ranges, SIZE_MAX / 2);
    hps_status status = gather(publish, &all, err);
    if (status == HPS_OK) {
        status = publish_wait(publish->servers,
                              (const struct publish_range *)(const void *)all.ranges.data,
                              all.ranges.size / sizeof(struct publish_range), flags.wait_us, err);
    }
    publish->broker_failed = status != HPS_OK;
    hps_buf_fini(&all.ranges);
    return status;
}

/* ---- run ------------------------------------------------------------------------------------- */

/* Prints the result; returns the exit code. */
static int conclude(const struct publish *publish, hps_status status, const struct hps_error *err)
{
    if (status == HPS_OK) {
        return 0;
    }
    (void)fprintf(stderr, "hps-publish: %s\n", err->text);
    if (publish->broker_failed && publish->producer != NULL) {
        struct hps_producer_counts counts;
        hps_producer_counts_get(publish->producer, &counts);
        (void)fprintf(stderr, "hps-publish: %" PRIu64 " of %" PRIu64 " records were acknowledged\n",
                      counts.n_acknowledged, counts.n_sent);
    }
    return exit_of(publish, status);
}

static int run(void)
{
    const struct hps_update_writer_options options = writer_options();
    struct publish publish = {.begin_us = hps_clock_us(),
                              .progress = {.out = flags.show ? stderr : NULL}};
    const struct hps_update_sink sink = {&publish, sink_topic, sink_send};
    struct hps_error err = {0};

    hps_status status = open_servers(&publish, &err);
    if (status == HPS_OK && !flags.dry_run) {
        status = hps_producer_open(&flags.broker, &publish.producer, &err);
        publish.broker_failed = status != HPS_OK && status != HPS_INVALID;
    }
    if (status == HPS_OK) {
        status = hps_update_writer_new(&options, &sink, &publish.writer, &err);
    }
    if (status == HPS_OK) {
        status = read_all(&publish, &err);
        status = finish(&publish, status, &err);
        show_progress(&publish, true);
        tool_progress_end(&publish.progress);
        if (status == HPS_OK || !publish.broker_failed) {
            print_summary(&publish);
        }
        if (status == HPS_OK) {
            status = wait_visible(&publish, &err);
        }
    }
    int code = conclude(&publish, status, &err);
    hps_update_writer_free(publish.writer);
    hps_producer_close(publish.producer);
    publish_servers_close(publish.servers);
    return code;
}

int main(int argc, char **argv)
{
    int code;

    if (!publish_options_read(argc, argv, &flags, &code)) {
        return code;
    }
    tool_interrupts_note(true);
    return run();
}
