/* SPDX-License-Identifier: Apache-2.0
 *
 * "Did you mean": the name of a list that is nearest to a misspelt one. Pure functions; any thread.
 */
#ifndef HPS_BASE_SUGGEST_H
#define HPS_BASE_SUGGEST_H

/* Start from zeros. */
struct hps_suggestion {
    const char *text; /* the nearest candidate so far; NULL: none is near */
    unsigned distance;
};

/* Keep `candidate` when it is nearer to `name` than what is held, and near enough to be what was
 * meant: within a third of its length, or `name` is its beginning. Case does not count.
 * owner: the caller keeps the candidates. */
void hps_suggest(struct hps_suggestion *best, const char *name, const char *candidate);

#endif
