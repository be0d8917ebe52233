/* SPDX-License-Identifier: Apache-2.0
 *
 * The state directory: made if need be, and locked by one process at a time. A name is kept in it,
 * under which daemons that share a store distinguish each other. Main thread.
 */
#ifndef HPS_SERVER_STATE_DIR_H
#define HPS_SERVER_STATE_DIR_H

#include "base/status.h"

enum { HPS_INSTANCE_CHARS = 16 };

struct hps_state_dir {
    int lock_fd; /* -1: not held */
    char *spill; /* "<dir>/tmp": sorts write there, into files without a name */
    char instance[HPS_INSTANCE_CHARS + 1]; /* hex, at random; the same at each start */
};

/* No link in the directory is followed.
 *
 * error   BUSY: another process holds it (names its pid); INVALID: root would work in
 * a directory of another user; PERMISSION, IO, NO_MEMORY
 */
hps_status hps_state_dir_open(const char *dir, struct hps_state_dir *out_state,
                              struct hps_error *err) HPS_MUST_CHECK;
void hps_state_dir_close(struct hps_state_dir *state);

#endif
