/* SPDX-License-Identifier: Apache-2.0
 *
 * RocksDB's reports about its health: background errors, attempts to recover, failed compactions.
 * RocksDB's C interface reports none of them. So listener.cc, the only C++ file of the store,
 * implements a rocksdb::EventListener.
 *
 * The store creates RocksDB's options through the C interface, which cannot set a listener. So
 * listener.cc registers the listener by name in RocksDB's object library (a public C++ interface).
 * The text form of options contains this name, and RocksDB then creates the listener.
 *
 * Threads: RocksDB calls the listener on its background threads and on writing threads. RocksDB
 * holds none of its locks during the call, but writes wait until the call ends. The callback must
 * not block or call RocksDB.
 */
#ifndef HPS_BACKENDS_ROCKSDB_LISTENER_H
#define HPS_BACKENDS_ROCKSDB_LISTENER_H

#include <stdbool.h>

/* For "listeners=hpsd" in the text form of options. */
#define HPS_ROCKSDB_LISTENER "hpsd"

enum hps_rocksdb_event_kind {
    HPS_ROCKSDB_ERROR,          /* a background error */
    HPS_ROCKSDB_RECOVERY_BEGUN, /* RocksDB tries to recover from the last error */
    HPS_ROCKSDB_RECOVERY_ENDED, /* code OK: writes work again; otherwise recovery failed */
    /* A compaction of `family` failed. HPS_ROCKSDB_ERROR with its error follows. */
    HPS_ROCKSDB_COMPACTION_FAILED,
};

/* This enum and the next three copy values of RocksDB's enums that hpsd uses. listener.cc checks
 * the numbers at compile time. */
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
    HPS_ROCKSDB_SEVERITY_NONE = 0,  /* RocksDB has set no severity */
    HPS_ROCKSDB_SEVERITY_SOFT = 1,  /* writes continue */
    HPS_ROCKSDB_SEVERITY_HARD = 2,  /* writes stop; RocksDB can recover while the store is open */
    HPS_ROCKSDB_SEVERITY_FATAL = 3, /* writes stop until the store is opened again */
    HPS_ROCKSDB_SEVERITY_UNRECOVERABLE = 4, /* same as FATAL */
};

struct hps_rocksdb_event {
    enum hps_rocksdb_event_kind kind;
    int reason;         /* enum hps_rocksdb_reason, or another number; -1: not given */
    int code;           /* enum hps_rocksdb_code, or another number */
    int subcode;        /* enum hps_rocksdb_subcode, or another number */
    int severity;       /* enum hps_rocksdb_severity, or another number */
    const char *family; /* of a failed compaction; otherwise NULL */
    const char *text;   /* error text, as RocksDB's C interface would return it */
};

/* The event and its texts are borrowed for the call. */
typedef void hps_rocksdb_event_fn(void *ctx, const struct hps_rocksdb_event *event);

#ifdef __cplusplus
extern "C" {
#endif

/* Offer a callback to the next listener that RocksDB creates on this thread, from options in text
 * form. RocksDB calls `fn` with `ctx` until the database opened with these options is closed. */
void hps_rocksdb_listener_offer(hps_rocksdb_event_fn *fn, void *ctx);
/* Withdraw the offer. Returns whether RocksDB has created a listener since the offer. */
bool hps_rocksdb_listener_made(void);

/* Called when RocksDB throws an exception that it does not catch, such as std::system_error if a
 * thread cannot be started. The function must end the process. exception: the mangled type name of
 * the exception; "": not known. */
typedef void hps_rocksdb_terminate_fn(const char *exception);
/* Make `fn` the handler of std::terminate. */
void hps_rocksdb_terminate_set(hps_rocksdb_terminate_fn *fn);

#ifdef __cplusplus
}
#endif

#endif
