/* SPDX-License-Identifier: Apache-2.0
 *
 * What requests of KServe call things: a model in one of its two views, and a version of it. Any
 * thread.
 *
 *     dlrm           KEYS and NUMKEYS -> OUTPUT0 (and STATUS), tables by their position
 *     dlrm.tables    of each table `t`: t, t.offsets, t.weights -> t
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
/* The same where a table is called STATUS: no table has a dot in its name. */
#define KSERVE_STATUS_ANY "hps.STATUS"
#define KSERVE_TABLES     ".tables" /* behind the name of a model, which itself has no '.' */
#define KSERVE_OFFSETS    ".offsets"
#define KSERVE_WEIGHTS    ".weights"
#define KSERVE_PLATFORM   "hps" /* and backend */

struct kserve_text { /* not terminated */
    const char *at;
    size_t size;
};
/* Two arguments of "%.*s": no more of it than an error holds. */
#define KSERVE_TEXT_ARGS(text) \
    ((text).size < 256 ? (int)(text).size : 256), ((text).at == NULL ? "" : (text).at)

static inline bool kserve_is(struct kserve_text text, const char *name)
{
    return hps_text_is(name, text.at, text.size);
}
/* Any total order, for qsort and bsearch. */
int kserve_text_compare(const struct kserve_text *left, const struct kserve_text *right);

/* Take KSERVE_TABLES off the name of a model. False: it has none, and is as it was. */
bool kserve_take_tables(struct kserve_text *model);

/* Which version a text means: digits are a number, anything else is a label, nothing the active
 * one. */
struct kserve_version {
    int64_t number;           /* 0: the active one, or what the label says */
    struct kserve_text label; /* size 0: none */
};
/* error   INVALID: a number that no version has */
hps_status kserve_version_read(struct kserve_text text, struct kserve_version *out_version,
                               struct hps_error *err) HPS_MUST_CHECK;

/* Make *err that a model, or that version of it (NULL: the model itself), is not there, in the
 * words that clients of Triton look for. */
void kserve_say_not_found(struct kserve_text model, const struct kserve_version *version,
                          struct hps_error *err);

#endif
