/* SPDX-License-Identifier: Apache-2.0
 *
 * ModelInfer of KServe v2 as a lookup, in three steps:
 *
 *     infer_grpc.c, infer_http.c    bytes of a request -> struct kserve_infer
 *     infer_view.c                  struct kserve_infer -> struct hps_lookup_request
 *     answer_grpc.c, answer_http.c  lookup that is done -> bytes of the reply
 *
 * A model has two views. `dlrm` is the interface of NVIDIA's HPS: KEYS and NUMKEYS, tables by
 * position, one flat OUTPUT0. Each row of NUMKEYS is a sample. A reply has one sample after the
 * other, and in each sample one table after the other. `dlrm.tables` has an input and an output for
 * each table.
 *
 * All data here belongs to one request. It is in the request's arena or points into its message.
 * One thread at a time.
 */
#ifndef HPS_SERVER_KSERVE_INFER_H
#define HPS_SERVER_KSERVE_INFER_H

#include "base/arena.h"
#include "server/kserve/names.h"
#include "server/lookup/decode.h"
#include "server/lookup/encode.h"

/* Limits on parts of a request that do not depend on the tables. */
enum {
    KSERVE_DIMS_MAX = 8,          /* dimensions of a shape */
    KSERVE_PARAMETERS_MAX = 64,   /* of a request, a tensor or an output */
    KSERVE_VALUES_MAX = INT32_MAX /* of a tensor: the product of its shape */
};
/* Limit on the rows and counts of a reply with several samples, because the loop thread copies the
 * rows. */
#define KSERVE_SAMPLES_BYTES_MAX (UINT64_C(32) << 20)

/* Limit on the inputs of a request, and on its outputs. A table has three inputs (keys, offsets,
 * weights), and a few inputs belong to the whole request. */
static inline uint64_t kserve_tensors_max(const struct hps_decode_limits *limits)
{
    return (uint64_t)limits->tables_max * 3 + 8;
}

enum kserve_datatype {
    KSERVE_UNKNOWN, /* a datatype that hpsd does not support */
    KSERVE_UINT8,
    KSERVE_INT32,
    KSERVE_INT64,
    KSERVE_FP16,
    KSERVE_BF16,
    KSERVE_FP32,
    KSERVE_DATATYPES
};
/* "INT64"; KSERVE_UNKNOWN: "?". */
const char *kserve_datatype_name(enum kserve_datatype datatype);
enum kserve_datatype kserve_datatype_of(const char *name, size_t size);
size_t kserve_datatype_bytes(enum kserve_datatype datatype); /* of one value; KSERVE_UNKNOWN: 0 */

/* An input. The reader of the request has checked that `size` is product(shape) * bytes of the
 * datatype. */
struct kserve_tensor {
    struct kserve_text name;
    enum kserve_datatype datatype; /* not KSERVE_UNKNOWN */
    unsigned n_dims;
    int64_t shape[KSERVE_DIMS_MAX]; /* each 0 or more; the product is below 2^31 */
    const uint8_t *data;            /* little-endian, any alignment; NULL if size is 0 */
    size_t size;
};

/* A requested output. */
struct kserve_output {
    struct kserve_text name;
    bool binary; /* HTTP: values follow the JSON; gRPC: always true */
};

/* A request of either transport. */
struct kserve_infer {
    struct kserve_text model;         /* ends in ".tables" for that view */
    struct kserve_text model_version; /* a number, a label, or empty for the active version */
    struct kserve_text id;            /* returned in the reply */
    struct kserve_tensor *inputs;     /* [n_inputs], names are unique */
    uint32_t n_inputs;
    /* [n_outputs], names are unique; none: all outputs of the view, except STATUS. */
    struct kserve_output *outputs;
    uint32_t n_outputs;
    bool binary; /* HTTP: default of outputs[].binary (binary_data_output) */

    /* Parameters that hpsd uses; others are ignored or rejected (kserve_take_parameter). */
    uint64_t timeout_us;            /* from the arrival of the request; 0: none */
    struct kserve_text miss_policy; /* hps_miss_policy: exact, wait, memory_only, threshold */
    int64_t wait_us_max;            /* hps_max_wait_us; -1: not set */
    struct kserve_text output_type; /* hps_output_type: FP32, FP16, BF16 */
    struct kserve_text pooling;     /* hps_pooling: sum, mean, mean_by_count, sqrtn */
};

/* ---- tensor.c -------------------------------------------------------------------------------- */

