/* SPDX-License-Identifier: Apache-2.0
 *
 * ModelInfer of KServe v2 as a lookup, in three steps:
 *
 *     infer_grpc.c, infer_http.c    bytes of a request -> struct kserve_infer
 *     infer_view.c                  struct kserve_infer -> struct hps_lookup_request
 *     answer_grpc.c, answer_http.c  lookup that is done -> bytes of the reply
 *
 * A model, here `dlrm`, has two views:
 *
 * - `dlrm` is the interface of NVIDIA's HPS. Its inputs are KEYS and NUMKEYS, which select tables
 *   by position. Each row of NUMKEYS is a sample. The output OUTPUT0 is flat: one sample after the
 *   other, and in each sample the rows of one table after the other.
 * - `dlrm.tables` has an input and an output for each table.
 *
 * All data here belongs to one request. It is in the arena of the request, or points into its
 * message. One thread at a time.
 */
#ifndef HPS_SERVER_KSERVE_INFER_H
#define HPS_SERVER_KSERVE_INFER_H

#include "base/arena.h"
#include "server/kserve/names.h"
#include "server/lookup/decode.h"
#include "server/lookup/encode.h"

/* Limits on a request that do not depend on the number of tables. */
enum {
    KSERVE_DIMS_MAX = 8,          /* dimensions of a shape */
    KSERVE_PARAMETERS_MAX = 64,   /* parameters of a request, a tensor or an output */
    KSERVE_VALUES_MAX = INT32_MAX /* values of a tensor: the product of its shape */
};
/* Limit in bytes on the rows and counts of a reply with several samples. The loop thread copies
 * these rows, and the limit keeps the copying short. */
#define KSERVE_SAMPLES_BYTES_MAX (UINT64_C(32) << 20)

/* Limit on the number of inputs of a request, and on the number of its outputs. A table has up to
 * three inputs (keys, offsets, weights). A request may have 8 inputs in addition. */
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
/* The name of a datatype, such as "INT64"; "?" for KSERVE_UNKNOWN. */
const char *kserve_datatype_name(enum kserve_datatype datatype);
/* The datatype of this name, which is name[size]; KSERVE_UNKNOWN: there is none. */
enum kserve_datatype kserve_datatype_of(const char *name, size_t size);
/* Bytes of one value; 0 for KSERVE_UNKNOWN. */
size_t kserve_datatype_bytes(enum kserve_datatype datatype);

/* An input. In a request that was read without error, `size` matches the shape: it is the product
 * of the dimensions, times the bytes of a value. */
struct kserve_tensor {
    struct kserve_text name;
    enum kserve_datatype datatype; /* not KSERVE_UNKNOWN */
    unsigned n_dims;
    int64_t shape[KSERVE_DIMS_MAX]; /* [n_dims] each 0 or more; the product is below 2^31 */
    const uint8_t *data; /* [size] values, little-endian, any alignment; may be NULL if size is 0 */
    size_t size;
};

/* A requested output. */
struct kserve_output {
    struct kserve_text name;
    /* HTTP: true if the values follow the JSON, false if they are in the JSON. gRPC: true. */
    bool binary;
};

/* A request of either transport. */
struct kserve_infer {
    struct kserve_text model;         /* ends in ".tables" for the view with an input per table */
    struct kserve_text model_version; /* a number, a label, or empty for the active version */
    struct kserve_text id;            /* id of the request; the reply has the same id */
    struct kserve_tensor *inputs;     /* [n_inputs], names are unique */
    uint32_t n_inputs;
    struct kserve_output *outputs; /* [n_outputs], names are unique */
    uint32_t n_outputs;            /* 0: all outputs of the view are requested, except STATUS */
    bool binary; /* HTTP: the default of outputs[].binary (parameter binary_data_output) */

    /* The parameters of the request that hpsd uses. Other parameters are ignored or rejected
     * (kserve_take_parameter). An empty text means that the parameter is not set. */
    uint64_t timeout_us;            /* `timeout`, counted from the request's arrival; 0: not set */
    struct kserve_text miss_policy; /* hps_miss_policy: exact, wait, memory_only, threshold */
    int64_t wait_us_max;            /* hps_max_wait_us; below 0: not set */
    struct kserve_text output_type; /* hps_output_type: FP32, FP16, BF16 */
    struct kserve_text pooling;     /* hps_pooling: sum, mean, mean_by_count, sqrtn */
};

/* ---- tensor.c -------------------------------------------------------------------------------- */

