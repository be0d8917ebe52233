/* SPDX-License-Identifier: Apache-2.0
 *
 * hps-publish: rows and deletes into Kafka, in any form that hpsd takes from there. This file
 * parses, keeps pace and prints; hps-publish_input.c and hps-publish_lines.c read. One thread,
 * beside those of librdkafka.
 */
#include "tools/hps-publish.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/rows/modeldir.h"
#include "client/args.h"
#include "client/message.h"
#include "client/producer.h"
#include "client/update_writer.h"

enum {
    EXIT_REFUSED = 1,
    EXIT_USAGE = 2,
    EXIT_UNREACHABLE = 3,
    EXIT_DEADLINE = 4,
    EXIT_NEGATIVE = 5,
    EXIT_INTERRUPTED = 130,
    PROGRESS_US = 200 * 1000,
    FLUSH_US = 200 * 1000, /* with a rate: rows wait no longer for others of their batch */
    PACES_PER_S = 50,
    BATCH_BYTES = 256 << 10, /* as HPS's own producer */
    BATCH_BYTES_MAX = 1 << 26,
    OUTPUT_BYTES_MAX = 64 << 20,
    CONNECT_US = 10 * 1000 * 1000,
};

#define ADMIN_DEFAULT "unix:/run/hpsd/admin.sock"

static struct {
    struct hps_producer_options broker;
    struct hps_arg_list properties;
    const char *model;
    const char *table;
    const char *from;
    const char *diff;
    const char *deletes;
    const char *form;
    const char *key_bytes;
    const char *output;
    uint64_t batch_bytes;
    uint64_t rate;
    int64_t for_version;
    const char *row_version;
    struct hps_arg_list servers;
    struct hps_client_options connect;
    uint64_t wait_us;
    bool units, allow_nan, dry_run, wait, progress, quiet, help;
} flags = {
    .broker = {.timeout_us = 30 * 1000 * 1000},
    .form = "keyed",
    .key_bytes = "8",
    .output = "table",
    .batch_bytes = BATCH_BYTES,
    .connect = {.connect_timeout_us = CONNECT_US},
    .wait_us = 60 * 1000 * 1000,
};

