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
    uint64_t timeout_us; /* per call; 0: none */
    const struct hpsctl_verb *verb;
    struct hps_client *client; /* NULL before hpsctl_open */
    char **words;              /* [n_words] after the verb; the number is checked */
    int n_words;
    uint32_t choice; /* index of the first word among the verb's choices */
};

struct hpsctl_verb {
    struct hps_command command;
    bool lasts; /* no time limit unless one is given */
    int (*run)(struct hpsctl *ctl);
};

extern const struct hpsctl_verb hpsctl_verbs[]; /* ends with a NULL name */
extern const struct hps_arg hpsctl_global_args[];

static inline bool hpsctl_json(const struct hpsctl *ctl)
{
    return ctl->output[0] == 'j';
}

/* Prints "hpsctl: text". Returns the exit code for a failed call. */
int hpsctl_fail(struct hpsctl *ctl, const struct hps_error *err);
/* Prints an error in the words or options of the verb, as "given: expected". Returns TOOL_USAGE. */
int hpsctl_usage(const struct hpsctl *ctl, const char *fmt, ...) HPS_PRINTF(2, 3);
/* Reports that there is no memory. Returns TOOL_REFUSED. */
int hpsctl_no_memory(void);
/* Connects, unless that was done. hpsctl_call calls it, so that wrong words are reported without a
 * server. Returns TOOL_OK or the exit code. */
int hpsctl_open(struct hpsctl *ctl);
/* Calls a method of Admin. Returns TOOL_OK and the reply (hps_message_free), or the exit code. The
 * strings of the reply are printable. For JSON output they are unchanged, because JSON escapes
 * them. */
int hpsctl_call(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                const ProtobufCMessageDescriptor *reply_type, void *out_reply);
/* The same with unchanged strings, which may contain control sequences of a terminal. */
int hpsctl_call_raw(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                    const ProtobufCMessageDescriptor *reply_type, void *out_reply);
/* hpsctl_call, then prints the reply: as JSON if selected, else with `print`. */
int hpsctl_call_print(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                      const ProtobufCMessageDescriptor *reply_type,
                      int (*print)(struct hpsctl *ctl, const void *reply));
/* Parse a version or a key of the command line. False: the error has been printed. */
bool hpsctl_version_arg(const struct hpsctl *ctl, const char *text, int64_t *out_version);
bool hpsctl_key_arg(const struct hpsctl *ctl, const char *text, uint64_t *out_key);

/* ---- output ---------------------------------------------------------------------------------- */

/* Rows of text cells. Unprintable characters are escaped (base/text.h), so that names from a server
 * cannot control the terminal. */
struct hpsctl_table {
    struct hps_buf text; /* NUL-terminated cells, row by row */
    const char *const *columns;
    unsigned n_columns;
    unsigned n_cells;
    bool broken; /* no memory */
};

/* `columns` ends with NULL; a name with a leading '>' is a column of numbers. */
void hpsctl_table_init(struct hpsctl_table *table, const char *const *columns);
void hpsctl_table_cell(struct hpsctl_table *table, const char *fmt, ...) HPS_PRINTF(2, 3);
/* A number of rows, with a leading `~` if it is an estimate. */
void hpsctl_rows_cell(struct hpsctl_table *table, uint64_t n_rows, bool estimated);
/* Prints and frees the table. Returns the exit code. */
int hpsctl_table_print(struct hpsctl_table *table);

/* Write "1.5 GiB" or "3 d 4 h" to `out`, which they return. */
enum { HPSCTL_TEXT_BYTES = 40 };
const char *hpsctl_bytes_text(uint64_t bytes, char out[HPSCTL_TEXT_BYTES]);
const char *hpsctl_duration_text(uint64_t duration_s, char out[HPSCTL_TEXT_BYTES]);
const char *hpsctl_time_text(int64_t unix_ms, char out[HPSCTL_TEXT_BYTES]);
/* "98.2%"; "-" if both are 0. */
const char *hpsctl_share_text(uint64_t part, uint64_t rest, char out[HPSCTL_TEXT_BYTES]);
/* The increase of a counter. After a restart of the server counters begin at 0: then it is
 * `now`. */
