/* SPDX-License-Identifier: Apache-2.0
 *
 * A small backend for Triton, for tests and comparisons. A model with the input KEYS answers rows
 * of 32 zeroes. A model with the input ROWS is a dense step: its output is the sum of ROWS.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clients/triton/triton_abi.h"

enum { DIM = 32 };

struct triton_error *TRITONBACKEND_Initialize(struct triton_backend *backend)
{
    (void)backend;
    return NULL;
}

struct triton_error *TRITONBACKEND_Finalize(struct triton_backend *backend)
{
    (void)backend;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelInitialize(struct triton_model *model)
{
    (void)model;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelFinalize(struct triton_model *model)
{
    (void)model;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelInstanceInitialize(struct triton_instance *instance)
{
    (void)instance;
    return NULL;
}

struct triton_error *TRITONBACKEND_ModelInstanceFinalize(struct triton_instance *instance)
{
    (void)instance;
    return NULL;
}

static void must(struct triton_error *error)
{
    if (error != NULL) {
        abort();
    }
}

/* The sum of an input, in the order of its values, as float32. */
static float sum_of(struct triton_input *input, uint32_t n_pieces)
{
    float sum = 0;

    for (uint32_t i = 0; i < n_pieces; i++) {
        const void *piece;
        uint64_t size;
        int memory = TRITON_CPU;
        int64_t device = 0;
        must(TRITONBACKEND_InputBuffer(input, i, &piece, &size, &memory, &device));
        for (uint64_t at = 0; at < size; at += sizeof(float)) {
            float value;
            memcpy(&value, (const char *)piece + at, sizeof(value));
            sum += value;
        }
    }
    return sum;
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void answer(struct triton_instance *instance, struct triton_request *request)
{
    uint64_t begin_ns = now_ns();
    struct triton_response *response;
    struct triton_output *output;
    struct triton_input *input;
    const char *name;
    uint64_t n_bytes;
    uint32_t n_pieces;
    void *to;
    int memory = TRITON_CPU;
    int64_t device = 0;
    struct triton_error *error = TRITONBACKEND_RequestInput(request, "KEYS", &input);
    bool dense = error != NULL;

    if (dense) {
        TRITONSERVER_ErrorDelete(error);
        must(TRITONBACKEND_RequestInput(request, "ROWS", &input));
    }
    must(TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, &n_bytes, &n_pieces));
    const int64_t n_values = dense ? 1 : (int64_t)(n_bytes / sizeof(int64_t)) * DIM;
    uint64_t size = (uint64_t)n_values * sizeof(float);
    must(TRITONBACKEND_RequestOutputName(request, 0, &name));
    must(TRITONBACKEND_ResponseNew(&response, request));
    must(TRITONBACKEND_ResponseOutput(response, &output, name, TRITON_FP32, &n_values, 1));
    must(TRITONBACKEND_OutputBuffer(output, &to, size, &memory, &device));
    if (size > 0) {
        memset(to, 0, size);
    }
    if (dense) {
        float sum = sum_of(input, n_pieces);
        memcpy(to, &sum, sizeof(sum));
    }
    must(TRITONBACKEND_ResponseSend(response, TRITON_RESPONSE_FINAL, NULL));
    uint64_t end_ns = now_ns();
    must(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, true, begin_ns, begin_ns,
                                                     end_ns, end_ns));
    must(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, 1, begin_ns, begin_ns, end_ns,
                                                          end_ns));
    must(TRITONBACKEND_RequestRelease(request, TRITON_RELEASE_ALL));
}

struct triton_error *TRITONBACKEND_ModelInstanceExecute(struct triton_instance *instance,
                                                        struct triton_request **requests,
                                                        uint32_t n_requests)
{
    for (uint32_t i = 0; i < n_requests; i++) {
        answer(instance, requests[i]);
    }
    return NULL;
}
