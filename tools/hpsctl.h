/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the verbs of hpsctl: the parsed command line, calls that print their own errors, and
 * output as a table or JSON. One thread.
 */
#ifndef HPS_TOOLS_HPSCTL_H
#define HPS_TOOLS_HPSCTL_H

#include <stdio.h>

#include "base/buf.h"
#include "base/status.h"
#include "client/client.h"
#include "client/lookup.h"
#include "client/message.h"
#include "hps/v1/admin.pb-c.h"
#include "tools/tool.h"

struct hpsctl_verb;

struct hpsctl {
    struct hps_client_options connect;
    const char *output;  /* "table" or "json" */
    uint64_t timeout_us; /* time limit of a call; 0: no limit */
    const struct hpsctl_verb *verb;
    struct hps_client *client; /* NULL before hpsctl_open */
    char **words;              /* [n_words] words after the verb */
    int n_words;               /* in the range that the verb allows */
    uint32_t choice; /* index of the first word in the `choices` of the verb (base/args.h) */
};

struct hpsctl_verb {
    struct hps_command command;
    bool lasts; /* without --timeout, its calls have no time limit */
    int (*run)(struct hpsctl *ctl);
};

extern const struct hpsctl_verb hpsctl_verbs[]; /* the last item has a NULL name */
extern const struct hps_arg hpsctl_global_args[];

static inline bool hpsctl_json(const struct hpsctl *ctl)
{
    return ctl->output[0] == 'j';
}

/* Prints "hpsctl: " and the text of a call's error. Returns the exit code for this error. */
int hpsctl_fail(struct hpsctl *ctl, const struct hps_error *err);
/* Prints an error in the words or options of the verb. The text says what was given and what is
 * expected: `version "x": expected a whole number from 1`. Returns TOOL_USAGE. */
int hpsctl_usage(const struct hpsctl *ctl, const char *fmt, ...) HPS_PRINTF(2, 3);
/* Prints that memory is exhausted. Returns TOOL_REFUSED. */
int hpsctl_no_memory(void);
/* Connects, unless the verb has connected already. hpsctl_call calls this function, so a verb can
 * report wrong words before it needs a server. Returns TOOL_OK, or the exit code after printing the
 * error. */
int hpsctl_open(struct hpsctl *ctl);
/* Calls a method of Admin. Returns TOOL_OK, or the exit code after printing the error. The caller
 * frees the reply, *out_reply, with hps_message_free. Strings of the reply are printable
 * (hps_message_plain). With JSON output they are unchanged, because JSON escapes them. */
int hpsctl_call(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                const ProtobufCMessageDescriptor *reply_type, void *out_reply);
/* Like hpsctl_call, but strings of the reply are always unchanged. They may contain control
 * sequences of a terminal. */
int hpsctl_call_raw(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                    const ProtobufCMessageDescriptor *reply_type, void *out_reply);
/* Calls hpsctl_call and prints the reply: as JSON if --output is json, else with `print`. Returns
 * the exit code. */
int hpsctl_call_print(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                      const ProtobufCMessageDescriptor *reply_type,
                      int (*print)(struct hpsctl *ctl, const void *reply));
/* Parses a version of the command line. False: invalid; the error has been printed. */
bool hpsctl_version_arg(const struct hpsctl *ctl, const char *text, int64_t *out_version);
/* Parses a key of the command line. False: invalid; the error has been printed. */
bool hpsctl_key_arg(const struct hpsctl *ctl, const char *text, uint64_t *out_key);

/* ---- output ---------------------------------------------------------------------------------- */

/* Rows of text cells. Unprintable characters are escaped (base/text.h), so that names from a server
 * cannot control the terminal. */
struct hpsctl_table {
    struct hps_buf text; /* NUL-terminated cells, row by row */
    const char *const *columns;
    unsigned n_columns;
    unsigned n_cells;
    bool broken; /* a cell is missing: there was no memory for it */
};

/* `columns` are the titles, and end with NULL. A title that begins with '>' is printed without the
 * '>', and its column is aligned to the right. */
