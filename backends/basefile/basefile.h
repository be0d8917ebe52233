/* SPDX-License-Identifier: Apache-2.0
 *
 * The persistent store with base files. It is a layer above the RocksDB store, here called the
 * *inner* store, and has the same calls. For the rest of hpsd it is the tier `rocksdb`.
 *
 * A *dense* table has keys that nearly fill a range of integers. Such a table needs no index. A
 * load writes its rows to one file, the *base*, in which the place of a row follows from its key.
 * A base never changes. Everything that changes is in the inner store: rows and deletes since the
 * load, positions, the catalog. All other tables are in the inner store alone.
 *
 *     get ─▶ bit of the key ─┬▶ in the base, and has not changed ─▶ base
 *                            └▶ otherwise ─────────────────────────▶ inner store
 *
 * FILE. `base-<number>` in the directory of the database, `<path>/hpsd`, so that all copies of it
 * are complete:
 *
 *     pages     row of key k at (k - first) * row_bytes; zeros in holes, and up to a page of 4 KiB
 *     bits      a bit per row: it exists; 64 rows per word
 *     sums      a CRC-32C per page
 *
 * The number is new for every base of the store. Rows may cross pages. A load leaves at most a 50th
 * of the range, plus 64 rows, as holes. Once a record names it, the file never changes. Bits and
 * sums stay in memory: 1 bit per row and 4 bytes per page.
 *
 * RECORD. The record "version-base/<model>@<version>" of the store has for each table the number,
 * the range and the CRC-32C of the bits and sums of its base. A version without bases has no
 * record. The keys sort next to the server's records "version/", because a scan also reads other
 * records of the block where its first key lies, and these may be damaged. A file that no record
 * names is a leftover. It is removed when the store is opened.
 *
 * CHANGES. In memory, each base has a second bit per row, `changed`: the inner store decides. On
 * disk, a *mark* says the same: an entry of a hidden table of the inner store. A write first
 * stores the rows or deletes in the inner store, with a mark for each key without a mark, in one
 * WriteBatch. Then it sets the bits. The lock `writes` allows one write of a space at a time. While
 * a bit is 0, the row in the base is the newest acknowledged one. Opening a space sets the bits
 * from the marks.
 *
 * LOAD. Rows of a dense prefix of a table go to the base in one sequential pass, all other rows
 * to the load of the inner store. Commit, in this order:
 *   1. the files are written and synced, and the directory is synced
 *   2. the record is written, synced
 *   3. the inner store ingests its rows
 *   4. the bases are installed; lookups find the rows
 * The server then stores its record of the version, synced. It removes a space without that record
 * at the next start. So a crash or a full disk before that leaves nothing that is served. A drop
 * deletes the record, removes the files, and then drops the space of the inner store.
 *
 * MERGE. Thread `base-merge`, one table at a time, once a tenth of its rows and 1 MiB have changed:
 *   1. from now on, each write also sets the bit `recent` of its keys
 *   2. a scan of the table, in the order of keys, goes to a new base with the same range
 *   3. the record, synced, names the new base. All earlier writes are then on disk, because they
 *      share one WAL
 *   4. the new base replaces the old one. Its `changed` bits are `recent`
 *   5. once all calls have ended that may use the old base, rows and marks of merged keys that have
 *      not changed since are deleted, in small batches. Other versions are merged in the meantime
 *   6. the old base is removed
 * Steps 1, 4 and each batch of 5 hold `writes`. A key that has a mark is always in the inner store
 * as it must be; so a mark too many changes nothing. A crash before 3 leaves the old base and all
 * entries; after 3 the new base and some entries that repeat it, which count as changed. A merge
 * that fails (full disk, damaged page, unload) removes its file and changes nothing else; it is
 * tried again later. After a merge a table rests for nine times its duration. Scans are calls, too.
 * So an export delays only merges of the version that it exports.
 *
 * SCANS first copy the bits `changed`, and skip the rows of the base with a set bit. Rows from the
 * scan of the inner store replace rows of the base. A view shows one moment, so it reads the marks
 * in the view of the inner store instead of the bits.
 *
 * READS. Keys are sorted, so that keys of the same or adjacent pages share one read.
 *   memory   if all bases fit the page cache, together with the mapped files of the inner store,
 *            they are mapped. A page is read and checked once;
 *            from then on its rows are copied from the mapping
 *   disk     otherwise pages are read with O_DIRECT and checked each time
 *   how      io_uring, up to 128 reads at once on the calling thread, for all tables of the call.
 *            If the kernel or a container forbids it (probed at the open), or memory is short:
 *            pread on the calling thread and on the readers of the inner store
 *
 * DAMAGE. A page with a wrong CRC: get returns DATA_LOSS, and has found all other keys. The page is
 * counted (metric) and logged once. Scans and merges of the table fail with DATA_LOSS. An update of
 * a key of the page repairs this key; a new load of the version repairs all. If the bits and sums
 * are damaged, or a file is missing or has another size, the space opens, and all pages of the base
 * count as damaged. The store cannot be opened if a record is damaged (DATA_LOSS) or has a newer
 * format (NEWER_FORMAT): it is not known then which files are leftovers. A store that can have
 * bases has format 3, which older builds refuse.
 *
 * DISK. A load and a merge check the free space before every MiB, and leave the minimum free space.
 * A merge begins only if the whole new base fits.
 *
 * COPIES. A checkpoint is made by the inner store; then the files that records name are linked into
 * it (copied, on another disk). The lock `names` is held during that time. So no record changes,
 * and no file of a dropped version is removed.
 *
 * Option `off`: loads write no bases. Existing ones are read and merged as before.
 *
 * Threads: as backends/store.h. Own thread: `base-merge`.
 */
#ifndef HPS_BACKENDS_BASEFILE_BASEFILE_H
#define HPS_BACKENDS_BASEFILE_BASEFILE_H

#include <stdatomic.h>

#include "backends/store_durable.h"

struct hps_pool;

struct hps_basefile_options {
    /* The store below, which has `durable` with `view`. Owned by the new store once the open has
     * succeeded. */
    struct hps_store *inner;
    const char *path; /* the files are in `<path>/hpsd` */
    bool read_only;
    bool write; /* loads write bases; option base_file: auto */
    /* AUTO: MMAP while all bases and the mapped files of the inner store fit memory_bytes, else
     * DIRECT. DIRECT: as BUFFERED if the file system does not support it. */
    enum hps_read_mode read_mode;
    uint64_t memory_bytes;                    /* page cache available for both */
    const atomic_uint_fast64_t *mapped_bytes; /* of the inner store; NULL: 0 */
    struct hps_pool *readers;                 /* share large reads without io_uring; NULL: none */
    bool no_uring;                            /* for tests: as if the kernel forbade io_uring */
    uint32_t rows_min;  /* a table with fewer rows gets no base; 0: the default */
    uint32_t merge_ppm; /* changed rows per million that begin a merge; 0: a tenth */
};

/* Open the layer above options->inner, and remove leftover files.
 *
 * error   NO_MEMORY, EXHAUSTED (threads), PERMISSION, IO; DATA_LOSS, NEWER_FORMAT: see DAMAGE */
hps_status hps_basefile_open(const struct hps_basefile_options *options,
                             struct hps_store **out_store, struct hps_error *err) HPS_MUST_CHECK;

#endif
