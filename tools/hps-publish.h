/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the input and the output of hps-publish. One thread.
 */
#ifndef HPS_TOOLS_HPS_PUBLISH_H
#define HPS_TOOLS_HPS_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/args.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/types.h"
#include "client/client.h"
#include "client/producer.h"
#include "client/update_writer.h"
#include "client/wait.h"

/* The command line. hps-publish_options.c owns strings and lists. */
struct publish_options {
    struct hps_producer_options broker;
    const char *model;
    const char *table;   /* NULL: all tables of the files, or lines name it */
    const char *from;    /* NULL: not given, like the next two */
    const char *diff[2]; /* old, new */
    const char *deletes;
    bool lines; /* lines on standard input */
    enum hps_update_form form;
    const char *form_word; /* "keyed" */
    uint32_t key_bytes;    /* HCTR: 8 or 4 */
    uint64_t batch_bytes;
    bool units;
    enum hps_dtype row_dtype; /* 0: the default of the writer */
    int64_t for_version;      /* 0: any */
    bool row_version_given;
    uint64_t row_version;
    uint64_t rate; /* rows and deletes per second; 0: no limit */
    bool allow_nan;
    bool dry_run;
    bool wait;
    uint64_t wait_us;
    struct hps_arg_list servers; /* at least one */
    struct hps_client_options connect;
    bool json;
    bool show; /* show progress */
};

/* Reads the command line. False: exit with *out_code; the error has been printed. */
bool publish_options_read(int argc, char **argv, struct publish_options *out_options, int *out_code)
    HPS_MUST_CHECK;

struct publish; /* destination of rows, with pace, progress and counts */

/* Publish rows or deletes of one table. CANCELLED: the user has interrupted. */
hps_status publish_rows(struct publish *publish, const char *table, uint32_t dim,
                        enum hps_dtype dtype, const hps_key *keys, const void *rows, size_t n,
                        struct hps_error *err) HPS_MUST_CHECK;
hps_status publish_deletes(struct publish *publish, const char *table, const hps_key *keys,
                           size_t n, struct hps_error *err) HPS_MUST_CHECK;
/* Sends the gathered rows; ends a unit. */
hps_status publish_flush(struct publish *publish, struct hps_error *err) HPS_MUST_CHECK;
/* Called while the input is idle: sends the gathered rows, but no part of a unit. */
hps_status publish_idle(struct publish *publish, struct hps_error *err) HPS_MUST_CHECK;
/* Checks that rows of dim values of type dtype (0 and 0: deletes) can be sent as the options say,
 * and that all servers to wait for accept them. Call it for all tables before the first row;
 * publish_rows and publish_deletes call it too. INVALID: they do not; then send no more. */
hps_status publish_table(struct publish *publish, const char *table, uint32_t dim,
                         enum hps_dtype dtype, struct hps_error *err) HPS_MUST_CHECK;
/* Adds to the expected number of rows, for progress. */
void publish_expect(struct publish *publish, uint64_t n_rows);

struct publish_input {
    const char *table; /* the only table; NULL: all, or lines name it */
    bool nan_allowed;
    enum hps_dtype row_dtype; /* as in the options; BF16: uint16 files are read as BF16 */
    bool units;               /* lines may be "commit" */
    bool keys_only;           /* lines are `[TABLE] KEY`: keys to delete */
};

/* Publishes every row of the files of a table, or of all tables in a model directory. */
hps_status publish_from(struct publish *publish, const struct publish_input *input,
                        const char *path, struct hps_error *err) HPS_MUST_CHECK;
/* Publishes the rows and deletes that turn the tables of `old_path` into the tables of `new_path`,
 * by key. */
hps_status publish_diff(struct publish *publish, const struct publish_input *input,
                        const char *old_path, const char *new_path, struct hps_error *err)
    HPS_MUST_CHECK;
/* Publishes lines of a file descriptor: `[TABLE] KEY VALUE...`, `[TABLE] KEY null`, `commit`. Lines
 * have TABLE if input->table is NULL. */
hps_status publish_lines(struct publish *publish, const struct publish_input *input, int fd,
                         struct hps_error *err) HPS_MUST_CHECK;
/* Deletes keys: a .npy of integers of 32 or 64 bits, or lines `[TABLE] KEY`. */
hps_status publish_deletes_file(struct publish *publish, const struct publish_input *input,
                                const char *path, struct hps_error *err) HPS_MUST_CHECK;

/* ---- waiting --------------------------------------------------------------------------------- */

enum { PUBLISH_SERVERS_MAX = 64 };

/* The published records, as servers check them. */
struct publish_target {
    const char *model;
    int64_t version; /* version of the records and of the wait; 0: the active one of each server */
    uint32_t key_bytes; /* HCTR: 8 or 4; 0: another form */
};

struct publish_servers;

/* Connects to the servers. Errors as hps_client_open. */
hps_status publish_servers_open(const struct hps_client_options *options,
                                const char *const *addresses, size_t n,
                                const struct publish_target *target,
                                struct publish_servers **out_servers, struct hps_error *err)
    HPS_MUST_CHECK;
void publish_servers_close(struct publish_servers *servers); /* NULL has no effect */
/* Before any record is sent: checks that all servers take updates for the version, with these keys.
 *
 * error   INVALID: a server does not; else the error of the call
 */
hps_status publish_servers_begin(struct publish_servers *servers, struct hps_error *err)
    HPS_MUST_CHECK;
/* The form of a table's rows; dim 0: deletes only. */
struct publish_rows_form {
    const char *table;
    uint32_t dim;
    enum hps_dtype dtype;
};

/* Before rows or deletes of a table are sent: checks that all servers accept them and read the
 * topic, which must exist.
 *
 * error   INVALID: a server does not; else the error of the call
 */
hps_status publish_servers_check(struct publish_servers *servers,
                                 const struct publish_rows_form *form, const char *topic,
                                 struct hps_error *err) HPS_MUST_CHECK;
/* Whether publish_servers_check has succeeded for this form. */
bool publish_servers_take(struct publish_servers *servers, const struct publish_rows_form *form);
/* Published offsets of a partition. */
struct publish_range {
    const char *topic;
    uint32_t partition;
    int64_t first, last;
};

/* Waits until all records of ranges[n] are visible to lookups on every server. Ranges are ordered
 * by topic, partition and offset.
 *
 * error   DEADLINE; PRECONDITION: they will not become visible; CANCELLED; else the error of the
 *         call
 */
hps_status publish_wait(struct publish_servers *servers, const struct publish_range *ranges,
                        size_t n, uint64_t timeout_us, struct hps_error *err) HPS_MUST_CHECK;

#endif
