/* SPDX-License-Identifier: Apache-2.0
 *
 * What the input of hps-publish and its output share. One thread.
 */
#ifndef HPS_TOOLS_HPS_PUBLISH_H
#define HPS_TOOLS_HPS_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/types.h"
#include "client/client.h"

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
/* The user wants an end. */
bool publish_interrupted(void);
/* How many rows are to come, for progress. */
void publish_expect(struct publish *publish, uint64_t n_rows);

struct publish_input {
    const char *table; /* the one table, or the one of a directory; NULL: all, or named by lines */
    bool nan_allowed;
    bool units;     /* lines may say "commit" */
    bool keys_only; /* lines are `[TABLE] KEY`, keys to delete */
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

struct publish_position {
    const char *topic;
    uint32_t partition;
    int64_t offset; /* of the last record */
};

struct publish_wait {
    const char *model;
    int64_t version; /* 0: the active one of each server */
    const struct publish_position *positions;
    size_t n_positions;
    uint64_t timeout_us;
};

struct publish_servers;

/* Connect to the admin listeners of servers. error as hps_client_open */
hps_status publish_servers_open(const struct hps_client_options *options,
                                const char *const *addresses, size_t n,
                                struct publish_servers **out_servers, struct hps_error *err)
    HPS_MUST_CHECK;
void publish_servers_close(struct publish_servers *servers); /* NULL is legal */
/* Wait until all positions are visible to look-ups on every server.
 * error   DEADLINE; PRECONDITION: a partition stands still; CANCELLED; what a server answers */
hps_status publish_wait(struct publish_servers *servers, const struct publish_wait *wait,
                        struct hps_error *err) HPS_MUST_CHECK;

#endif
