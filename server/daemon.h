/* SPDX-License-Identifier: Apache-2.0
 *
 * The running daemon: its threads, services and life from open to drained. Main thread.
 */
#ifndef HPS_SERVER_DAEMON_H
#define HPS_SERVER_DAEMON_H

#include "cache/device/device.h"
#include "config/config.h"
#include "server/load/loader.h"

struct hps_daemon;

struct hps_daemon_options {                  /* borrowed for the life of the daemon */
    struct hps_config *config;               /* reloads change it */
    const char *config_file;                 /* read again on HUP; NULL: --table */
    const struct hps_config_flags *flags;    /* applied to it again */
    struct hps_load_env env;                 /* the stores and the budgets of loads */
    struct hps_update_log *update_log;       /* NULL: versions take no updates */
    const struct hps_device_driver *devices; /* of embedding caches */
};

/* Bind, open the catalog, start the threads.
 * error   BUSY: an address is taken; what the catalog or TLS files say */
hps_status hps_daemon_open(const struct hps_daemon_options *options, struct hps_daemon **out_daemon,
                           struct hps_error *err) HPS_MUST_CHECK;
/* Print the line that says where it listens, and once, when it is ready for the first time, the one
 * that says so; serve until drained or told to stop at once. */
void hps_daemon_run(struct hps_daemon *daemon);
/* After hps_daemon_run: the daemon was ended by a failure, which is in the log. */
bool hps_daemon_failed(const struct hps_daemon *daemon);
/* Join every thread and free; the stores stay open. NULL is legal. */
void hps_daemon_close(struct hps_daemon *daemon);

#endif
