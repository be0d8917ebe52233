/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon: its threads and services, from the open until it has drained. Main thread.
 */
#ifndef HPS_SERVER_DAEMON_H
#define HPS_SERVER_DAEMON_H

#include "cache/device/device.h"
#include "config/config.h"
#include "server/load/loader.h"

struct hps_daemon;

struct hps_daemon_options {                  /* copied; its pointers are borrowed */
    struct hps_config *config;               /* a reload changes it */
    const char *config_file;                 /* read again on SIGHUP; NULL: started with --table */
    const struct hps_config_flags *flags;    /* applied again after a reload */
    struct hps_load_env env;                 /* the stores and the budgets of loads */
    struct hps_update_log *update_log;       /* NULL: versions take no updates */
    const struct hps_device_driver *devices; /* for embedding caches */
};

/* Bind the listeners, open the catalog, and start the threads. The caller frees *out_daemon with
 * hps_daemon_close.
 * error   BUSY: an address is in use; errors of the catalog, the access rules and the TLS files */
hps_status hps_daemon_open(const struct hps_daemon_options *options, struct hps_daemon **out_daemon,
                           struct hps_error *err) HPS_MUST_CHECK;
/* Serve until the daemon has drained or must stop at once. Prints the `listening` line on stdout,
 * and the `ready` line when the daemon is ready for the first time. */
void hps_daemon_run(struct hps_daemon *daemon);
/* Whether a failure ended hps_daemon_run. The log has the reason. */
bool hps_daemon_failed(const struct hps_daemon *daemon);
/* Join every thread and free the daemon. The stores stay open. No effect if NULL. */
void hps_daemon_close(struct hps_daemon *daemon);

#endif