struct kserve_parameter {
    struct kserve_text name;
    enum { KSERVE_PARAMETER_TEXT, KSERVE_PARAMETER_NUMBER, KSERVE_PARAMETER_OTHER } type;
    struct kserve_text text; /* for KSERVE_PARAMETER_TEXT */
    int64_t number;          /* for KSERVE_PARAMETER_NUMBER */
};
/* Stores a parameter of the request in `infer`. Parameters that hpsd does not use (`sequence_*`,
 * `priority`, unknown names) are ignored. The values of texts are checked later, by kserve_view.
 *
 * error   INVALID: the name is an unknown `hps_*`; the name is a reserved `triton_*` other than
 *         triton_enable_empty_final_response; the type is wrong; or the number is below 0. The text
 *         names the parameter. */
hps_status kserve_take_parameter(struct kserve_infer *infer,
                                 const struct kserve_parameter *parameter, struct hps_error *err)
    HPS_MUST_CHECK;

enum kserve_side { KSERVE_INPUT, KSERVE_OUTPUT };
/* Checks a parameter of an input or output. tensor: the name of the input or output; parameter: the
 * name of the parameter. The caller handles the parameters that say where values are in an HTTP
 * body. This function rejects the parameters under "error", and ignores all others.
 *
 * error   UNIMPLEMENTED: shared memory, or classification of an output; INVALID: the name of the
 *         parameter begins with `hps_` */
hps_status kserve_check_parameter(enum kserve_side side, struct kserve_text tensor,
                                  struct kserve_text parameter, struct hps_error *err)
    HPS_MUST_CHECK;

/* Computes the bytes of an input from its datatype and shape; `data` and `size` are not used.
 * error   INVALID: the shape is invalid, or the datatype unsupported; the text names the input */
hps_status kserve_tensor_bytes(const struct kserve_tensor *tensor, size_t *out_size,
                               struct hps_error *err) HPS_MUST_CHECK;

/* Checks the inputs and outputs after a request is read. The size of each input must match its
 * shape. Names must not be empty, and must be unique among the inputs and among the outputs.
 *
 * error   INVALID: the text names the tensor; EXHAUSTED: the arena is full */
hps_status kserve_check_tensors(const struct kserve_infer *infer, struct hps_arena *arena,
                                struct hps_error *err) HPS_MUST_CHECK;

/* ---- infer_grpc.c, infer_http.c -------------------------------------------------------------- */

/* Sets model, model_version and id of `infer` from the ModelInferRequest in data[size]. Reads only
 * the first 64 fields of the message, because clients send these three before the tensors. Fields
 * that cannot be read stay unset. */
void kserve_infer_grpc_names(const uint8_t *data, size_t size, struct kserve_infer *infer);
/* Decodes the ModelInferRequest in data[size]. Texts and raw_input_contents in *out point into the
 * message; values in `contents` are copied to the arena in the same form. After an error *out has
 * only model, model_version and id.
 * error   INVALID: the message is malformed or exceeds a limit; the text names the field;
 *         EXHAUSTED: the arena is full */
hps_status kserve_infer_grpc(const uint8_t *data, size_t size,
                             const struct hps_decode_limits *limits, struct hps_arena *arena,
                             struct kserve_infer *out, struct hps_error *err) HPS_MUST_CHECK;

/* Decodes data[size], the body of POST /v2/models/M[/versions/V]/infer. The caller has set model
 * and model_version of *out.
 *
 * unit    json_size: bytes of JSON at the front of the body, from the header
 *         Inference-Header-Content-Length; the binary tensors follow. SIZE_MAX: there is no such
 *         header, and the whole body is JSON
 * error   as kserve_infer_grpc; also NO_MEMORY */
hps_status kserve_infer_http(const uint8_t *data, size_t size, size_t json_size,
                             const struct hps_decode_limits *limits, struct hps_arena *arena,
                             struct kserve_infer *out, struct hps_error *err) HPS_MUST_CHECK;

/* ---- infer_view.c ---------------------------------------------------------------------------- */

/* An output of a reply. A "part" is one table of a lookup (struct hps_lookup_part). */
enum kserve_output_kind {
    KSERVE_OUTPUT_FLAT,   /* OUTPUT0: the rows of all parts of the lookup, in one dimension */
    KSERVE_OUTPUT_TABLE,  /* the rows of one part, with shape [n_rows, dim] */
    KSERVE_OUTPUT_STATUS, /* STATUS: a UINT8 for each key, in the order of the keys */
    KSERVE_OUTPUT_KINDS
};

struct kserve_answer_output {
    struct kserve_text name;
    enum kserve_output_kind kind;
    uint32_t part; /* KSERVE_OUTPUT_TABLE: index of the part in the lookup; else 0 */
    bool binary;   /* as in kserve_output */
};

/* The data of a request that its reply needs. */
struct kserve_answer {
    struct kserve_text model; /* as in the request */
    struct kserve_text id;    /* as in the request; may be cut */
    bool by_position;         /* the request used the view with KEYS and NUMKEYS */
    uint32_t n_samples;       /* by_position: samples of the request, 1 or more */
    /* [n_samples][parts of the lookup] number of keys of each sample and part. NULL if n_samples is
     * 1. */
    const uint32_t *counts;
    struct kserve_answer_output *outputs; /* [n_outputs] in the order of the request */
    uint32_t n_outputs;
};