void hpsctl_table_init(struct hpsctl_table *table, const char *const *columns);
/* Adds a cell. An empty text is printed as "-". */
void hpsctl_table_cell(struct hpsctl_table *table, const char *fmt, ...) HPS_PRINTF(2, 3);
/* Adds a cell with a number of rows; "~" before the number marks an estimate. */
void hpsctl_rows_cell(struct hpsctl_table *table, uint64_t n_rows, bool estimated);
/* Prints and frees the table. Returns the exit code. */
int hpsctl_table_print(struct hpsctl_table *table);

/* Write a size ("1.5 GiB"), a duration ("3 d 4 h") or a local time to `out`, and return `out`. */
enum { HPSCTL_TEXT_BYTES = 40 };
const char *hpsctl_bytes_text(uint64_t bytes, char out[HPSCTL_TEXT_BYTES]);
const char *hpsctl_duration_text(uint64_t duration_s, char out[HPSCTL_TEXT_BYTES]);
const char *hpsctl_time_text(int64_t unix_ms, char out[HPSCTL_TEXT_BYTES]);
/* Writes part / (part + rest) as a percentage ("98.2%") to `out`; "-" if both are 0. Returns
 * `out`. */
const char *hpsctl_share_text(uint64_t part, uint64_t rest, char out[HPSCTL_TEXT_BYTES]);
/* The increase of a counter from `before` to `now`. If the counter has decreased, the server was
 * restarted and counts from 0: the increase is then `now`. */
uint64_t hpsctl_since(uint64_t now, uint64_t before);
/* Writes the hit rate of each tier since `before` to `out`: "host 98.2%  rocksdb -". If `before` is
 * NULL, the rates are since the start of the server. */
void hpsctl_hits_text(const Hps__V1__TableStats *now, const Hps__V1__TableStats *before, char *out,
                      size_t size);
/* Prints the buffer and a newline to stdout, and frees the buffer. Returns the exit code. */
int hpsctl_print_buf(struct hps_buf *buf);

/* Prints a message as a line of JSON. Returns the exit code. */
int hpsctl_print_json(const ProtobufCMessage *message);

/* ---- versions -------------------------------------------------------------------------------- */

/* Adds the cells of a model's table: MODEL, VERSION, PLACE (its position in the model), TABLE, DIM,
 * TYPE and ROWS. */
void hpsctl_table_cells(struct hpsctl_table *table, const Hps__V1__TableInfo *info);
/* Prints the plan of a load: `progress` is the last message of a dry run. */
void hpsctl_print_plan(const Hps__V1__LoadProgress *progress);
/* Prints how the tables of `version` differ from the tables of version `before`. Prints nothing if
 * n is 0. */
void hpsctl_print_diffs(int64_t version, int64_t before, Hps__V1__TableDiff **diffs, size_t n);
/* Prints "MODEL: WHAT: version 1, 2" to `to`. Prints nothing if n is 0. */
void hpsctl_print_versions(FILE *to, const char *model, const char *what, const int64_t *versions,
                           size_t n);

/* ---- files of a load ------------------------------------------------------------------------- */

/* The options of `hpsctl load` that name its files. Exactly one of the first three must be
 * given. */
struct hpsctl_load_from {
    const char *directory;             /* NULL: option not given */
    const struct hps_arg_list *tables; /* items "NAME=PATH"; n is 0: option not given */
    const char *config;                /* a configuration file; NULL: option not given */
    const char *model;                 /* entry of models[] in `config`; NULL: ctl->words[0] */
};

/* The files of a load, as a load request names them: a directory, tables, or a configuration
 * entry. */
struct hpsctl_load_files {
    char *directory;                 /* NULL: not used */
    Hps__V1__TableSource *tables;    /* [n_tables] */
    Hps__V1__TableSource **pointers; /* [n_tables] pointers to the items of `tables` */
    size_t n_tables;                 /* 0: not used */
    struct hps_buf config;           /* an entry of models[] as JSON; size 0: not used */
};

/* Makes `path` absolute, because the server has another working directory. Does not check that the
 * file exists, because the server may see other files than hpsctl.
 *
 * owner   the caller, hps_free; NULL: no memory
 */
