/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes records of the update log into the parts of a batch. A record is added as a whole, or
 * rejected as a whole with a reason. A decoder has one batch at a time, and is used by one thread:
 * `update`.
 */
#ifndef HPS_SERVER_UPDATE_SINK_DECODE_H
#define HPS_SERVER_UPDATE_SINK_DECODE_H

#include <stdatomic.h>

#include "base/rows/update_record.h"
#include "server/update/partition/options.h"
#include "server/update/partition/route.h"

/* Why a record is rejected, besides the reasons of HPS_UPDATE_REJECT_LIST. Also labels of
 * update_records_rejected_total. */
#define HPS_UPDATE_BAD_TABLE "table" /* the model has no table of that name */
#define HPS_UPDATE_BAD_DTYPE "dtype" /* rows of a type that the table does not take */
#define HPS_UPDATE_BAD_NOT_FINITE \
    "not_finite" /* NaN or Inf, or a value that the table's type cannot hold */
#define HPS_UPDATE_BAD_PAYLOAD "payload" /* not an UpdateBatch, or its fields contradict */
#define HPS_UPDATE_BAD_HEADER  "header"  /* hps-version is invalid; hps-row-version is missing */
#define HPS_UPDATE_BAD_VERSION "version" /* the record is for a version that is not loaded */

/* The result of decoding a record. */
struct hps_update_outcome {
    const char *bad;           /* why it was rejected, static; NULL: it was not */
    int64_t version;           /* the version that it names; 0: none */
    bool for_other;            /* it is not for this version: nothing was added */
    uint64_t n_keys;           /* that were added */
    int64_t event_time_ms;     /* that the record contains; 0: none */
    enum hps_update_form form; /* 0: not known */
};

struct hps_update_decoder;

/* Returns NULL if there is no memory. version, nan_allowed: borrowed. key_bytes: of HCTR pairs: 8;
 * or 4, and all keys are narrowed. */
struct hps_update_decoder *hps_update_decoder_new(const struct hps_version *version,
                                                  uint32_t key_bytes,
                                                  const atomic_bool *nan_allowed);
void hps_update_decoder_free(struct hps_update_decoder *decoder); /* may be NULL */

/* Decode a record and add it to the batch. ops: of the consumer that has it. follows: this version
 * takes records that name no version.
 *
 * out_outcome  set on OK: also for a rejected record; `err` then explains the reason
 * error        NO_MEMORY: nothing was added, and the record may be added later
 */
hps_status hps_update_decoder_add(struct hps_update_decoder *decoder,
                                  const struct hps_update_route *route,
                                  const struct hps_consumer_ops *ops,
                                  const struct hps_consumer_record *record, bool follows,
                                  struct hps_update_outcome *out_outcome, struct hps_error *err)
    HPS_MUST_CHECK;

/* The number of keys in the batch, with duplicates. */
uint64_t hps_update_decoder_keys(const struct hps_update_decoder *decoder);
/* The number of bytes of its keys and rows. */
uint64_t hps_update_decoder_bytes(const struct hps_update_decoder *decoder);
/* Get the parts of the batch, in order. They are borrowed until the next add or clear. */
const struct hps_update_part *hps_update_decoder_parts(struct hps_update_decoder *decoder,
                                                       uint32_t *out_n_parts);
/* Begin a new, empty batch; keeps the memory. */
void hps_update_decoder_clear(struct hps_update_decoder *decoder);

#endif
