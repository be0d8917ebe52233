/* SPDX-License-Identifier: Apache-2.0
 *
 * W3C Trace Context (https://www.w3.org/TR/trace-context/). The trace id of a slow request lets an
 * operator find it in the traces of its callers. Any thread.
 */
#ifndef HPS_SERVER_OBSERVE_TRACE_H
#define HPS_SERVER_OBSERVE_TRACE_H

#include <stdbool.h>
#include <stddef.h>

enum { HPS_TRACE_ID_CHARS = 32 };

/* Copy the trace id, hex digits, from the value header[size] of a `traceparent` header. `header` is
 * not terminated by NUL; NULL: there is no such header. False: the header is missing or invalid,
 * and out_id is "". */
bool hps_trace_id(const char *header, size_t size, char out_id[HPS_TRACE_ID_CHARS + 1]);

#endif
