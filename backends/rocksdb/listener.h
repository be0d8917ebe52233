/* SPDX-License-Identifier: Apache-2.0
 *
 * RocksDB's reports about its health: background errors, attempts to recover, failed compactions.
 * RocksDB's C interface reports none of them. So listener.cc, the only C++ file of the store, is a
 * rocksdb::EventListener.
 *
 * Options are made through the C interface, which has opaque structs. The listener does not depend
 * on their layout. It is registered by name in RocksDB's object library (a public header). The text
 * form of options, which the C interface reads, makes RocksDB create it by that name.
 *
 * Threads: events arrive on RocksDB's background threads and on writing threads. No lock of RocksDB
 * is held, but writes wait for the callback. It must not block or call RocksDB.
 */
#ifndef HPS_BACKENDS_ROCKSDB_LISTENER_H
#define HPS_BACKENDS_ROCKSDB_LISTENER_H

#include <stdbool.h>

/* For "listeners=hpsd" in the text form of options. */
#define HPS_ROCKSDB_LISTENER "hpsd"

enum hps_rocksdb_event_kind {
    HPS_ROCKSDB_ERROR,          /* a background error */
    HPS_ROCKSDB_RECOVERY_BEGUN, /* RocksDB tries to recover from the last error */
    HPS_ROCKSDB_RECOVERY_ENDED, /* code OK: it takes writes again; otherwise why recovery failed */
    /* Compaction of `family`; the resulting error is reported next. */
    HPS_ROCKSDB_COMPACTION_FAILED,
};

/* RocksDB's numbers, as far as hpsd needs them; listener.cc checks them at compile time. */
enum hps_rocksdb_reason {
    HPS_ROCKSDB_REASON_FLUSH = 0,
    HPS_ROCKSDB_REASON_COMPACTION = 1,
    HPS_ROCKSDB_REASON_WAL = 2, /* writing the WAL, or syncing it */
};

enum hps_rocksdb_code {
    HPS_ROCKSDB_CODE_OK = 0,
    HPS_ROCKSDB_CODE_CORRUPTION = 2,
    HPS_ROCKSDB_CODE_IO_ERROR = 5,
};

enum hps_rocksdb_subcode {
    HPS_ROCKSDB_SUBCODE_NONE = 0,
    HPS_ROCKSDB_SUBCODE_NO_SPACE = 4,
};

enum hps_rocksdb_severity {
    HPS_ROCKSDB_SEVERITY_NONE = 0, /* not decided by RocksDB */
    HPS_ROCKSDB_SEVERITY_SOFT = 1, /* writes continue */
    /* Writes stop, recovery is possible; higher values need a new open. */
    HPS_ROCKSDB_SEVERITY_HARD = 2,
    HPS_ROCKSDB_SEVERITY_FATAL = 3,
    HPS_ROCKSDB_SEVERITY_UNRECOVERABLE = 4,
};

struct hps_rocksdb_event {
    enum hps_rocksdb_event_kind kind;
    int reason; /* enum hps_rocksdb_reason, or another number; -1: not given */
    int code;   /* enum hps_rocksdb_code, or another number; the next two likewise */
    int subcode;
    int severity;
    const char *family; /* of a failed compaction; otherwise NULL */
    const char *text;   /* as the C interface would report it */
};

/* The event and its texts are borrowed for the call. */
typedef void hps_rocksdb_event_fn(void *ctx, const struct hps_rocksdb_event *event);

#ifdef __cplusplus
extern "C" {
#endif

/* Let the next listener that options of this thread create call `fn`. A database opened with these
 * options calls it until it is closed. */
void hps_rocksdb_listener_offer(hps_rocksdb_event_fn *fn, void *ctx);
/* End the offer. False: RocksDB has not created a listener. */
bool hps_rocksdb_listener_made(void);

/* Call `fn` when RocksDB throws an exception that it does not catch, such as std::system_error if a
 * thread cannot be started. It replaces the message of std::terminate, and must end the process.
 * exception: the mangled name of its type, or "". */
typedef void hps_rocksdb_terminate_fn(const char *exception);
void hps_rocksdb_terminate_set(hps_rocksdb_terminate_fn *fn);

#ifdef __cplusplus
}
#endif

#endif