static const struct hps_arg args[] = {
    {"bootstrap-server", 'b', HPS_ARG_TEXT, "HOST:PORT,...", &flags.broker.brokers,
     "Kafka brokers"},
    {"model", 'm', HPS_ARG_TEXT, "NAME", &flags.model, "topics are hps_et.MODEL.TABLE"},
    {"table", 't', HPS_ARG_TEXT, "NAME", &flags.table,
     "the one table; without it those of the files, or the first word of each line"},
    {"from", 0, HPS_ARG_TEXT, "PATH", &flags.from,
     "every row of a table's files (.npy, .rows.npy, HugeCTR) or of a model directory"},
    {"diff", 0, HPS_ARG_TEXT, "OLD NEW", &flags.diff,
     "rows of NEW that OLD has not, or has otherwise, and deletes of keys that NEW has not"},
    {"deletes", 0, HPS_ARG_TEXT, "FILE", &flags.deletes,
     "keys to delete, after the rows: a .npy of int64, or lines `[TABLE] KEY`"},
    {"format", 'f', HPS_ARG_CHOICE, "keyed|hctr|packed", &flags.form,
     "keyed (default): a record per row; hctr: HPS's batches; packed: topic hps_et.MODEL"},
    {"batch-bytes", 0, HPS_ARG_BYTES, "SIZE", &flags.batch_bytes,
     "of an hctr or packed record (default 256KiB)"},
    {"key-bytes", 0, HPS_ARG_CHOICE, "8|4", &flags.key_bytes,
     "of hctr: 4 where the server has supportlonglong false (default 8)"},
    {"units", 0, HPS_ARG_FLAG, NULL, &flags.units,
     "packed lines: all up to a line `commit` is one record, applied at once"},
    {"for-version", 0, HPS_ARG_I64, "N", &flags.for_version,
     "for this version alone, not for all that follow the topic"},
    {"row-version", 0, HPS_ARG_TEXT, "N", &flags.row_version,
     "header hps-row-version, for tables with row_versions"},
    {"rate", 'r', HPS_ARG_U64, "N", &flags.rate, "rows and deletes a second at most"},
    {"property", 'X', HPS_ARG_LIST, "NAME=VALUE", &flags.properties,
     "of librdkafka, repeatable: compression.type=zstd, security.protocol=SSL, ..."},
    {"timeout", 0, HPS_ARG_US, "SECONDS", &flags.broker.timeout_us,
     "without an answer of the brokers (default 30)"},
    {"allow-nan", 0, HPS_ARG_FLAG, NULL, &flags.allow_nan,
     "send NaN and Inf (servers refuse them)"},
    {"dry-run", 'n', HPS_ARG_FLAG, NULL, &flags.dry_run,
     "read and check everything, send nothing, ask no broker"},
    {"wait", 'w', HPS_ARG_FLAG, NULL, &flags.wait,
     "until look-ups see it, on every server of --addr; those are asked before it is sent, too"},
    {"addr", 0, HPS_ARG_LIST, "ADDR", &flags.servers,
     "admin listener to wait for, repeatable (else $HPSD_ADDR, else " ADMIN_DEFAULT ")"},
    {"wait-timeout", 0, HPS_ARG_US, "SECONDS", &flags.wait_us, "of --wait (default 60)"},
    {"token-file", 0, HPS_ARG_TEXT, "FILE", &flags.connect.token_file,
     "bearer token for --addr, one line"},
    {"tls", 0, HPS_ARG_FLAG, NULL, &flags.connect.tls, "--addr has TLS, with the system's roots"},
    {"tls-ca", 0, HPS_ARG_TEXT, "FILE", &flags.connect.tls_ca, "... with these roots (PEM)"},
    {"tls-cert", 0, HPS_ARG_TEXT, "FILE", &flags.connect.tls_cert, "certificate of this client"},
    {"tls-key", 0, HPS_ARG_TEXT, "FILE", &flags.connect.tls_key, "its key"},
    {"output", 'o', HPS_ARG_CHOICE, "table|json", &flags.output,
     "json: with the last record of each partition, as hpsctl wait-for takes it"},
    {"progress", 0, HPS_ARG_FLAG, NULL, &flags.progress, "show it where stderr is no terminal too"},
    {"quiet", 'q', HPS_ARG_FLAG, NULL, &flags.quiet, "no progress"},
    {"help", 'h', HPS_ARG_FLAG, NULL, &flags.help, "this text"},
    {NULL, 0, HPS_ARG_FLAG, NULL, NULL, NULL},
};

static const char usage[] =
    "usage: hps-publish -b HOST:PORT -m MODEL [-t TABLE] --from PATH [option...]\n"
    "       hps-publish -b HOST:PORT -m MODEL [-t TABLE] --diff OLD NEW [option...]\n"
    "       hps-publish -b HOST:PORT -m MODEL [-t TABLE] - [option...] <LINES\n"
    "       hps-publish -b HOST:PORT -m MODEL [-t TABLE] --deletes FILE [option...]\n"
    "\n"
    "Publish embedding rows and deletes to the topics that hpsd follows. LINES are\n"
    "`[TABLE] KEY VALUE...` or `[TABLE] KEY null` to delete; TABLE only without --table.\n"
    "Records go where Kafka's default partitioner puts their key, in order, exactly once.\n"
    "\n";

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

bool publish_interrupted(void)
{
    return interrupted != 0;
}

struct publish {
    struct hps_producer *producer; /* NULL: dry run */
    struct publish_servers *servers;
    struct hps_update_writer *writer;
    bool broker_failed; /* an error came from there, or from a server */
    bool refused;       /* a server that is waited for would not take it */
    uint64_t begin_us;
    uint64_t pace_us;  /* when the next row is due, with a rate */
    uint64_t flush_us; /* of the last time that all was let go */
    uint64_t shown_us;
    uint64_t n_expected;
    bool show;
};

/* ---- pace and progress ----------------------------------------------------------------------- */

static uint64_t n_done(const struct publish *publish)
{
    const struct hps_update_written *written = hps_update_writer_written(publish->writer);

    return written->n_rows + written->n_deletes;
}

