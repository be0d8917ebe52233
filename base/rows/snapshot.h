/* SPDX-License-Identifier: Apache-2.0
 *
 * A snapshot on disk: the database of one hpsd at one moment, with a list that makes it verifiable.
 *
 *   DIR/hpsd/      the database
 *   DIR/snapshot   text, written last: a snapshot without it is incomplete
 *                    hpsd-snapshot 2           the format
 *                    hpsd 0.1.0                version of the writer
 *                    created 1700000000000     Unix ms
 *                    file BYTES CRC32C NAME    each file of hpsd/
 *                    end CRC32C                of all lines before this one, the last
 *
 * Format 1 had no checksums and no last line: it can be restored, but not verified.
 *
 * All are plain files, which any tool can copy, pack and send. Any thread that may block.
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
    uint64_t n_bytes; /* of these files */
    bool verified;    /* the checksum of each file was verified */
};

/* Prepare DIR for a snapshot; it is created if missing, its parent is not. EXISTS: it is not empty;
 * PERMISSION, NOT_FOUND, EXHAUSTED, IO. */
hps_status hps_snapshot_begin(const char *dir, struct hps_error *err) HPS_MUST_CHECK;
/* DIR/hpsd is complete: read all of it for the checksums, and write DIR/snapshot, synced. CANCELLED
 * once *cancel (may be NULL) is true. */
hps_status hps_snapshot_finish(const char *dir, const char *version, uint64_t unix_ms,
                               const atomic_bool *cancel, struct hps_snapshot_report *out_report,
                               struct hps_error *err) HPS_MUST_CHECK;

/* Create PATH/hpsd from the snapshot, synced, completely or not at all. Every byte is read and
 * compared with the checksums. Files that RocksDB never rewrites are hard links if possible; others
 * are copies. PATH is created if missing, its parent is not. Other files in PATH stay, except the
 * list of damaged versions of an earlier database.
 *
 * No link in PATH or DIR is followed. Root acts as the user who owns PATH, with all threads: the
 * files become that user's, and nothing is done that this user could not do. DIR is read as that
 * user too, unless root owns it and no other user may write there.
 *
 * error   EXISTS: PATH has a database; BUSY: an hpsd uses PATH; DATA_LOSS: DIR is not a complete
 *         snapshot, or a file, which is named, is damaged; NEWER_FORMAT; and as above
 */
hps_status hps_snapshot_restore(const char *dir, const char *path,
                                struct hps_snapshot_report *out_report, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
