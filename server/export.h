/* SPDX-License-Identifier: Apache-2.0
 *
 * All rows of a store into files that a load reads: how rows leave a store that can only be
 * scanned. One thread.
 */
#ifndef HPS_SERVER_EXPORT_H
#define HPS_SERVER_EXPORT_H

#include "backends/store.h"
#include "config/config.h"

struct hps_export_options {
    struct hps_store *store; /* that can scan */
    const char *dir;         /* made if need be; must be empty */
    bool (*stops)(void);     /* asked again and again: true ends it. NULL: nothing does */
};

/* Write the tables of all models of `config`, each to <dir>/<model>/<table>, in HugeCTR's form. A
 * table appears there when it is whole and on disk. Then the paths of the tables in `config` are
 * these, absolute. What a failure leaves in `dir` is whole tables.
 *
 * error   EXISTS: there is something in `dir`; NOT_FOUND, PERMISSION, EXHAUSTED, IO: of files;
 *         INVALID: a table without rows; CANCELLED; and those of the store's scan */
hps_status hps_export(const struct hps_export_options *options, struct hps_config *config,
                      struct hps_error *err) HPS_MUST_CHECK;

#endif
