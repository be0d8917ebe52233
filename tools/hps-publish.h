/* SPDX-License-Identifier: Apache-2.0
 *
 * What the input of hps-publish and its output share. One thread.
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

/* What the command line says; strings and lists are kept by hps-publish_options.c. */
struct publish_options {
    struct hps_producer_options broker;
    const char *model;
    const char *table;   /* NULL: all of the files, or named by lines */
    const char *from;    /* NULL: not given, as the next two */
    const char *diff[2]; /* old, new */
    const char *deletes;
    bool lines; /* on standard input */
    enum hps_update_form form;
    const char *form_word; /* "keyed" */
    uint32_t key_bytes;    /* HCTR: 8 or 4 */
    uint64_t batch_bytes;
    bool units;
    enum hps_dtype row_dtype; /* 0: the writer's own choice */
    int64_t for_version;      /* 0: any */
    bool row_version_given;
    uint64_t row_version;
    uint64_t rate; /* rows and deletes a second; 0: no limit */
    bool allow_nan;
    bool dry_run;
    bool wait;
    uint64_t wait_us;
    struct hps_arg_list servers; /* at least one */
    struct hps_client_options connect;
    bool json;
    bool show; /* progress */
};

/* Read the command line. False: exit with *out_code; what is wrong was said. */
bool publish_options_read(int argc, char **argv, struct publish_options *out_options, int *out_code)
    HPS_MUST_CHECK;

struct publish; /* where rows go; the output keeps pace, progress and counts */

/* Hand over rows or deletes of one table. CANCELLED: the user has interrupted. */
hps_status publish_rows(struct publish *publish, const char *table, uint32_t dim,
                        enum hps_dtype dtype, const hps_key *keys, const void *rows, size_t n,
                        struct hps_error *err) HPS_MUST_CHECK;
hps_status publish_deletes(struct publish *publish, const char *table, const hps_key *keys,
                           size_t n, struct hps_error *err) HPS_MUST_CHECK;
/* Let go what is gathered; the end of a unit. */
hps_status publish_flush(struct publish *publish, struct hps_error *err) HPS_MUST_CHECK;
/* Called while input is waited for: let go what is gathered (but no part of a unit). */
hps_status publish_idle(struct publish *publish, struct hps_error *err) HPS_MUST_CHECK;
/* Before rows of dim values as dtype (0 and 0: deletes) of a table are handed over: can they be
 * sent as the user wants, and do the servers that are waited for take them? To be asked for all
 * tables before the first row; done again with the rows. INVALID: not, and nothing more is to be
 * sent. */
hps_status publish_table(struct publish *publish, const char *table, uint32_t dim,
                         enum hps_dtype dtype, struct hps_error *err) HPS_MUST_CHECK;
/* How many rows are to come, for progress. */
void publish_expect(struct publish *publish, uint64_t n_rows);

struct publish_input {
    const char *table; /* the one table, or the one of a directory; NULL: all, or named by lines */
    bool nan_allowed;
    enum hps_dtype row_dtype; /* how rows are sent, or 0; BF16: those of uint16 files are that */
    bool units;               /* lines may say "commit" */
    bool keys_only;           /* lines are `[TABLE] KEY`, keys to delete */
};

/* Every row of a table's files, or of all tables of a model directory. */
hps_status publish_from(struct publish *publish, const struct publish_input *input,
                        const char *path, struct hps_error *err) HPS_MUST_CHECK;
/* What must be written so that the tables of `old_path` become those of `new_path`, by key. */
hps_status publish_diff(struct publish *publish, const struct publish_input *input,
                        const char *old_path, const char *new_path, struct hps_error *err)
    HPS_MUST_CHECK;
/* Lines of a file descriptor: `[TABLE] KEY VALUE...`, `[TABLE] KEY null`, `commit`; TABLE where
 * the input has none. */
hps_status publish_lines(struct publish *publish, const struct publish_input *input, int fd,
                         struct hps_error *err) HPS_MUST_CHECK;
/* Keys to delete: a .npy of int64 or uint64, or lines `[TABLE] KEY`. */
hps_status publish_deletes_file(struct publish *publish, const struct publish_input *input,
                                const char *path, struct hps_error *err) HPS_MUST_CHECK;

/* ---- waiting --------------------------------------------------------------------------------- */

enum { PUBLISH_SERVERS_MAX = 64 };

/* What is published, as far as servers judge it. */
struct publish_target {
    const char *model;
    int64_t version; /* records name it, and it is waited for; 0: the active one of each server */
    uint32_t key_bytes; /* of HCTR records: 8 or 4; 0: others */
};

struct publish_servers;

/* Connect to servers. error as hps_client_open */
hps_status publish_servers_open(const struct hps_client_options *options,
                                const char *const *addresses, size_t n,
                                const struct publish_target *target,
                                struct publish_servers **out_servers, struct hps_error *err)
    HPS_MUST_CHECK;
void publish_servers_close(struct publish_servers *servers); /* NULL is legal */
/* Before anything is sent: do all servers take updates for the version, and with these keys?
 * error   INVALID: one does not; else what a server answers */
hps_status publish_servers_begin(struct publish_servers *servers, struct hps_error *err)
    HPS_MUST_CHECK;
/* Rows of one table as they are sent; dim 0: deletes alone. */
struct publish_rows_form {
    const char *table;
    uint32_t dim;
    enum hps_dtype dtype;
};

/* Before rows or deletes of the table are sent to the topic, which is there: will all servers read
 * and take them?
 * error   INVALID: one does not; else what a server answers */
hps_status publish_servers_check(struct publish_servers *servers,
                                 const struct publish_rows_form *form, const char *topic,
                                 struct hps_error *err) HPS_MUST_CHECK;
/* Have they been asked, and do? */
bool publish_servers_take(struct publish_servers *servers, const struct publish_rows_form *form);
/* Offsets of a partition that were published. */
struct publish_range {
    const char *topic;
    uint32_t partition;
    int64_t first, last;
};

/* Wait until all records of ranges [n], ordered by topic, partition and offset, are visible to
 * look-ups on every server.
 * error   DEADLINE; PRECONDITION: they do not become so; CANCELLED; what a server answers */
hps_status publish_wait(struct publish_servers *servers, const struct publish_range *ranges,
                        size_t n, uint64_t timeout_us, struct hps_error *err) HPS_MUST_CHECK;

#endif
