/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of hps-publish. Main thread.
 */
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/rows/modeldir.h"
#include "base/text.h"
#include "tools/hps-publish.h"
#include "tools/tool.h"

enum {
    BATCH_BYTES = 256 << 10, /* as the producer of HPS */
    BATCH_BYTES_MAX = 1 << 26,
    CONNECT_US = 10 * 1000 * 1000,
    TIMEOUT_US_MIN = 1000,
};

/* The converted options, and words that need conversion. */
static struct publish_options given = {
    .broker = {.timeout_us = 30 * 1000 * 1000},
    .batch_bytes = BATCH_BYTES,
    .wait_us = 60 * 1000 * 1000,
};

static struct {
    struct hps_arg_list properties;
    const char *form;
    const char *key_bytes;
    const char *row_dtype;
    const char *row_version;
    const char *output;
    bool progress, quiet;
} words = {.form = "keyed", .key_bytes = "8", .output = "table"};

static const struct hps_arg args[] = {
    {"bootstrap-server", 'b', HPS_ARG_TEXT, "HOST:PORT,...", &given.broker.brokers,
     "brokers of the Kafka cluster"},
    {"model", 'm', HPS_ARG_TEXT, "NAME", &given.model,
     "name of the model; records go to topics hps_et.MODEL.TABLE"},
    {"table", 't', HPS_ARG_TEXT, "NAME", &given.table,
     "name of the table (default: from the files, or the first word of each line)"},
    {"from", 0, HPS_ARG_TEXT, "PATH", &given.from,
     "publish every row of a table's files (.npy, .rows.npy, HugeCTR) or of a model directory"},
    {"diff", 0, HPS_ARG_PAIR, "OLD NEW", given.diff,
     "publish the changes from OLD to NEW: new and changed rows, and deletes of missing keys"},
    {"deletes", 0, HPS_ARG_TEXT, "FILE", &given.deletes,
     "delete these keys after publishing rows: a .npy of keys, or lines `[TABLE] KEY`"},
    {"format", 'f', HPS_ARG_CHOICE, "keyed|hctr|packed", &words.form,
     "keyed (default): one record for each row; hctr: batches of HPS, without deletes; packed: "
     "batches on topic hps_et.MODEL"},
    {"batch-bytes", 0, HPS_ARG_BYTES, "SIZE", &given.batch_bytes,
     "size of an hctr or packed record (default 256KiB, at most 64MiB)"},
    {"key-bytes", 0, HPS_ARG_CHOICE, "8|4", &words.key_bytes,
     "bytes of hctr keys: 4 if the server has supportlonglong false (default 8)"},
    {"row-dtype", 0, HPS_ARG_CHOICE, "fp32|fp16|bf16|int8_rowwise_f32|int8_rowwise_f16",
     &words.row_dtype,
     "type of the rows in records: fp32 (default; int8 rows of files stay int8) fits every table; "
     "the type that the table stores is smaller; hctr: only fp32"},
    {"units", 0, HPS_ARG_FLAG, NULL, &given.units,
     "packed lines: the lines up to `commit` form one record; lookups see all of it or nothing"},
    {"for-version", 0, HPS_ARG_I64, "N", &given.for_version,
     "apply only to this version (default: to all that follow the topic)"},
    {"row-version", 0, HPS_ARG_TEXT, "N", &words.row_version,
     "value of the header hps-row-version, for tables with row_versions (default none)"},
    {"rate", 'r', HPS_ARG_U64, "N", &given.rate,
     "at most N rows and deletes a second (default 0: no limit)"},
    {"property", 'X', HPS_ARG_LIST, "NAME=VALUE", &words.properties,
     "property of librdkafka, repeatable: compression.type=zstd, security.protocol=SSL, ..."},
    {"timeout", 0, HPS_ARG_US, "SECONDS", &given.broker.timeout_us,
     "give up when the brokers do not answer for this long (default 30)"},
    {"allow-nan", 0, HPS_ARG_FLAG, NULL, &given.allow_nan,
     "also send NaN and Inf (servers reject them unless nan_policy allows them)"},
    {"dry-run", 'n', HPS_ARG_FLAG, NULL, &given.dry_run,
     "read and check all input; send nothing, connect to no broker"},
    {"wait", 'w', HPS_ARG_FLAG, NULL, &given.wait,
     "wait until lookups on every server of --addr see the records; first check that the servers "
     "can apply them"},
    {"addr", 0, HPS_ARG_LIST, "ADDR", &given.servers,
     "--wait: gRPC listener, repeatable (default $HPSD_ADDR, else " TOOL_ADMIN_ADDRESS ")"},
    {"wait-timeout", 0, HPS_ARG_US, "SECONDS", &given.wait_us, "--wait: time limit (default 60)"},
    {"output", 'o', HPS_ARG_CHOICE, "table|json", &words.output,
     "output format (default table); json has the last record of each partition, for `hpsctl "
     "wait-for`"},
    {"progress", 0, HPS_ARG_FLAG, NULL, &words.progress,
     "show progress even if stderr is not a terminal"},
    {"quiet", 'q', HPS_ARG_FLAG, NULL, &words.quiet, "do not show progress"},
    HPS_ARGS_END,
};

