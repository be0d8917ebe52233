/* SPDX-License-Identifier: Apache-2.0
 *
 * The protocols by which look-ups are asked for, and answered: hps.v1, and KServe's over gRPC and
 * HTTP. They differ in bytes alone. Who may ask, the version that is pinned, the walk, admission,
 * deadlines, the slow log and what is counted are the service's (service.h), the same for all.
 *
 * A method of a front end is a method of net/grpc.h whose callbacks are those below.
 */
#ifndef HPS_SERVER_LOOKUP_FRONT_H
#define HPS_SERVER_LOOKUP_FRONT_H

#include "server/lookup/decode.h"
#include "server/lookup/encode.h"
#include "server/lookup/service.h"

/* What a front end knows of a request beside what a look-up is; in the arena of the request. */
struct hps_lookup_asked;

enum hps_lookup_missing {
    HPS_LOOKUP_NO_MODEL,
    HPS_LOOKUP_NO_VERSION, /* of that number or label; the model is there */
    HPS_LOOKUP_NO_TABLE,
};

struct hps_lookup_front {
    /* The name of the list whose entry i is for table i of the model; for errors. */
    const char *positions;
    /* The bytes of a request to what it asks for. `call` has the headers. Of data[size] nothing is
     * needed once the keys that `out_request` points to are copied.
     * thread  any
     * error   as hps_decode_lookup. *out_request begins zeroed. If decode fails but sets the model
     *         and version, access and existence of these are checked first, and such an error wins.
     */
    hps_status (*decode)(const struct hps_grpc_call *call, const uint8_t *data, size_t size,
                         const struct hps_decode_limits *limits, struct hps_arena *arena,
                         struct hps_lookup_request *out_request,
                         struct hps_lookup_asked **out_asked, struct hps_error *err);
    /* For `tell`, if the request is refused before it is decoded: reads the id from the first bytes
     * of an uncompressed message, into the arena. May be NULL, and may return NULL. Loop thread. */
    struct hps_lookup_asked *(*name)(const uint8_t *data, size_t size, struct hps_arena *arena);
    /* The look-up is planned: may its answer be asked for? Thread, error: as decode. May be NULL.
     */
    hps_status (*check_answer)(const struct hps_lookup_asked *asked,
                               const struct hps_lookup *lookup, struct hps_error *err);
    /* Something was not found: `err` may be put in the protocol's words. May be NULL. Any thread.
     */
    void (*not_found)(const struct hps_lookup_request *request, enum hps_lookup_missing missing,
                      struct hps_error *err);
    /* Of the whole answer: an upper bound before the look-up has run. Loop thread. */
    uint64_t (*bytes_max)(const struct hps_lookup_asked *asked, const struct hps_lookup *lookup);
    /* The whole answer. Loop thread of `call`, whose headers it may add to. As hps_encode_lookup.
     */
    hps_status (*encode)(struct hps_grpc_call *call, const struct hps_lookup_asked *asked,
                         const struct hps_lookup *lookup, const struct hps_encode_explain *explain,
                         struct hps_block *rows, struct hps_block_pool *pool,
                         struct hps_arena *arena, struct hps_encoded *out_encoded,
                         struct hps_error *err);
    /* Of a call that carries many requests: say what was wrong with one, which is all that ends.
     * `asked` was set by `name` or `decode`, or is NULL. Loop thread. */
    void (*tell)(struct hps_grpc_call *call, const struct hps_lookup_asked *asked,
                 const struct hps_error *err);
};

/* ---- callbacks of methods -------------------------------------------------------------------- */

/* A request has come, and is answered once: for on_packed, with the callbacks below. */
void hps_lookup_call_packed(struct hps_lookup_service *service,
                            const struct hps_lookup_front *front, struct hps_grpc_call *call,
                            const struct hps_grpc_packed *packed);
void hps_lookup_call_room(struct hps_grpc_call *call);   /* on_room */
void hps_lookup_call_closed(struct hps_grpc_call *call); /* on_close */
/* on_undelivered, also of streams: count the lookup, unless the access rules denied the call. */
void hps_lookup_call_undelivered(struct hps_grpc_call *call, int grpc_code);

/* Requests come one after the other, and are answered in their order; each is a look-up of its own,
 * and may fail by itself (front->tell). The call ends when the client has sent its last, and has
 * all answers. */
void hps_lookup_stream_packed(struct hps_lookup_service *service,
                              const struct hps_lookup_front *front, struct hps_grpc_call *call,
                              const struct hps_grpc_packed *packed);
void hps_lookup_stream_half_close(struct hps_grpc_call *call); /* on_half_close */
void hps_lookup_stream_room(struct hps_grpc_call *call);       /* on_room */
void hps_lookup_stream_drained(struct hps_grpc_call *call);    /* on_drained */
void hps_lookup_stream_closed(struct hps_grpc_call *call);     /* on_close */

#endif