/* Converts a request that was read without error to a lookup (*out_request). *out_answer gets the
 * data that the reply needs.
 * error   INVALID: the text names the tensor or parameter, and its value; EXHAUSTED: the arena is
 *         full */
hps_status kserve_view(const struct kserve_infer *infer, const struct hps_decode_limits *limits,
                       struct hps_arena *arena, struct hps_lookup_request *out_request,
                       struct kserve_answer *out_answer, struct hps_error *err) HPS_MUST_CHECK;
/* For a request that is rejected: zeroes *out_request, and sets its model, version and label. If
 * the version is invalid, all three stay empty. */
void kserve_view_names(const struct kserve_infer *infer, struct hps_lookup_request *out_request);
/* The values of an output, after the lookup. */
struct kserve_values {
    enum kserve_datatype datatype;
    unsigned n_dims;
    int64_t shape[2]; /* [n_dims] */
    /* The bytes of the values are the pieces, one after the other. Each piece points into the block
     * of the rows or, for STATUS, into the arena. */
    const struct kserve_text *pieces; /* [n_pieces] in the arena */
    uint32_t n_pieces;
    uint64_t size; /* bytes of all pieces */
};
/* Finds the values of each output of a reply. rows: the block of the lookup's rows; may be NULL. If
 * the reply has several samples, the rows are copied to a new block in the order of the samples.
 *
 * shape   *out_values [n_outputs], in the arena
 * unit    *out_pieces: number of pieces of all outputs
 * owner   *out_rows: the block into which the values point, `rows` or the copy; the caller gets a
 *         reference
 * error   EXHAUSTED: the arena is full; NO_MEMORY */
hps_status kserve_values_of_all(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                                struct hps_block *rows, struct hps_block_pool *pool,
                                struct hps_arena *arena, struct kserve_values **out_values,
                                size_t *out_pieces, struct hps_block **out_rows) HPS_MUST_CHECK;
/* Bytes of additional memory for a reply with several samples: the copy of the rows, and the
 * counts. 0 for one sample. The lookup must be planned. */
uint64_t kserve_samples_bytes(const struct kserve_answer *answer, const struct hps_lookup *lookup);
/* Upper bound of the bytes of an output's values. The lookup must be planned. */
uint64_t kserve_values_bytes_max(const struct hps_lookup *lookup,
                                 const struct kserve_answer_output *output);
/* The parameter NumSample of a reply: the number of keys divided by the number of tables of the
 * version, rounded down. HPS instead divides by the largest number of keys that its configuration
 * allows for a sample, so its value is wrong for smaller requests. */
int64_t kserve_num_sample(const struct hps_lookup *lookup);

/* ---- answer_grpc.c, answer_http.c ------------------------------------------------------------ */

/* Upper bound of the bytes of the ModelInferResponse. The lookup must be planned. */
uint64_t kserve_answer_grpc_bytes_max(const struct kserve_answer *answer,
                                      const struct hps_lookup *lookup);
/* Encodes the ModelInferResponse of a lookup that is done. rows: the block with the lookup's rows;
 * may be NULL. Owner and errors: as hps_encode_lookup. */
hps_status kserve_answer_grpc(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                              struct hps_block *rows, struct hps_block_pool *pool,
                              struct hps_arena *arena, struct hps_encoded *out_encoded)
    HPS_MUST_CHECK;

/* Upper bound of the bytes of the HTTP body. The lookup must be planned. */
uint64_t kserve_answer_http_bytes_max(const struct kserve_answer *answer,
                                      const struct hps_lookup *lookup);
/* Encodes the HTTP body of the reply: JSON, followed by the values of binary outputs. A float in
 * JSON is the shortest number that reads back as the same float. rows: the block with the lookup's
 * rows; may be NULL.
 *
 * owner   as hps_encode_lookup
 * error   INVALID: an output that is not binary has values that JSON cannot express: NaN, infinity,
 *         FP16 or BF16; the text names the output; NO_MEMORY; EXHAUSTED: the arena is full */
hps_status kserve_answer_http(const struct kserve_answer *answer, const struct hps_lookup *lookup,
                              struct hps_block *rows, struct hps_block_pool *pool,
                              struct hps_arena *arena, struct hps_encoded *out_encoded,
                              struct hps_error *err) HPS_MUST_CHECK;
/* Checks before the lookup that rows of type `output` can be returned as requested: only FP32 rows
 * can be in JSON.
 * error   INVALID: as kserve_answer_http */
hps_status kserve_answer_http_check(const struct kserve_answer *answer, enum hps_dtype output,
                                    struct hps_error *err) HPS_MUST_CHECK;

#endif