static const struct hps_program program = {
    .self =
        {
            .name = "hps-publish",
            .words = "-b HOST:PORT -m MODEL [-t TABLE] --from PATH\n"
                     "-b HOST:PORT -m MODEL [-t TABLE] --diff OLD NEW\n"
                     "-b HOST:PORT -m MODEL [-t TABLE] -\n"
                     "-b HOST:PORT -m MODEL [-t TABLE] --deletes FILE",
            .n_words_max = 1, /* "-" */
            .summary = "Publish embedding rows and deletes to the Kafka topics that hpsd follows.",
            .args = args,
            .shared_args = tool_connect_args,
            .details =
                "\n"
                "- reads lines `[TABLE] KEY VALUE...`, or `[TABLE] KEY null` to delete.\n"
                "TABLE is expected only without --table. The default partitioner of Kafka chooses\n"
                "the partition; records are written in order, exactly once.",
            .example = "echo '7 0.25 -1 3.5' | hps-publish -b localhost:9092 -m dlrm -t items "
                       "--wait -",
        },
    .exit_codes = "0 published   1 rejected, or failed   2 usage or input\n"
                  "3 no broker (--wait: no server) reached\n"
                  "4 not acknowledged (--wait: not visible) in time\n"
                  "5 will not become visible: rejected, frozen, paused, a gap   130 interrupted",
};

static const char name_expected[] = "1 to 120 letters, digits, '_' or '-'";

/* Checks each option alone. */
static hps_status check_each(struct hps_error *err)
{
    if (given.broker.brokers != NULL &&
        hps_text_brokers_check(given.broker.brokers, err) != HPS_OK) {
        return hps_error_prefix(err, HPS_INVALID, "--bootstrap-server");
    }
    for (size_t i = 0; i < given.servers.n; i++) {
        if (tool_address_check("--addr", given.servers.items[i], err) != HPS_OK) {
            return HPS_INVALID;
        }
    }
    return given.model != NULL && !hps_model_name_valid(given.model)
               ? hps_error_set(err, HPS_INVALID, "--model \"%s\": expected %s", given.model,
                               name_expected)
           : given.table != NULL && !hps_model_name_valid(given.table)
               ? hps_error_set(err, HPS_INVALID, "--table \"%s\": expected %s", given.table,
                               name_expected)
           : words.row_version != NULL && !hps_args_u64(words.row_version, &given.row_version)
               ? hps_error_set(err, HPS_INVALID,
                               "--row-version \"%s\": expected a whole number from 0",
                               words.row_version)
           : given.for_version < 0
               ? hps_error_set(err, HPS_INVALID, "--for-version: expected a whole number from 1")
           : given.batch_bytes > BATCH_BYTES_MAX
               ? hps_error_set(err, HPS_INVALID, "--batch-bytes: expected at most 64MiB")
           : given.broker.timeout_us < TIMEOUT_US_MIN
               ? hps_error_set(err, HPS_INVALID, "--timeout: expected at least 1ms")
               : HPS_OK;
}

