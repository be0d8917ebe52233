/* SPDX-License-Identifier: Apache-2.0
 *
 * A snapshot on disk: the database of one hpsd at one moment, with a list of checksums.
 *
 *   DIR/hpsd/      the database
 *   DIR/snapshot   text, written last; a snapshot without this file is incomplete
 *                    hpsd-snapshot 2           the format
 *                    hpsd 0.1.0                version of hpsd that wrote it
 *                    created 1700000000000     Unix time in ms
 *                    file BYTES CRC32C NAME    one line for each file of hpsd/
 *                    end CRC32C                last line: checksum of all lines before it
 *
 * Format 1 has no checksums and no last line: it can be restored, but not verified.
 *
 * A snapshot consists of plain files, which any tool can copy, pack and send. The functions block.
 * Any thread.
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
    uint64_t n_bytes; /* size of these files */
    bool verified;    /* the checksum of each file was verified */
};

/* Prepare DIR for a snapshot. DIR is created if it does not exist; its parent must exist. EXISTS:
 * DIR is not empty; PERMISSION, NOT_FOUND, EXHAUSTED, IO. */
hps_status hps_snapshot_begin(const char *dir, struct hps_error *err) HPS_MUST_CHECK;
/* Finish a snapshot after the caller has written DIR/hpsd. Reads all files of DIR/hpsd for the
 * checksums, then writes and syncs DIR/snapshot. CANCELLED: *cancel (may be NULL) became true;
 * EXHAUSTED, IO, NO_MEMORY. */
hps_status hps_snapshot_finish(const char *dir, const char *version, uint64_t unix_ms,
                               const atomic_bool *cancel, struct hps_snapshot_report *out_report,
                               struct hps_error *err) HPS_MUST_CHECK;

/* Create PATH/hpsd from the snapshot in DIR, and sync it. The call creates it completely or not at
 * all. Every byte is read and compared with the checksums. Files that RocksDB never changes are
 * hard links if possible; other files are copies. PATH is created if it does not exist; its parent
 * must exist. Other files in PATH stay, except hpsd.damaged, the list of damaged versions of an
 * earlier database.
 *
 * No link in PATH or DIR is followed. If this process is root, all its threads act as the owner of
 * PATH during the call. So the files belong to that user, and the call does nothing that this user
 * could not do. DIR is also read as that user, unless root owns DIR and only root may write to it.
 *
 * error   EXISTS: PATH has a database; BUSY: an hpsd uses PATH; DATA_LOSS: DIR is not a complete
 *         snapshot, or a file is damaged (the text names it); NEWER_FORMAT; PERMISSION, NOT_FOUND,
 *         EXHAUSTED, IO
 */
hps_status hps_snapshot_restore(const char *dir, const char *path,
                                struct hps_snapshot_report *out_report, struct hps_error *err)
    HPS_MUST_CHECK;

#endif
