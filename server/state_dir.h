/* SPDX-License-Identifier: Apache-2.0
 *
 * The state directory. hpsd creates it if it is missing. Only one process at a time can lock it.
 * The file `instance` in it contains a random name, which distinguishes the daemons that share a
 * store. Main thread.
 */
#ifndef HPS_SERVER_STATE_DIR_H
#define HPS_SERVER_STATE_DIR_H

#include "base/status.h"

enum { HPS_INSTANCE_CHARS = 16 };

struct hps_state_dir {
    int lock_fd;                           /* the locked file; -1: the lock is not held */
    char *spill;                           /* "<dir>/tmp": sorts write temporary files there */
    char instance[HPS_INSTANCE_CHARS + 1]; /* random hex digits, created at the first start */
};

/* Create and lock the directory. Symbolic links inside it are not followed. The caller closes
 * *out_state with hps_state_dir_close.
 * error   BUSY: another process holds the lock (the text has its pid); INVALID: hpsd runs as root,
 *         and another user owns the directory; PERMISSION, IO, NO_MEMORY
 */
hps_status hps_state_dir_open(const char *dir, struct hps_state_dir *out_state,
                              struct hps_error *err) HPS_MUST_CHECK;
void hps_state_dir_close(struct hps_state_dir *state);

#endif