/* Checks combinations and missing options. NULL: valid. */
static const char *wrong_together(void)
{
    int n_inputs = (given.from != NULL) + (given.diff[0] != NULL) + given.lines;
    size_t n = given.deletes != NULL ? strlen(given.deletes) : 0;
    bool hctr = words.form[0] == 'h', packed = words.form[0] == 'p';

    return given.broker.brokers == NULL && !given.dry_run
               ? "no broker: expected --bootstrap-server HOST:PORT"
           : given.model == NULL ? "no model: expected --model NAME"
           : n_inputs > 1        ? "two inputs: expected one of --from, --diff and -"
           : n_inputs == 0 && given.deletes == NULL
               ? "nothing to publish: expected --from, --diff, --deletes or -"
           : given.table == NULL && n > 4 && strcmp(given.deletes + n - 4, ".npy") == 0
               ? "--deletes of a .npy: expected --table NAME with it"
           : hctr && (given.deletes != NULL || given.diff[0] != NULL)
               ? "--format hctr: expected keyed or packed; hctr records cannot delete keys"
           : given.units && !(given.lines && packed) ? "--units: expected lines and --format packed"
           : packed && words.row_version != NULL     ? "--row-version: expected --format keyed or "
                                                       "hctr; packed records have no row version"
           : hctr && given.row_dtype != 0 && given.row_dtype != HPS_DTYPE_FP32
               ? "--row-dtype: expected --format keyed or packed; hctr records have only fp32"
           : !given.wait && given.servers.n > 0 ? "--addr: expected --wait with it"
                                                : NULL;
}

bool publish_options_read(int argc, char **argv, struct publish_options *out_options, int *out_code)
{
    struct hps_args read;
    struct hps_error err = {0};

    if (!hps_args_start(&program, argc, argv, &read, out_code)) {
        return false;
    }
    given.lines = read.n_words > 0 && strcmp(read.words[0], "-") == 0;
    if (read.n_words > given.lines) {
        *out_code = hps_args_wrong(&program, NULL, "%s: expected options, or - to read lines",
                                   read.words[0]);
        return false;
    }
    if (words.row_dtype != NULL) {
        bool known = hps_dtype_parse(words.row_dtype, strlen(words.row_dtype), &given.row_dtype);
        HPS_ASSERT(known); /* the word was checked */
    }
    const char *wrong = check_each(&err) != HPS_OK ? err.text : wrong_together();
    if (wrong != NULL) {
        *out_code = hps_args_wrong(&program, NULL, "%s", wrong);
        return false;
    }
    given.form = words.form[0] == 'k'   ? HPS_UPDATE_KEYED
                 : words.form[0] == 'h' ? HPS_UPDATE_HCTR
                                        : HPS_UPDATE_PACKED;
    given.form_word = words.form;
    given.key_bytes = words.key_bytes[0] == '4' ? 4 : 8;
    given.row_version_given = words.row_version != NULL;
    given.json = words.output[0] == 'j';
    given.connect = tool_connect;
    given.connect.connect_timeout_us = CONNECT_US;
    given.show = !words.quiet && (words.progress || isatty(STDERR_FILENO) == 1);
    if (given.servers.n == 0) {
        given.servers.items[given.servers.n++] = tool_admin_address();
    }
    given.broker.n_properties = words.properties.n;
    given.broker.properties = words.properties.items;
    *out_options = given;
    return true;
}
