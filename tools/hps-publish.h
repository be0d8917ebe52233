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

/* The options of the command line. Strings and lists stay valid while the program runs. */
struct publish_options {
    struct hps_producer_options broker;
    const char *model;
    const char *table;   /* NULL: all tables of the input; lines then begin with TABLE */
    const char *from;    /* NULL: option not given */
    const char *diff[2]; /* old path, new path; both NULL: option not given */
    const char *deletes; /* NULL: option not given */
    bool lines;          /* read lines from standard input */
    enum hps_update_form form;
    const char *form_word; /* `form` as text: "keyed", "hctr" or "packed" */
    uint32_t key_bytes;    /* HCTR: 8 or 4 */
    uint64_t batch_bytes;
    bool units;
    enum hps_dtype row_dtype; /* 0: see struct hps_update_writer_options */
    int64_t for_version;      /* version that applies the records; 0: every version */
    bool row_version_given;
    uint64_t row_version;
    uint64_t rate; /* rows and deletes per second; 0: no limit */
    bool allow_nan;
    bool dry_run;
    bool wait;
    uint64_t wait_us;
    struct hps_arg_list servers; /* addresses, at least one; used if `wait` is set */
    struct hps_client_options connect;
    bool json;
    bool show; /* show progress */
};

/* Reads the command line. False: exit with *out_code; the error has been printed. */
bool publish_options_read(int argc, char **argv, struct publish_options *out_options, int *out_code)
    HPS_MUST_CHECK;

struct publish; /* the producer, the writer, the rate limit and the progress */

/* Publishes rows of one table, at the rate of the options. CANCELLED: the user has interrupted the
 * program. */
hps_status publish_rows(struct publish *publish, const char *table, uint32_t dim,
                        enum hps_dtype dtype, const hps_key *keys, const void *rows, size_t n,
                        struct hps_error *err) HPS_MUST_CHECK;
/* Like publish_rows, for deletes. */
hps_status publish_deletes(struct publish *publish, const char *table, const hps_key *keys,
                           size_t n, struct hps_error *err) HPS_MUST_CHECK;
/* Sends the rows and deletes that the writer has buffered. With `units`, this ends a unit: the rows
 * and deletes since the last flush become one record. */
hps_status publish_flush(struct publish *publish, struct hps_error *err) HPS_MUST_CHECK;
/* Called while no input is available. Without `units`, sends the buffered rows and deletes. Returns
 * the error of the first record that failed, or CANCELLED as publish_rows. */
hps_status publish_idle(struct publish *publish, struct hps_error *err) HPS_MUST_CHECK;
/* Checks that rows of `dim` values of type `dtype` can be sent with these options. With `wait`,
 * also checks that all servers accept them. For deletes, `dim` and `dtype` are 0. Call it for all
 * tables before the first row, so that a mistake is found before any row is sent. publish_rows and
 * publish_deletes call it too. INVALID: the rows cannot be sent; the caller must then send no
 * more. */
hps_status publish_table(struct publish *publish, const char *table, uint32_t dim,
                         enum hps_dtype dtype, struct hps_error *err) HPS_MUST_CHECK;
/* Adds n_rows to the number of rows that the input has, for the progress line. Call it before the
 * first row is sent. */
void publish_expect(struct publish *publish, uint64_t n_rows);

struct publish_input {
    const char *table; /* the only table; NULL: all tables, as in struct publish_options */
    bool nan_allowed;
    enum hps_dtype row_dtype; /* type of sent rows; if BF16, uint16 files are read as BF16 */
    bool units;               /* a line may be "commit", which ends a unit */
    bool keys_only;           /* each line is `[TABLE] KEY`, a key to delete */
};

/* Publishes every row of the files of a table, or of all tables in a model directory. */
hps_status publish_from(struct publish *publish, const struct publish_input *input,
                        const char *path, struct hps_error *err) HPS_MUST_CHECK;
