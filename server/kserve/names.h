/* SPDX-License-Identifier: Apache-2.0
 *
 * Names in KServe requests: the name of a model, which also selects one of its two views, and a
 * version. Below are the inputs -> outputs of the two views of a model `dlrm`. Any thread.
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
/* Another name of the output STATUS, for models with a table that is named STATUS. No table can
 * have the name hps.STATUS, because names of tables have no dot. */
#define KSERVE_STATUS_ANY "hps.STATUS"
#define KSERVE_TABLES     ".tables" /* suffix of a model's name, which itself has no dot */
#define KSERVE_OFFSETS    ".offsets"
#define KSERVE_WEIGHTS    ".weights"
#define KSERVE_PLATFORM   "hps" /* `platform` and `backend` in metadata and configuration */

struct kserve_text { /* not terminated by NUL; `at` may be NULL if size is 0 */
    const char *at;
    size_t size;
};
/* The two arguments of "%.*s" for a text. At most 256 bytes of the text are printed. */
#define KSERVE_TEXT_ARGS(text) \
    ((text).size < 256 ? (int)(text).size : 256), ((text).at == NULL ? "" : (text).at)

static inline bool kserve_is(struct kserve_text text, const char *name)
{
    return hps_text_is(name, text.at, text.size);
}
/* Compares two texts for qsort and bsearch: a total order, but not an alphabetical one. */
int kserve_text_compare(const struct kserve_text *left, const struct kserve_text *right);

/* Removes the suffix KSERVE_TABLES from the name of a model. False: it has no such suffix. */
bool kserve_take_tables(struct kserve_text *model);

/* The version that a request names. */
struct kserve_version {
    int64_t number;           /* 0: the request names a label or, if `label` is empty, no version */
    struct kserve_text label; /* empty if number is not 0 */
};
/* Parses the version of a request. Digits are a number, other texts are labels, and an empty text
 * means the active version. "0" counts as a label, which no version has.
 * error   INVALID: the number is below 0, or does not fit int64 */
hps_status kserve_version_read(struct kserve_text text, struct kserve_version *out_version,
                               struct hps_error *err) HPS_MUST_CHECK;

/* Sets *err to NOT_FOUND for a version of a model or, if `version` is NULL, for the model. The text
 * is Triton's, because clients search for it. */
void kserve_say_not_found(struct kserve_text model, const struct kserve_version *version,
                          struct hps_error *err);

#endif
