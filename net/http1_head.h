/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that parse the head of an HTTP/1.1 request in place: they find its end, the request
 * line and the fields. Any thread; the caller owns the bytes.
 */
#ifndef HPS_NET_HTTP1_HEAD_H
#define HPS_NET_HTTP1_HEAD_H

#include <stdbool.h>
#include <stddef.h>

struct hps_http1_line {
    const char *verb;
    const char *path; /* begins with '/'; not percent-decoded; without the query */
    unsigned minor;   /* the x of HTTP/1.x: 0 or 1 */
};

struct hps_http1_field {
    char *name; /* in lower case; name and value are NUL-terminated */
    size_t name_size;
    char *value; /* without surrounding blanks */
    size_t value_size;
};

/* The size of the head, including the empty line at its end. 0: the head is not complete.
 *
 * unit    from: number of bytes at the front of `head` that an earlier call has searched; 0 in the
 *         first call
 */
size_t hps_http1_head_end(const char *head, size_t size, size_t from);
/* Whether every line ends with CR LF and there is no other CR or LF. If this is false, a proxy in
 * front of the server may have split the head into other lines. */
bool hps_http1_head_is_strict(const char *head, size_t size);
/* Returns the line that begins at *at, without its line end, and moves *at to the next line. A NUL
 * replaces the line end. False: no line is left.
 *
 * shape   [*at, end): complete lines
 */
bool hps_http1_next_line(char **at, char *end, char **out_line, size_t *out_size);
/* Parses "METHOD /path?query HTTP/1.x", NUL-terminated, in place. False: malformed. */
bool hps_http1_line_parse(char *text, struct hps_http1_line *out_line);
/* Parses "Name: value" in place. False: malformed. The name must consist of token characters. The
 * value may contain no control character except tab, so that no part of it can be taken for a line
 * end. Folded lines are malformed (RFC 9112).
 *
 * shape   text[size], followed by a NUL
 */
bool hps_http1_field_parse(char *text, size_t size, struct hps_http1_field *out_field);
/* The reason phrase of a status code: "Not Found" for 404. */
const char *hps_http1_reason(unsigned status);

#endif
