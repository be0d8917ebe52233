/* SPDX-License-Identifier: Apache-2.0
 *
 * What the verbs of hpsctl share: the parsed command line, calls that report their own failure, and
 * output as a table or as JSON. One thread.
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
    uint64_t timeout_us; /* of each call; 0: none */
    const struct hpsctl_verb *verb;
    struct hps_client *client; /* NULL before hpsctl_open */
    char **words;              /* [n_words] behind the verb; as many as it takes */
    int n_words;
    uint32_t choice; /* which of the verb's choices the first word is */
};

struct hpsctl_verb {
    struct hps_command command;
    bool lasts; /* has no time limit unless one is given */
    int (*run)(struct hpsctl *ctl);
};

extern const struct hpsctl_verb hpsctl_verbs[]; /* ends with a NULL name */
extern const struct hps_arg hpsctl_global_args[];

static inline bool hpsctl_json(const struct hpsctl *ctl)
{
    return ctl->output[0] == 'j';
}

/* Print "hpsctl: text" and give the exit code of a failed call. */
int hpsctl_fail(struct hpsctl *ctl, const struct hps_error *err);
/* Print what is wrong with the words or options of the verb, a text "given: expected". Returns
 * TOOL_USAGE. */
int hpsctl_usage(const struct hpsctl *ctl, const char *fmt, ...) HPS_PRINTF(2, 3);
/* Say so; TOOL_REFUSED. */
int hpsctl_no_memory(void);
/* Connect, unless that was done: hpsctl_call does it, so wrong words are found without a server.
 * Returns TOOL_OK or what to exit with. */
int hpsctl_open(struct hpsctl *ctl);
/* Call a method of Admin. Returns TOOL_OK and the reply (hps_message_free), or what to exit with.
 * Its strings may be printed, unless the output is JSON, which escapes them itself. */
int hpsctl_call(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                const ProtobufCMessageDescriptor *reply_type, void *out_reply);
/* The same with strings as the server sent them, which may hold what drives a terminal. */
int hpsctl_call_raw(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                    const ProtobufCMessageDescriptor *reply_type, void *out_reply);
/* hpsctl_call, then print the reply: JSON if asked for, else by `print`. */
int hpsctl_call_print(struct hpsctl *ctl, const char *method, const ProtobufCMessage *request,
                      const ProtobufCMessageDescriptor *reply_type,
                      int (*print)(struct hpsctl *ctl, const void *reply));
/* A version number or a key from the command line; false after saying what is wrong. */
bool hpsctl_version_arg(const struct hpsctl *ctl, const char *text, int64_t *out_version);
bool hpsctl_key_arg(const struct hpsctl *ctl, const char *text, uint64_t *out_key);

/* ---- output ---------------------------------------------------------------------------------- */

/* Rows of text cells. What of a cell is not plain is escaped (base/text.h), so that names from a
 * server cannot drive the terminal. */
struct hpsctl_table {
    struct hps_buf text; /* NUL-terminated cells, row by row */
    const char *const *columns;
    unsigned n_columns;
    unsigned n_cells;
    bool broken; /* no memory */
};

/* `columns` ends with NULL; a name that begins with '>' is a column of numbers. */
void hpsctl_table_init(struct hpsctl_table *table, const char *const *columns);
void hpsctl_table_cell(struct hpsctl_table *table, const char *fmt, ...) HPS_PRINTF(2, 3);
/* A number of rows; `~` before it if it is an estimate. */
void hpsctl_rows_cell(struct hpsctl_table *table, uint64_t n_rows, bool estimated);
/* Print and free. Returns the exit code. */
int hpsctl_table_print(struct hpsctl_table *table);