static void show_progress(struct publish *publish, bool last)
{
    uint64_t now_us = hps_clock_us();

    if (!publish->show || (!last && now_us - publish->shown_us < PROGRESS_US)) {
        return;
    }
    const struct hps_update_written *written = hps_update_writer_written(publish->writer);
    double seconds = (double)(now_us - publish->begin_us + 1) / 1e6;
    char share[32] = "";
    if (publish->n_expected > 0) {
        (void)snprintf(share, sizeof(share), "%3.0f %%  ",
                       100.0 * (double)written->n_rows / (double)publish->n_expected);
    }
    (void)fprintf(stderr, "\r%s%" PRIu64 " rows  %" PRIu64 " deletes  %.0f/s  %.1f MB/s   %s",
                  share, written->n_rows, written->n_deletes, (double)n_done(publish) / seconds,
                  (double)written->bytes / seconds / 1e6, last ? "\n" : "");
    publish->shown_us = now_us;
}

static hps_status check_stop(struct publish *publish, struct hps_error *err)
{
    show_progress(publish, false);
    return interrupted != 0 ? hps_error_set(err, HPS_CANCELLED, "interrupted") : HPS_OK;
}

static hps_status let_go(struct publish *publish, struct hps_error *err)
{
    publish->flush_us = hps_clock_us();
    return hps_update_writer_flush(publish->writer, err);
}

