/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of Triton's backend interface, major version 1, that this backend uses. The server
 * resolves these symbols when it loads the backend; there is no library to link. A call returns
 * NULL, or an error that the caller deletes, unless its line says otherwise. Objects are opaque.
 * Outputs are borrowed from the object, unless the comment of a call names an owner.
 */
#ifndef HPS_CLIENTS_TRITON_TRITON_ABI_H
#define HPS_CLIENTS_TRITON_TRITON_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct triton_error;
struct triton_message; /* a JSON document */
struct triton_backend;
struct triton_model;
struct triton_instance;
struct triton_request;
struct triton_input;
struct triton_response;
struct triton_output;

/* Triton passes these enums as `int`. */
enum triton_code {
    TRITON_UNKNOWN,
    TRITON_INTERNAL,
    TRITON_NOT_FOUND,
    TRITON_INVALID_ARG,
    TRITON_UNAVAILABLE,
    TRITON_UNSUPPORTED,
    TRITON_ALREADY_EXISTS,
    TRITON_CANCELLED /* unknown to servers without TRITONBACKEND_RequestIsCancelled */
};
enum triton_level { TRITON_INFO, TRITON_WARN, TRITON_ERROR, TRITON_VERBOSE };
enum triton_type { TRITON_INT32 = 8, TRITON_INT64 = 9, TRITON_FP32 = 11 };
enum triton_memory { TRITON_CPU, TRITON_CPU_PINNED, TRITON_GPU };
enum { TRITON_API_MAJOR = 1, TRITON_API_MINOR = 12 };
enum { TRITON_RESPONSE_FINAL = 1, TRITON_RELEASE_ALL = 1 };

#define TRITON_CALL    __attribute__((visibility("default")))
#define TRITON_YOUNGER __attribute__((weak, visibility("default"))) /* NULL: an older server */

/* ---- exported by a backend ------------------------------------------------------------------- */

struct triton_error *TRITONBACKEND_Initialize(struct triton_backend *backend) TRITON_CALL;
struct triton_error *TRITONBACKEND_Finalize(struct triton_backend *backend) TRITON_CALL;
struct triton_error *TRITONBACKEND_ModelInitialize(struct triton_model *model) TRITON_CALL;
struct triton_error *TRITONBACKEND_ModelFinalize(struct triton_model *model) TRITON_CALL;
struct triton_error *TRITONBACKEND_ModelInstanceInitialize(struct triton_instance *instance)
    TRITON_CALL;
struct triton_error *TRITONBACKEND_ModelInstanceFinalize(struct triton_instance *instance)
    TRITON_CALL;
/* After success the requests belong to the backend; the array stays the server's. */
struct triton_error *TRITONBACKEND_ModelInstanceExecute(struct triton_instance *instance,
                                                        struct triton_request **requests,
                                                        uint32_t n_requests) TRITON_CALL;

/* ---- provided by the server ------------------------------------------------------------------ */

struct triton_error *TRITONSERVER_ErrorNew(int code, const char *text); /* owner: the caller */
void TRITONSERVER_ErrorDelete(struct triton_error *error);
int TRITONSERVER_ErrorCode(struct triton_error *error);
const char *TRITONSERVER_ErrorMessage(struct triton_error *error);
struct triton_error *TRITONSERVER_MessageSerializeToJson(struct triton_message *message,
                                                         const char **out_text, size_t *out_size);
struct triton_error *TRITONSERVER_MessageDelete(struct triton_message *message);
struct triton_error *TRITONSERVER_LogMessage(int level, const char *file, int line,
                                             const char *text);

struct triton_error *TRITONBACKEND_ApiVersion(uint32_t *out_major, uint32_t *out_minor);
struct triton_error *TRITONBACKEND_BackendConfig(struct triton_backend *backend,
                                                 struct triton_message **out_config);
