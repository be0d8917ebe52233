/* SPDX-License-Identifier: Apache-2.0
 *
 * The connection, the head of an answer, and its body. Thread of the loop.
 */
#include "client/http.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/heap.h"
#include "net/conn.h"
#include "net/tls.h"

enum { HEAD_BYTES_MAX = 16 * 1024, READ_BYTES = 64 * 1024, DIGITS_MAX = 15 };

struct hps_http_client {
    char *address;
    struct hps_tls *tls;
    struct hps_loop *loop;
    struct hps_conn *conn; /* NULL: the next request makes one */
    bool connected;
    struct hps_timer timer;
    /* The request under way. */
    const uint8_t *request; /* NULL: none */
    size_t size, sent;
    hps_http_done_fn done;
    void *ctx;
    /* Its answer. */
    struct hps_buf in;
    size_t head_size; /* 0: the head is not whole */
    size_t body_size;
    size_t json_size;
    unsigned status;
    bool closes; /* the server ends the connection behind it */
};

static void drop(struct hps_http_client *client)
{
    hps_conn_free(client->conn);
    client->conn = NULL;
    client->connected = false;
}

/* The request is over; `answer` or `err`. */
static void finish(struct hps_http_client *client, const struct hps_http_answer *answer,
                   const struct hps_error *err)
{
    HPS_ASSERT(client->request != NULL);
    hps_timer_stop(&client->timer);
    client->request = NULL;
    if (answer == NULL || client->closes) {
        drop(client);
    }
    client->done(client->ctx, answer, err);
}

static void fail(struct hps_http_client *client, hps_status status, const char *what)
{
    struct hps_error err = {0};

    hps_ignore(hps_error_set(&err, status, "%s: %s", client->address, what));
    finish(client, NULL, &err);
}

/* ---- the head of an answer ------------------------------------------------------------------- */

/* False: not a number that can be. */
static bool read_size(const char *text, size_t size, size_t *out)
{
    size_t value = 0;

    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9' || size > DIGITS_MAX) {
            return false;
        }
        value = value * 10 + (size_t)(text[i] - '0');
    }
    *out = value;
    return size > 0;
}

/* The value of a line, if it is of that field. */
static const char *field_of(const char *line, size_t size, const char *name, size_t *out_size)
{
    size_t n = strlen(name);

    if (size <= n || line[n] != ':' || strncasecmp(line, name, n) != 0) {
        return NULL;
    }
    for (n++; n < size && line[n] == ' '; n++) {
    }
    *out_size = size - n;
    return line + n;
}

/* One field. False: it cannot be had. */
static bool take_field(struct hps_http_client *client, const char *line, size_t size)
{
    size_t n = 0;
    const char *value = field_of(line, size, "content-length", &n);

    if (value != NULL) {
        return client->body_size == SIZE_MAX && read_size(value, n, &client->body_size);
    }
    value = field_of(line, size, "inference-header-content-length", &n);
    if (value != NULL) {
        return read_size(value, n, &client->json_size);
    }
    value = field_of(line, size, "connection", &n);
    if (value != NULL) {
        client->closes = n == strlen("close") && strncasecmp(value, "close", n) == 0;
    }
    return field_of(line, size, "transfer-encoding", &n) == NULL;
}

/* The head is whole: client->in.data[0, head_size), which ends with an empty line. */
static bool take_head(struct hps_http_client *client)
{
    static const char version[] = "HTTP/1.1 ";
    const char *at = (const char *)client->in.data;
    const char *end = at + client->head_size - 2;
    size_t status = 0;

    client->body_size = SIZE_MAX;
    client->json_size = SIZE_MAX;
    client->closes = false;
    if (client->head_size < sizeof(version) + 5 || memcmp(at, version, sizeof(version) - 1) != 0 ||
        !read_size(at + sizeof(version) - 1, 3, &status)) {
        return false;
    }
    client->status = (unsigned)status;
    while (at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        size_t size = (size_t)(line_end - at);
        if (at != (const char *)client->in.data &&
            !take_field(client, at, size > 0 ? size - 1 : 0)) {
            return false;
        }
        at = line_end + 1;
    }
    if (client->json_size == SIZE_MAX) {
        client->json_size = client->body_size;
    }
    return client->body_size != SIZE_MAX && client->json_size <= client->body_size &&
           client->body_size <= client->in.size_max - client->head_size;
}

/* Look for the end of the head. False: it can be none, and the request has failed. */
static bool find_head(struct hps_http_client *client)
{
    const uint8_t *end = memmem(client->in.data, client->in.size, "\r\n\r\n", 4);

    if (end != NULL) {
        client->head_size = (size_t)(end - client->in.data) + 4;
    }
    if (client->head_size > HEAD_BYTES_MAX || (end == NULL && client->in.size > HEAD_BYTES_MAX) ||
        (end != NULL && !take_head(client))) {
        fail(client, HPS_DATA_LOSS, "the answer is none of HTTP/1.1 with a length within bounds");
        return false;
    }
    return true;
}

/* ---- the connection -------------------------------------------------------------------------- */

/* Not all: AGAIN. */
static hps_status send_rest(struct hps_http_client *client)
{
    hps_status status = HPS_OK;

    while (client->sent < client->size && status == HPS_OK) {
        struct iovec piece = {(void *)(uintptr_t)(client->request + client->sent),
                              client->size - client->sent};
        size_t n = 0;
        status = hps_conn_writev(client->conn, &piece, 1, &n);
        client->sent += status == HPS_OK ? n : 0;
    }
    return status;
}

