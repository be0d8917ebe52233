/* SPDX-License-Identifier: Apache-2.0
 *
 * Names in KServe requests: a model in one of its two views, and a version. Any thread.
 *
 *     dlrm           KEYS and NUMKEYS -> OUTPUT0 (and STATUS), tables by position
 *     dlrm.tables    for each table `t`: t, t.offsets, t.weights -> t
 */
#ifndef HPS_SERVER_KSERVE_NAMES_H
#define HPS_SERVER_KSERVE_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

#define KSERVE_KEYS    "KEYS"
#define KSERVE_NUMKEYS "NUMKEYS"
#define KSERVE_OUTPUT0 "OUTPUT0"
#define KSERVE_STATUS  "STATUS"
/* STATUS for models with a table named STATUS: table names have no dot. */
#define KSERVE_STATUS_ANY "hps.STATUS"
#define KSERVE_TABLES     ".tables" /* suffix of a model's name, which has no '.' */
#define KSERVE_OFFSETS    ".offsets"
#define KSERVE_WEIGHTS    ".weights"
#define KSERVE_PLATFORM   "hps" /* and backend */

struct kserve_text { /* not terminated */
    const char *at;
    size_t size;
};
/* Two arguments for "%.*s", cut to the size of an error. */
#define KSERVE_TEXT_ARGS(text) \
    ((text).size < 256 ? (int)(text).size : 256), ((text).at == NULL ? "" : (text).at)

static inline bool kserve_is(struct kserve_text text, const char *name)
{
    return hps_text_is(name, text.at, text.size);
}
/* Any total order, for qsort and bsearch. */
int kserve_text_compare(const struct kserve_text *left, const struct kserve_text *right);

/* Removes the suffix KSERVE_TABLES from the name of a model. False: it has no such suffix. */
bool kserve_take_tables(struct kserve_text *model);

/* The version that a text means: digits are a number, an empty text is the active version, other
 * texts are labels. */
struct kserve_version {
    int64_t number; /* 0: by label, or the active version if that is empty */
    struct kserve_text label;
};
/* Parses a version.
 * error   INVALID: a number below 0 or above int64 */
hps_status kserve_version_read(struct kserve_text text, struct kserve_version *out_version,
                               struct hps_error *err) HPS_MUST_CHECK;

/* Sets *err to NOT_FOUND for a model, or for that version of it (NULL: the model). The text has
 * Triton's words, for which clients look. */
void kserve_say_not_found(struct kserve_text model, const struct kserve_version *version,
                          struct hps_error *err);

#endif
