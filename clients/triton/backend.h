/* SPDX-License-Identifier: Apache-2.0
 *
 * Triton's backend "hps": a model of Triton becomes a model of hpsd.
 *
 *     backend.c   the functions that Triton calls, except Execute
 *     config.c    --backend-config=hps,NAME=VALUE, and config.pbtxt
 *     request.c   the tensors of a request -> keys by table
 *     call.c      Execute: a request -> a lookup -> a response
 *     watch.c     cancels the lookups of cancelled requests
 *     gpu.c       copies from and to GPU memory
 */
#ifndef HPS_CLIENTS_TRITON_BACKEND_H
#define HPS_CLIENTS_TRITON_BACKEND_H

#include "base/lock.h"
#include "base/status.h"
#include "base/worker.h"
#include "client/hpsd.h"
#include "clients/triton/triton_abi.h"

/* ---- config.c -------------------------------------------------------------------------------- */

/* Values of --backend-config=hps,NAME=VALUE. NULL or 0: not set. */
struct hps_triton_config {
    char *addresses; /* addr, or $HPSD_LOOKUP_ADDR, or "127.0.0.1:8601" */
    char *token_file, *tls_ca, *tls_cert, *tls_key;
    bool token_in_clear;
    char *ignored; /* ps */
    uint64_t timeout_us;
    uint32_t connections;
};

/* Reads the JSON of TRITONBACKEND_BackendConfig.
 * owner: *out: the caller, hps_triton_config_free
 * error: INVALID: a value is invalid; NO_MEMORY */
hps_status hps_triton_config_read(const char *json, size_t size, struct hps_triton_config *out,
                                  struct hps_error *err) HPS_MUST_CHECK;
void hps_triton_config_free(struct hps_triton_config *config);
/* Checks the JSON of TRITONBACKEND_ModelConfig: names and types of the inputs and outputs.
 * error: INVALID */
hps_status hps_triton_config_check_model(const char *json, size_t size, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- watch.c --------------------------------------------------------------------------------- */

/* The lookups in flight. A thread polls whether their requests are cancelled. */
struct hps_triton_watch {
    struct hps_lock lock;
    struct hps_cond wake;
    struct hps_worker worker;
    bool stopping;
    bool parked; /* the thread waits for `wake`, without a time limit */
    struct hps_triton_watched *first;
};

/* Embedded in a call. Under the lock of the watch. */
struct hps_triton_watched {
    struct hps_triton_watched *next, *prev;
    bool listed, ended;
    struct triton_request *request;
    struct hpsd_client *client;
    uint64_t id; /* of its newest attempt */
};

hps_status hps_triton_watch_start(struct hps_triton_watch *watch) HPS_MUST_CHECK;
/* No lookup may be in flight. */
void hps_triton_watch_stop(struct hps_triton_watch *watch);
/* Adds an attempt of a lookup, unless the lookup has ended. The ids of its attempts increase. */
void hps_triton_watch_add(struct hps_triton_watch *watch, struct hps_triton_watched *watched,
                          uint64_t id);
/* After it returns the watch does not use the request any more. */
void hps_triton_watch_end(struct hps_triton_watch *watch, struct hps_triton_watched *watched);

/* ---- gpu.c ----------------------------------------------------------------------------------- */

/* Copies between memory of any kind. Loads libcudart on first use.
 * error: UNIMPLEMENTED: there is no libcudart; INTERNAL: it failed */
hps_status hps_triton_gpu_copy(void *to, const void *from, size_t size, struct hps_error *err)
    HPS_MUST_CHECK;

/* ---- request.c ------------------------------------------------------------------------------- */

/* The tensors of a request, borrowed from it or owned. */
struct hps_triton_keys {
    const uint8_t *keys;   /* [n_keys] int64, unaligned; with several samples sorted by table */
    const uint8_t *counts; /* [n_samples][n_tables] int32, unaligned */
    size_t n_keys;
    uint32_t n_samples, n_tables;
    void *owned[3];
};

/* error: INVALID: a tensor is malformed; the errors of hps_triton_gpu_copy; NO_MEMORY
 * owner: *out: the caller, hps_triton_keys_free; it borrows from the request */
hps_status hps_triton_keys_read(struct triton_request *request, struct hps_triton_keys *out,
                                struct hps_error *err) HPS_MUST_CHECK;
void hps_triton_keys_free(struct hps_triton_keys *keys);
/* A count of NUMKEYS, and the sum of all counts of a table. */
size_t hps_triton_keys_count(const struct hps_triton_keys *keys, uint32_t sample, uint32_t table);
size_t hps_triton_keys_of_table(const struct hps_triton_keys *keys, uint32_t table);

/* ---- backend.c, call.c ----------------------------------------------------------------------- */

struct hps_triton_backend {
    struct hps_triton_config config;
    struct hps_triton_watch watch;
};

struct hps_triton_model {
    struct hps_triton_backend *backend;
    char *name;
    struct hps_lock lock;
    uint32_t *dims; /* [n_dims] of the tables by position, in this version */
    uint32_t n_dims;
    int64_t version; /* of the last replies */
};

/* Each instance has a client, and so a connection and a thread. */
struct hps_triton_instance {
    struct triton_instance *triton;
    struct hps_triton_model *model;
    struct hpsd_client *client;
};

/* Takes a request: starts its lookup, which answers it later, or answers it now. */
void hps_triton_call_start(struct hps_triton_instance *instance, struct triton_request *request);

/* NULL for HPS_OK, else a new error of Triton with its nearest code. */
struct triton_error *hps_triton_error(hps_status status, const char *text);
/* Deletes an error of Triton, which may be NULL, and returns it as a status. */
hps_status hps_triton_taken(struct triton_error *error, struct hps_error *err);
hps_status hps_triton_status(const struct hpsd_error *error);
void hps_triton_log(enum triton_level level, const char *fmt, ...) HPS_PRINTF(2, 3);

#endif