/* True: the answer is whole. */
static bool is_whole(const struct hps_http_client *client)
{
    return client->head_size > 0 && client->in.size >= client->head_size + client->body_size;
}

/* AGAIN: not whole yet; what else went wrong has been said, and the request is over. */
static hps_status receive(struct hps_http_client *client)
{
    while (!is_whole(client)) {
        size_t room = client->head_size == 0
                          ? READ_BYTES
                          : client->head_size + client->body_size - client->in.size;
        size_t n = 0;
        hps_status status = hps_buf_reserve(&client->in, room);
        if (status != HPS_OK) {
            fail(client, HPS_NO_MEMORY, "no memory for the answer");
            return status;
        }
        status = hps_conn_read(client->conn, client->in.data + client->in.size, room, &n);
        if (status == HPS_AGAIN) {
            return status;
        }
        if (status != HPS_OK) {
            fail(client, HPS_UNAVAILABLE, "the connection ended before the answer");
            return status;
        }
        client->in.size += n;
        if (client->head_size == 0 && !find_head(client)) {
            return HPS_DATA_LOSS;
        }
    }
    return HPS_OK;
}

static void answered(struct hps_http_client *client)
{
    const struct hps_http_answer answer = {.status = client->status,
                                           .body = client->in.data + client->head_size,
                                           .size = client->body_size,
                                           .json_size = client->json_size};

    if (client->in.size > client->head_size + client->body_size) {
        fail(client, HPS_DATA_LOSS, "there are bytes behind the answer");
        return;
    }
    finish(client, &answer, NULL);
}

static void want(struct hps_http_client *client)
{
    unsigned events = HPS_LOOP_READ | (client->sent < client->size ? HPS_LOOP_WRITE : 0U);

    if (hps_conn_want(client->conn, events) != HPS_OK) {
        fail(client, HPS_NO_MEMORY, "no memory for the connection");
    }
}

static void on_ready(void *ctx, unsigned events)
{
    struct hps_http_client *client = ctx;

    (void)events;
    if (client->request == NULL) { /* nobody asked: the server ends what is idle */
        drop(client);
        return;
    }
    if (!client->connected) {
        struct hps_error err = {0};
        hps_status status = hps_conn_handshake(client->conn, &err);
        if (status == HPS_AGAIN) {
            return;
        }
        if (status != HPS_OK) {
            finish(client, NULL, &err);
            return;
        }
        client->connected = true;
    }
    hps_status status = send_rest(client);
    if (status != HPS_OK && status != HPS_AGAIN) {
        fail(client, HPS_UNAVAILABLE, "the connection ended before the request was sent");
        return;
    }
    status = receive(client);
    if (status == HPS_OK) {
        answered(client);
    } else if (status == HPS_AGAIN) {
        want(client);
    }
}

static void on_deadline(void *ctx)
{
    fail(ctx, HPS_DEADLINE, "no answer within the time-out");
}

/* ---- life ------------------------------------------------------------------------------------ */

hps_status hps_http_client_new(const char *address, struct hps_tls *tls, struct hps_loop *loop,
                               size_t answer_bytes_max, struct hps_http_client **out_client)
{
    struct hps_http_client *client = hps_calloc(1, sizeof(*client));
    char *copy = hps_strdup(address);

    if (client == NULL || copy == NULL) {
        hps_free(client);
        hps_free(copy);
        return HPS_NO_MEMORY;
    }
    client->address = copy;
    client->tls = tls != NULL ? hps_tls_ref(tls) : NULL;
    client->loop = loop;
    hps_timer_init(&client->timer, on_deadline, client);
    hps_buf_init(&client->in, answer_bytes_max + HEAD_BYTES_MAX + READ_BYTES);
    *out_client = client;
    return HPS_OK;
}

void hps_http_client_free(struct hps_http_client *client)
{
    if (client != NULL) {
        hps_timer_stop(&client->timer);
        drop(client);
        hps_buf_fini(&client->in);
        hps_tls_unref(client->tls);
        hps_free(client->address);
        hps_free(client);
    }
}

static hps_status connect_to(struct hps_http_client *client, struct hps_error *err)
{
    hps_status status = hps_conn_connect(client->address, client->tls, &client->conn, err);

    if (status == HPS_OK) {
        status = hps_conn_attach(client->conn, client->loop, 0, on_ready, client);
        if (status != HPS_OK) {
            drop(client);
            return hps_error_set(err, status, "%s: %s", client->address, hps_status_text(status));
        }
    }
    return status;
}

hps_status hps_http_client_ask(struct hps_http_client *client, const void *request, size_t size,
                               uint64_t deadline_us, hps_http_done_fn done, void *ctx,
                               struct hps_error *err)
{
    HPS_ASSERT(client->request == NULL && size > 0);
    hps_status status = client->conn == NULL ? connect_to(client, err) : HPS_OK;

    if (status != HPS_OK) {
        return status;
    }
    client->request = request;
    client->size = size;
    client->sent = 0;
    client->done = done;
    client->ctx = ctx;
    client->head_size = 0;
    hps_buf_clear(&client->in);
    if (deadline_us != 0) {
        hps_timer_set(client->loop, &client->timer, deadline_us);
    }
    if (client->connected) {
        status = send_rest(client); /* of an ended connection on_ready finds out, too */
        status =
            hps_conn_want(client->conn, HPS_LOOP_READ | (status == HPS_OK ? 0U : HPS_LOOP_WRITE));
        if (status != HPS_OK) {
            client->request = NULL;
            hps_timer_stop(&client->timer);
            drop(client);
            return hps_error_set(err, status, "%s: %s", client->address, hps_status_text(status));
        }
    }
    return HPS_OK;
}
