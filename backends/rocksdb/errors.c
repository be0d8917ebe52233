/* SPDX-License-Identifier: Apache-2.0
 *
 * The meaning of RocksDB's errors. Its C interface returns only a text, so the first words of that
 * text are checked, in this file only. Thread-safe.
 */
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backends/rocksdb/internal.h"
#include "backends/rocksdb/listener.h"
#include "base/assert.h"
#include "base/log.h"

enum { EXIT_STORE = 4 }; /* the daemon's exit code for an unusable store */

/* First words of error texts. RocksDB builds them from code and subcode, and from the operation if
 * those are ambiguous. test_errors.c makes RocksDB produce each. */
static const struct {
    const char *first_words;
    hps_status status;
} meanings[] = {
    {"Corruption: ", HPS_DATA_LOSS},
    {"IO error: While mmap read offset ", HPS_DATA_LOSS},    /* a mapped file that was truncated */
    {"IO error: while mmap file for read: ", HPS_DATA_LOSS}, /* a mapped file that is empty */
    {"IO error: While lock file: ", HPS_BUSY},               /* by another process */
    {"IO error: lock hold by current process", HPS_BUSY},
    {"IO error: No space left on device", HPS_EXHAUSTED},
    {"Operation timed out: ", HPS_DEADLINE},
    {"Invalid argument: ", HPS_INTERNAL},
    {"Not implemented: ", HPS_INTERNAL},
};

/* RocksDB throws if the C interface has no way to return an error. */
static void terminated(const char *exception)
{
    struct rlimit limit = {0};
    bool thread = strcmp(exception, "St12system_error") == 0;
    (void)getrlimit(RLIMIT_NPROC, &limit);
    HPS_LOG(ERROR, "rocksdb",
            thread ? "store failed: RocksDB could not start a thread; raise the limit of processes "
                     "(ulimit -u), or TasksMax= of the unit"
                   : "store failed: RocksDB threw an exception; restart hpsd",
            HPS_STR("exception", exception),
            thread && limit.rlim_cur != RLIM_INFINITY ? HPS_U64("processes_max", limit.rlim_cur)
                                                      : HPS_LOG_END);
    _exit(EXIT_STORE);
}

void hps_rocksdb_catch_exceptions(void)
{
    hps_rocksdb_terminate_set(terminated);
}

/* Prefix of the error of a write that waited for a flush or compaction which failed. The error of
 * that follows. */
static const char GAVE_UP[] = "Result incomplete: ";

hps_status hps_rocksdb_text_status(const char *text)
{
    if (strncmp(text, GAVE_UP, strlen(GAVE_UP)) == 0) {
        text += strlen(GAVE_UP);
    }
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
        const char *first_words = meanings[i].first_words;
        if (strncmp(text, first_words, strlen(first_words)) == 0) {
            return meanings[i].status;
        }
    }
    return HPS_IO;
}

hps_status hps_rocksdb_fail_text(char *text, struct hps_error *err, const char *what)
{
    HPS_ASSERT(text != NULL);
    hps_status status =
        hps_error_set(err, hps_rocksdb_text_status(text), "rocksdb: %s: %s", what, text);
    rocksdb_free(text);
    return status;
}

hps_status hps_rocksdb_log_text(char *text, const char *what)
{
    HPS_ASSERT(text != NULL);
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
