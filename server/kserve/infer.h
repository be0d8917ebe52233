/* SPDX-License-Identifier: Apache-2.0
 *
 * ModelInfer of KServe v2 as a look-up, in three steps that share what is declared here:
 *
 *     infer_grpc.c, infer_http.c   the bytes of a request -> struct kserve_infer
 *     infer_view.c                 that -> struct hps_lookup_request, by the view it asks for
 *     answer_grpc.c, answer_http.c a look-up that is done -> the bytes of its answer
 *
 * A model has two views. `dlrm`, as NVIDIA's HPS showed it: KEYS and NUMKEYS, tables by their
 * position, one flat OUTPUT0. Each row of NUMKEYS is a sample. An answer has sample after sample,
 * and in each sample table after table. `dlrm.tables`: an input and an output for each table.
 *
 * Everything here belongs to one request, lives in its arena or points into its message, and is
 * used by one thread at a time.
 */
#ifndef HPS_SERVER_KSERVE_INFER_H
#define HPS_SERVER_KSERVE_INFER_H

#include "base/arena.h"
#include "server/kserve/names.h"
#include "server/lookup/decode.h"
#include "server/lookup/encode.h"

/* Bounds of what may stand beside the tables of a request. */
enum {
    KSERVE_DIMS_MAX = 8,          /* of a shape */
    KSERVE_PARAMETERS_MAX = 64,   /* of a request, a tensor or an output */
    KSERVE_VALUES_MAX = INT32_MAX /* of a tensor: the product of its shape */
};
/* Limit of the rows and counts of an answer with several samples: the loop thread copies the rows.
 */
#define KSERVE_SAMPLES_BYTES_MAX (UINT64_C(32) << 20)

/* Inputs, and as many outputs, that a request may have: of each table keys, offsets and weights,
 * and a few of the whole. */
static inline uint64_t kserve_tensors_max(const struct hps_decode_limits *limits)
{
    return (uint64_t)limits->tables_max * 3 + 8;
}

enum kserve_datatype {
    KSERVE_UNKNOWN, /* one that hpsd has no tensor of */
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
size_t kserve_datatype_bytes(enum kserve_datatype datatype); /* of a value; 0: KSERVE_UNKNOWN */

/* An input. Its values are there: `size` is product(shape) * bytes of the datatype, which who read
 * the request has checked. */
struct kserve_tensor {
    struct kserve_text name;
    enum kserve_datatype datatype; /* not KSERVE_UNKNOWN */
    unsigned n_dims;
    int64_t shape[KSERVE_DIMS_MAX]; /* none below 0; the product is below 2^31 */
    const uint8_t *data;            /* little-endian, any alignment; NULL where size is 0 */
    size_t size;
};

/* An output that was asked for. */
struct kserve_output {
    struct kserve_text name;
    bool binary; /* HTTP: its values behind the JSON, not in it; gRPC: true */
};

/* A request, whoever read it. */
struct kserve_infer {
    struct kserve_text model;         /* with ".tables", if that view is asked for */
    struct kserve_text model_version; /* a number, a label, or empty: the active one */
    struct kserve_text id;            /* echoed */
    struct kserve_tensor *inputs;     /* [n_inputs], no name twice */
    uint32_t n_inputs;
    struct kserve_output *outputs; /* [n_outputs], no name twice; none: all that the view has, but
                                      for STATUS */
    uint32_t n_outputs;
    bool binary; /* HTTP: what outputs are that name nothing else (binary_data_output) */

