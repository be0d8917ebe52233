/* SPDX-License-Identifier: Apache-2.0
 *
 * What RocksDB says of its own health: background errors, its attempts to recover from them, and
 * compactions that failed. RocksDB's C interface reports none of that, so listener.cc, the only
 * C++ of the store, is a rocksdb::EventListener.
 *
 * Options are made by the C interface, whose structs are opaque. No layout of theirs is assumed:
 * the listener is registered by name with RocksDB's object library (a public header), and the text
 * form of options, which the C interface reads, has RocksDB make it by that name.
 *
 * Threads: events come on RocksDB's background threads and on those that write, without a lock of
 * RocksDB's but in the way of its writes: the callback must neither wait nor call RocksDB.
 */
#ifndef HPS_BACKENDS_ROCKSDB_LISTENER_H
#define HPS_BACKENDS_ROCKSDB_LISTENER_H

#include <stdbool.h>

/* "listeners=hpsd" in the text form of options. */
#define HPS_ROCKSDB_LISTENER "hpsd"

enum hps_rocksdb_event_kind {
    HPS_ROCKSDB_ERROR,             /* a background error */
    HPS_ROCKSDB_RECOVERY_BEGUN,    /* RocksDB tries to recover from the last one by itself */
    HPS_ROCKSDB_RECOVERY_ENDED,    /* code OK: it takes writes again; else why it has given up */
    HPS_ROCKSDB_COMPACTION_FAILED, /* of `family`; the error that follows from it comes after */
};

/* The numbers of RocksDB, as far as they are asked for: listener.cc compares them as it is built.
 */
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
    HPS_ROCKSDB_SEVERITY_NONE = 0, /* RocksDB has not decided */
    HPS_ROCKSDB_SEVERITY_SOFT = 1, /* writes go on */
    HPS_ROCKSDB_SEVERITY_HARD = 2, /* writes stop, recovery is possible; all above: a new open */
    HPS_ROCKSDB_SEVERITY_FATAL = 3,
    HPS_ROCKSDB_SEVERITY_UNRECOVERABLE = 4,
};

struct hps_rocksdb_event {
    enum hps_rocksdb_event_kind kind;
    int reason; /* enum hps_rocksdb_reason, or another number; -1: not given */
    int code;   /* enum hps_rocksdb_code, or another number; so are the next two */
    int subcode;
    int severity;
    const char *family; /* of a compaction; else NULL */
    const char *text;   /* as the C interface would give it */
};

/* The event and its texts are borrowed for the call. */
typedef void hps_rocksdb_event_fn(void *ctx, const struct hps_rocksdb_event *event);

#ifdef __cplusplus
extern "C" {
#endif

/* Have the next listener that this thread's options name call `fn`. A database with these options
 * does so until it is closed. */
void hps_rocksdb_listener_offer(hps_rocksdb_event_fn *fn, void *ctx);
/* End the offer. False: RocksDB has made no listener. */
bool hps_rocksdb_listener_made(void);

/* Call `fn` instead of std::terminate's message when RocksDB throws an exception that it does not
 * catch, such as std::system_error where a thread cannot be started. exception: the mangled name of
 * its type, or "". It ends the process. */
typedef void hps_rocksdb_terminate_fn(const char *exception);
void hps_rocksdb_terminate_set(hps_rocksdb_terminate_fn *fn);

#ifdef __cplusplus
}
#endif

#endif