char *hpsctl_absolute(const char *path);
/* Finds the files that `from` names. Returns TOOL_OK, or the exit code after printing the error. */
int hpsctl_load_files_open(struct hpsctl *ctl, const struct hpsctl_load_from *from,
                           struct hpsctl_load_files *out_files);
void hpsctl_load_files_free(struct hpsctl_load_files *files);

/* Prints why the server cannot be reached. Returns the exit code. */
int hpsctl_open_failed(hps_status status, const char *text);

/* ---- keys and rows --------------------------------------------------------------------------- */

struct hpsctl_keys {
    uint8_t *status;   /* [n_keys] for the states of keys in a reply */
    hps_key *keys;     /* [n_keys] */
    float *weights;    /* [n_keys] 1 for a key without a weight */
    uint32_t *offsets; /* [n_bags + 1] bag b has keys [offsets[b], offsets[b + 1]) */
    size_t n_keys;
    size_t n_bags; /* 0: keys are not in bags */
    bool weighted; /* the command line has at least one weight */
};

/* Reads the words from index `first` on. Each word is a key, or with `bags` a bag of keys:
 * "KEY[:WEIGHT],KEY[:WEIGHT],...". Returns TOOL_OK, or the exit code after printing the error. */
int hpsctl_keys_read(const struct hpsctl *ctl, int first, bool bags, struct hpsctl_keys *out_keys);
void hpsctl_keys_free(struct hpsctl_keys *keys);

struct hpsctl_rows_options {
    /* Values shown of each row, in a table. 0: all values, one line per row, without a table. */
    uint64_t n_values;
    bool as_stored; /* show the type in which the rows are stored */
};

/* Prints the rows of `result`, the only result of `reply`. The query must have received key states.
 * Returns the exit code. */
int hpsctl_rows_print(const struct hpsctl *ctl, const struct hpsd_query *query,
                      const struct hpsd_reply *reply, const struct hpsd_result *result,
                      const struct hpsctl_rows_options *options);
/* Writes the first n_values values of a row to `out` (0: all values), or fewer if `size` is too
 * small. */
void hpsctl_row_text(const struct hpsd_result *result, size_t row, uint64_t n_values, char *out,
                     size_t size);

/* ---- verbs ----------------------------------------------------------------------------------- */

int hpsctl_ping(struct hpsctl *ctl);
int hpsctl_status(struct hpsctl *ctl);
int hpsctl_models(struct hpsctl *ctl);
int hpsctl_tables(struct hpsctl *ctl);
int hpsctl_load(struct hpsctl *ctl);
int hpsctl_activate(struct hpsctl *ctl);
int hpsctl_rollback(struct hpsctl *ctl);
int hpsctl_unload(struct hpsctl *ctl);
int hpsctl_lookup(struct hpsctl *ctl);
int hpsctl_explain(struct hpsctl *ctl);
int hpsctl_stats(struct hpsctl *ctl);
int hpsctl_slowlog(struct hpsctl *ctl);
int hpsctl_config(struct hpsctl *ctl);
int hpsctl_log_level(struct hpsctl *ctl);
int hpsctl_drain(struct hpsctl *ctl);
int hpsctl_top(struct hpsctl *ctl);
int hpsctl_updates(struct hpsctl *ctl);
int hpsctl_wait_for(struct hpsctl *ctl);
int hpsctl_snapshot(struct hpsctl *ctl);
int hpsctl_export(struct hpsctl *ctl);
int hpsctl_completion(struct hpsctl *ctl);

extern const struct hps_arg hpsctl_load_args[];
extern const struct hps_arg hpsctl_activate_args[];
extern const struct hps_arg hpsctl_tables_args[];
extern const struct hps_arg hpsctl_lookup_args[];
extern const struct hps_arg hpsctl_explain_args[];
extern const struct hps_arg hpsctl_top_args[];
extern const struct hps_arg hpsctl_updates_args[];
extern const struct hps_arg hpsctl_wait_for_args[];
extern const struct hps_arg hpsctl_snapshot_args[];
extern const struct hps_arg hpsctl_export_args[];

#endif
