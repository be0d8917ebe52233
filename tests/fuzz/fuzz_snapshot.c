/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as list of files of a snapshot that is restored. If the first byte is below 128, a
 * valid checksum line is appended, because an attacker can compute it, too. Files may be created
 * only in the new directory, and exactly those in the list.
 */
#include <stdio.h>
#include <unistd.h>

#include "base/heap.h"
#include "base/rows/crc32c.h"
#include "base/rows/snapshot.h"
#include "tests/fuzz/place.h"
#include "tests/fuzz/script.h"

static const char table_bytes[] = "rows of a table";

static void first(void)
{
    hps_tmpdir_mkdir(&place_dir, "from");
    hps_tmpdir_mkdir(&place_dir, "from/hpsd");
    hps_tmpdir_write(&place_dir, "from/hpsd/000001.sst", table_bytes, sizeof(table_bytes) - 1);
    hps_tmpdir_write(&place_dir, "from/hpsd/CURRENT", "MANIFEST-1\n", 11);
    hps_tmpdir_write(&place_dir, "from/hpsd/empty", "", 0);
    hps_tmpdir_write(&place_dir, "secret", "not of the snapshot", 19);
    hps_tmpdir_mkdir(&place_dir, "to");
}

static void write_list(const struct script *script, bool with_end)
{
    char *list = hps_alloc(script->left + 16);
    size_t size = script->left;

    HPS_ASSERT(list != NULL);
    if (size > 0) {
        memcpy(list, script->at, size);
    }
    if (with_end) {
        uint32_t crc = hps_crc32c(0, list, size);
        size += (size_t)snprintf(list + size, 16, "end %08x\n", crc);
    }
    hps_tmpdir_write(&place_dir, "from/snapshot", list, size);
    hps_free(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {data, size};
    struct hps_snapshot_report report = {0};
    struct hps_error err = {0};

    if (place_open()) {
        first();
    }
    bool with_end = script_u8(&script) < 128;
    write_list(&script, with_end);
    hps_status status =
        hps_snapshot_restore(hps_tmpdir_join(&place_dir, "from"),
                             hps_tmpdir_join(&place_dir, "to/state"), &report, &err);
    bool there = access(hps_tmpdir_join(&place_dir, "to/state/hpsd"), F_OK) == 0;
    HPS_ASSERT(there == (status == HPS_OK));
    if (status == HPS_OK) {
        HPS_ASSERT(hps_tmpdir_entries(&place_dir, "to/state/hpsd") == report.n_files);
        HPS_ASSERT(report.n_files <= 3 && access(hps_tmpdir_join(&place_dir, "secret"), F_OK) == 0);
    } else {
        HPS_ASSERT(err.text[0] != '\0');
    }
    size_t n_made = hps_tmpdir_entries(&place_dir, "to");
    HPS_ASSERT(n_made <= 1);
    if (n_made > 0) {
        hps_tmpdir_remove(&place_dir, "to/state");
    }
    HPS_ASSERT(hps_tmpdir_entries(&place_dir, "from/hpsd") == 3);
    return 0;
}