struct kserve_parameter {
    struct kserve_text name;
    enum { KSERVE_PARAMETER_TEXT, KSERVE_PARAMETER_NUMBER, KSERVE_PARAMETER_OTHER } type;
    struct kserve_text text; /* for KSERVE_PARAMETER_TEXT */
    int64_t number;          /* for KSERVE_PARAMETER_NUMBER: within int64 */
};
/* Stores a parameter of the request in `infer`. Parameters that hpsd does not use (`sequence_*`,
 * `priority`, unknown names) are ignored. Texts are not checked here, but by kserve_view.
 *
 * error   INVALID: an unknown `hps_*`; `triton_*`, which is reserved, except
 *         triton_enable_empty_final_response; a wrong type; a number below 0. The text names the
 *         parameter. */
hps_status kserve_take_parameter(struct kserve_infer *infer,
                                 const struct kserve_parameter *parameter, struct hps_error *err)
    HPS_MUST_CHECK;

/* Checks a parameter of an input or output; `tensor` is its name. No such parameter has an effect,
 * except the parameters that place values in an HTTP body, which the caller handles.
 *
 * error   UNIMPLEMENTED: shared memory, classification; INVALID: `hps_*` */
enum kserve_side { KSERVE_INPUT, KSERVE_OUTPUT };
hps_status kserve_check_parameter(enum kserve_side side, struct kserve_text tensor,
                                  struct kserve_text parameter, struct hps_error *err)
    HPS_MUST_CHECK;

/* Bytes of an input of that datatype and shape; ignores its `data` and `size`.
 * error   INVALID: the shape, or an unsupported datatype; the text names the input */
hps_status kserve_tensor_bytes(const struct kserve_tensor *tensor, size_t *out_size,
                               struct hps_error *err) HPS_MUST_CHECK;

/* Checks the inputs and outputs after a request is read: the size of each input matches its shape,
 * and names are not empty and unique.
 *
 * error   INVALID: the text names the tensor and both sizes; EXHAUSTED: the arena is full */
hps_status kserve_check_tensors(const struct kserve_infer *infer, struct hps_arena *arena,
                                struct hps_error *err) HPS_MUST_CHECK;

/* ---- infer_grpc.c, infer_http.c -------------------------------------------------------------- */

/* Sets model, version and id of a ModelInferRequest from its first 64 fields. Clients send them
 * before the tensors. A field that cannot be read stays unset. */
void kserve_infer_grpc_names(const uint8_t *data, size_t size, struct kserve_infer *infer);
/* Decodes ModelInferRequest in place, with limits. Values of `contents` are copied to the arena in
 * the form of raw_input_contents. On failure *out has model, version and id.
 * error   INVALID: the text names the field; EXHAUSTED: the arena is full */
hps_status kserve_infer_grpc(const uint8_t *data, size_t size,
                             const struct hps_decode_limits *limits, struct hps_arena *arena,
                             struct kserve_infer *out, struct hps_error *err) HPS_MUST_CHECK;

/* Decodes the body of POST /v2/models/M[/versions/V]/infer. The caller sets model and
 * model_version.
 *
 * unit    json_size: bytes of JSON at the front (Inference-Header-Content-Length), followed by
 *         tensors; SIZE_MAX: no such header, all is JSON
 * error   as kserve_infer_grpc; also NO_MEMORY */
hps_status kserve_infer_http(const uint8_t *data, size_t size, size_t json_size,
                             const struct hps_decode_limits *limits, struct hps_arena *arena,
                             struct kserve_infer *out, struct hps_error *err) HPS_MUST_CHECK;

/* ---- infer_view.c ---------------------------------------------------------------------------- */

/* An output of a reply. */
enum kserve_output_kind {
    KSERVE_OUTPUT_FLAT,   /* OUTPUT0: rows of all parts, one dimension */
    KSERVE_OUTPUT_TABLE,  /* rows of part `part`, [n_rows, dim] */
    KSERVE_OUTPUT_STATUS, /* STATUS: UINT8, one for each key, in the order of the parts */
    KSERVE_OUTPUT_KINDS
};

struct kserve_answer_output {
    struct kserve_text name;
    enum kserve_output_kind kind;
    uint32_t part;
    bool binary;
};

