/* SPDX-License-Identifier: Apache-2.0
 *
 * A front end is a protocol for lookups: it decodes a request and encodes its reply. The front ends
 * are hps.v1, KServe over gRPC and KServe over HTTP. The lookup service (service.h) does the rest
 * for all of them: it checks access, pins the version, reads the tiers, and handles admission,
 * deadlines, the slow log and metrics.
 *
 * Each method of a front end is a struct hps_grpc_method (net/grpc.h), whose callbacks are the
 * functions at the end of this file.
 */
#ifndef HPS_SERVER_LOOKUP_FRONT_H
#define HPS_SERVER_LOOKUP_FRONT_H

#include "server/lookup/decode.h"
#include "server/lookup/encode.h"
#include "server/lookup/service.h"

/* Data of a request that the front end needs for the reply. It is in the arena of the request. */
struct hps_lookup_asked;

enum hps_lookup_missing {
    HPS_LOOKUP_NO_MODEL,
    HPS_LOOKUP_NO_VERSION, /* the model exists, but not its version of that number or label */
    HPS_LOOKUP_NO_TABLE,
};

struct hps_lookup_front {
    /* Name of the request's field that selects tables by position. It is used in error texts. */
    const char *positions;
    /* Decodes the request in data[size]. The callback may read the headers of `call`. The caller
     * passes *out_request zeroed. *out_request may point into data[size], which the caller keeps as
     * long as it uses *out_request. *out_asked is used longer: it must not point into data[size].
     * thread  any
     * error   as hps_decode_lookup. After an error the front end may have set the model in
     *         *out_request. The service then first checks that the caller may use the model and
     *         that the model exists; if not, the client gets the error of this check. */
    hps_status (*decode)(const struct hps_grpc_call *call, const uint8_t *data, size_t size,
                         const struct hps_decode_limits *limits, struct hps_arena *arena,
                         struct hps_lookup_request *out_request,
                         struct hps_lookup_asked **out_asked, struct hps_error *err);
    /* How many bytes of a message of `size` bytes are JSON, which takes long to decode. The
     * callback may be NULL: none. Loop thread. */
    size_t (*json_bytes)(const struct hps_grpc_call *call, size_t size);
    /* Reads the id of the request from data[size], an uncompressed message, and keeps it for
     * `tell`, so that an error before decoding can name the request. The result is in the arena;
     * NULL: the request has no id, or the arena is full. The callback may be NULL. Loop thread. */
    struct hps_lookup_asked *(*name)(const uint8_t *data, size_t size, struct hps_arena *arena);
    /* Checks that the reply can be encoded. Called after the lookup was planned and before it runs.
     * The callback may be NULL. Any thread. Errors as `decode`. */
    hps_status (*check_answer)(const struct hps_lookup_asked *asked,
                               const struct hps_lookup *lookup, struct hps_error *err);
    /* *err has status NOT_FOUND. The callback may replace it by the protocol's own error for a
     * missing model, version or table. The callback may be NULL. Any thread. */
    void (*not_found)(const struct hps_lookup_request *request, enum hps_lookup_missing missing,
                      struct hps_error *err);
    /* Upper bound of the bytes of the whole reply to a planned lookup. Loop thread. */
    uint64_t (*bytes_max)(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup);
    /* The estimated time of `encode`, in nanoseconds: if it is long, a worker encodes the reply.
     * The callback may be NULL: little. Loop thread. */
    uint64_t (*encode_cost)(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup);
    /* Encodes the whole reply, as hps_encode_lookup. explain: NULL on a worker. After an error *err
     * may have no text. Any thread. */
    hps_status (*encode)(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup,
                         const struct hps_encode_explain *explain, struct hps_block *rows,
                         struct hps_block_pool *pool, struct hps_arena *arena,
                         struct hps_encoded *out_encoded, struct hps_error *err);
    /* Adds headers for an encoded reply to `call`. The callback may be NULL. Loop thread.
     * error   as hps_grpc_call_add_header */
    hps_status (*add_headers)(struct hps_grpc_call *call, const struct hps_encoded *encoded);
    /* Sends the error of one request of a call with many requests; the call continues. asked: the
     * result of `name` or `decode`, or NULL. The callback may be NULL if no call of the front end
     * has many requests. Loop thread. */
    void (*tell)(struct hps_grpc_call *call, const struct hps_lookup_asked *asked,
                 const struct hps_error *err);
};

/* ---- callbacks of methods -------------------------------------------------------------------- */

/* For a method with one request and one reply. The method's on_packed calls this function. Its
 * other callbacks are the next two functions. */
void hps_lookup_call_packed(struct hps_lookup_service *service,
                            const struct hps_lookup_front *front, struct hps_grpc_call *call,
                            const struct hps_grpc_packed *packed);
void hps_lookup_call_closed(struct hps_grpc_call *call); /* on_close */
/* on_undelivered of all lookup methods: the call ended before the method got a message. Counts the
 * call as a lookup, unless the access rules denied the call. */
void hps_lookup_call_undelivered(struct hps_grpc_call *call, int grpc_code);

/* For a method with many requests on one call. The method's on_packed calls this function. Its
 * other callbacks are the functions below and hps_lookup_call_undelivered. Requests are processed
 * one after the other, in their order. If a request fails, front->tell sends its error, and the
 * call continues with the next one. The call ends when the client has sent its last request and all
 * replies are sent. */
void hps_lookup_stream_packed(struct hps_lookup_service *service,
                              const struct hps_lookup_front *front, struct hps_grpc_call *call,
                              const struct hps_grpc_packed *packed);
void hps_lookup_stream_half_close(struct hps_grpc_call *call); /* on_half_close */
void hps_lookup_stream_drained(struct hps_grpc_call *call);    /* on_drained */
void hps_lookup_stream_closed(struct hps_grpc_call *call);     /* on_close */

#endif