/* Publishes the rows and deletes that turn the tables of `old_path` into the tables of `new_path`,
 * by key. */
hps_status publish_diff(struct publish *publish, const struct publish_input *input,
                        const char *old_path, const char *new_path, struct hps_error *err)
    HPS_MUST_CHECK;
/* Publishes the lines of a file descriptor. `[TABLE] KEY VALUE...` is a row, `[TABLE] KEY null` a
 * delete. TABLE is present if input->table is NULL. With `units`, a line `commit` ends a unit.
 * INVALID: a line is wrong, or the last unit has no `commit` (not an error with keys_only). With
 * `units`, the units before the error were sent, and nothing of the last one. Without `units`, rows
 * before the error may have been sent. */
hps_status publish_lines(struct publish *publish, const struct publish_input *input, int fd,
                         struct hps_error *err) HPS_MUST_CHECK;
/* Publishes a delete for each key of a file: a .npy file of 32-bit or 64-bit integers, or lines
 * `[TABLE] KEY`. */
hps_status publish_deletes_file(struct publish *publish, const struct publish_input *input,
                                const char *path, struct hps_error *err) HPS_MUST_CHECK;

/* ---- waiting --------------------------------------------------------------------------------- */

enum { PUBLISH_SERVERS_MAX = 64 };

/* What the servers must apply: the records of this model and version. */
struct publish_target {
    const char *model;
    int64_t version;    /* 0: the active version of each server */
    uint32_t key_bytes; /* HCTR: size of a key, 8 or 4; other forms: 0 */
};

struct publish_servers; /* connections to the servers that must see the records */

/* Connects to the servers. Returns the errors of hps_client_open. */
hps_status publish_servers_open(const struct hps_client_options *options,
                                const char *const *addresses, size_t n,
                                const struct publish_target *target,
                                struct publish_servers **out_servers, struct hps_error *err)
    HPS_MUST_CHECK;
void publish_servers_close(struct publish_servers *servers); /* NULL has no effect */
/* Checks that all servers apply updates to the version, and expect keys of key_bytes. Call it
 * before the first record is sent.
 *
 * error   INVALID: a server does not, or has not confirmed it in time; other errors of
 *         hps_client_wait
 */
hps_status publish_servers_begin(struct publish_servers *servers, struct hps_error *err)
    HPS_MUST_CHECK;
/* The form of the rows of a table. For deletes without rows, dim is 0. */
struct publish_rows_form {
    const char *table;
    uint32_t dim;
    enum hps_dtype dtype;
};

/* Checks that all servers accept these rows or deletes, and that all follow `topic`. The topic must
 * exist. Call it before rows or deletes of the table are sent.
 *
 * error   INVALID: a server does not accept them, does not follow the topic, or has not confirmed
 *         this in time; other errors of hps_client_call and hps_client_wait
 */
hps_status publish_servers_check(struct publish_servers *servers,
                                 const struct publish_rows_form *form, const char *topic,
                                 struct hps_error *err) HPS_MUST_CHECK;
/* Whether publish_servers_check has succeeded for this form. */
bool publish_servers_take(struct publish_servers *servers, const struct publish_rows_form *form);
/* A range of published records of a partition: offsets `first` to `last`, inclusive. */
struct publish_range {
    const char *topic;
    uint32_t partition;
    int64_t first, last;
};

/* Waits until all records of ranges[n] are visible to lookups on every server. Ranges must be
 * sorted by topic, partition and offset.
 *
 * unit    timeout_us: for all servers together
 * error   DEADLINE: not visible in time; PRECONDITION: the records will not become visible;
 *         CANCELLED: the user has interrupted the program; other errors of hps_client_wait
 */
hps_status publish_wait(struct publish_servers *servers, const struct publish_range *ranges,
                        size_t n, uint64_t timeout_us, struct hps_error *err) HPS_MUST_CHECK;

#endif