/* Wait until rows may go, and say how many of n. */
static hps_status keep_pace(struct publish *publish, size_t n, size_t *out_n, struct hps_error *err)
{
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
            publish->pace_us = now_us; /* what was not used for a second is lost */
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

hps_status publish_table(struct publish *publish, const char *table, uint32_t dim,
                         struct hps_error *err)
{
    char topic[HPS_UPDATE_TOPIC_BYTES_MAX];
    uint32_t ignored;

    if (publish->servers == NULL || publish_servers_take(publish->servers, table, dim) ||
        !hps_model_name_valid(table)) { /* which the writer judges */
        return HPS_OK;
    }
    hps_update_topic_format(flags.model, flags.form[0] == 'p' ? NULL : table, topic);
    hps_status status = hps_producer_topic(publish->producer, topic, &ignored, &ignored, err);
    publish->broker_failed = publish->broker_failed || status != HPS_OK;
    if (status == HPS_OK) {
        status = publish_servers_check(publish->servers, table, dim, topic, err);
        publish->refused = status == HPS_INVALID;
        publish->broker_failed = status != HPS_OK && status != HPS_INVALID;
    }
    return status;
}

hps_status publish_rows(struct publish *publish, const char *table, uint32_t dim,
                        enum hps_dtype dtype, const hps_key *keys, const void *rows, size_t n,
                        struct hps_error *err)
{
    size_t row_bytes = (size_t)dim * hps_dtype_bytes(dtype);
    const uint8_t *row = rows;

    hps_status table_status = publish_table(publish, table, dim, err);
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
    hps_status table_status = publish_table(publish, table, 0, err);
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
    publish->n_expected += n_rows;
}

/* ---- where records go ------------------------------------------------------------------------ */

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

/* ---- the whole ------------------------------------------------------------------------------- */

static hps_status read_all(struct publish *publish, const char *new_path, bool lines,
                           struct hps_error *err)
{
    const struct publish_input input = {
        .table = flags.table, .nan_allowed = flags.allow_nan, .units = flags.units};
    hps_status status = HPS_OK;

    if (flags.from != NULL) {
        status = publish_from(publish, &input, flags.from, err);
    } else if (flags.diff != NULL) {
        status = publish_diff(publish, &input, flags.diff, new_path, err);
    } else if (lines) {
        status = publish_lines(publish, &input, STDIN_FILENO, err);
    }
    if (status == HPS_OK && flags.deletes != NULL) {
        status = publish_deletes_file(publish, &input, flags.deletes, err);
    }
    return status;
}

struct positions {
    struct hps_buf *buf;
    const char *comma;
    hps_status status;
};

static void json_position(void *ctx, const char *topic, uint32_t partition, int64_t offset)
{
    struct positions *positions = ctx;

    if (positions->status == HPS_OK) {
        positions->status = hps_buf_printf(
            positions->buf, "%s{\"topic\":\"%s\",\"partition\":%u,\"offset\":%" PRId64 "}",
            positions->comma, topic, partition, offset);
        positions->comma = ",";
    }
}

static hps_status print_json(const struct publish *publish, double seconds)
{
    const struct hps_update_written *written = hps_update_writer_written(publish->writer);
    struct hps_buf buf;

    hps_buf_init(&buf, OUTPUT_BYTES_MAX);
    struct positions positions = {.buf = &buf, .comma = ""};
    positions.status = hps_buf_printf(
        &buf,
        "{\"model\":\"%s\",\"rows\":%" PRIu64 ",\"deletes\":%" PRIu64 ",\"records\":%" PRIu64
        ",\"bytes\":%" PRIu64 ",\"seconds\":%.3f,\"dry_run\":%s,\"positions\":[",
        flags.model, written->n_rows, written->n_deletes, written->n_records, written->bytes,
        seconds, publish->producer == NULL ? "true" : "false");
    if (publish->producer != NULL) {
        hps_producer_positions(publish->producer, json_position, &positions);
    }
    if (positions.status == HPS_OK) {
        positions.status = hps_buf_printf(&buf, "]}\n");
    }
    if (positions.status == HPS_OK) {
        (void)fwrite(buf.data, 1, buf.size, stdout);
    }
    hps_buf_fini(&buf);
    return positions.status;
}

static void print_summary(const struct publish *publish)
{
    const struct hps_update_written *written = hps_update_writer_written(publish->writer);
    double seconds = (double)(hps_clock_us() - publish->begin_us) / 1e6;

    if (flags.output[0] == 'j') {
        hps_ignore(print_json(publish, seconds)); /* no memory: nothing to print */
        return;
    }
    printf("%s %" PRIu64 " rows and %" PRIu64 " deletes of model %s in %" PRIu64
           " %s records: %.3f MB, %.2f s\n",
           publish->producer == NULL ? "would publish" : "published", written->n_rows,
           written->n_deletes, flags.model, written->n_records, flags.form,
           (double)written->bytes / 1e6, seconds);
}

static int exit_of(const struct publish *publish, hps_status status)
{
    if (status == HPS_CANCELLED) {
        return EXIT_INTERRUPTED;
    }
    if (publish->refused) {
        return EXIT_REFUSED;
    }
    if (publish->broker_failed) {
        return status == HPS_UNAVAILABLE    ? EXIT_UNREACHABLE
               : status == HPS_DEADLINE     ? EXIT_DEADLINE
               : status == HPS_PRECONDITION ? EXIT_NEGATIVE /* of a server: it is not visible */
                                            : EXIT_REFUSED;
    }
    /* What was to be published is at fault. */
    return status == HPS_NO_MEMORY || status == HPS_IO || status == HPS_EXHAUSTED ? EXIT_REFUSED
                                                                                  : EXIT_USAGE;
}

/* What came before an error of the input goes out too, but no part of a unit: as the summary says.
 */
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

/* What was sent, partition by partition. */
struct gathered {
    struct hps_buf ranges;  /* struct hps_update_range */
    struct hps_buf records; /* struct hps_update_records; n_ranges of each behind the others */
    bool no_memory;
};

static void gather_range(void *ctx, const char *topic, uint32_t partition, int64_t first,
                         int64_t last)
{
    struct gathered *all = ctx;
    const struct hps_update_range range = {first, last};
    struct hps_update_records *of = (struct hps_update_records *)(void *)all->records.data;
    size_t n = all->records.size / sizeof(*of);

    if (n == 0 || of[n - 1].partition != (int32_t)partition ||
        strcmp(of[n - 1].topic, topic) != 0) {
        const struct hps_update_records one = {.topic = topic, .partition = (int32_t)partition};
        all->no_memory =
            all->no_memory || hps_buf_append(&all->records, &one, sizeof(one)) != HPS_OK;
        of = (struct hps_update_records *)(void *)all->records.data;
        n++;
    }
    all->no_memory =
        all->no_memory || hps_buf_append(&all->ranges, &range, sizeof(range)) != HPS_OK;
    if (!all->no_memory) {
        of[n - 1].n_ranges++;
    }
}

static int by_offset(const void *a, const void *b)
{
    const struct hps_update_range *one = a, *other = b;

    return (one->first > other->first) - (one->first < other->first);
}

static hps_status gather(const struct publish *publish, struct gathered *all, struct hps_error *err)
{
    struct hps_producer_counts counts;

    hps_producer_counts_get(publish->producer, &counts);
    if (counts.n_unplaced > 0) {
        return hps_error_set(err, HPS_PRECONDITION,
                             "published, not waited for: the broker has told no offset of %" PRIu64
                             " records; hpsctl wait-for now waits for them",
                             counts.n_unplaced);
    }
    hps_producer_ranges(publish->producer, gather_range, all);
    if (all->no_memory) {
        return hps_error_set(err, HPS_NO_MEMORY, "out of memory");
    }
    struct hps_update_range *ranges = (struct hps_update_range *)(void *)all->ranges.data;
    struct hps_update_records *of = (struct hps_update_records *)(void *)all->records.data;
    for (size_t i = 0; i < all->records.size / sizeof(*of); i++) {
        qsort(ranges, of[i].n_ranges, sizeof(*ranges), by_offset);
        of[i].ranges = ranges;
        ranges += of[i].n_ranges;
    }
    return HPS_OK;
}

static hps_status open_servers(struct publish *publish, struct hps_error *err)
{
    const char *from_environment = getenv("HPSD_ADDR");
    const struct publish_target target = {.model = flags.model,
                                          .version = flags.for_version,
                                          .key_bytes = flags.form[0] != 'h'        ? 0
                                                       : flags.key_bytes[0] == '4' ? 4
                                                                                   : 8};

    if (!flags.wait || flags.dry_run) {
        return HPS_OK;
    }
    if (flags.servers.n == 0) {
        flags.servers.items[flags.servers.n++] =
            from_environment != NULL ? from_environment : ADMIN_DEFAULT;
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
    struct gathered all = {0};

    if (publish->servers == NULL) {
        return HPS_OK;
    }
    hps_buf_init(&all.ranges, SIZE_MAX / 2);
    hps_buf_init(&all.records, SIZE_MAX / 2);
    hps_status status = gather(publish, &all, err);
    if (status == HPS_OK) {
        status = publish_wait(
            publish->servers, (const struct hps_update_records *)(const void *)all.records.data,
            all.records.size / sizeof(struct hps_update_records), flags.wait_us, err);
    }
    publish->broker_failed = status != HPS_OK;
    hps_buf_fini(&all.ranges);
    hps_buf_fini(&all.records);
    return status;
}

/* ---- run ------------------------------------------------------------------------------------- */

static enum hps_update_form form_of(const char *text)
{
    return text[0] == 'k' ? HPS_UPDATE_KEYED : text[0] == 'h' ? HPS_UPDATE_HCTR : HPS_UPDATE_PACKED;
}

/* Print what became of it; returns the exit code. */
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

static int run(const struct hps_update_writer_options *options, const char *new_path, bool lines)
{
    struct publish publish = {.begin_us = hps_clock_us(),
                              .show = !flags.quiet && (flags.progress || isatty(STDERR_FILENO))};
    const struct hps_update_sink sink = {&publish, sink_topic, sink_send};
    struct hps_error err = {0};

    flags.broker.properties = flags.properties.items;
    flags.broker.n_properties = flags.properties.n;
    hps_status status = open_servers(&publish, &err);
    if (status == HPS_OK && !flags.dry_run) {
        status = hps_producer_open(&flags.broker, &publish.producer, &err);
        publish.broker_failed = status != HPS_OK && status != HPS_INVALID;
    }
    if (status == HPS_OK) {
        status = hps_update_writer_new(options, &sink, &publish.writer, &err);
    }
    if (status == HPS_OK) {
        status = read_all(&publish, new_path, lines, &err);
        status = finish(&publish, status, &err);
        show_progress(&publish, true);
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

/* ---- command line ---------------------------------------------------------------------------- */

static const char *wrong_options(bool lines)
{
    int n_inputs = (flags.from != NULL) + (flags.diff != NULL) + lines;
    size_t n = flags.deletes != NULL ? strlen(flags.deletes) : 0;

    return flags.broker.brokers == NULL && !flags.dry_run ? "--bootstrap-server is missing"
           : flags.model == NULL                          ? "--model is missing"
           : !hps_model_name_valid(flags.model)
               ? "--model: expected 1 to 120 letters, digits, '_' or '-'"
           : flags.table != NULL && !hps_model_name_valid(flags.table)
               ? "--table: expected 1 to 120 letters, digits, '_' or '-'"
           : n_inputs > 1 ? "--from, --diff and - exclude each other"
           : n_inputs == 0 && flags.deletes == NULL
               ? "nothing to publish: give --from, --diff, --deletes or -"
           : flags.table == NULL && n > 4 && strcmp(flags.deletes + n - 4, ".npy") == 0
               ? "--deletes: a .npy needs --table"
           : flags.form[0] == 'h' && (flags.deletes != NULL || flags.diff != NULL)
               ? "--format hctr cannot delete keys: use keyed or packed"
           : flags.units && (!lines || flags.form[0] != 'p')
               ? "--units is for lines in --format packed"
           : flags.form[0] == 'p' && flags.row_version != NULL
               ? "--row-version: packed records have none"
           : !flags.wait && flags.servers.n > 0  ? "--addr is for --wait"
           : flags.for_version < 0               ? "--for-version: expected a number from 1"
           : flags.batch_bytes > BATCH_BYTES_MAX ? "--batch-bytes: at most 64MiB"
           : flags.broker.timeout_us < 1000      ? "--timeout: at least 1ms"
                                                 : NULL;
}

int main(int argc, char **argv)
{
    const struct hps_arg *const tables[] = {args};
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    struct hps_error err = {0};
    int n_words = 0;
    char **words = argv + (argc > 0);

    if (hps_args_parse(tables, 1, false, argc - (argc > 0), words, &n_words, &err) != HPS_OK) {
        (void)fprintf(stderr, "hps-publish: %s\n", err.text);
        return EXIT_USAGE;
    }
    if (flags.help) {
        fputs(usage, stdout);
        hps_args_print(args);
        printf(
            "\nExit codes: 0 published, 1 refused, 2 usage or input, 3 no broker (or, with --wait, "
            "server)\nwas reached, 4 not acknowledged or not visible in time, 5 it does not become "
            "visible\n(refused, frozen, paused, a gap), 130 interrupted.\n");
        return 0;
    }
    const char *new_path = NULL;
    if (flags.diff != NULL) {
        if (n_words == 0) {
            (void)fprintf(stderr, "hps-publish: --diff needs two paths: OLD NEW\n");
            return EXIT_USAGE;
        }
        new_path = words[--n_words];
    }
    bool lines = n_words > 0 && strcmp(words[0], "-") == 0;
    if (n_words > lines) {
        (void)fprintf(stderr, "hps-publish: \"%s\" is no option\n", words[lines]);
        return EXIT_USAGE;
    }
    const char *wrong = wrong_options(lines);
    if (wrong != NULL) {
        (void)fprintf(stderr, "hps-publish: %s (see hps-publish --help)\n", wrong);
        return EXIT_USAGE;
    }
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    struct hps_update_writer_options options = {
        .model = flags.model,
        .form = form_of(flags.form),
        .key_bytes = flags.key_bytes[0] == '4' ? 4 : 8,
        .batch_bytes = (size_t)flags.batch_bytes,
        .version = flags.for_version,
        .row_version_given = flags.row_version != NULL,
        .units = flags.units,
    };
    if (flags.row_version != NULL && !hps_args_u64(flags.row_version, &options.row_version)) {
        (void)fprintf(stderr, "hps-publish: --row-version: \"%s\" is not a whole number from 0\n",
                      flags.row_version);
        return EXIT_USAGE;
    }
    return run(&options, new_path, lines);
}
