/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of a server, which do not change once connections exist, and its HTTP/1.1 routes. A
 * path is split into segments before it is percent-decoded. A segment that could be mistaken for
 * several segments or for none is refused. So no service receives a segment that is "." or "..", or
 * contains '/' or NUL. Loop thread of the connection.
 */
#include "net/grpc_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/heap.h"
#include "base/text.h"

enum { PATH_BYTES_MAX = 2048, ALLOW_BYTES = 64 };

struct path {
    unsigned n;
    struct grpc_segment segments[HPS_HTTP_SEGMENTS_MAX + 1]; /* 1 more, to detect longer paths */
    char bytes[PATH_BYTES_MAX];
};

/* ---- patterns -------------------------------------------------------------------------------- */

/* Reads the segment that begins with the '/' at *at, and moves *at to its end. False: no more
 * segments. */
static bool next_segment(const char **at, struct grpc_segment *out)
{
    if (**at != '/') {
        HPS_ASSERT(**at == '\0');
        return false;
    }
    size_t size = strcspn(*at + 1, "/");
    *out = (struct grpc_segment){.text = *at + 1, .size = size};
    *at += 1 + size;
    return true;
}

static bool is_open(const struct grpc_segment *segment)
{
    return segment->size == 2 && memcmp(segment->text, "{}", 2) == 0;
}

static bool is_literal(const struct grpc_route *route, unsigned i)
{
    return (route->literals & 1u << (31 - i)) != 0;
}

static void cut_pattern(const char *pattern, struct grpc_route *route)
{
    struct grpc_segment segment;

    while (next_segment(&pattern, &segment)) {
        unsigned i = route->n_segments++;
        HPS_ASSERT(i < HPS_HTTP_SEGMENTS_MAX && segment.size > 0);
        route->segments[i] = segment;
        route->literals |= is_open(&segment) ? 0 : 1u << (31 - i);
    }
    HPS_ASSERT(route->n_segments > 0);
}

hps_status hps_grpc_server_add_http(struct hps_grpc_server *server,
                                    const struct hps_http_route *routes, unsigned n_routes,
                                    void *ctx, uint32_t listener_mask)
{
    unsigned n = server->n_routes + n_routes;
    struct grpc_route *grown = hps_realloc(server->routes, n * sizeof *grown);

    if (grown == NULL) {
        return HPS_NO_MEMORY;
    }
    server->routes = grown;
    for (unsigned i = 0; i < n_routes; i++) {
        const struct hps_http_route *route = &routes[i];
        const struct hps_grpc_method *method = &route->method;
        HPS_ASSERT(strcmp(method->path, route->pattern) == 0);
        HPS_ASSERT((method->on_message == NULL) == (method->on_packed != NULL));
        HPS_ASSERT(!method->client_streaming);
        struct grpc_route *added = &grown[server->n_routes++];
        *added = (struct grpc_route){.entry = {.ctx = ctx,
                                               .method = method,
                                               .path_size = strlen(method->path),
                                               .listener_mask = listener_mask},
                                     .verb = route->verb};
        cut_pattern(route->pattern, added);
    }
    return HPS_OK;
}

/* ---- paths ----------------------------------------------------------------------------------- */

/* Decodes one segment into the buffer `to`. Returns NULL, or a text about the error. */
static const char *decode(const struct grpc_segment *raw, char *to, struct grpc_segment *out)
{
    size_t size = 0;

    for (size_t i = 0; i < raw->size; i++) {
        char c = raw->text[i];
        if (c == '%') {
            int high = i + 2 < raw->size ? hps_text_hex(raw->text[i + 1]) : -1;
            int low = i + 2 < raw->size ? hps_text_hex(raw->text[i + 2]) : -1;
            if (high < 0 || low < 0) {
                return "'%' is followed by two hexadecimal digits";
            }
            c = (char)(high << 4 | low);
            i += 2;
        }
        if (c == '\0' || c == '/') {
            return "no segment has a '/' or a NUL in it";
        }
        to[size++] = c;
    }
    if ((size == 1 && to[0] == '.') || (size == 2 && memcmp(to, "..", 2) == 0)) {
        return "no segment is \".\" or \"..\"";
    }
    *out = (struct grpc_segment){.text = to, .size = size};
    return NULL;
}

static const char *parse(const char *text, size_t size, struct path *path)
{
    const char *at = text;
    struct grpc_segment raw;
    size_t used = 0;

    path->n = 0;
    if (size > sizeof path->bytes) {
        return "it is too long";
    }
    if (strlen(text) != size || *text != '/') {
        return "it begins with a '/'";
    }
    while (path->n <= HPS_HTTP_SEGMENTS_MAX && next_segment(&at, &raw)) {
        struct grpc_segment *segment = &path->segments[path->n++];
        const char *why = decode(&raw, path->bytes + used, segment);
        if (why != NULL) {
            return why;
        }
        used += segment->size;
    }
    return NULL;
}

/* ---- matching -------------------------------------------------------------------------------- */

static bool fits(const struct grpc_route *route, const struct path *path)
{
    if (route->n_segments != path->n) {
        return false;
    }
    for (unsigned i = 0; i < path->n; i++) {
        const struct grpc_segment *mine = &path->segments[i];
        const struct grpc_segment *wanted = &route->segments[i];
        if (is_literal(route, i)
                ? mine->size != wanted->size || memcmp(mine->text, wanted->text, wanted->size) != 0
                : mine->size == 0) {
            return false;
        }
    }
    return true;
}

