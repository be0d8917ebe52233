/* SPDX-License-Identifier: Apache-2.0
 *
 * A front end is a protocol for lookups: how a request is decoded and its reply encoded. The front
 * ends are hps.v1, KServe over gRPC and KServe over HTTP. Access, the pin of the version, the walk,
 * admission, deadlines, the slow log and the metrics are the same for all (service.h).
 *
 * A method of a front end is a struct hps_grpc_method (net/grpc.h) with the callbacks at the end of
 * this file.
 */
#ifndef HPS_SERVER_LOOKUP_FRONT_H
#define HPS_SERVER_LOOKUP_FRONT_H

#include "server/lookup/decode.h"
#include "server/lookup/encode.h"
#include "server/lookup/service.h"

/* Data that a front end keeps of a request until its reply. In the arena of the request. */
struct hps_lookup_asked;

enum hps_lookup_missing {
    HPS_LOOKUP_NO_MODEL,
    HPS_LOOKUP_NO_VERSION, /* the model exists, but not its version of that number or label */
    HPS_LOOKUP_NO_TABLE,
};

struct hps_lookup_front {
    /* Name of the list in the request that selects tables by position; for errors. */
    const char *positions;
    /* Decodes a request. `call` gives access to the headers. The caller passes *out_request zeroed,
     * and copies the keys to which it points; then data[size] is not used again.
     * thread  any
     * error   as hps_decode_lookup. If decode fails but has set the model in *out_request, access
     *         to the model and its existence are checked first; an error of these checks replaces
     *         the decoder's. */
    hps_status (*decode)(const struct hps_grpc_call *call, const uint8_t *data, size_t size,
                         const struct hps_decode_limits *limits, struct hps_arena *arena,
                         struct hps_lookup_request *out_request,
                         struct hps_lookup_asked **out_asked, struct hps_error *err);
    /* Reads the id for `tell` from the first bytes of an uncompressed message, so that an error
     * before decoding can name the request. The result is in the arena. May be NULL, and may return
     * NULL. Loop thread. */
    struct hps_lookup_asked *(*name)(const uint8_t *data, size_t size, struct hps_arena *arena);
    /* Checks, after the plan, that the reply can be encoded. Thread and errors as decode. May be
     * NULL. */
    hps_status (*check_answer)(const struct hps_lookup_asked *asked,
                               const struct hps_lookup *lookup, struct hps_error *err);
    /* May replace `err` by the protocol's own error for a missing model, version or table. May be
     * NULL. Any thread. */
    void (*not_found)(const struct hps_lookup_request *request, enum hps_lookup_missing missing,
                      struct hps_error *err);
    /* Upper bound of the bytes of the whole reply, before the lookup runs. Loop thread. */
    uint64_t (*bytes_max)(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup);
    /* Encodes the whole reply, as hps_encode_lookup. It may add headers to `call`. Loop thread of
     * `call`. */
    hps_status (*encode)(struct hps_grpc_call *call, const struct hps_lookup_asked *asked,
                         const struct hps_lookup *lookup, const struct hps_encode_explain *explain,
                         struct hps_block *rows, struct hps_block_pool *pool,
                         struct hps_arena *arena, struct hps_encoded *out_encoded,
                         struct hps_error *err);
    /* For a call with many requests: sends the error of one of them; the call continues. `asked`
     * was set by `name` or `decode`, or is NULL. Loop thread. */
    void (*tell)(struct hps_grpc_call *call, const struct hps_lookup_asked *asked,
                 const struct hps_error *err);
};

/* ---- callbacks of methods -------------------------------------------------------------------- */

/* For on_packed of a method with one request and one reply, with the callbacks below. */
void hps_lookup_call_packed(struct hps_lookup_service *service,
                            const struct hps_lookup_front *front, struct hps_grpc_call *call,
                            const struct hps_grpc_packed *packed);
void hps_lookup_call_room(struct hps_grpc_call *call);   /* on_room */
void hps_lookup_call_closed(struct hps_grpc_call *call); /* on_close */
/* on_undelivered, also of streams: counts the lookup, unless the access rules denied the call. */
void hps_lookup_call_undelivered(struct hps_grpc_call *call, int grpc_code);

/* For methods with many requests on one call. Requests are answered in their order, one at a time.
 * Each is a lookup by itself: if it fails, front->tell sends its error and the call continues. The
 * call ends when the client has sent its last request and all replies are sent. */
void hps_lookup_stream_packed(struct hps_lookup_service *service,
                              const struct hps_lookup_front *front, struct hps_grpc_call *call,
                              const struct hps_grpc_packed *packed);
void hps_lookup_stream_half_close(struct hps_grpc_call *call); /* on_half_close */
void hps_lookup_stream_room(struct hps_grpc_call *call);       /* on_room */
void hps_lookup_stream_drained(struct hps_grpc_call *call);    /* on_drained */
void hps_lookup_stream_closed(struct hps_grpc_call *call);     /* on_close */

#endif
