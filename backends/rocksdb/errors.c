/* SPDX-License-Identifier: Apache-2.0
 *
 * What the errors of RocksDB mean. Its C interface has their text alone, so that is what is looked
 * at. Any thread.
 */
#include <string.h>

#include "backends/rocksdb/internal.h"
#include "base/log.h"

hps_status hps_rocksdb_text_status(const char *text)
{
    if (strncmp(text, "Corruption", 10) == 0 ||
        strstr(text, "larger than file length") != NULL || /* mapped, and cut short */
        strstr(text, "while mmap file for read") != NULL /* and empty */) {
        return HPS_DATA_LOSS;
    }
    if (strstr(text, "/LOCK") != NULL) {
        return HPS_BUSY;
    }
    if (strstr(text, "No space left") != NULL || strstr(text, "Space limit") != NULL) {
        return HPS_EXHAUSTED;
    }
    if (strstr(text, "imed out") != NULL) {
        return HPS_DEADLINE;
    }
    if (strncmp(text, "Invalid argument", 16) == 0 || strncmp(text, "Not implemented", 15) == 0) {
        return HPS_INTERNAL;
    }
    return HPS_IO;
}

hps_status hps_rocksdb_fail_text(char *text, struct hps_error *err, const char *what)
{
    hps_status status =
        hps_error_set(err, hps_rocksdb_text_status(text), "rocksdb: %s: %s", what, text);
    rocksdb_free(text);
    return status;
}

hps_status hps_rocksdb_log_text(char *text, const char *what)
{
    hps_status status = hps_rocksdb_text_status(text);
    if (status != HPS_DEADLINE) {
        HPS_LOG(ERROR, "rocksdb", what, HPS_STR("status", hps_status_text(status)),
                HPS_STR("error", text));
    }
    rocksdb_free(text);
    return status;
}

hps_status hps_rocksdb_fail_memory(struct hps_error *err)
{
    return hps_error_set(err, HPS_NO_MEMORY, "rocksdb: out of memory");
}

hps_status hps_rocksdb_fail_read_only(const struct hps_rocksdb *store, struct hps_error *err)
{
    return hps_error_set(err, HPS_PRECONDITION, "rocksdb: %s is open read-only", store->dir.path);
}