struct triton_error *TRITONBACKEND_BackendState(struct triton_backend *backend, void **out_state);
struct triton_error *TRITONBACKEND_BackendSetState(struct triton_backend *backend, void *state);
struct triton_error *TRITONBACKEND_ModelBackend(struct triton_model *model,
                                                struct triton_backend **out_backend);
struct triton_error *TRITONBACKEND_ModelName(struct triton_model *model, const char **out_name);
/* config_version: 1. owner: *out_config: the caller */
struct triton_error *TRITONBACKEND_ModelConfig(struct triton_model *model, uint32_t config_version,
                                               struct triton_message **out_config);
struct triton_error *TRITONBACKEND_ModelState(struct triton_model *model, void **out_state);
struct triton_error *TRITONBACKEND_ModelSetState(struct triton_model *model, void *state);
struct triton_error *TRITONBACKEND_ModelInstanceState(struct triton_instance *instance,
                                                      void **out_state);
struct triton_error *TRITONBACKEND_ModelInstanceSetState(struct triton_instance *instance,
                                                         void *state);
struct triton_error *TRITONBACKEND_ModelInstanceModel(struct triton_instance *instance,
                                                      struct triton_model **out_model);

struct triton_error *TRITONBACKEND_RequestInput(struct triton_request *request, const char *name,
                                                struct triton_input **out_input);
struct triton_error *TRITONBACKEND_RequestOutputName(struct triton_request *request, uint32_t index,
                                                     const char **out_name);
struct triton_error *TRITONBACKEND_RequestIsCancelled(struct triton_request *request,
                                                      bool *out_cancelled) TRITON_YOUNGER;
struct triton_error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
    struct triton_request *request, uint64_t *out_timeout_us) TRITON_YOUNGER;
struct triton_error *TRITONBACKEND_RequestRelease(struct triton_request *request, uint32_t flags);

/* n_dims: of *out_shape; n_buffers: 0 if the input is empty. Each output may be NULL. */
struct triton_error *TRITONBACKEND_InputProperties(struct triton_input *input,
                                                   const char **out_name, int *out_type,
                                                   const int64_t **out_shape, uint32_t *out_n_dims,
                                                   uint64_t *out_bytes, uint32_t *out_n_buffers);
/* io_memory, io_device: where the caller wants the buffer, then where it is */
struct triton_error *TRITONBACKEND_InputBuffer(struct triton_input *input, uint32_t index,
                                               const void **out_buffer, uint64_t *out_bytes,
                                               int *io_memory, int64_t *io_device);

/* owner: *out_response: the caller, until ResponseSend */
struct triton_error *TRITONBACKEND_ResponseNew(struct triton_response **out_response,
                                               struct triton_request *request);
struct triton_error *TRITONBACKEND_ResponseOutput(struct triton_response *response,
                                                  struct triton_output **out_output,
                                                  const char *name, int type, const int64_t *shape,
                                                  uint32_t n_dims);
/* *out_buffer is NULL if `bytes` is 0. */
struct triton_error *TRITONBACKEND_OutputBuffer(struct triton_output *output, void **out_buffer,
                                                uint64_t bytes, int *io_memory, int64_t *io_device);
struct triton_error *TRITONBACKEND_ResponseSetIntParameter(struct triton_response *response,
                                                           const char *name, int64_t value);
/* Takes the response, also when it fails. `error` stays the caller's. */
struct triton_error *TRITONBACKEND_ResponseSend(struct triton_response *response, uint32_t flags,
                                                struct triton_error *error);

/* Times are nanoseconds of CLOCK_MONOTONIC. */
struct triton_error *TRITONBACKEND_ModelInstanceReportStatistics(
    struct triton_instance *instance, struct triton_request *request, bool success,
    uint64_t exec_start_ns, uint64_t compute_start_ns, uint64_t compute_end_ns,
    uint64_t exec_end_ns);
struct triton_error *TRITONBACKEND_ModelInstanceReportBatchStatistics(
    struct triton_instance *instance, uint64_t batch_size, uint64_t exec_start_ns,
    uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t exec_end_ns);

#endif