uint64_t hpsctl_since(uint64_t now, uint64_t before);
/* The hit rate of each tier since `before` (NULL: since the start of the server): "host 98.2%
 * rocksdb -". */
void hpsctl_hits_text(const Hps__V1__TableStats *now, const Hps__V1__TableStats *before, char *out,
                      size_t size);
/* Prints the buffer and a newline to stdout, and frees it. Returns the exit code. */
int hpsctl_print_buf(struct hps_buf *buf);

/* Prints a message as a line of JSON. Returns the exit code. */
int hpsctl_print_json(const ProtobufCMessage *message);

/* ---- versions -------------------------------------------------------------------------------- */

/* Cells of a table of a model: MODEL, VERSION, PLACE, TABLE, DIM, TYPE, ROWS. */
void hpsctl_table_cells(struct hpsctl_table *table, const Hps__V1__TableInfo *info);
/* Prints the plan at the end of a dry run. */
void hpsctl_print_plan(const Hps__V1__LoadProgress *progress);
/* Prints the changes of a version against `before`, table by table; prints nothing if n is 0. */
void hpsctl_print_diffs(int64_t version, int64_t before, Hps__V1__TableDiff **diffs, size_t n);
/* "dlrm: unloaded: version 1, 2"; prints nothing if n is 0. */
void hpsctl_print_versions(FILE *to, const char *model, const char *what, const int64_t *versions,
                           size_t n);

/* ---- files of a load ------------------------------------------------------------------------- */

struct hpsctl_load_from {
    const char *directory;             /* NULL: not given, like the next three */
    const struct hps_arg_list *tables; /* "NAME=PATH"; n 0: not given */
    const char *config;                /* a configuration file */
    const char *model;                 /* of its models[]; NULL: the model of the command line */
};

struct hpsctl_load_files {
    char *directory; /* NULL: see tables */
    Hps__V1__TableSource *tables;
    Hps__V1__TableSource **pointers; /* [n_tables] pointers to them */
    size_t n_tables;
    struct hps_buf config; /* instead of both: the entry of models[] as JSON; size 0: not used */
};

/* Makes `path` absolute, because the server has another working directory. Does not check it: the
 * server may see other files than hpsctl does. owner: the caller; NULL: no memory. */
char *hpsctl_absolute(const char *path);
/* Returns TOOL_OK, or the exit code after printing the error. */
int hpsctl_load_files_open(struct hpsctl *ctl, const struct hpsctl_load_from *from,
                           struct hpsctl_load_files *out_files);
void hpsctl_load_files_free(struct hpsctl_load_files *files);

/* ---- keys and rows --------------------------------------------------------------------------- */

struct hpsctl_keys {
    hps_key *keys;     /* [n_keys] */
    float *weights;    /* [n_keys] 1, unless one was given */
    uint32_t *offsets; /* [n_bags + 1] bag b has keys [offsets[b], offsets[b + 1]) */
    size_t n_keys;
    size_t n_bags; /* 0: no bags */
    bool weighted; /* a weight was given */
};

/* Reads the words from `first` on. Each is a key, or with `bags` a bag:
 * "KEY[:WEIGHT],KEY[:WEIGHT],...". Returns TOOL_OK, or the exit code after printing the error. */
int hpsctl_keys_read(const struct hpsctl *ctl, int first, bool bags, struct hpsctl_keys *out_keys);
void hpsctl_keys_free(struct hpsctl_keys *keys);

struct hpsctl_rows_options {
    uint64_t n_values; /* values shown of each row; 0: all, without a table */
    bool as_stored;    /* show the type of the rows */
};

/* Prints the reply to a query of this table alone. Returns the exit code. */
int hpsctl_rows_print(const struct hpsctl *ctl, const struct hps_client_lookup_query *query,
                      const struct hps_client_lookup_reply *reply,
                      const struct hps_client_lookup_result *result,
                      const struct hpsctl_rows_options *options);
/* The first values of a row, as many as fit. */
void hpsctl_row_text(const struct hps_client_lookup_result *result, uint32_t row, uint64_t n_values,
                     char *out, size_t size);

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

#endif