static bool has_verb(const struct grpc_route *route, const char *verb)
{
    return strcmp(route->verb, verb) == 0 ||
           (strcmp(verb, "HEAD") == 0 && strcmp(route->verb, "GET") == 0);
}

static void allow(char list[ALLOW_BYTES], const char *verb)
{
    size_t used = strlen(list);
    const char *const words[3] = {used > 0 ? ", " : "", verb,
                                  strcmp(verb, "GET") == 0 ? ", HEAD" : ""};

    if (used + strlen(words[0]) + strlen(verb) + strlen(words[2]) >= ALLOW_BYTES) {
        return;
    }
    for (unsigned i = 0; i < 3; i++) { /* gcc 12 warns that snprintf may truncate */
        size_t size = strlen(words[i]);
        memcpy(list + used, words[i], size + 1);
        used += size;
    }
}

/* Stores the segments that match "{}" as fields ":0", ":1" and so on. */
static hps_status keep_segments(struct hps_grpc_call *call, const struct grpc_route *route,
                                const struct path *path)
{
    char name[] = ":0";
    hps_status status = HPS_OK;

    for (unsigned i = 0; i < path->n && status == HPS_OK; i++) {
        if (!is_literal(route, i)) {
            status = grpc_fields_add(&call->headers->fields, name, 2, path->segments[i].text,
                                     path->segments[i].size);
            name[1]++;
        }
    }
    return status;
}

/* Returns a route whose pattern matches the path best, whatever its verb. *out_found: the route
 * with this pattern and the verb; NULL: no such route. allowed: the verbs of all such routes. */
static const struct grpc_route *choose(const struct hps_grpc_call *call, const struct path *path,
                                       const char *verb, const struct grpc_route **out_found,
                                       char allowed[ALLOW_BYTES])
{
    const struct hps_grpc_server *server = call->grpc_loop->server;
    const struct grpc_route *best = NULL;

    *out_found = NULL;
    for (unsigned i = 0; i < server->n_routes; i++) {
        const struct grpc_route *route = &server->routes[i];
        if ((route->entry.listener_mask & call->conn->listener_mask) == 0 || !fits(route, path) ||
            (best != NULL && route->literals < best->literals)) {
            continue;
        }
        if (best == NULL || route->literals > best->literals) {
            best = route;
            *out_found = NULL;
            allowed[0] = '\0';
        }
        allow(allowed, route->verb);
        if (has_verb(route, verb)) {
            *out_found = route;
        }
    }
    return best;
}

hps_status grpc_route_find(struct hps_grpc_call *call, enum grpc_route_found *out_found,
                           const char **out_why)
{
    const struct grpc_route *route = NULL;
    char allowed[ALLOW_BYTES] = "";
    struct path path;
    size_t size = 0;
    const char *verb = grpc_fields_get(&call->headers->fields, ":method", NULL);
    const char *text = grpc_fields_get(&call->headers->fields, ":path", &size);

    HPS_ASSERT(verb != NULL && text != NULL);
    *out_why = parse(text, size, &path);
    if (*out_why != NULL) {
        *out_found = GRPC_ROUTE_BAD_PATH;
        return HPS_OK;
    }
    const struct grpc_route *best = choose(call, &path, verb, &route, allowed);
    if (best == NULL) {
        *out_found = GRPC_ROUTE_NO_PATH;
        return HPS_OK;
    }
    if (route == NULL) {
        *out_found = GRPC_ROUTE_NO_VERB;
        return grpc_fields_add(&call->reply->fields, "allow", 5, allowed, strlen(allowed));
    }
    *out_found = GRPC_ROUTE_FOUND;
    call->entry = &route->entry;
    return keep_segments(call, route, &path);
}

/* ---- methods and kept headers ---------------------------------------------------------------- */

hps_status hps_grpc_server_add(struct hps_grpc_server *server,
                               const struct hps_grpc_service *service, uint32_t listener_mask)
{
    unsigned n = server->n_entries + service->n_methods;
    struct grpc_entry *entries = hps_realloc(server->entries, n * sizeof *entries);

    if (entries == NULL) {
        return HPS_NO_MEMORY;
    }
    server->entries = entries;
    for (unsigned i = 0; i < service->n_methods; i++) {
        const struct hps_grpc_method *method = &service->methods[i];
        HPS_ASSERT(method->path[0] == '/');
        HPS_ASSERT((method->on_message == NULL) == (method->on_packed != NULL));
        entries[server->n_entries++] = (struct grpc_entry){.ctx = service->ctx,
                                                           .method = method,
                                                           .path_size = strlen(method->path),
                                                           .listener_mask = listener_mask};
    }
    return HPS_OK;
}

const struct grpc_entry *grpc_server_find(const struct hps_grpc_server *server, const char *path,
                                          size_t path_size, uint32_t listener_mask)
{
    for (unsigned i = 0; i < server->n_entries; i++) {
        const struct grpc_entry *entry = &server->entries[i];
        if (entry->path_size == path_size && (entry->listener_mask & listener_mask) != 0 &&
            memcmp(entry->method->path, path, path_size) == 0) {
            return entry;
        }
    }
    return NULL;
}

void hps_grpc_server_keep(struct hps_grpc_server *server, const char *const *names)
{
    server->kept_names = names;
}

bool grpc_server_keeps(const struct hps_grpc_server *server, const char *name, size_t name_size)
{
    for (const char *const *at = server->kept_names; at != NULL && *at != NULL; at++) {
        if (strlen(*at) == name_size && memcmp(*at, name, name_size) == 0) {
            return true;
        }
    }
    return false;
}
