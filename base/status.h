/* SPDX-License-Identifier: Apache-2.0
 *
 * The status codes of all functions. Every fallible function returns hps_status; struct hps_error
 * carries the message for people. A key that is not found is a result, not an error. Any thread.
 */
#ifndef HPS_BASE_STATUS_H
#define HPS_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, number, text, gRPC code) */
#define HPS_STATUS_LIST(X)                           \
    X(OK, 0, "ok", 0)                                \
    X(CANCELLED, -1, "cancelled", 1)                 \
    X(UNKNOWN, -2, "unknown error", 2)               \
    X(INVALID, -3, "invalid argument", 3)            \
    X(DEADLINE, -4, "deadline exceeded", 4)          \
    X(NOT_FOUND, -5, "not found", 5)                 \
    X(EXISTS, -6, "already exists", 6)               \
    X(PERMISSION, -7, "permission denied", 7)        \
    X(EXHAUSTED, -8, "resource exhausted", 8)        \
    X(PRECONDITION, -9, "failed precondition", 9)    \
    X(ABORTED, -10, "aborted", 10)                   \
    X(RANGE, -11, "out of range", 11)                \
    X(UNIMPLEMENTED, -12, "unimplemented", 12)       \
    X(INTERNAL, -13, "internal error", 13)           \
    X(UNAVAILABLE, -14, "unavailable", 14)           \
    X(DATA_LOSS, -15, "data loss", 15)               \
    X(UNAUTHENTICATED, -16, "unauthenticated", 16)   \
    X(NO_MEMORY, -17, "out of memory", 8)            \
    X(IO, -18, "input/output error", 13)             \
    X(AGAIN, -19, "would block", 14)                 \
    X(CLOSED, -20, "closed", 14)                     \
    X(NEWER_FORMAT, -21, "store format is newer", 9) \
    X(BUSY, -22, "taken by another process", 9)

typedef enum {
#define HPS_STATUS_ENUM(name, number, text, grpc) HPS_##name = (number),
    HPS_STATUS_LIST(HPS_STATUS_ENUM)
#undef HPS_STATUS_ENUM
} hps_status;

#define HPS_MUST_CHECK        __attribute__((warn_unused_result))
#define HPS_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Ignore a status on purpose. A comment at the call must say why. */
static inline void hps_ignore(hps_status status)
{
    (void)status;
}

/* Static text of a status, and its gRPC code (0 to 16). Both accept any number. Any thread. */
const char *hps_status_text(hps_status status);
int hps_status_grpc_code(hps_status status);
/* The status of a gRPC code; UNKNOWN if gRPC does not define the code. Any thread. */
static inline hps_status hps_status_of_grpc(int code)
{
    return code >= 0 && code <= 16 ? (hps_status)-code : HPS_UNKNOWN;
}

/* An error message for people, which names the field, the value and the limit. Owned by the caller
 * of the function that sets it. */
struct hps_error {
    hps_status status;
    char text[480];
};

/* Set `err` (may be NULL) and return `status`, so that a function can fail with one `return
 * hps_error_set(...)`. Long text is cut. Characters that are unsafe for a terminal or a log are
 * escaped (hps_text_plain). So err->text may be printed even if it contains names from clients or
 * files. */
hps_status hps_error_set(struct hps_error *err, hps_status status, const char *fmt, ...)
    HPS_PRINTF(3, 4);
/* Set err's status (`err` may be NULL) and put "prefix: " before its text. Returns `status`. */
hps_status hps_error_prefix(struct hps_error *err, hps_status status, const char *fmt, ...)
    HPS_PRINTF(3, 4);

#endif