/* "1.5 GiB" and "3 d 4 h" into `out`; they return it. */
enum { HPSCTL_TEXT_BYTES = 40 };
const char *hpsctl_bytes_text(uint64_t bytes, char out[HPSCTL_TEXT_BYTES]);
const char *hpsctl_duration_text(uint64_t duration_s, char out[HPSCTL_TEXT_BYTES]);
const char *hpsctl_time_text(int64_t unix_ms, char out[HPSCTL_TEXT_BYTES]);
/* "98.2%", or "-" of nothing. */
const char *hpsctl_share_text(uint64_t part, uint64_t rest, char out[HPSCTL_TEXT_BYTES]);
/* How much a counter has grown. Those of a restarted server begin anew: then it is `now`. */
uint64_t hpsctl_since(uint64_t now, uint64_t before);
/* Of each tier its hit rate, since `before` (NULL: the server's start): "host 98.2%  rocksdb -". */
void hpsctl_hits_text(const Hps__V1__TableStats *now, const Hps__V1__TableStats *before, char *out,
                      size_t size);
/* Print what was put and a newline to stdout; frees the buffer. Returns the exit code. */
int hpsctl_print_buf(struct hps_buf *buf);

/* Print a message as a line of JSON. Returns the exit code. */
int hpsctl_print_json(const ProtobufCMessage *message);

/* ---- versions -------------------------------------------------------------------------------- */

/* Cells of a table of a model: MODEL, VERSION, PLACE, TABLE, DIM, TYPE, ROWS. */
void hpsctl_table_cells(struct hpsctl_table *table, const Hps__V1__TableInfo *info);
/* Print the plan that a dry run has ended with. */
void hpsctl_print_plan(const Hps__V1__LoadProgress *progress);
/* Print what a version changes against the one before, table by table; nothing when n is 0. */
void hpsctl_print_diffs(int64_t version, int64_t before, Hps__V1__TableDiff **diffs, size_t n);
/* "dlrm: unloaded: version 1, 2"; nothing when n is 0. */
void hpsctl_print_versions(FILE *to, const char *model, const char *what, const int64_t *versions,
                           size_t n);

/* ---- what a load reads ----------------------------------------------------------------------- */

struct hpsctl_load_from {
    const char *directory;             /* NULL: not given, as the next three */
    const struct hps_arg_list *tables; /* "NAME=PATH"; n 0: not given */
    const char *config;                /* a configuration file */
    const char *model;                 /* of its models[]; NULL: that of the command line */
};

struct hpsctl_load_files {
    char *directory; /* NULL: the tables */
    Hps__V1__TableSource *tables;
    Hps__V1__TableSource **pointers; /* [n_tables] to them */
    size_t n_tables;
    struct hps_buf config; /* instead of both: the entry of models[], as JSON; size 0: none */
};

/* `path` from the root: the server's working directory is another. What it leads to is the server's
 * to judge, which may see more than we do. owner: the caller; NULL: no memory */
char *hpsctl_absolute(const char *path);
/* Returns TOOL_OK, or what to exit with after saying why. */
int hpsctl_load_files_open(struct hpsctl *ctl, const struct hpsctl_load_from *from,
                           struct hpsctl_load_files *out_files);
void hpsctl_load_files_free(struct hpsctl_load_files *files);

/* ---- keys and rows --------------------------------------------------------------------------- */

struct hpsctl_keys {
    hps_key *keys;     /* [n_keys] */
    float *weights;    /* [n_keys] 1, unless one was given */
    uint32_t *offsets; /* [n_bags + 1] bag b has keys [offsets[b], offsets[b + 1]) */
    size_t n_keys;
    size_t n_bags; /* 0 for keys alone */
    bool weighted; /* a weight was given */
};

/* Read the words from `first` on: each a key, or each a bag, "KEY[:WEIGHT],KEY[:WEIGHT],...".
 * Returns TOOL_OK, or what to exit with after saying why. */
int hpsctl_keys_read(const struct hpsctl *ctl, int first, bool bags, struct hpsctl_keys *out_keys);
void hpsctl_keys_free(struct hpsctl_keys *keys);

struct hpsctl_rows_options {
    uint64_t n_values; /* of each row to show; 0: all, without a table */
    bool as_stored;    /* say of which type the rows are */
};

/* Print the answer to a query that asked for no other table. Returns the exit code. */
int hpsctl_rows_print(const struct hpsctl *ctl, const struct hps_client_lookup_query *query,
                      const struct hps_client_lookup_reply *reply,
                      const struct hps_client_lookup_result *result,
                      const struct hpsctl_rows_options *options);
/* The first values of a row, as many as there is room for. */
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
