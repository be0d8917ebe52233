/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of an HTTP/1.1 request: where it ends, its request line and its fields, cut in place.
 * No sockets here. Used by the thread that owns the bytes.
 */
#ifndef HPS_NET_HTTP1_HEAD_H
#define HPS_NET_HTTP1_HEAD_H

#include <stdbool.h>
#include <stddef.h>

struct hps_http1_line {
    const char *verb;
    const char *path; /* begins with '/', as sent, without the query */
    unsigned minor;   /* HTTP/1.`minor`: 0 or 1 */
};

struct hps_http1_field {
    char *name; /* in lower case; both NUL-terminated */
    size_t name_size;
    char *value; /* without blanks around it */
    size_t value_size;
};

/* The size of the head with its empty line, 0 if that has not come.
 *
 * unit    from: bytes that were looked at before, and had no end
 */
size_t hps_http1_head_end(const char *head, size_t size, size_t from);
/* Does each line of it end with CR LF, and is there no other CR or LF? Who takes requests behind a
 * proxy must see the same lines as that does. */
bool hps_http1_head_is_strict(const char *head, size_t size);
/* The line that begins at *at, without its end, which becomes a NUL; *at moves behind it. False:
 * there is none.
 *
 * shape   [*at, end): whole lines
 */
bool hps_http1_next_line(char **at, char *end, char **out_line, size_t *out_size);
/* "METHOD /path?query HTTP/1.x", NUL-terminated, cut in place; false: malformed. */
bool hps_http1_line_parse(char *text, struct hps_http1_line *out_line);
/* "Name: value" with a name of token characters, and nothing in the value that may be taken for the
 * end of the line: no control character but the tab. Folded lines are malformed, as RFC 9112 asks.
 * Cut in place; false: malformed.
 *
 * shape   text[size], with a NUL
 */
bool hps_http1_field_parse(char *text, size_t size, struct hps_http1_field *out_field);
/* "Not Found" */
const char *hps_http1_reason(unsigned status);

#endif
