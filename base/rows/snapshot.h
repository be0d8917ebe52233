/* SPDX-License-Identifier: Apache-2.0
 *
 * A snapshot on disk: the database of one hpsd as it was at one moment, with what makes it whole.
 *
 *   DIR/hpsd/      the database
 *   DIR/snapshot   text, written last: a snapshot without it is not complete
 *                    hpsd-snapshot 2           the format
 *                    hpsd 0.1.0                who wrote it
 *                    created 1700000000000     Unix ms
 *                    file BYTES CRC32C NAME    each file of hpsd/
 *                    end CRC32C                of all lines before this one, the last
 *
 * Format 1 had no checksums and no last line: it is restored, but cannot be verified.
 *
 * Plain files: may be copied, packed and sent by any tool. Any thread that may block.
 */
#ifndef HPS_BASE_ROWS_SNAPSHOT_H
#define HPS_BASE_ROWS_SNAPSHOT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { HPS_SNAPSHOT_FORMAT = 2 };

struct hps_snapshot_report {
    uint32_t n_files;
    uint64_t n_bytes; /* of them */
    bool verified;    /* each has the checksum that it had when the snapshot was made */
};

/* Make DIR ready to take a snapshot: made if need be, its parent not. EXISTS: it is not empty;
 * PERMISSION, NOT_FOUND, EXHAUSTED, IO. */
hps_status hps_snapshot_begin(const char *dir, struct hps_error *err) HPS_MUST_CHECK;
/* DIR/hpsd is there: read all of it for the checksums, and write DIR/snapshot, synced. CANCELLED
 * once *cancel (may be NULL) is true. */
hps_status hps_snapshot_finish(const char *dir, const char *version, uint64_t unix_ms,
                               const atomic_bool *cancel, struct hps_snapshot_report *out_report,
                               struct hps_error *err) HPS_MUST_CHECK;

/* Make PATH/hpsd from the snapshot: by hard links where that is possible and files are never
 * written again, else by copies; every byte is read and compared with the checksums; whole or not
 * at all, synced. PATH is made if need be, its parent not. What else is in PATH stays, but for the
 * list of damaged versions of a database that was there before.
 *
 * No link in PATH or DIR is followed. Root acts as the user that PATH belongs to, with all of its
 * threads: files become that user's, and nothing can be done that this user could not do. DIR is
 * read as that user, too, unless it is root's and nobody else may write there.
 *
 * error   EXISTS: PATH has a
 * database; BUSY: an hpsd uses PATH; DATA_LOSS: DIR is no whole snapshot, or a file of it, which is
 * named, is damaged; NEWER_FORMAT; and as above */
hps_status hps_snapshot_restore(const char *dir, const char *path,
                                struct hps_snapshot_report *out_report, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