    /* Parameters that hpsd knows; what others say is ignored, where it is legal. */
    uint64_t timeout_us;            /* from the arrival of the request; 0: none */
    struct kserve_text miss_policy; /* hps_miss_policy: exact, wait, memory_only, threshold */
    int64_t wait_us_max;            /* hps_max_wait_us; -1: not given */
    struct kserve_text output_type; /* hps_output_type: FP32, FP16, BF16 */
    struct kserve_text pooling;     /* hps_pooling: sum, mean, mean_by_count, sqrtn */
};

/* ---- tensor.c -------------------------------------------------------------------------------- */

struct kserve_parameter {
    struct kserve_text name;
    enum { KSERVE_PARAMETER_TEXT, KSERVE_PARAMETER_NUMBER, KSERVE_PARAMETER_OTHER } type;
    struct kserve_text text; /* of KSERVE_PARAMETER_TEXT */
    int64_t number;          /* of KSERVE_PARAMETER_NUMBER: an integer that int64 holds */
};
/* What a parameter of the request says. Those that hpsd has nothing to do with (`sequence_*`,
 * `priority`, names that it does not know) are ignored; what a value may be is for whoever uses it.
 *
 * error   INVALID: `hps_*` that hpsd does not know, `triton_*` (reserved, but for
 *         triton_enable_empty_final_response), another type than it has, a number below 0: it names
 *         the parameter
 */
hps_status kserve_take_parameter(struct kserve_infer *infer,
                                 const struct kserve_parameter *parameter, struct hps_error *err)
    HPS_MUST_CHECK;

/* A parameter of an input or output, which `tensor` names ("input", "output"): there is none that
 * hpsd does something for, beside those that say where in an HTTP body the values are.
 *
 * error   UNIMPLEMENTED: shared memory, classification; INVALID: `hps_*`
 */
enum kserve_side { KSERVE_INPUT, KSERVE_OUTPUT };
hps_status kserve_check_parameter(enum kserve_side side, struct kserve_text tensor,
                                  struct kserve_text parameter, struct hps_error *err)
    HPS_MUST_CHECK;

/* Bytes of an input of that datatype and shape; its `data` and `size` are not looked at.
 * error   INVALID: the shape, or a datatype of which hpsd has no tensor: it names the input */
hps_status kserve_tensor_bytes(const struct kserve_tensor *tensor, size_t *out_size,
                               struct hps_error *err) HPS_MUST_CHECK;

/* All that struct kserve_tensor and kserve_infer promise of inputs and outputs, when they are all
 * there: bytes that go with the shape, names that nobody else has. For whoever reads a request.
 *
 * error   INVALID: it names the tensor and both sizes; EXHAUSTED: the arena is full
 */
hps_status kserve_check_tensors(const struct kserve_infer *infer, struct hps_arena *arena,
                                struct hps_error *err) HPS_MUST_CHECK;

/* ---- infer_grpc.c, infer_http.c -------------------------------------------------------------- */

/* Set model, version and id of a ModelInferRequest from its first 64 fields. Stock clients send
 * them before the tensors. A field that cannot be read stays unset. */
void kserve_infer_grpc_names(const uint8_t *data, size_t size, struct kserve_infer *infer);
/* ModelInferRequest, by a bounded decoder that points into the message; values of `contents` are
 * put into the arena as they would be in raw_input_contents. On failure *out has model, version and
 * id.
 * error   INVALID: names the field; EXHAUSTED: the arena is full */
hps_status kserve_infer_grpc(const uint8_t *data, size_t size,
                             const struct hps_decode_limits *limits, struct hps_arena *arena,
                             struct kserve_infer *out, struct hps_error *err) HPS_MUST_CHECK;

/* The body of POST /v2/models/M[/versions/V]/infer; model and model_version are the caller's.
 *
 * unit    json_size bytes of JSON at the front (Inference-Header-Content-Length); tensors follow;
 *         SIZE_MAX: no such header, all is JSON
 * error   as above
 */
hps_status kserve_infer_http(const uint8_t *data, size_t size, size_t json_size,
                             const struct hps_decode_limits *limits, struct hps_arena *arena,
                             struct kserve_infer *out, struct hps_error *err) HPS_MUST_CHECK;

/* ---- infer_view.c ---------------------------------------------------------------------------- */

/* One output of an answer: rows of a part, of all parts, or the status of all keys. */
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

/* What an answer needs of its request. */
struct kserve_answer {
    struct kserve_text model; /* as asked for */
    struct kserve_text id;
    bool by_position;       /* the view of KEYS and NUMKEYS */
    uint32_t n_samples;     /* by position: 1 or more */
    const uint32_t *counts; /* [n_samples][parts] numbers of keys; NULL: one sample */
    struct kserve_answer_output
        *outputs; /* [n_outputs] in the order in which they were asked for */
    uint32_t n_outputs;
};

/* The look-up that a request asks for, and what its answer needs.
 * error   INVALID: it names tensor, value and limit; EXHAUSTED */
hps_status kserve_view(const struct kserve_infer *infer, const struct hps_decode_limits *limits,
                       struct hps_arena *arena, struct hps_lookup_request *out_request,
                       struct kserve_answer *out_answer, struct hps_error *err) HPS_MUST_CHECK;
/* Set model and version alone, for a request that is refused. They stay empty if the version is
 * invalid. */
void kserve_view_names(const struct kserve_infer *infer, struct hps_lookup_request *out_request);
/* One output of a look-up that is done.
 *
 * shape   shape[n_dims]: values; slices: [1 + parts of the look-up] bytes in the order of the
 *         output, `size` together, which point into the rows, or the arena (STATUS)
 */
struct kserve_values {
    enum kserve_datatype datatype;
    unsigned n_dims;
    int64_t shape[2];
    const struct kserve_text *pieces; /* [n_pieces], owner: the arena */
    uint32_t n_pieces;
    uint64_t size;
};
/* Of each output of an answer, and how many pieces they have together.
 *
 * shape   *out_values [n_outputs], owner: the arena
 * owner   *out_rows: the block of the rows, with a reference for the caller. It is `rows`, the
 *         block of the lookup (may be NULL), or a copy in the order of the samples.
 * error   EXHAUSTED: the arena is full; NO_MEMORY
 */
hps_status kserve_values_of_all(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                                struct hps_block *rows, struct hps_block_pool *pool,
                                struct hps_arena *arena, struct kserve_values **out_values,
                                size_t *out_pieces, struct hps_block **out_rows) HPS_MUST_CHECK;
/* Extra memory of an answer with several samples: the copy of the rows, and the counts. */
uint64_t kserve_samples_bytes(const struct kserve_answer *answer, const struct hps_lookup *lookup);
/* The bytes of one, known once the look-up is planned. */
uint64_t kserve_values_bytes_max(const struct hps_lookup *lookup,
                                 const struct kserve_answer_output *output);
/* NumSample of an answer: keys by the number of tables that the version has, rounded down. HPS
 * divided by the most that its configuration allows of a sample, which says nothing where a request
 * has fewer. */
int64_t kserve_num_sample(const struct hps_lookup *lookup);

/* ---- answer_grpc.c, answer_http.c ------------------------------------------------------------ */

/* ModelInferResponse: rows are slices of `rows` (lookup->block), the rest of a block of `pool`. An
 * upper bound of its bytes before the look-up has run: kserve_answer_grpc_bytes_max. As
 * hps_encode_lookup. */
uint64_t kserve_answer_grpc_bytes_max(const struct kserve_answer *answer,
                                      const struct hps_lookup *lookup);
hps_status kserve_answer_grpc(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                              struct hps_block *rows, struct hps_block_pool *pool,
                              struct hps_arena *arena, struct hps_encoded *out_encoded)
    HPS_MUST_CHECK;

/* The body of the answer: JSON, and behind it the tensors that are asked for so. Rows that are
 * asked for as JSON are written as the shortest numbers that read back as the same floats: where
 * many are, that is not for a thread that others wait for.
 *
 * unit    *out_json_size bytes of JSON at the front; what follows is slices of `rows`, but STATUS
 * error   INVALID: an output whose values JSON cannot say (NaN, infinities, FP16, BF16), by name;
 *         NO_MEMORY, EXHAUSTED
 */
uint64_t kserve_answer_http_bytes_max(const struct kserve_answer *answer,
                                      const struct hps_lookup *lookup);
hps_status kserve_answer_http(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                              struct hps_block *rows, struct hps_block_pool *pool,
                              struct hps_arena *arena, struct hps_encoded *out_encoded,
                              size_t *out_json_size, struct hps_error *err) HPS_MUST_CHECK;
/* Can the rows, of that type, be answered as they are asked for? Before the look-up, which would be
 * for nothing.
 * error   INVALID: as above */
hps_status kserve_answer_http_check(const struct kserve_answer *answer, enum hps_dtype output,
                                    struct hps_error *err) HPS_MUST_CHECK;

#endif
