/* SPDX-License-Identifier: Apache-2.0
 *
 * From records of the update log to the one batch that is applied: each record is decoded whole and
 * added, or left out whole with the reason. A bad record never spoils those around it. One batch at
 * a time, by the updater of the version.
 */
#ifndef HPS_SERVER_UPDATE_DECODE_H
#define HPS_SERVER_UPDATE_DECODE_H

#include <stdatomic.h>

#include "base/rows/update_record.h"
#include "cache/update/update.h"

/* Why a record was left out, behind those of HPS_UPDATE_REJECT_LIST; also labels of
 * update_records_rejected_total. */
#define HPS_UPDATE_BAD_TABLE "table" /* the model has none of that name */
#define HPS_UPDATE_BAD_DTYPE "dtype" /* rows of a type that the table does not take */
#define HPS_UPDATE_BAD_NOT_FINITE \
    "not_finite"                         /* NaN or Inf, or what the table's type cannot hold */
#define HPS_UPDATE_BAD_PAYLOAD "payload" /* no UpdateBatch, or one that contradicts itself */
#define HPS_UPDATE_BAD_HEADER  "header"  /* hps-version is no version; no hps-row-version */
#define HPS_UPDATE_BAD_VERSION "version" /* the record is for a version that is not loaded */

enum { HPS_UPDATE_TABLE_NONE = UINT32_MAX };

/* What a topic is to a version. */
struct hps_update_route {
    bool whole_model;  /* hps_et.<model>: packed records alone */
    uint32_t table_id; /* index; HPS_UPDATE_TABLE_NONE: the version has no such table */
    uint32_t source;   /* the caller's: records of different ones share no part */
};
/* Make the list of topics that may have updates of the version: hps_et.<model>, and
 * hps_et.<model>.<table> for each table, if a filter matches (base/rows/topic_filter.h). Any
 * thread.
 * owner   the caller frees *out_topics [*out_n]; the names are in the same block
 * error   INVALID: a filter is invalid; NO_MEMORY */
hps_status hps_update_topics(const struct hps_version *version, const char *const *filters,
                             uint32_t n_filters, const char ***out_topics, uint32_t *out_n,
                             struct hps_error *err) HPS_MUST_CHECK;
/* false: it is not of this model. Any thread. */
bool hps_update_route(const struct hps_version *version, const char *topic,
                      struct hps_update_route *out_route);

/* A record as the log has it; NULL is Kafka's null. */
struct hps_update_bytes {
    const void *key, *value, *version_header, *row_version_header, *dtype_header;
    size_t key_size, value_size, version_header_size, row_version_header_size, dtype_header_size;
};

/* What became of a record. */
struct hps_update_fate {
    const char *bad;           /* NULL, or why it was left out; static text */
    int64_t version;           /* that it names; 0: none */
    bool for_other;            /* it is not for this version: nothing was added */
    uint64_t n_keys;           /* added */
    int64_t event_time_ms;     /* that it carries itself; 0: none */
    enum hps_update_form form; /* 0: not known */
};

struct hps_update_decoder;

struct hps_update_decoder_options {
    const struct hps_version *version; /* borrowed */
    uint32_t key_bytes;                /* of HCTR pairs: 8; or 4, and all keys are narrowed */
    const atomic_bool *nan_allowed;    /* borrowed */
};

/* NULL: no memory. */
struct hps_update_decoder *hps_update_decoder_new(const struct hps_update_decoder_options *options);
void hps_update_decoder_free(struct hps_update_decoder *decoder); /* NULL is legal */

/* Decode and add. `follows`: whether this version takes records that name no version.
 *
 * out_fate  set on OK: also for a record that is bad, whose reason `err` tells
 * error     NO_MEMORY: nothing was added, the same record may come again
 */
hps_status hps_update_decoder_add(struct hps_update_decoder *decoder,
                                  const struct hps_update_route *route,
                                  const struct hps_update_bytes *record, bool follows,
                                  struct hps_update_fate *out_fate, struct hps_error *err)
    HPS_MUST_CHECK;

uint64_t hps_update_decoder_keys(const struct hps_update_decoder *decoder);
uint64_t hps_update_decoder_bytes(const struct hps_update_decoder *decoder); /* of keys and rows */
/* The parts so far, in order; they stay as they are until the next add or clear. NO_MEMORY. */
hps_status hps_update_decoder_parts(struct hps_update_decoder *decoder,
                                    const struct hps_update_part **out_parts, uint32_t *out_n_parts)
    HPS_MUST_CHECK;
void hps_update_decoder_clear(struct hps_update_decoder *decoder);

#endif
