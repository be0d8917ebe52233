/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the head of an HTTP/1.1 request in place: its end, its request line and its fields. No
 * sockets here. Used by the thread that owns the bytes.
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
    char *name; /* in lower case; name and value are NUL-terminated */
    size_t name_size;
    char *value; /* without surrounding blanks */
    size_t value_size;
};

/* The size of the head including its empty line; 0: it is not complete.
 *
 * unit    from: bytes that an earlier call has searched without success
 */
size_t hps_http1_head_end(const char *head, size_t size, size_t from);
/* Whether every line ends with CR LF and there is no other CR or LF. A proxy in front of the server
 * must see the same lines. */
bool hps_http1_head_is_strict(const char *head, size_t size);
/* Returns the line at *at without its end, which becomes a NUL, and moves *at past it. False: there
 * is no line.
 *
 * shape   [*at, end): complete lines
 */
bool hps_http1_next_line(char **at, char *end, char **out_line, size_t *out_size);
/* Parses "METHOD /path?query HTTP/1.x", NUL-terminated, in place. False: malformed. */
bool hps_http1_line_parse(char *text, struct hps_http1_line *out_line);
/* Parses "Name: value" in place. False: malformed. The name consists of token characters. The value
 * has no control character but the tab, so nothing in it can pass for the end of the line. Folded
 * lines are malformed (RFC 9112).
 *
 * shape   text[size], with a NUL
 */
bool hps_http1_field_parse(char *text, size_t size, struct hps_http1_field *out_field);
/* "Not Found" */
const char *hps_http1_reason(unsigned status);

#endif