/* The data of a request that its reply needs. */
struct kserve_answer {
    struct kserve_text model; /* as in the request */
    struct kserve_text id;
    bool by_position;                     /* the view of KEYS and NUMKEYS */
    uint32_t n_samples;                   /* by position: 1 or more */
    const uint32_t *counts;               /* [n_samples][parts] numbers of keys; NULL: one sample */
    struct kserve_answer_output *outputs; /* [n_outputs] in the order of the request */
    uint32_t n_outputs;
};

/* Makes the lookup of a request, and the data that its reply needs.
 * error   INVALID: the text names tensor, value and limit; EXHAUSTED */
hps_status kserve_view(const struct kserve_infer *infer, const struct hps_decode_limits *limits,
                       struct hps_arena *arena, struct hps_lookup_request *out_request,
                       struct kserve_answer *out_answer, struct hps_error *err) HPS_MUST_CHECK;
/* Sets only model and version, for a request that is rejected. They stay empty if the version is
 * invalid. */
void kserve_view_names(const struct kserve_infer *infer, struct hps_lookup_request *out_request);
/* The values of an output, after the lookup.
 *
 * shape   shape[n_dims]; pieces: bytes in the order of the output, `size` together. They point into
 *         the rows or, for STATUS, into the arena. */
struct kserve_values {
    enum kserve_datatype datatype;
    unsigned n_dims;
    int64_t shape[2];
    const struct kserve_text *pieces; /* [n_pieces], owner: the arena */
    uint32_t n_pieces;
    uint64_t size;
};
/* Finds the values of each output of a reply, and the number of all pieces.
 *
 * shape   *out_values [n_outputs], owner: the arena
 * owner   *out_rows: the block of the rows, with a reference for the caller. It is `rows`, the
 *         block of the lookup (may be NULL), or a copy in the order of the samples.
 * error   EXHAUSTED: the arena is full; NO_MEMORY */
hps_status kserve_values_of_all(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                                struct hps_block *rows, struct hps_block_pool *pool,
                                struct hps_arena *arena, struct kserve_values **out_values,
                                size_t *out_pieces, struct hps_block **out_rows) HPS_MUST_CHECK;
/* Extra memory of an answer with several samples: the copy of the rows, and the counts. */
uint64_t kserve_samples_bytes(const struct kserve_answer *answer, const struct hps_lookup *lookup);
/* Upper bound of the bytes of an output; valid once the lookup is planned. */
uint64_t kserve_values_bytes_max(const struct hps_lookup *lookup,
                                 const struct kserve_answer_output *output);
/* NumSample of a reply: the number of keys divided by the number of tables of the version, rounded
 * down. HPS divides by the largest sample that its configuration allows, so its figure is wrong for
 * smaller requests. */
int64_t kserve_num_sample(const struct hps_lookup *lookup);

/* ---- answer_grpc.c, answer_http.c ------------------------------------------------------------ */

/* Encodes ModelInferResponse, as hps_encode_lookup. Rows are slices of `rows` (lookup->block),
 * other bytes of a block of `pool`. kserve_answer_grpc_bytes_max is an upper bound before the
 * lookup runs. */
uint64_t kserve_answer_grpc_bytes_max(const struct kserve_answer *answer,
                                      const struct hps_lookup *lookup);
hps_status kserve_answer_grpc(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                              struct hps_block *rows, struct hps_block_pool *pool,
                              struct hps_arena *arena, struct hps_encoded *out_encoded)
    HPS_MUST_CHECK;

/* Encodes the body of the reply: JSON, followed by the outputs that are binary. Rows in JSON are
 * the shortest numbers that read back as the same floats. This takes long for many rows, so limit
 * them before a loop thread runs it.
 *
 * unit    *out_json_size: bytes of JSON at the front; then come slices of `rows`, and STATUS
 * error   INVALID: the named output has values that JSON cannot express (NaN, infinities, FP16,
 *         BF16); NO_MEMORY, EXHAUSTED */
uint64_t kserve_answer_http_bytes_max(const struct kserve_answer *answer,
                                      const struct hps_lookup *lookup);
hps_status kserve_answer_http(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                              struct hps_block *rows, struct hps_block_pool *pool,
                              struct hps_arena *arena, struct hps_encoded *out_encoded,
                              size_t *out_json_size, struct hps_error *err) HPS_MUST_CHECK;
/* Checks before the lookup whether rows of that type can be returned in the requested form.
 * error   INVALID: as above */
hps_status kserve_answer_http_check(const struct kserve_answer *answer, enum hps_dtype output,
                                    struct hps_error *err) HPS_MUST_CHECK;

#endif
